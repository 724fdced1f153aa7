"""`headrace report`: the lines it takes, those it refuses and how, the page it writes, and what it never does."""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from headrace import cli
from loadtest import figures as SimulatedFigures
from loadtest.live_figures import Goal, Outcome, Record, Spread
from loadtest.live_figures import report as live_report
from loadtest.ramp import Step
from loadtest.report_charts import (
    Bar,
    Bars,
    Curve,
    bar_chart,
    curve_chart,
    linear_ticks,
    log_ticks,
    percent,
    plain,
    seconds,
)
from loadtest.report_lines import MAX_LINE_BYTES, MAX_LINES, LineError, read
from loadtest.report_page import MAX_CHARTS, page

EVIL = "<script>alert('\"&')</script>"
FIGURE = {"figure": "requests lost", "value": 0, "target": "0", "ok": True}
TIMES = {"p50_s": 0.1, "p90_s": 0.2, "p99_s": 1.5}
NO_TIMES = {"p50_s": None, "p90_s": None, "p99_s": None}
GROUP = {"requests": 4, "outcomes": {"answered": 3, "refused": 1}, "goodput": 0.75} | dict.fromkeys(
    ("ttft", "tpot", "total"), TIMES
)
RUN = GROUP | {
    "seconds": 8.0, "took_s": 9.0, "wanted_per_s": 2.0, "reached_per_s": 2.0, "interrupted": False,
    "troubles": [{"outcome": "refused", "code": EVIL, "count": 1, "message": EVIL}],
    "pools": {EVIL: GROUP, "long-context": GROUP}, "classes": {"standard": GROUP}, "more": "is left aside",
}  # fmt: skip
ABOUT = {
    "trace": EVIL, "url": "http://127.0.0.1:1", "model": EVIL, "seed": 1, "ttft_slo_s": 2.0, "tpot_slo_s": 0.1,
    "warnings": [EVIL],
}  # fmt: skip
REPLAY = RUN | ABOUT
STEPS = [{"step": RUN | {"rate_per_s": rate, "kept": rate < 9}} for rate in (4.0, 10.0, 7.0)]
RAMP_END = ABOUT | {"goodput": 0.99, "greatest_per_s": 7.0, "ending": "goodput", "steps": 3}
SIMULATED_GROUP = {"requests": 9, "goodput": 0.9, "ttft_p50_s": 0.1, "ttft_p99_s": 2.0, "tpot_p99_s": 0.05}
SIMULATED = {"router": EVIL, "window": 1} | dict.fromkeys(("all", "short", "long"), SIMULATED_GROUP)


def lines(*values: Any) -> list[bytes]:
    return [json.dumps(value).encode() + b"\n" for value in values]


def written(path: Path, *values: Any) -> str:
    path.write_bytes(b"".join(lines(*values)))
    return str(path)


