"""How models write calls in each format whose arguments are JSON, or a notation like it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from bramley.worker.reading.tools import (
    function_gemma,
    gemma4,
    json_tools,
    kimi_k2,
    longcat,
    mistral,
    pythonic,
)
from bramley.worker.reading.tools.contract import ToolFormat

Write = Callable[[str, Mapping[str, Any]], str]


@dataclass(frozen=True, kw_only=True)
class JsonForm:
    """A format, and texts of its models.

    Attributes:
        ways: to write a call.
        hard: what is easily taken for a marker inside a string.
        around: what stands around a body, which is all that mlx-lm's parser is handed.
        bodies: that mlx-lm reads as we do.
        others: texts of calls beside those.
        amid: a text with content among calls; the content; the names of the calls.
        nameless: texts that look like a call and have no name.
        is_verbatim: arguments are handed on as they are written.
        is_typed: a number is a number, whatever the schema says.
        seeds: of random texts of its grammar.
    """

    form: ToolFormat
    ways: tuple[Write, ...]
    hard: tuple[str, ...]
    amid: tuple[str, str, tuple[str, ...]]
    nameless: tuple[str, ...]
    around: tuple[str, str] = ("", "")
    bodies: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    is_verbatim: bool = False
    is_typed: bool = True
    seeds: int = 12

    @property
    def texts(self) -> list[str]:
        """Every text in which there are calls."""
        opens, closes = self.around
        return [*(opens + body + closes for body in self.bodies), *self.others, self.amid[0]]


def _plain(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def notation(quote: str) -> Callable[[Any], str]:
    """Gemma's way to write a value, as a template has it."""

    def value(of: Any) -> str:
        if isinstance(of, str):
            return quote + of + quote
        if isinstance(of, dict):
            pairs = cast("dict[str, Any]", of).items()
            return "{" + ",".join(f"{key}:{value(one)}" for key, one in pairs) + "}"
        if isinstance(of, list):
            return "[" + ",".join(map(value, cast("list[Any]", of))) + "]"
        return json.dumps(of)

    return value


