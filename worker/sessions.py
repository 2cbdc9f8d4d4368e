"""What was said so far, as ids: kept of every answer, recalled after a restart, forgotten.

The thread that tokenizes works on them, one thing after the other; the event loop asks.
"""

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor

from bramley.worker.text.provenance import Provenance, Vocabulary

ASKED_MAX = 4096  # sessions of which it is known that the store was asked

Recall = Callable[[bytes, str], Awaitable[Sequence[bytes] | None]]


class Sessions:
    """One model's.

    Args:
        vocabulary: of the model.
        text: the one thread of all that is about text.
    """

    def __init__(self, vocabulary: Vocabulary, text: Executor) -> None:
        self._provenance = Provenance(vocabulary)
        self._text = text
        self._asked: OrderedDict[tuple[bytes, str], None] = OrderedDict()

    async def ids(
        self, root: bytes, session_key: str, plain: Sequence[int], recall: Recall
    ) -> Sequence[int]:
        """Find the ids that a prompt's beginning was generated as.

        Args:
            root: of its namespace.
            session_key: of its session; empty for none.
            plain: the prompt, as the tokenizer cuts it.
            recall: asks the store for a session's sequences, oldest first.

        Returns:
            Ids of the same text.
        """
        if (root, session_key) not in self._asked:
            recalled = await recall(root, session_key)
            if (root, session_key) in self._asked:
                recalled = ()  # it was asked for, or closed, meanwhile
            elif recalled is not None:
                self._note_asked(root, session_key)
            for token_ids_le in recalled or ():
                self.keep(root, session_key, array("I", token_ids_le))
        loop = asyncio.get_running_loop()
        find = self._provenance.ids
        return await loop.run_in_executor(self._text, find, root, session_key, plain)

    def keep(self, root: bytes, session_key: str, ids: Sequence[int]) -> None:
        """Keep a prompt and its answer; whatever is asked later will find them."""
        self._run(self._provenance.keep, root, session_key, ids)

    async def forget(self, root: bytes, session_key: str) -> bool:
        """Forget a session, and ask nobody for it; says whether anything was kept."""
        self._note_asked(root, session_key)
        loop = asyncio.get_running_loop()
        forget = self._provenance.forget
        return await loop.run_in_executor(self._text, forget, root, session_key)

    def forget_namespace(self, root: bytes) -> None:
        """Forget all sessions of a namespace, until they are asked for again."""
        for name in [name for name in self._asked if name[0] == root]:
            del self._asked[name]
        self._run(self._provenance.forget_namespace, root)

    def _note_asked(self, root: bytes, session_key: str) -> None:
        self._asked[root, session_key] = None
        if len(self._asked) > ASKED_MAX:
            self._asked.popitem(last=False)

    def _run(self, step: Callable[..., None], *arguments: object) -> None:
        asyncio.get_running_loop().run_in_executor(self._text, step, *arguments)
