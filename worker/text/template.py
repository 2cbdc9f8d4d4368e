"""One model's chat template: what it reads, what it refuses, and conversations rendered by it.

A template is a program that came with the model. transformers runs it in Jinja's sandbox, where it
reaches nothing but what it is given, and can change none of that. Some models have no template in
their files and code of mlx-lm in its place: that is asked nothing, and taken to read everything.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, cast

import jinja2
from jinja2 import ext, meta, nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = Mapping[str, Any]

THINKING_SWITCHES = ("enable_thinking", "thinking")  # the first that a template reads

# A template is a program of the model's: whatever it trips over lies in what it was given.
_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
_NOTHING: Mapping[str, Any] = {}


class TemplateRefusal(Exception):
    """The template does not render this; says why in its own words."""


class Template:
    """Of one model; knows what it found out.

    Args:
        wrapper: mlx-lm's, of the tokenizer that the template belongs to.
    """

    def __init__(self, wrapper: object) -> None:
        self._wrapper = cast("Any", wrapper)  # mlx-lm gives it no useful types

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        switches: Mapping[str, Any] = _NOTHING,
        is_continued: bool = False,
        opens_answer: bool = True,
    ) -> list[int]:
        """Render and tokenize; the template alone decides on special tokens.

        Args:
            messages: as templates know them.
            tools: as templates know them.
            switches: the template's own.
            is_continued: the last message is left open.
            opens_answer: else the conversation ends where the last message does.

        Returns:
            The ids.

        Raises:
            TemplateRefusal: it does not render this.
        """
        rendered = self._apply(
            messages,
            tools=list(tools) or None,
            add_generation_prompt=opens_answer and not is_continued,
            continue_final_message=is_continued,
            tokenize=True,
            **switches,
        )
        return list(cast("Sequence[int]", rendered))

    def reads(self, name: str, *, with_tools: bool = False) -> bool:
        """Whether it looks at a variable; with tools a model may have another template."""
        source = self._source(with_tools=with_tools)
        return source is None or name in _variables(source)

    @functools.cached_property
    def thinking_switch(self) -> str | None:
        """What turns reasoning on and off, where anything does."""
        return next((name for name in THINKING_SWITCHES if self.reads(name)), None)

    @functools.cached_property
    def refuses_system(self) -> bool:
        """Whether it raises at a system message, and would not without."""
        user = {"role": "user", "content": "u"}
        system = {"role": "system", "content": "s"}
        return self._text([user]) is not None and self._text([system, user]) is None

    @functools.cached_property
    def wants_text_arguments(self) -> bool:
        """Whether it wants a call's arguments as JSON text, where most want an object."""
        as_object = self._text(_called({"k": "v"}))
        if as_object is None:
            return self._text(_called('{"k": "v"}')) is not None
        return "{'k'" in as_object  # as Python would write it

    def _apply(self, messages: Sequence[Message], **options: object) -> object:
        try:
            return self._wrapper.apply_chat_template(list(messages), **options)
        except _FAULTS as error:
            raise TemplateRefusal(str(error)) from error

    def _text(self, messages: Sequence[Message]) -> str | None:
        """Render without tokenizing; None if it refuses."""
        try:
            return str(self._apply(messages, add_generation_prompt=True, tokenize=False))
        except TemplateRefusal:
            return None

    def _source(self, *, with_tools: bool) -> str | None:
        if "chat_template_type" in self._wrapper.init_kwargs:
            return None
        sources: str | Mapping[str, str] | None = self._wrapper.chat_template
        if isinstance(sources, Mapping):
            named = with_tools and "tool_use" in sources
            return sources.get("tool_use" if named else "default")
        return sources


def _called(arguments: object) -> Sequence[Message]:
    function = {"name": "f", "arguments": arguments}
    call = {"id": "call00001", "type": "function", "function": function}  # as Mistral's wants ids
    return [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]


class _Generation(ext.Extension):
    """Knows the block that marks what a model wrote, as transformers does."""

    tags = {"generation"}  # noqa: RUF012 -- as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Parse the block as if its marks were not there."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


_parsing = ImmutableSandboxedEnvironment(extensions=[ext.loopcontrols, _Generation])


@functools.lru_cache(maxsize=8)
def _variables(source: str) -> frozenset[str]:
    try:
        return frozenset(meta.find_undeclared_variables(_parsing.parse(source)))
    except jinja2.TemplateError:
        return frozenset()  # it renders nothing either, and says why when asked to
