"""Joins Deltas that wait to be sent, so that a slow stream costs messages and not memory (pure)."""

from bramley.protos.v1 import generation_pb2


def can_join(first: generation_pb2.Delta, second: generation_pb2.Delta, tokens_max: int) -> bool:
    """Whether one Delta can say what two say.

    Within a Delta reasoning comes before text, and both before tool calls; ``tokens_max`` is
    the most tokens it may hold, 0 for any number. Deltas that leave their ids out do not tell how
    many they hold, and stay apart then.

    Returns:
        Whether ``join`` loses nothing.
    """
    if first.index != second.index or first.HasField("logprobs") != second.HasField("logprobs"):
        return False
    together = len(first.token_ids) + len(second.token_ids)
    if tokens_max and (not first.token_ids or together > tokens_max):
        return False
    if first.tool_calls and (second.text or second.reasoning_text):
        return False
    return not (first.text and second.reasoning_text)


def join(first: generation_pb2.Delta, second: generation_pb2.Delta) -> None:
    """Append ``second`` to ``first``."""
    text = first.text + second.text
    reasoning_text = first.reasoning_text + second.reasoning_text
    first.MergeFrom(second)  # lists grow; counts take the later value
    first.text = text
    first.reasoning_text = reasoning_text
