"""What holds of every format whose arguments are JSON, or a notation like it."""

import json

import pytest

from bramley.worker.reading.events import Text
from support.json_forms import FORMS, KIMI_K2, JsonForm
from support.tool_calls import (
    check_cuts,
    check_grammar,
    check_limits,
    check_oracle,
    events,
    hard_arguments,
    parsed,
    read,
)

every_format = pytest.mark.parametrize("form", FORMS, ids=lambda one: one.form.name)


# The texts of the other one mlx-lm reads otherwise: test_kimi_k2.py.
@pytest.mark.parametrize(
    "form", [one for one in FORMS if one is not KIMI_K2], ids=lambda one: one.form.name
)
def test_a_call_is_what_mlx_lm_makes_of_it(form: JsonForm) -> None:
    opens, closes = form.around
    for body in form.bodies:
        made = read(form.form, opens + body + closes)
        check_oracle(made, parsed(form.form.name, body.strip() if not closes else body))
        assert made.text == ""


@every_format
def test_how_a_text_is_cut_does_not_matter(form: JsonForm) -> None:
    for text in form.texts:
        check_cuts(form.form, text)
        check_limits(form.form, text)


@every_format
def test_content_around_calls_is_exact(form: JsonForm) -> None:
    text, content, names = form.amid
    made = read(form.form, text)
    assert made.text == content
    assert tuple(call.name for call in made.calls) == names


@every_format
def test_b045_what_is_well_formed_comes_through_exactly(form: JsonForm) -> None:
    for arguments in hard_arguments(*form.hard):
        written = {json.dumps(arguments), json.dumps(arguments, ensure_ascii=False)}
        for write in form.ways:
            made = read(form.form, write("run_code", arguments))
            assert made.text == ""
            (call,) = made.calls
            assert call.name == "run_code"
            assert call.is_whole
            assert not call.is_malformed
            assert json.loads(call.arguments) == arguments
            assert call.arguments in written or not form.is_verbatim


@every_format
def test_b045_a_number_where_a_string_is_declared_stays_what_is_written(form: JsonForm) -> None:
    for write in form.ways:
        (call,) = read(form.form, write("get_weather", {"city": 8001})).calls
        assert (call.name, call.is_whole, call.is_malformed) == ("get_weather", True, False)
        assert call.arguments == ('{"city": 8001}' if form.is_typed else '{"city": "8001"}')


@every_format
def test_what_has_no_name_is_content_markers_included(form: JsonForm) -> None:
    for text in form.nameless:
        assert events(form.form, [text]) == [Text(text)]
        check_cuts(form.form, text)


@every_format
@pytest.mark.parametrize("many", [False, True])
def test_what_the_grammar_lets_through_is_read_as_valid_calls(form: JsonForm, many: bool) -> None:
    check_grammar(form.form, many=many, seeds=range(form.seeds))
