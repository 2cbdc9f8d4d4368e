"""What a constraint may hold, as the page on it says and as requests are checked by."""

from pathlib import Path

import pytest

from bramley.common.bounds import TABLE, Bound, Many, Text
from bramley.common.errors import InvalidRequest
from bramley.protos.v1.types_pb2 import Constraint
from bramley.worker.grammar.constraint import to_lark

PAGE = Path(__file__).parents[4] / "docs" / "structured-output.md"


def most(bound: Bound) -> int:
    assert isinstance(bound, (Text, Many))
    return bound.most


def test_the_page_has_the_bounds_that_requests_are_checked_by() -> None:
    fields, values = TABLE["Constraint"], TABLE["Constraint.Choice"]["values"]
    assert isinstance(values, Many)
    assert isinstance(values.each, Text)
    said = " ".join(PAGE.read_text().split())
    texts = most(fields["json_schema"])
    assert f"{texts:,} characters at most, a `regex` {most(fields['regex']):,}." in said
    assert most(fields["grammar"]) == texts
    choice = f"one of 1 to {values.most:,} texts of {values.each.least} to {values.each.most:,}"
    assert f"{choice} characters" in said


@pytest.mark.parametrize(
    ("constraint", "field"),
    [
        (Constraint(regex="a" * 65_537), "constraint.regex"),
        (Constraint(grammar="a" * 1_048_577), "constraint.grammar"),
        (Constraint(json_schema="1" * 1_048_577), "constraint.json_schema"),
        (Constraint(choice=Constraint.Choice(values=["a"] * 1_025)), "constraint.choice.values"),
    ],
)
def test_what_is_longer_is_written_as_no_grammar(constraint: Constraint, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        to_lark(constraint)
    assert refused.value.field == field
