"""What reports say of runs, and that nothing in a run can say anything of its own in them."""

import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bramley.bench.serve import html, markdown, plots, record, report, summary, wording
from bramley.bench.serve.columns import Against
from bramley.bench.serve.html import SIGNS
from bramley.bench.serve.record import Event, Model, Run, Source
from bramley.bench.serve.summary import WORDS, summarise
from bramley.bench.serve.tags import Markup, join, table, tag
from support.runs import OURS, PEER, ArmBuilder, changed, request, run

HOSTILE = (
    "</script><script>alert(1)</script></style></title></pre>--><img src=x onerror=alert(1)>"
    "\"'><a href='javascript:alert(1)'>x</a> | ` [x](http://evil.example/) <!-- &amp;"
)


def arms(seed: int = 1) -> tuple[ArmBuilder, ArmBuilder]:
    ours = ArmBuilder(OURS).add("decode", "decode_rate", "tok/s", 12.0, 12.5, 13.0 + seed / 100)
    peer = ArmBuilder(PEER).add("decode", "decode_rate", "tok/s", 10.0, 10.0, 10.0)
    for arm, rate in ((ours, 30.0), (peer, 20.0)):
        arm.add("parity", "output_rate", "tok/s", 5.0)
        arm.add("aggregate", "aggregate_rate@2", "tok/s", rate)
        arm.add("mixed", "mixed_gap", "s", 0.5)
        arm.also("ready", "s", 2.0)
    ours.add("ttft", "ttft_cold", "s", 1.0, 3.0)
    peer.arm.not_applicable["ttft"] = "it was left out"
    peer.fail("restart", "it did not come back")
    return ours, peer


def runs(count: int = 1, **facts: Any) -> list[Run]:
    return [run(*arms(seed), seed=seed, **facts) for seed in range(1, count + 1)]


