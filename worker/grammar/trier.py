"""Compiles grammars on trial, in a process that may die of one: ``python -m``, with a limit.

It reads grammars, each after its size, and answers each with a byte once it has been compiled or
refused; a byte comes first of all. It ends with its input, and with a grammar that takes too long,
too much memory or too deep a stack: nobody has to end it.
"""

import contextlib
import resource
import signal
import sys
import threading
from typing import TYPE_CHECKING, BinaryIO, Final

if TYPE_CHECKING:
    from llguidance import LLTokenizer

SIZE_BYTES: Final = 4
DONE: Final = b"."
# Half of what the threads have that compile what has passed here.
STACK_BYTES: Final = 4 << 20
MEMORY_BYTES: Final = 1 << 30  # where the system knows such a limit


def main() -> None:
    """Answer until the input ends."""
    limit_s = float(sys.argv[1])  # of the processor's time: a busy machine refuses nothing more
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its owner ends it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_serve, args=(limit_s, sys.stdin.buffer, sys.stdout.buffer))
    thread.start()
    thread.join()


def _serve(limit_s: float, asked: BinaryIO, told: BinaryIO) -> None:
    from llguidance import LLTokenizer  # noqa: PLC0415 -- who asks imports this module, too

    # The vocabulary hardly matters: what takes long, or deep, is the grammar itself.
    tokenizer = LLTokenizer("byte")
    _tell(told)
    while size := int.from_bytes(asked.read(SIZE_BYTES), "big"):
        lark = asked.read(size).decode()
        signal.setitimer(signal.ITIMER_PROF, limit_s)  # whose signal ends the process
        _compile(tokenizer, lark)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _tell(told)


def _compile(tokenizer: "LLTokenizer", lark: str) -> None:
    from llguidance import LLMatcher, LLParserLimits  # noqa: PLC0415 -- as above

    limits = LLParserLimits(verbose_errors=False)
    grammar = LLMatcher.grammar_from_lark(lark)
    LLMatcher(tokenizer, grammar, log_level=0, limits=limits).compute_bitmask()


def _tell(told: BinaryIO) -> None:
    told.write(DONE)
    told.flush()


if __name__ == "__main__":
    main()
