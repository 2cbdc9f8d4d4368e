"""Where a chat prompt ends that the next turn will share: before what only this turn has.

A template may end a prompt on tokens that it leaves out once the reply is history: the start of
reasoning, say. Where the next turn parts is found by rendering it with dummies: a reply and what
the user says to it, and where there are tools a call and its result. History often drops what was
reasoned before the user spoke last, so a turn that answers a tool is taken to be followed by
another call: what a reply shares beyond it, the user's own turn before has stored already.

Where the next turn parts within what the template adds for the answer, that depends on the
template and its switches and not on what was said, and is remembered.
"""

import json
from collections.abc import Sequence

from bramley.common.errors import InvalidRequest
from bramley.worker.engine.sharing import common
from bramley.worker.text.chat import Conversation
from bramley.worker.text.template import Message
from bramley.worker.text.tokenizer import Tokenizer

_REPLY: Sequence[Message] = (
    {"role": "assistant", "content": "x"},
    {"role": "user", "content": "x"},
)
_ID = "call00001"  # some templates want nine letters and digits


class StableBoundary:
    """One model's template."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._own_tokens: dict[str, int] = {}

    def tokens(self, conversation: Conversation, ids: Sequence[int]) -> int:
        """Return how many leading tokens of the rendered ``ids`` the next turn shares."""
        if conversation.is_continued:
            return len(ids)
        role = conversation.messages[-1]["role"]
        key = json.dumps([role, bool(conversation.tools), conversation.switches], sort_keys=True)
        if (own := self._own_tokens.get(key)) is not None:
            return max(len(ids) - own, 0)
        following = [self._shared(conversation, ids, more) for more in _following(conversation)]
        shared = min([len(ids), *following])
        closed = conversation.render(self._tokenizer, opens_answer=False)
        if shared >= common(closed, ids):
            self._own_tokens[key] = len(ids) - shared
        return shared

    def _shared(
        self, conversation: Conversation, ids: Sequence[int], more: Sequence[Message]
    ) -> int:
        try:
            following = conversation.followed_by(more).render(self._tokenizer)
        except InvalidRequest:  # a template that wants another order of roles
            return len(ids)
        return common(following, ids)


def _following(conversation: Conversation) -> Sequence[Sequence[Message]]:
    """What may come next."""
    name = conversation.tools[0].name if conversation.tools else "x"
    call = {"id": _ID, "type": "function", "function": {"name": name, "arguments": "{}"}}
    called: Sequence[Message] = (
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "x", "name": name, "tool_call_id": _ID},
    )
    if conversation.messages[-1]["role"] == "tool":
        return [called]
    return [_REPLY, called] if conversation.tools else [_REPLY]
