"""Constraints become grammars: each once, on other threads, within a time."""

import asyncio
import copy
import json
import re
import threading
import time
from collections.abc import Iterator

import pytest

from bramley.common.errors import InvalidRequest, Overloaded
from bramley.protos.v1 import types_pb2
from bramley.worker.grammar import compiler as module
from bramley.worker.grammar.compiler import KEPT, UNDONE_MAX, Compiled, Compiler, make
from bramley.worker.grammar.constraint import to_lark
from bramley.worker.grammar.vocabulary import Vocabulary
from support.schemas import accepts, byte_tokenizer, byte_vocabulary

Constraint = types_pb2.Constraint
CHOICES = ["a", "ab", 'é"\\\n/']
SCHEMA = "constraint.json_schema"
LOOKS = "look-around, including look-ahead and look-behind, is not supported"


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    one = Compiler(byte_vocabulary())
    yield one
    one.close()


@pytest.mark.parametrize(
    ("constraint", "good", "bad"),
    [
        (Constraint(json_object=True), ["{}", '{"a": [1]}', '{\n  "a":1}'], ["[]", "{} ", " {}"]),
        (Constraint(json_schema='{"type":"integer"}'), ["1", "-20"], ["1.0", "true", " 1", "1 "]),
        (Constraint(json_schema="true"), ["1", "[]"], [""]),
        (Constraint(regex="a/b+|\\/"), ["a/b", "a/bb", "/"], ["ab", "a/", "xa/b", "a/b/"]),
        (Constraint(regex="a\nb\\\\/"), ["a\nb\\/"], ["anb"]),
        (Constraint(grammar='start: "x" start | "y"'), ["y", "xxy"], ["x", ""]),
        (Constraint(choice=Constraint.Choice(values=CHOICES)), CHOICES, ["b", "aab", ""]),
    ],
)
async def test_a_constraint_lets_through_what_it_says(
    compiler: Compiler, constraint: Constraint, good: list[str], bad: list[str]
) -> None:
    grammar = await compiler.constraint(constraint)
    assert [text for text in good if not accepts(grammar, text)] == []
    assert [text for text in bad if accepts(grammar, text)] == []