def report(*words: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(cli, ["report", *words], input=stdin)


class Outline(HTMLParser):
    """Every element is closed where it should be; what names something elsewhere is noted."""

    VOID = frozenset({"meta", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [f"{name}={value}" for name, value in attrs if name in {"href", "src", "srcset", "action"}]
        self.links += [name for name, _ in attrs if name.startswith("on")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def outline(text: str) -> Outline:
    found = Outline()
    found.feed(text)
    found.close()
    assert found.open == []
    return found


# -- lines


def test_every_kind_of_line_is_known_by_its_fields() -> None:
    source, count = read("x", lines(FIGURE, REPLAY, *STEPS, RAMP_END, SIMULATED, *STEPS[:1]))
    assert count == 8
    assert [len(kind) for kind in (source.figures, source.replays, source.ramps, source.simulated)] == [1, 1, 2, 1]
    first, second = source.ramps
    assert ([step.rate_per_s for step in first.steps], first.end is not None) == ([4.0, 10.0, 7.0], True)
    assert (len(second.steps), second.end) == (1, None)
    assert source.failed == 0


def test_what_the_suites_print_is_taken() -> None:
    one = Record(0, 0.0, 10, 5, late_s=0.0)
    one.settle(Outcome.ANSWERED, "")
    found = live_report([one], Goal(), seconds=1.0, took_s=1.0, gaps=Spread(), lag=Spread(), peak_in_flight=1)
    group = SimulatedFigures.Group(3, 1.0, 0.1, 0.2, 0.3, 0.01, 0.02)
    simulated = SimulatedFigures.Figures(group, group, group, {}, {}, 0, 0, 0.0, 0.0, 0.0, 1.0).as_dict()
    printed = lines(
        ABOUT | found.as_dict(), {"step": Step(1.0, found, 0.99).as_dict()}, {"router": "x", "window": 1, **simulated}
    )
    source, _ = read("x", printed)
    assert (len(source.replays), len(source.ramps), len(source.simulated)) == (1, 1, 1)


def test_a_ramp_may_end_before_its_first_step() -> None:
    source, _ = read("x", lines(RAMP_END | {"greatest_per_s": None}))
    assert source.ramps[0].steps == []
    assert "no rate that was tried" in page([source], "now", "1")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "not JSON"),
        (b"ok    requests lost: 0", "'ok    requests lost: 0'"),
        (b'{"figure": NaN}', "not JSON"),
        (b"[1]", "list, not an object"),
        (b"null", "NoneType, not an object"),
        (b'{"plan": {}, "models": []}', "an object with plan, models; expected a line that"),
        (b"{}", "an object with nothing"),
        (b'{"figure": "x", "value": 1, "target": "1"}', "ok: Field required"),
        (b'{"figure": "x", "value": "1", "target": "1", "ok": true}', "value: Input should be a valid number, got '1'"),
        (b'{"figure": "x", "value": 1, "target": "1", "ok": 1}', "expected a figure"),
        (b'{"figure": "x", "value": 1e999, "target": "1", "ok": true}', "line 2"),
        (
            json.dumps({"step": {**STEPS[0]["step"], "goodput": 1.5}}).encode(),
            "step.goodput: Input should be less than",
        ),
        (b'{"step": 7}', "expected a step of `loadtest ramp`"),
        (b'{"outcomes": {}}', "expected the result of `loadtest replay`"),
        (json.dumps({**REPLAY, "troubles": [{}]}).encode(), "troubles.0.outcome: Field required"),
        (json.dumps({**SIMULATED, "long": {}}).encode(), "expected a result of `loadtest simulate`"),
        (b" " * (MAX_LINE_BYTES + 1), "longer than 4 MiB"),
        (b'\xff\xfe{"figure"', "not JSON"),
    ],
)
def test_a_line_that_no_suite_prints_is_refused_with_its_place(line: bytes, said: str) -> None:
    with pytest.raises(LineError) as caught:
        read("some.jsonl", [*lines(FIGURE), line])
    assert str(caught.value).startswith("some.jsonl, line 2: ")
    assert said in str(caught.value)
    assert len(str(caught.value)) < 500


def test_an_empty_file_and_too_many_lines_are_refused() -> None:
    with pytest.raises(LineError, match=r"x: has no line; expected a line that `headrace verify`"):
        read("x", [b"\n", b"  \n"])
    with pytest.raises(LineError, match=r"x, line 1: there are more than 20,000 lines"):
        read("x", lines(FIGURE), MAX_LINES)
    assert read("x", lines(FIGURE), MAX_LINES - 1)[1] == MAX_LINES


@given(st.binary(max_size=200) | st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda inner: (
    st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*REPLAY, *RAMP_END, *FIGURE, "step"]), inner)
)).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_whatever_a_line_is_it_is_taken_or_refused(line: bytes) -> None:
    try:
        source, _ = read("x", [line])
    except LineError:
        return
    outline(page([source], "now", "1"))


# -- charts