def hermes(name: str, arguments: Any) -> str:
    """A call of ``json_tools``."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def _hermes_plain(name: str, arguments: Mapping[str, Any]) -> str:
    return f"<tool_call>{_plain({'name': name, 'arguments': arguments})}</tool_call>"


_H_WEATHER = hermes("get_weather", {"city": "Zürich", "days": 2})
_H_NESTED = hermes(
    "run_code", {"source": 'a {"b": [1]}', "lines": [1, [2, {}]], "options": {"x": {}}}
)
JSON_TOOLS = JsonForm(
    form=json_tools.FORMAT,
    ways=(hermes, _hermes_plain),
    hard=("</tool_call>", "<tool_call>"),
    around=("<tool_call>", "</tool_call>"),
    bodies=(
        '\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n',
        '{"arguments":{"city":"Bern","deep":[{"a":{}},"]"]},"name":"get_weather"}',
        '{"id": "x", "name": "ping", "arguments": {}, "more": [1, {"a": "}"}]}',
        '{ "name" :\t"ping" ,\n"arguments" : { "a" : "\\u00fc \\ud83d\\ude00 \\/" } }',
        '[{"name": "ping", "arguments": {}}, {"name": "get_weather", "arguments": {"city": "A"}}]',
    ),
    others=(_H_WEATHER, _H_NESTED, f"{_H_WEATHER}\n{hermes('ping', {})}\n"),
    amid=(
        f"Let me look.\n\n{_H_WEATHER}\n\nAnd <that> was <tool_calls>.\n{_H_NESTED}",
        "Let me look.\n\n\n\nAnd <that> was <tool_calls>.\n",
        ("get_weather", "run_code"),
    ),
    nameless=(
        "<tool_call>get_weather</tool_call>",
        "<tool_call></tool_call>",
        "<tool_call>\n{}\n</tool_call>",
        '<tool_call>{"arguments": {"a": 1}}</tool_call>',
        '<tool_call>{"name": 7, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"na',
        "<tool_call>[]",
        "<tool_cal",
        "</tool_call> of nothing",
        " \n",
    ),
    is_verbatim=True,
)


def _mistral_headed(name: str, arguments: Mapping[str, Any]) -> str:
    return f"[TOOL_CALLS]{name}[ARGS]{_plain(arguments)}"


def _mistral_listed(name: str, arguments: Mapping[str, Any]) -> str:
    return f"[TOOL_CALLS]{json.dumps([{'name': name, 'arguments': arguments}])}"


M_WEATHER = 'get_weather[ARGS]{"city": "Zürich", "days": 2}'
M_LISTED = '[{"name": "get_weather", "arguments": {"city": "Bern"}}]'
_M_TWO = '[{"name": "ping", "arguments": {}}, {"arguments": {"city": "[A"}, "name": "get_weather"}]'
MISTRAL = JsonForm(
    form=mistral.FORMAT,
    ways=(_mistral_headed, _mistral_listed),
    hard=("[TOOL_CALLS]", "[ARGS]", "[TOOL_CALLS]f[ARGS]"),
    around=("[TOOL_CALLS]", ""),
    bodies=(
        M_WEATHER,
        M_WEATHER + "ping[ARGS]{}",
        f"{M_WEATHER}[TOOL_CALLS]ping[ARGS]{{}}",
        "ping [ARGS] {}",
        'run-code[ARGS]{"source": "a [TOOL_CALLS]b[ARGS] c", "lines": [[1], {"a": "]}"}]}',
        M_LISTED,
        f" {_M_TWO}",
        '[{"id": "abcdefghi", "name": "ping", "arguments": {}}]',
        json.dumps([{"name": "ping", "arguments": '{"a": 1}'}]),
    ),
    others=('[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"a": 1}[TOOL_CALLS]ping[ARGS]{}',),
    amid=(
        f"See [1], [TOOL].\n[TOOL_CALLS]{M_WEATHER}\n\nThen [ARGS.[TOOL_CALLS] {_M_TWO} [end]",
        "See [1], [TOOL].\n\n\nThen [ARGS. [end]",
        ("get_weather", "ping", "get_weather"),
    ),
    nameless=(
        "[TOOL_CALLS]",
        "[TOOL_CALLS] nothing to call",
        "[TOOL_CALLS]f{}",
        "[TOOL_CALLS][ARGS]{}",
        "[TOOL_CALLS][]",
        '[TOOL_CALLS][{"arguments": {}}]',
        "[TOOL_CALLS]f[CALL_ID]abc",
        f"[TOOL_CALLS]{'x' * 600}[ARGS]{{}}",
        "f[ARGS]{}",
        "[TOOL_CA",
    ),
    is_verbatim=True,
    seeds=20,
)

L_OPEN, L_CLOSE = "<longcat_tool_call>", "</longcat_tool_call>"


def longcat_pair(key: str, value: str) -> str:
    """A key and its value."""
    key = f"<longcat_arg_key>{key}</longcat_arg_key>"
    return f"{key}\n<longcat_arg_value>{value}</longcat_arg_value>\n"


def longcat_call(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as the template writes it."""
    pairs = (
        longcat_pair(key, value if isinstance(value, str) else json.dumps(value))
        for key, value in arguments.items()
    )
    return f"{L_OPEN}{name}\n{''.join(pairs)}{L_CLOSE}"


def _longcat_body(name: str, arguments: Mapping[str, Any]) -> str:
    return longcat_call(name, arguments).removeprefix(L_OPEN).removesuffix(L_CLOSE)


_L_WEATHER = {"city": "Zürich <b>", "days": 2}
_L_LISTED = f'{L_OPEN}{{"name": "get_weather", "arguments": {{"city": "{L_CLOSE}"}}}}{L_CLOSE}'
LONGCAT = JsonForm(
    form=longcat.FORMAT,
    ways=(longcat_call,),
    hard=(L_CLOSE, L_OPEN, "<longcat_arg_key>"),
    around=(L_OPEN, L_CLOSE),
    bodies=(
        _longcat_body("get_weather", _L_WEATHER),
        _longcat_body(
            "run_code", {"source": "7", "lines": [1], "options": {"depth": 1}, "tag": "x"}
        ),
        _longcat_body("other", {"a": "text", "b": True, "c": [1, {"d": None}], "e": -1.5}),
        f" get_weather {longcat_pair(' city ', 'Bern')} {longcat_pair('days', ' 3 ')}",
        '\n{"name": "f", "arguments": {"a": [1, {}]}}\n',
    ),
    others=(longcat_call("ping", {}), _L_LISTED),
    amid=(
        f"See <longcat>.\n{longcat_call('get_weather', _L_WEATHER)}\n{longcat_call('ping', {})}\n"
        f"{_L_LISTED}\n\ndone",
        "See <longcat>.\n\n\ndone",
        ("get_weather", "ping", "get_weather"),
    ),
    nameless=(
        f"{L_OPEN}{L_CLOSE}",
        f"{L_OPEN}two words{L_CLOSE}",
        f"{L_OPEN}f{{}}{L_CLOSE}",
        f"{L_OPEN}{{}}{L_CLOSE}",
        f"{L_OPEN}get_weath",
        "<longcat_tool",
    ),
    is_typed=False,
)