@pytest.mark.parametrize(
    ("constraint", "field"),
    [
        (Constraint(), "constraint"),
        (Constraint(json_object=False), "constraint.json_object"),
        (Constraint(json_schema="{"), SCHEMA),
        (Constraint(json_schema='{"minimum": NaN}'), SCHEMA),
        (Constraint(json_schema="false"), SCHEMA),
        (Constraint(json_schema='{"allOf": [{"type": "null"}, {"type": "string"}]}'), SCHEMA),
        (Constraint(json_schema='{"oneOf": [true, true]}'), SCHEMA),
        (Constraint(json_schema="[" * 100_000), SCHEMA),
        (Constraint(json_schema=" " * (1 << 21)), SCHEMA),
        (Constraint(regex="("), "constraint.regex"),
        (Constraint(regex="(?=a)"), "constraint.regex"),
        (Constraint(grammar="start: nothing"), "constraint.grammar"),
        (Constraint(grammar=""), "constraint.grammar"),
        (Constraint(grammar="start: start"), "constraint.grammar"),
        (Constraint(grammar='start: %json {"not": {}}'), "constraint.grammar"),
        (Constraint(choice=Constraint.Choice()), "constraint.choice.values"),
        (Constraint(choice=Constraint.Choice(values=["a", ""])), "constraint.choice.values"),
    ],
)
async def test_what_cannot_be_compiled_is_refused_by_its_field(
    compiler: Compiler, constraint: Constraint, field: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await compiler.constraint(constraint)
    assert refused.value.field == field


@pytest.mark.parametrize("drops_blank", [False, True])
@pytest.mark.parametrize(
    ("constraint", "problem"),
    [
        (Constraint(regex="a\\"), "ends with a backslash, and nothing behind it"),
        (Constraint(regex="(?=a)b"), f"{LOOKS}: '(?='"),
        (Constraint(regex="x{3,2}"), "{3,2}"),
        (Constraint(regex="a/[0-9"), "unclosed character class: '['"),
        (Constraint(regex="a\n(b"), "unclosed group: '('"),
        (Constraint(regex=r"a\b"), "lookarounds not supported yet; WordUnicode"),
        (Constraint(grammar='start: "a" B\nB: /(?=a)b/\n'), f"line 2, column 4: {LOOKS}: '(?='"),
        (Constraint(grammar='start: "a" b'), 'line 1, column 8: unknown name: "b"'),
        (Constraint(grammar='start: "a" ('), "Expected token ')'"),
        (Constraint(json_schema='{"items": {"pattern": "a("}}'), "unclosed group: '('"),
    ],
    ids=str,
)
def test_the_reason_is_told_and_places_in_what_the_caller_wrote_alone(
    constraint: Constraint, problem: str, *, drops_blank: bool
) -> None:
    kind = constraint.WhichOneof("constraint")
    vocabulary = copy.copy(byte_vocabulary())
    vocabulary.drops_blank = drops_blank
    with pytest.raises(InvalidRequest) as refusal:
        make(vocabulary, to_lark(constraint, drops_blank=drops_blank), f"constraint.{kind}")
    assert problem in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert ("line " in str(refusal.value)) is (kind == "grammar")
    assert not re.search(r"[0-9]\([0-9]|TEXT", str(refusal.value))


async def test_a_grammar_is_known_by_its_field_and_key_and_refused_by_the_field(
    compiler: Compiler,
) -> None:
    good = await compiler.grammar("tools", b"1", lambda: 'start: "a"')
    assert await compiler.grammar("tools", b"1", lambda: "start: (") is good
    assert await compiler.grammar("tool_choice", b"1", lambda: 'start: "b"') is not good
    with pytest.raises(InvalidRequest) as refused:
        await compiler.grammar("tools", b"2", lambda: "start: (")
    assert refused.value.field == "tools"


async def test_one_compilation_serves_all_who_ask(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def counting(vocabulary: Vocabulary, lark: str, field: str, *, numbers_end: bool) -> Compiled:
        made.append(threading.get_ident())
        return make(vocabulary, lark, field, numbers_end=numbers_end)

    monkeypatch.setattr(module, "make", counting)
    asked = [compiler.constraint(Constraint(regex="abc")) for _ in range(20)]
    grammars = await asyncio.gather(*asked)
    assert len(set(map(id, [*grammars, await compiler.constraint(Constraint(regex="abc"))]))) == 1
    assert len(made) == 1
    assert threading.get_ident() not in made


async def test_the_oldest_is_forgotten(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 2)
    first = await compiler.constraint(Constraint(regex="a"))
    await compiler.constraint(Constraint(regex="b"))
    assert await compiler.constraint(Constraint(regex="a")) is first
    await compiler.constraint(Constraint(regex="c"))
    assert await compiler.constraint(Constraint(regex="a")) is first
    assert KEPT > 2


async def test_a_refusal_is_not_kept_longer_than_others_and_says_the_same(
    compiler: Compiler,
) -> None:
    said = set[str]()
    for _ in range(2):
        with pytest.raises(InvalidRequest) as refused:
            await compiler.constraint(Constraint(regex="("))
        said.add(str(refused.value))
    assert len(said) == 1


async def test_who_waits_too_long_is_told_to_come_again_whatever_it_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on = threading.Event()

    def slow(vocabulary: Vocabulary, lark: str, field: str, *, numbers_end: bool) -> Compiled:
        go_on.wait(30)
        return make(vocabulary, lark, field, numbers_end=numbers_end)

    compiler = Compiler(byte_vocabulary(), time_limit_s=0.2)
    await compiler.constraint(Constraint(regex="x"))
    monkeypatch.setattr(module, "make", slow)
    asked = [compiler.constraint(Constraint(regex=text)) for text in "abc"]
    ends = await asyncio.gather(*asked, return_exceptions=True)
    go_on.set()
    assert [type(end) for end in ends] == [Overloaded] * 3
    assert all(isinstance(end, Overloaded) and end.retry_after_s for end in ends)
    assert await compiler.constraint(Constraint(regex="a"))  # it was done meanwhile
    assert await compiler.constraint(Constraint(regex="c"))  # this one had not begun
    compiler.close()


@pytest.mark.parametrize("others", [0, 1])
async def test_what_nobody_waits_for_any_more_is_given_up_and_keeps_nobody_waiting(
    others: int,
) -> None:
    compiler = Compiler(byte_vocabulary(), time_limit_s=20.0)
    await compiler.constraint(Constraint(regex="x"))
    long = [_endless(letter) for letter in "ab"]
    asked = [asyncio.create_task(compiler.constraint(one)) for one in long]
    left = [asyncio.create_task(compiler.constraint(long[0])) for _ in range(others)]
    late = asyncio.create_task(compiler.constraint(Constraint(regex="late")))
    done, _ = await asyncio.wait([late, *asked], timeout=0.5)
    assert not done  # both threads are busy for as long as somebody waits
    for one in asked:
        one.cancel()
    assert await asyncio.wait_for(late, 15.0)
    assert not any(one.done() for one in left)
    for one in left:
        one.cancel()
    await asyncio.gather(*asked, *left, return_exceptions=True)
    compiler.close()


async def test_what_was_given_up_is_begun_anew_for_the_next() -> None:
    compiler = Compiler(byte_vocabulary(), time_limit_s=0.5)
    await compiler.constraint(Constraint(regex="x"))
    first = asyncio.create_task(compiler.constraint(_endless("c")))
    await asyncio.wait([first], timeout=0.1)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    with pytest.raises(InvalidRequest, match="to compile"):
        await _served(compiler, _endless("c"))
    compiler.close()


async def _served(compiler: Compiler, constraint: Constraint) -> Compiled:
    """Ask until there has been time for it."""
    while True:
        try:
            return await compiler.constraint(constraint)
        except Overloaded:
            await asyncio.sleep(0.05)


async def test_more_than_a_few_do_not_wait_to_be_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on = threading.Event()

    def slow(vocabulary: Vocabulary, lark: str, field: str, *, numbers_end: bool) -> Compiled:
        go_on.wait(30)
        return make(vocabulary, lark, field, numbers_end=numbers_end)

    compiler = Compiler(byte_vocabulary(), time_limit_s=5.0)
    await compiler.constraint(Constraint(regex="x"))
    monkeypatch.setattr(module, "make", slow)
    asked = [
        asyncio.create_task(compiler.constraint(Constraint(regex=f"a{{{n}}}")))
        for n in range(UNDONE_MAX + 1)
    ]
    (refused,), _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    assert isinstance(refused.exception(), Overloaded)
    go_on.set()
    ends = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(end, Compiled) for end in ends) == UNDONE_MAX
    compiler.close()


async def test_who_gives_up_waiting_takes_nothing_from_others(compiler: Compiler) -> None:
    first = asyncio.create_task(compiler.constraint(Constraint(regex="gone")))
    second = asyncio.create_task(compiler.constraint(Constraint(regex="gone")))
    await asyncio.sleep(0)
    first.cancel()
    assert await second
    assert first.cancelled()


async def test_the_vocabulary_is_built_once_and_not_here() -> None:
    vocabulary = Vocabulary(byte_tokenizer())
    compiler = Compiler(vocabulary)
    await asyncio.gather(*(compiler.constraint(Constraint(regex=text)) for text in "abcd"))
    assert vocabulary.build() is vocabulary.build()
    compiler.close()


def _endless(letter: str) -> Constraint:
    terms = " & ".join(f"/.*{letter}{at}.*/" for at in range(40))
    return Constraint(grammar=f"start: T\nT: {terms}")


def _nested(depth: int) -> dict[str, object]:
    schema: dict[str, object] = {}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "nope"}, "type"),
        ({"patternProperties": {"^a": {"type": "integer"}}}, None),
        ({"propertyNames": {"pattern": "^a"}}, "propertyNames"),
        ({"$ref": "#/nowhere"}, "$ref"),
        ({"$ref": "#"}, "$ref"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}}, None),
        ({"type": "string", "pattern": "a("}, "pattern"),
        ({"type": "string", "minLength": 100_000}, None),
        (_nested(300), "properties"),
        ({"enum": [f"{number:019}" for number in range(10_000)]}, None),
    ],
)
async def test_b037_a_bad_schema_is_refused_by_its_keyword_or_is_right_and_soon(
    compiler: Compiler, schema: dict[str, object], keyword: str | None
) -> None:
    text = json.dumps(schema)
    await compiler.constraint(Constraint(json_object=True))
    start_s = time.monotonic()
    if keyword is None:
        await compiler.constraint(Constraint(json_schema=text))
    else:
        with pytest.raises(InvalidRequest, match=f"'{re.escape(keyword)}'") as refused:
            await compiler.constraint(Constraint(json_schema=text))
        assert refused.value.field == "constraint.json_schema"
    assert time.monotonic() - start_s < 2.5


async def test_b037_nesting_beyond_all_bounds_is_refused(compiler: Compiler) -> None:
    text = '{"properties":{"a":' * 2000 + "{}" + "}}" * 2000
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        await compiler.constraint(Constraint(json_schema=text))


async def test_what_is_never_done_takes_no_thread_from_others() -> None:
    compiler = Compiler(byte_vocabulary(), time_limit_s=0.3)
    patterns = [json.dumps({"allOf": [{"pattern": f"a{n}{at}"} for at in range(30)]}) for n in "ab"]
    deep = json.dumps(
        {"$ref": "#/$defs/d0"}
        | {
            "$defs": {f"d{at}": {"$ref": f"#/$defs/d{at + 1}"} for at in range(9000)}
            | {"d9000": {}}
        }
    )
    for schema in (*patterns, deep):
        with pytest.raises((InvalidRequest, Overloaded)):
            await compiler.constraint(Constraint(json_schema=schema))

    assert await asyncio.wait_for(_served(compiler, Constraint(regex="abc")), 30)
    compiler.close()
