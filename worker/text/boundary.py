"""Where a chat prompt ends that the next turn will share: before what only this turn has.

A template may end a prompt on tokens that it leaves out once the reply is history. How many
they are is found by rendering the conversation once more with a dummy reply, and remembered:
it depends on the template and its switches, not on what was said.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from bramley.common.errors import InvalidRequest
from bramley.worker.text.chat import render
from bramley.worker.text.tokenizer import Tokenizer

_REPLY = {"role": "assistant", "content": "x"}


class StableBoundary:
    """One model's template."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._own_tokens: dict[str, int] = {}

    def of(
        self, messages: Sequence[Mapping[str, Any]], kwargs: Mapping[str, Any], ids: Sequence[int]
    ) -> int:
        """Return how many leading tokens of the rendered ``ids`` the next turn shares."""
        key = json.dumps([messages[-1]["role"], kwargs], sort_keys=True)
        if key not in self._own_tokens:
            self._own_tokens[key] = len(ids) - self._shared(messages, kwargs, ids)
        return max(len(ids) - self._own_tokens[key], 0)

    def _shared(
        self, messages: Sequence[Mapping[str, Any]], kwargs: Mapping[str, Any], ids: Sequence[int]
    ) -> int:
        try:
            replied = render(self._tokenizer, [*messages, _REPLY], template_kwargs=kwargs)
        except InvalidRequest:  # a template that wants another order of roles
            return len(ids)
        pairs = enumerate(zip(ids, replied, strict=False))
        return next((place for place, (a, b) in pairs if a != b), min(len(ids), len(replied)))
