"""Where a prompt ends that the next turn shares, for templates with tails of their own."""

from pathlib import Path
from typing import Any

import pytest

from bramley.worker.reading.events import ToolSpec
from bramley.worker.text.boundary import StableBoundary
from bramley.worker.text.chat import Conversation
from bramley.worker.text.tokenizer import Tokenizer
from support.templates import NO_SYSTEM, REASONING, TOOLS_LAST, tokenizer_with

PLAIN = (
    "{% for m in messages %}{% if m.role == 'assistant' %}KEPT{% endif %}<{{ m.role }}>"
    "{{ m.content }}{% endfor %}{% if add_generation_prompt %}TAIL{% endif %}"
)
TOOLS = [ToolSpec("look", {"type": "object", "properties": {}})]
ASK = {"role": "user", "content": "hello there"}
REPLY = {"role": "assistant", "content": "hi"}
THOUGHT = {**REPLY, "reasoning_content": "I greet"}
RESULT = {"role": "tool", "content": "sunny", "name": "look"}


def called(thought: str = "", number: int = 1) -> dict[str, Any]:
    function = {"name": "look", "arguments": f'{{"n": {number}}}'}
    call = {"id": "123456789", "type": "function", "function": function}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    return message | ({"reasoning_content": thought} if thought else {})


class Bench:
    """A template's boundary; counts its renders."""

    def __init__(self, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tokenizer = tokenizer
        self.boundary = StableBoundary(tokenizer)
        self.renders = 0
        plain = tokenizer.template.render

        def counted(*arguments: Any, **options: Any) -> list[int]:
            self.renders += 1
            return plain(*arguments, **options)

        monkeypatch.setattr(tokenizer.template, "render", counted)

    def own(self, *messages: Any, **fields: Any) -> str:
        """What of a prompt the next turn does not share."""
        conversation = Conversation(messages, **fields)
        ids = conversation.render(self.tokenizer)
        return self.text(ids[self.boundary.tokens(conversation, ids) :])

    def text(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def parts(self, before: Conversation, after: Conversation) -> str:
        """What of a prompt another one does not share."""
        one, other = (each.render(self.tokenizer) for each in (before, after))
        shared = self.boundary.tokens(before, one)
        assert other[:shared] == one[:shared], (self.text(one), self.text(other))
        return self.text(one[shared:])


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Bench:
    return Bench(tokenizer_with(tmp_path / "model", request.param), monkeypatch)


def of(template: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("bench", [template], indirect=True)


@pytest.mark.parametrize(
    ("bench", "own"),
    [
        (PLAIN.replace("KEPT", "").replace("TAIL", "<assistant>"), ""),
        (PLAIN.replace("KEPT", "").replace("TAIL", "<assistant>[think]\n"), "[think]\n"),
        (PLAIN.replace("KEPT", "[sys]").replace("TAIL", "<assistant>"), "<assistant>"),
        (NO_SYSTEM, "model>"),
    ],
    indirect=["bench"],
)
def test_tokens_that_the_history_leaves_out_are_not_shared(bench: Bench, own: str) -> None:
    assert bench.own(ASK) == own


@of(PLAIN)
def test_the_template_is_asked_once_for_each_of_its_switches(bench: Bench) -> None:
    assert bench.own(ASK) == "TAIL"
    before = bench.renders
    assert bench.own(ASK, REPLY, {**ASK, "content": "and then"}) == "TAIL"
    assert bench.renders == before + 1
    bench.own(ASK, switches={"enable_thinking": False})
    assert bench.renders > before + 2


@of("{% if messages | length > 1 %}{{ raise_exception('one only') }}{% endif %}{{ messages[0] }}")
def test_a_template_that_refuses_the_dummy_reply_shares_all(bench: Bench) -> None:
    assert bench.own(ASK) == ""


@of(PLAIN)
def test_a_continued_turn_shares_all(bench: Bench) -> None:
    assert bench.own(ASK, REPLY, is_continued=True) == ""


@of(REASONING)
@pytest.mark.parametrize("tools", [[], TOOLS])
@pytest.mark.parametrize(
    ("switches", "own"), [({}, "<think>"), ({"enable_thinking": False}, "<think></think>")]
)
def test_what_opens_reasoning_is_not_shared(
    bench: Bench, tools: list[ToolSpec], switches: dict[str, bool], own: str
) -> None:
    turns = Conversation([ASK, THOUGHT, ASK], tools, switches)
    following = turns.followed_by([THOUGHT, ASK])
    assert bench.parts(turns, following) == own
    assert bench.parts(following, following.followed_by([REPLY, ASK])) == own


@of(REASONING)
def test_while_tools_are_called_all_that_was_reasoned_is_shared(bench: Bench) -> None:
    asked = Conversation([ASK, THOUGHT, ASK], TOOLS)
    first = asked.followed_by([called("I look"), RESULT])
    second = first.followed_by([called("I look again", 2), RESULT])
    assert bench.parts(asked, first) == "<think>"
    assert bench.parts(first, second) == "<think>"
    assert bench.parts(second, second.followed_by([called(), RESULT])) == "<think>"


@of(REASONING)
def test_what_a_last_reply_shares_the_user_s_own_turn_has_told(bench: Bench) -> None:
    asked = Conversation([ASK], TOOLS)
    later = asked.followed_by([called("I look"), RESULT, THOUGHT, ASK])
    assert bench.parts(asked, later) == "<think>"


@of(TOOLS_LAST)
def test_tools_that_the_next_turn_moves_are_not_shared_however_much_was_said(bench: Bench) -> None:
    for said in ("hi", "much more than that"):
        asked = Conversation([ASK, REPLY, {"role": "user", "content": said}], TOOLS)
        own = bench.parts(asked, asked.followed_by([REPLY, ASK]))
        assert own.startswith("[tools]")
        assert own.endswith(f"{said}<|end|><a>")
    without = Conversation([ASK])
    assert bench.parts(without, without.followed_by([REPLY, ASK])) == ""
