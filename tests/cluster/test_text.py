"""Streamed text through the whole cluster: exact, whole characters, stops and ends."""

import asyncio

import pytest

from bramley.client.events import Delta
from support.served import ENDLESS, ENDS, SAYS, Served, joined


def check(deltas: list[Delta], expected: str) -> None:
    assert joined(deltas) == expected
    assert not any("\ufffd" in delta.text for delta in deltas)


@pytest.mark.parametrize("beside", [0, 3])
@pytest.mark.parametrize("byte", ["\x01", "\x02", "\x03", "\x04", "\x0e"])
async def test_b001_b003_x1_streamed_text_is_the_exact_string(
    served: Served, byte: str, beside: int
) -> None:
    others = [served.streamed(ENDLESS, max_tokens=60) for _ in range(beside)]
    deltas, *_ = await asyncio.gather(served.streamed(byte), *others)
    check(deltas, SAYS[byte])
    assert (await served.completed("script", byte)).text == SAYS[byte]
    ids = [token for delta in deltas for token in delta.token_ids]
    whole = await served.client.detokenize("script", ids, skip_special_tokens=True)
    assert whole == SAYS[byte]


STOPS = [
    ("\x05", ["own fox"], "The quick br", "own fox"),
    ("\x06", ["ab", "abcd"], "xx", "ab"),
    ("\x07", ["</end>"], "a </en b", None),
    ("\x08", ["😀 t"], "one ", "😀 t"),
    ("\x08", ["two"], "one 😀 ", "two"),
]


@pytest.mark.parametrize(("byte", "stop", "text", "matched"), STOPS)
async def test_b004_stop_strings_over_token_borders(
    served: Served, byte: str, stop: list[str], text: str, matched: str | None
) -> None:
    check(await served.streamed(byte, stop=stop), text)
    whole = await served.completed("script", byte, stop=stop)
    chat = await served.client.complete(
        "script", messages=[{"role": "user", "content": byte}], stop=stop, temperature=0.0
    )
    for completion in (whole, chat):
        assert completion.text == text
        assert completion.finish_reason == ("stop" if matched is None else "stop_sequence")
        # Tokens, text and counts end at the same place.
        assert completion.usage.completion_tokens == len(completion.token_ids)
    if matched is not None:
        shown = len((text + matched).encode())
        assert whole.usage.completion_tokens == shown  # one byte, one token


async def test_b006_every_end_token_ends_the_turn_alone_and_in_one_batch(served: Served) -> None:
    alone = [await served.completed("script", byte) for byte in ENDS]
    together = await asyncio.gather(*[served.completed("script", byte) for byte in ENDS])
    for completions in (alone, together):
        assert [(one.text, one.finish_reason) for one in completions] == [("hi", "stop")] * 3
        assert [one.token_ids[-1] for one in completions] == list(ENDS.values())


async def test_b006_ignored_end_tokens_do_not_end_it(served: Served) -> None:
    for byte in ENDS:
        one = await served.completed("script", byte, ignore_eos=True, max_tokens=9)
        assert (one.finish_reason, len(one.token_ids)) == ("length", 9)
