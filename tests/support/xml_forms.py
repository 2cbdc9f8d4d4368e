"""How models write calls in each format whose parameters stand between markers."""

import re
from collections.abc import Mapping
from typing import Any

from bramley.worker.reading.tools import (
    glm47,
    kimi_k3,
    laguna,
    minicpm5,
    minimax_m2,
    muse_spark,
    qwen3_coder,
)
from support.xml_calls import Written, spelled

_JSON_ENDS = ('"', "]", "}")
_KIMI_TYPES: Mapping[type, str] = {
    str: "string",
    bool: "boolean",
    int: "number",
    float: "number",
    list: "array",
}


def _of(head: str, parameter: str, end: str) -> Any:
    def call(name: str, arguments: Mapping[str, Any]) -> str:
        body = "".join(parameter.format(key, spelled(arguments[key])) for key in arguments)
        return head.format(name) + body + end

    return call


def _cdata(name: str, arguments: Mapping[str, Any]) -> str:
    texts = {key: spelled(value) for key, value in arguments.items()}
    body = "".join(
        f'<param name="{key}">'
        + (f"<![CDATA[{text}]]>" if re.search(r"[<&\n]", text) else text)
        + "</param>"
        for key, text in texts.items()
    )
    return f'<function name="{name}">{body}</function>'


def _kimi_type(value: object) -> str:
    return next((name for kind, name in _KIMI_TYPES.items() if isinstance(value, kind)), "object")


def _xtml(name: str, arguments: Mapping[str, Any]) -> str:
    body = "".join(
        f'<|open|>argument key="{key}" type="{_kimi_type(value)}"<|sep|>'
        f"{spelled(value)}<|close|>argument<|sep|>"
        for key, value in arguments.items()
    )
    return f'<|open|>call tool="{name}" index="1"<|sep|>{body}<|close|>call<|sep|>'


_GLM = _of("<tool_call>{}", "<arg_key>{}</arg_key><arg_value>{}</arg_value>", "</tool_call>")
_GLM_BROKEN = (
    "<tool_call>",
    "<tool_call></tool_call>",
    "<tool_call><arg_key>a</arg_key><arg_value>1</arg_value></tool_call>",
    "<tool_call>a b</tool_call>",
    "Write <tool_call>` and <tool_call>f</tool",
    '<tool_call>{"name": "f"}</tool_call>',
)
FORMS = (
    Written(
        qwen3_coder.FORMAT,
        _of(
            "<tool_call>\n<function={}>\n",
            "<parameter={}>\n{}\n</parameter>\n",
            "</function>\n</tool_call>",
        ),
        value_end="</parameter>",
        ends=("\n</parameter>\n", *_JSON_ENDS),
        strips=False,
        broken=(
            "<tool_call>",
            "<tool_call>\n\n</tool_call>",
            "<tool_call>\n<function=>\n</function>\n</tool_call>",
            "<tool_call>\n<function=a b>\n</function>\n</tool_call>",
            "<tool_call> is a <tool_call><function a marker",
        ),
    ),
    Written(
        glm47.FORMAT,
        _GLM,
        between="",
        value_end="</arg_value>",
        ends=("</arg_value>", *_JSON_ENDS),
        broken=_GLM_BROKEN,
    ),
    Written(
        laguna.FORMAT,
        _GLM,
        between="",
        value_end="</arg_value>",
        ends=("</arg_value>", *_JSON_ENDS),
        broken=_GLM_BROKEN,
    ),
    Written(
        minimax_m2.FORMAT,
        _of('<invoke name="{}">\n', '<parameter name="{}">{}</parameter>\n', "</invoke>"),
        run=("<minimax:tool_call>\n", "\n</minimax:tool_call>"),
        value_end="</parameter>",
        ends=("</parameter>\n", *_JSON_ENDS),
        broken=(
            "<minimax:tool_call>",
            "<minimax:tool_call>\n</minimax:tool_call>",
            '<minimax:tool_call>\n<invoke name="">\n</invoke>\n</minimax:tool_call>',
            '<minimax:tool_call> is a <minimax:tool_call><invoke name="a',
        ),
    ),
    Written(
        minicpm5.FORMAT,
        _cdata,
        value_end="</param>",
        ends=("</param>", "]]></param>", *_JSON_ENDS),
        broken=(
            "<function name=",
            '<function name=""></function>',
            '<function name="a\n"></function>',
            'a <function name=<function name="a',
        ),
    ),
    Written(
        muse_spark.FORMAT,
        _of(
            '<atem:invoke name="{}">\n',
            '<atem:parameter name="{}">{}</atem:parameter>\n',
            "</atem:invoke>",
        ),
        run=("<atem:function_calls>\n", "\n</atem:function_calls>"),
        value_end="</atem:parameter>",
        ends=("</atem:parameter>\n", *_JSON_ENDS),
        broken=(
            "<atem:function_calls>",
            "<atem:function_calls>\n</atem:function_calls>",
            "<atem:function_calls><atem:invoke></atem:invoke></atem:function_calls>",
            "<atem:function_calls> is a <atem:function_calls><atem:invoker",
        ),
    ),
    Written(
        kimi_k3.FORMAT,
        _xtml,
        run=("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
        between="",
        value_end="<|close|>argument<|sep|>",
        ends=("<|close|>argument<|sep|>", *_JSON_ENDS),
        broken=(
            "<|open|>tools<|sep|>",
            "<|open|>tools<|sep|><|close|>tools<|sep|>",
            '<|open|>tools<|sep|><|open|>call index="1"<|sep|><|close|>call<|sep|>',
            '<|open|>tools<|sep|> is a <|open|>tools<|sep|><|open|>call tool="a',
        ),
        strips=False,
    ),
)