@given(st.floats(1e-6, 1e9))
def test_ticks_are_few_round_and_reach_the_greatest(most: float) -> None:
    ticks = linear_ticks(most)
    assert ticks[0] == 0
    assert ticks[-1] >= most * (1 - 1e-6)
    assert 2 <= len(ticks) <= 6


def test_ticks_of_nothing_and_of_powers() -> None:
    assert linear_ticks(0) == [0.0, 1.0]
    assert log_ticks(0.02, 3.0) == pytest.approx([0.01, 0.1, 1.0, 10.0])
    assert log_ticks(1.0, 1.0) == pytest.approx([1.0, 10.0])


def test_numbers_are_short() -> None:
    assert [seconds(value) for value in (0, 0.0123, 1.5, 12.34)] == ["0", "12.3 ms", "1.5 s", "12.3 s"]
    assert (percent(0.987), plain(1234567.0), plain(0.02914)) == ("98.7 %", "1,234,567", "0.02914")


@pytest.mark.parametrize("logarithmic", [False, True])
@given(points=st.lists(st.tuples(st.floats(0.01, 1e5), st.floats(0, 1e4)), max_size=8))
def test_curves_stay_in_their_frame(points: list[tuple[float, float]], logarithmic: bool) -> None:
    drawn = curve_chart("a", "b", "c", [Curve(EVIL, points)], plain, logarithmic=logarithmic, bound=2.0)
    svg = ElementTree.fromstring(drawn[drawn.index("<svg") : drawn.index("</svg>") + 6])
    _, _, width, height = map(float, svg.attrib["viewBox"].split())
    circles = svg.findall("circle")
    assert len(circles) == len(points)
    for circle in circles:
        assert 0 <= float(circle.attrib["cx"]) <= width
        assert 0 <= float(circle.attrib["cy"]) <= height


def test_bars_have_titles_values_bounds_and_axes() -> None:
    drawn = bar_chart("cost", "seconds", [Bars(EVIL, [Bar(0.5, "ours", 0, 0.4), Bar(0.0, "theirs")])], plain)
    svg = ElementTree.fromstring(drawn[drawn.index("<svg") : drawn.index("</svg>") + 6])
    assert svg.attrib["aria-label"] == "cost, seconds"
    said = [each.text for each in svg.findall("text")]
    assert {"ours", "0.5", "theirs", "0", "0.2", "0.4"} <= set(said)
    assert len([line for line in svg.findall("line") if line.attrib["class"] == "bound"]) == 1
    assert EVIL not in drawn


# -- the page


def full_page() -> str:
    compared = [
        {"figure": f"{who}: a request", "value": value, "target": target, "ok": who != "headrace"}
        for who, value, target in (
            ("headrace", 3.0, "s CPU; at most 2.5, 2 x nginx"), ("nginx", 1.0, "s CPU"), (EVIL, 9.0, "s CPU"),
        )
    ]  # fmt: skip
    alone = {"figure": "headrace: alone", "value": 1.0, "target": "s CPU", "ok": True}
    evil = {"figure": EVIL, "value": 1, "target": EVIL, "ok": True}
    first, count = read(EVIL, lines(*compared, alone, evil, FIGURE))
    second, _ = read("b.jsonl", lines(REPLAY, *STEPS, RAMP_END, STEPS[0], SIMULATED, RUN | ABOUT), count)
    return page([first, second], "today", "1.0")


def test_the_page_is_whole_and_names_nothing_elsewhere() -> None:
    text = full_page()
    found = outline(text)
    assert found.links == []
    assert "script" not in found.tags
    assert EVIL not in text
    assert "&lt;script&gt;" in text
    assert "url(" not in text
    assert "@import" not in text
    assert "default-src 'none'" in text


def test_what_falls_short_comes_first_and_each_figure_once() -> None:
    text = full_page()
    headings = re.findall(r"<h2>(.*?)</h2>", text)
    assert headings[0] == "Fall short: 1 of 6 figures"
    assert headings[-1] == "Reached: 5 of 6 figures"
    assert text.count("headrace: a request") == 1
    assert "<title>Headrace report: 1 of 6 figures fall short</title>" in text