K_SECTION, K_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"


def kimi_call(head: str, arguments: str) -> str:
    """A call as the template writes it, without its section."""
    return f"<|tool_call_begin|>{head}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


def _kimi(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{K_SECTION}{kimi_call(f'functions.{name}:0', _plain(arguments))}{K_END}"


K_WEATHER = kimi_call("functions.get_weather:0", '{"city": "Zürich", "days": 2}')
_K_CODE = kimi_call(
    "functions.run_code:12", '{"source": "a <|tool_call_end|> b", "lines": [[{}], "]"]}'
)
KIMI_K2 = JsonForm(
    form=kimi_k2.FORMAT,
    ways=(_kimi,),
    hard=("<|tool_call_end|>", K_END),
    around=(K_SECTION, K_END),
    bodies=(
        K_WEATHER,
        K_WEATHER + _K_CODE,
        f"{K_WEATHER}\n{_K_CODE}\n",
        kimi_call("get_weather:3", '{"city": "Bern"}'),
        kimi_call(" functions.get_weather:0\n", ' {"city": "Bern"} '),
        kimi_call("functions.ping:1", "{}"),
    ),
    amid=(
        f"One <moment>.\n{K_SECTION}{K_WEATHER}{K_END}\nAnd {K_SECTION}\n{_K_CODE}\n{K_END} done.",
        "One <moment>.\n\nAnd  done.",
        ("get_weather", "run_code"),
    ),
    nameless=(
        f"{K_SECTION}{K_END}",
        f"{K_SECTION}\n{kimi_call('two words:0', '{}')}{K_END}",
        f"{K_SECTION}<|tool_call_begin|>functions.f:0",
        kimi_call("", "{}"),
        kimi_call("x" * 600, "{}"),
        "<|tool_call_begin|>f<|tool_call_end|>",
        "<|tool_c",
        K_END,
    ),
    is_verbatim=True,
)


def function_gemma_call(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as the template writes it."""
    value = notation("<escape>")(dict(arguments))
    return f"<start_function_call>call:{name}{value}<end_function_call>"


_F_WEATHER = function_gemma_call("get_weather", {"city": 'Zürich, CH: "x"', "days": 2})
_F_PING = function_gemma_call("ping", {})
F_NESTED = function_gemma_call(
    "run_code", {"source": "a } b", "lines": [1, [2]], "options": {"depth": {"e": "f"}}}
)
FUNCTION_GEMMA = JsonForm(
    form=function_gemma.FORMAT,
    ways=(function_gemma_call,),
    hard=("<end_function_call>", "<esc"),
    bodies=(
        _F_WEATHER,
        _F_PING,
        function_gemma_call("f", {"a": True, "b": None, "c": -1.5e3, "d": "x"}),
        "<start_function_call>call:f{a:Bern West,b:2}<end_function_call>",
    ),
    others=(F_NESTED,),
    amid=(
        f"See <start_of>.\n{_F_WEATHER}\n{_F_PING}\n{F_NESTED}\n\ndone",
        "See <start_of>.\n\n\ndone",
        ("get_weather", "ping", "run_code"),
    ),
    nameless=(
        "<start_function_call><end_function_call>",
        "<start_function_call>call:f()<end_function_call>",
        "<start_function_call>call:get_weath",
        "<start_function",
    ),
)

G_QUOTE = '<|"|>'


def gemma4_call(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as the template writes it."""
    return f"<|tool_call>call:{name}{notation(G_QUOTE)(dict(arguments))}<tool_call|>"


def _gemma4_body(name: str, arguments: Mapping[str, Any]) -> str:
    return f"call:{name}{notation(G_QUOTE)(dict(arguments))}"


G_WEATHER = gemma4_call("get_weather", {"city": "Zürich", "days": 2})
_G_NESTED: dict[str, Any] = {
    "source": "{a: [1], <b> \"c\", 'd'}",
    "o": {"e": {"f": [True, None, -1.5e3]}},
    "g": [],
    "h": {},
}
_G_TWO = gemma4_call("run-code", _G_NESTED)
GEMMA4 = JsonForm(
    form=gemma4.FORMAT,
    ways=(gemma4_call,),
    hard=("<tool_call|>", "<|tool_call>", '<|"|'),
    around=("<|tool_call>", "<tool_call|>"),
    bodies=(
        _gemma4_body("get_weather", {"city": "Zürich", "days": 2}),
        _gemma4_body("run-code", _G_NESTED),
        _gemma4_body("ping", {}),
        f"call:a{{x:1}}call:b{{y:{G_QUOTE}2{G_QUOTE}}}",
        'call:f{"a":"b \\" \\u00fc","c":[{d:1}]}',
        f"call:f{{a:{G_QUOTE}call:g{{}}<tool_call|>{G_QUOTE}}}",
    ),
    others=(f"{G_WEATHER}\n{_G_TWO}",),
    amid=(
        f"See <|tool> and call:x{{}}.\n{G_WEATHER}{_G_TWO}\n<tool_call|> done",
        "See <|tool> and call:x{}.\n\n<tool_call|> done",
        ("get_weather", "run-code"),
    ),
    nameless=(
        "<|tool_call><tool_call|>",
        "<|tool_call>f{}<tool_call|>",
        "<|tool_call>call:{}<tool_call|>",
        "<|tool_call>call:f<tool_call|>",
        "<|tool_call>call:get_weath",
        "<|tool_",
        "call:f{}",
    ),
)

P_OPEN, P_CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"


def _pythonic(name: str, arguments: Mapping[str, Any]) -> str:
    """As the template writes it: Python's values, JSON's where they are nested."""
    named = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    return f"{P_OPEN}[{name}({named})]{P_CLOSE}"


_P_WEATHER = 'get_weather(city="Zürich", days=2)'
PYTHONIC = JsonForm(
    form=pythonic.FORMAT,
    ways=(_pythonic,),
    hard=(P_CLOSE, ")]", '\'"""'),
    around=(P_OPEN, P_CLOSE),
    bodies=(
        f"[{_P_WEATHER}]",
        f"[{_P_WEATHER}, ping()]",
        '[a.b(x=\'it\\\'s\', y="say \\"x\\"", z=True,)]',
        "[ f( a = None , b = -1.5e3, c = .5, d = 1_000 ) ,\n g() ]",
        '[f(a=[1, (2, 3), []], b={"k": {"l": true, \'m\': null}}, c={}, d=())]',
        r'[f(a="\x41\101\u00fc\U0001f600\t\a\0", b=r"\d+", c=u"u")]',
        "[f(a='one' \"two\"\n'three', b='''q'q\"\n''', c=\"\"\"\"x\"\"\", d='')]",
        f'[f(a="[g(x=1)]{P_CLOSE})")]',
    ),
    amid=(
        f"See [1] and f(x=1).\n{P_OPEN}[{_P_WEATHER}]{P_CLOSE}\n{P_OPEN}[ping()]{P_CLOSE}\nDone.",
        "See [1] and f(x=1).\n\nDone.",
        ("get_weather", "ping"),
    ),
    nameless=(
        f"{P_OPEN}{P_CLOSE}",
        f"{P_OPEN}[]{P_CLOSE}",
        f"{P_OPEN}[f]{P_CLOSE}",
        f"{P_OPEN}[(x=1)]{P_CLOSE}",
        f"{P_OPEN}[two words()]{P_CLOSE}",
        f"{P_OPEN}[get_weath",
        "<|tool_call_st",
        "[f(x=1)]",
    ),
)

FORMS = (JSON_TOOLS, MISTRAL, LONGCAT, KIMI_K2, FUNCTION_GEMMA, GEMMA4, PYTHONIC)