class Page(HTMLParser):
    """Reads a page as a browser would, and checks that every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in {"br", "input", "meta"}:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)

    def names(self) -> set[str]:
        return {name for name, _ in self.elements}


def paged(made: list[Run], baseline: str | None = None) -> Page:
    return Page(html.page(made, summarise(made, baseline)))


def everywhere(hostile: str) -> list[Run]:
    """Put a text into each place of a run that is not ours to word."""
    made = runs(
        model=Model(name=hostile, path=hostile, config_sha256="f" * 64),
        machine={hostile: hostile, "cpu": hostile},
        workload={hostile: [hostile]},
        source=Source(start="5" * 64, end="5" * 64, commit=hostile, is_clean=True),
        started=hostile,
    )
    for arm in made[0].arms:
        arm.name += hostile
        arm.kind += hostile
        arm.command.append(hostile)
        arm.versions = {hostile: hostile}
        arm.settings = {hostile: hostile}
        arm.blas = arm.failures[0].error if arm.failures else hostile
        arm.not_applicable[hostile] = hostile
        for one in arm.requests:
            one.text = hostile
            one.finish = hostile
        arm.requests[-1].error = hostile
        for failure in arm.failures:
            failure.error = failure.phase = hostile
        for sample in arm.samples[-1:]:
            sample.metric = sample.unit = hostile
    return made


def test_no_text_of_a_run_becomes_markup_of_the_page() -> None:
    page = paged(everywhere(HOSTILE))
    assert not {"script", "img", "link", "iframe", "object", "base"} & page.names()
    for name, attributes in page.elements:
        assert not any(key.startswith("on") for key in attributes)
        assert name != "a" or re.fullmatch(r"#[a-z]+", attributes["href"] or "")
    # It is there all the same, as text.
    assert page.text.count("alert(1)") > 20


def test_hostile_texts_change_no_element_of_the_page() -> None:
    plain, hostile = (paged(everywhere(text)) for text in ("word", HOSTILE))
    assert [name for name, _ in plain.elements] == [name for name, _ in hostile.elements]


def test_the_page_loads_nothing_and_runs_nothing() -> None:
    text = html.page(made := runs(5), summarise(made))
    page = Page(text)
    for name, attributes in page.elements:
        assert not {"src", "srcset", "action", "data", "xlink:href", "style"} & attributes.keys()
        assert name not in {"script", "link", "img", "iframe"}
        assert (attributes.get("href") or "#").startswith("#")
    assert not re.search(r"https?://|url\(|@import|@font-face", text)
    policy = {"http-equiv": "Content-Security-Policy"}.items()
    (told,) = (attributes for _, attributes in page.elements if policy <= attributes.items())
    assert (told["content"] or "").startswith("default-src 'none'")


def test_every_link_of_the_page_leads_somewhere() -> None:
    page = paged(runs())
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = {attributes["href"] for name, attributes in page.elements if name == "a"}
    assert links <= {f"#{one}" for one in ids}
    assert len(links) == 7


def test_each_arm_can_be_the_baseline_and_the_report_s_own_is_the_first() -> None:
    made = runs()
    text = html.page(made, summarise(made, OURS))
    buttons = [attributes for name, attributes in Page(text).elements if name == "input"]
    assert [button["id"] for button in buttons] == ["base0", "base1"]
    assert ["checked" in button for button in buttons] == [True, False]
    for number in (0, 1):
        assert f"body:has(#base{number}:checked) .vs{number} {{" in text
        assert f'class="vs vs{number}' in text
    # Without rules for buttons, the first is shown and the others are not.
    assert ".vs { display: none; }" in text
    assert ".vs.first { display: block; }" in text
    assert 'class="vs vs1 first"' not in text


def test_both_directions_of_a_ratio_are_on_the_page() -> None:
    ours = ArmBuilder(OURS).add("decode", "decode_rate", "tok/s", 20.0)
    peer = ArmBuilder(PEER).add("decode", "decode_rate", "tok/s", 10.0)
    page = paged([run(ours, peer)])
    assert {"2x", "0.5x"} <= set(page.words)


@pytest.mark.parametrize("status", WORDS)
def test_every_status_has_a_sign_and_a_word_and_not_only_a_colour(status: Any) -> None:
    sign, _ = SIGNS[status]
    assert sign.strip()
    assert WORDS[status].strip()
    assert len({sign for sign, _ in SIGNS.values()}) == len(WORDS)


def test_every_arm_s_curve_has_dashes_of_its_own() -> None:
    style = (Path(html.__file__).parent / "report.css").read_text()
    dashes = re.findall(r"\.curve\.arm(\d) \{ stroke-dasharray: ([^;]+); \}", style)
    assert [int(number) for number, _ in dashes] == list(range(1, plots.ARMS))  # 0 has none
    assert len({dash for _, dash in dashes}) == len(dashes)
    assert style.count("--arm5:") == 2  # in the light and in the dark


def test_a_strip_has_a_tick_for_each_event_and_shows_an_error() -> None:
    one = request("decode", 0, sent_s=5.0)
    one.events = [Event(at_s=6.0, tokens=1), Event(at_s=7.0, tokens=3)]
    one.error = "the connection was lost"
    drawn = plots.strips([one], 4.0, 0, None)
    (ticks,) = re.findall(r'd="(M[^"]+V[^"]+)" class="ticks', drawn)
    # One token is a short line at a quarter, three a tall one in the middle.
    assert ticks == "M250.0 4V12M500.0 1V15"
    assert 'd="M0.0 8H250.0" class="waiting"' in drawn
    assert "✕ the connection was lost" in drawn
    assert "4 tokens in 2 events, the first after 1 s" in drawn


def test_the_page_draws_each_stream_of_the_largest_leg() -> None:
    ours = ArmBuilder(OURS)
    for streams in (1, 2, 8):
        for _ in range(streams):
            ours.arm.requests.append(request("aggregate", len(ours.arm.requests)))
        rests = list(range(len(ours.arm.requests) - streams, len(ours.arm.requests)))
        ours.also(f"aggregate_rate@{streams}", "tok/s", 10.0, rests=rests)
    text = html.page(made := [run(ours)], summarise(made))
    assert "Together: 8 streams" in text
    assert text.count('class="ticks arm0" d=') + text.count(' class="ticks arm0"></path>') >= 8
    assert len(re.findall(r"<title>aggregate \d+:", text)) == 8


def test_a_spread_tells_median_and_tail_and_grows_with_its_values() -> None:
    curve = plots.Curve("ours", 2, [0.1 * number for number in range(1, 101)])
    drawn = plots.spread("Times", [curve, plots.Curve("none", 1, [])])
    assert drawn is not None
    assert "p50 5 s, p99 9.9 s, 100 times" in drawn
    assert "none" not in Page(drawn).text
    (path,) = re.findall(r'd="([^"]+)" class="curve arm2"', drawn)[:1]
    steps = [float(x) for x in re.findall(r"H([\d.]+)", path)]
    assert steps == sorted(steps)
    assert plots.spread("Times", [plots.Curve("ours", 0, [])]) is None


@pytest.mark.parametrize("values", [[1.0], [0.02, 0.02], [0.0004, 90.0], [1.0, 1.0001], [2.0, 5.0]])
def test_all_values_are_within_the_scale_of_a_spread(values: list[float]) -> None:
    scale = plots.Scale(values[0], values[-1])
    for value in values:
        assert scale.marks[0] <= value <= scale.marks[-1]
        assert 0 <= scale.x(value) <= 460
    assert 2 <= len(scale.marks) <= 8
    drawn = plots.spread("Times", [plots.Curve("ours", 0, values)])
    ends = sorted(float(x) for x in re.findall(r'x="([\d.]+)" y="238"', drawn or ""))
    assert ends[-1] == pytest.approx(446.0)  # the last time of the scale is always named
    assert all(later - x >= 56 for x, later in pairwise(ends))
    assert scale.marks == sorted(set(scale.marks))


def test_failures_and_what_cannot_be_done_are_on_every_report() -> None:
    made = runs()
    made[0].arms[0].requests[1].error = "HTTP 503"
    told = summarise(made)
    for text in (paged(made).text, markdown.report(told)):
        for words in ("it did not come back", "given up", "it was left out", "not applicable"):
            assert words in text
    assert "HTTP 503" in paged(made).text
    assert "1 of decode" in markdown.report(told)


def test_a_suppressed_ratio_shows_both_figures_and_the_reason_in_words() -> None:
    def another(one: record.Request) -> None:
        one.text = "Another answer."

    made = [changed(another, run(*arms()))]
    for text in (paged(made).text, markdown.report(summarise(made))):
        assert "12.5 tok/s" in text
        assert "10 tok/s" in text
        assert "ratio suppressed" in text
        assert "the answers differ from character 0 on (3 of 3 pairs)" in text


def test_a_diagnostic_run_says_so_before_any_figure() -> None:
    made = runs(mode="diagnostic")
    for text in (paged(made).text, markdown.report(summarise(made))):
        assert text.index("these figures are no measurement") < text.index("decode_rate")
    assert {goal.verdict for goal in summarise(made).goals} == {"not shown"}
    assert {goal.verdict for goal in summarise(runs()).goals} > {"not shown"}


def test_the_markdown_has_as_many_cells_in_each_row_as_in_its_header() -> None:
    for made in (runs(5), everywhere(HOSTILE)):
        width = None
        for line in markdown.report(summarise(made)).splitlines():
            cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else None
            assert width is None or cells is None or cells == width, line
            width = cells


def test_hostile_texts_are_text_in_markdown() -> None:
    text = markdown.report(summarise(everywhere(HOSTILE)))
    outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", text)
    assert "<script" not in outside
    assert "<img" not in outside
    assert not re.search(r"(?<!\\)\]\(", outside)


def test_intervals_are_told_once_if_there_are_too_few_seeds() -> None:
    few, many = (markdown.report(summarise(runs(count))) for count in (2, 5))
    assert few.count("No interval: 2 seeds, and 5 are needed") == 1
    assert "No interval" not in many
    assert re.search(r"1\.2\dx \\\[1\.2\d, 1\.2\d\\\] better", many)


def test_a_slack_is_told_where_ratios_are() -> None:
    made = runs()
    told = summarise(made, slack=8)
    for text in (Page(html.page(made, told)).text, markdown.report(told)):
        assert "ached tokens may differ by up to 8" in text


@pytest.mark.parametrize(
    ("against", "better", "said"),
    [
        (Against(ratio=1.2), "higher", "better"),
        (Against(ratio=1.2), "lower", "worse"),
        (Against(ratio=0.8), "lower", "better"),
        (Against(ratio=0.8), "neither", ""),
        (Against(ratio=1.2, low=0.9, high=1.5), "higher", "no difference shown"),
        (Against(ratio=1.0001), "higher", "equal"),
        (Against(), "higher", ""),
    ],
)
def test_a_ratio_is_for_the_better_only_where_that_is_shown(
    against: Against, better: Any, said: str
) -> None:
    assert wording.direction(against, better) == said


@pytest.mark.parametrize(
    ("number", "unit", "said"),
    [
        (0.0123, "s", "12.3 ms"),
        (0.0, "s", "0"),
        (12.34, "s", "12.3 s"),
        (1234.5, "tok/s", "1,234 tok/s"),
        (1536.0, "bytes", "1.5 KiB"),
        (3 * 2.0**40, "bytes", "3 TiB"),
        (0.4567, "share", "45.7%"),
    ],
)
def test_values_are_said_in_units_that_people_read(number: float, unit: str, said: str) -> None:
    assert wording.value(number, unit) == said


def test_the_command_writes_what_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files: list[str] = []
    for one in runs(5, command=["bramley", "bench", "serve", "--out", "/a b/run.json"]):
        record.save(one, tmp_path / f"{one.id}.json")
        files.append(str(tmp_path / f"{one.id}.json"))
    page, page_md, kept = (tmp_path / name for name in ("a.html", "a.md", "a.json"))
    asked = [*files, "--html", str(page), "--markdown", str(page_md), "--summary", str(kept)]
    assert report.main(asked) == 0
    assert capsys.readouterr().out == ""
    assert page.read_text().startswith("<!doctype html>")
    told = summary.load(kept)
    assert page_md.read_text() == markdown.report(told)
    assert told.commands[0] == "bramley bench serve --out run.json"
    assert len(told.commands) == 2
    assert str(tmp_path) not in kept.read_text()
    assert kept.stat().st_size < 60_000


def test_without_a_file_the_report_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record.save(runs()[0], tmp_path / "run.json")
    assert report.main([str(tmp_path / "run.json"), "--baseline", OURS]) == 0
    assert "the ratio to **bramley**" in capsys.readouterr().out


def test_bad_input_is_told_in_a_line_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record.save(runs()[0], tmp_path / "run.json")
    page = tmp_path / "a.html"
    for asked in (["none.json"], [str(tmp_path / "run.json"), "--baseline", "nobody"]):
        assert report.main([*asked, "--html", str(page)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert not page.exists()


def test_the_page_of_the_docs_holds_every_summary_and_how_to_make_one() -> None:
    empty = markdown.performance({}, "MARK\n")
    assert "No run is kept here yet" in empty
    assert "bramley bench serve" in empty
    told = summarise(runs(5), command=["bramley", "bench", "serve", "--seeds", "5"])
    full = markdown.performance({"first": told, "second": told}, "MARK\n")
    assert "No run is kept" not in full
    assert full.count("## first: tiny") == full.count("## second: tiny") == 1
    assert full.count("### Required and reached") == 2
    assert "bramley bench serve --seeds 5" in full


def test_tags_escape_what_is_no_markup() -> None:
    assert tag("b", "<i>", Markup("<i></i>"), None, 3) == "<b>&lt;i&gt;<i></i>3</b>"
    assert tag("a", title='"<', data_x=1, hidden=True, none=None, no=False) == (
        '<a title="&quot;&lt;" data-x="1" hidden></a>'
    )
    assert tag("br") == "<br>"
    assert join("a", "b", between=" & ") == "a &amp; b"
    assert '<td data-label="two">&lt;' in table(["one", "two"], [["1", "<"]])