def test_charts_are_drawn_where_there_is_something_to_compare() -> None:
    captions = re.findall(r"<figcaption>(.*?) <span", full_page())
    assert captions.count("a request") == 1
    assert "alone" not in captions
    for wanted in ("Time to first token", "Time per output token", "Whole answer", "Outcomes", "Goodput"):
        assert wanted in captions


def test_charts_of_compared_figures_are_bounded() -> None:
    many = [
        {"figure": f"{who}: load {number}", "value": 1.0, "target": "ms", "ok": True}
        for number in range(MAX_CHARTS + 5)
        for who in ("headrace", "nginx")
    ]
    text = page([read("x", lines(*many))[0]], "today", "1")
    assert text.count("<figure>") == MAX_CHARTS
    assert text.count("<tr><td>") == len(many)


def test_a_run_without_an_answer_has_a_page() -> None:
    none = REPLAY | {"ttft": NO_TIMES, "tpot": NO_TIMES, "total": NO_TIMES, "goodput": None, "outcomes": {}}
    text = page([read("x", lines(none | {"interrupted": True}))[0]], "today", "1")
    outline(text)
    assert "It was interrupted" in text
    outline(page([read("x", lines({"step": STEPS[0]["step"] | {"goodput": None, "ttft": NO_TIMES}}))[0]], "", "1"))


# -- the command


def test_the_command_writes_a_page_and_counts(tmp_path: Path) -> None:
    short = FIGURE | {"value": 1, "ok": False}
    one, output = written(tmp_path / "a", FIGURE, short), tmp_path / "page.html"
    done = report(one, "-", "-o", str(output), "--json", stdin=b"".join(lines(FIGURE)))
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"report": str(output), "figures": 3, "failed": 1}
    assert "standard input" in output.read_text()
    done = report(one, "-o", str(output), "--force")
    assert (done.exit_code, done.stdout) == (0, f"wrote {output}: 1 of 2 figures fall short\n")
    assert output.stat().st_mode & 0o777 == 0o644
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "page.html"]
    assert report(written(tmp_path / "b", REPLAY), "-o", str(output), "--force").stdout.endswith(
        "no figures with targets\n"
    )


def test_an_existing_page_is_kept_unless_forced(tmp_path: Path) -> None:
    one, output = written(tmp_path / "a", FIGURE), tmp_path / "report.html"
    output.write_text("mine")
    done = report(one, "-o", str(output))
    assert done.exit_code == 2
    assert "exists; give --force" in done.output
    assert output.read_text() == "mine"


def test_nothing_is_written_of_bad_input(tmp_path: Path) -> None:
    good, bad, output = written(tmp_path / "a", FIGURE), tmp_path / "b", tmp_path / "report.html"
    bad.write_bytes(b"".join(lines(FIGURE)) + b"Traceback (most recent call last):\n")
    for words, said in (
        ((good, str(bad)), f"{bad}, line 2: not JSON"),
        ((good, str(tmp_path / "none")), "cannot be read: No such file"),
        ((str(tmp_path),), "cannot be read: Is a directory"),
        ((), "Missing argument"),
    ):
        done = report(*words, "-o", str(output))
        assert done.exit_code == 2
        assert said in done.output
        assert not output.exists()
    done = report(good, "-o", good, "--force")
    assert done.exit_code == 2
    assert "is what the report is made from" in done.output


def test_a_page_that_cannot_be_written_is_a_failure(tmp_path: Path) -> None:
    one = written(tmp_path / "a", FIGURE)
    for force in ((), ("--force",)):
        done = report(one, "-o", str(tmp_path / "nowhere" / "report.html"), *force)
        assert done.exit_code == 1
        assert "cannot be written: No such file or directory" in done.output
    assert os.listdir(tmp_path) == ["a"]
