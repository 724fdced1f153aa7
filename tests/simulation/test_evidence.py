"""The suite of figures, its parts, and what it is made of: contests, decisions, runs, pictures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner

from loadtest.cli import loadtest
from loadtest.contests import fairness, floor
from loadtest.decisions import best_of, busy, idle
from loadtest.evidence import FULL, QUICK, Suite, scenarios
from loadtest.figures import Figures
from loadtest.plots import plot_goodput
from loadtest.runs import Runs
from loadtest.simulate import Scenario

SHORT = Scenario(seconds=10.0, router="round_robin")


def test_the_quick_part_reaches_its_figures() -> None:
    """200 s of one window: every rule of the scheduler at work, on recorded traffic."""
    result = CliRunner().invoke(loadtest, ["simulate", "--suite", "evidence", "--quick", "--json"])
    lines = [orjson.loads(line) for line in result.stdout.splitlines()]
    assert [line for line in lines if not line["ok"]] == []
    assert result.exit_code == 0
    assert all(set(line) == {"figure", "value", "target", "ok"} for line in lines)
    assert len(lines) == len({line["figure"] for line in lines}) > 20


def test_one_figure_that_falls_short_fails_the_suite() -> None:
    shown: list[tuple[str, bool]] = []
    suite = Suite(lambda figure, value, target, ok: shown.append((target, ok)), Runs(), QUICK)
    suite.at_least("a", 1.0, 1.0)
    suite.at_most("b", 1.0, 1.0)
    assert suite.ok
    suite.at_most("c", 1.01, 1.0)
    suite.at_least("d", 2.0, 1.0)
    assert not suite.ok
    assert shown == [(">= 1", True), ("<= 1", True), ("<= 1", False), (">= 1", True)]


def test_the_number_of_simulations_is_known_before() -> None:
    assert scenarios(QUICK) == 2 * 3 + 1 + 3 + 1
    assert scenarios(FULL) == 5 * (2 * 6 + 3 + 3 + 2 + 4)


def test_scenarios_run_once_and_in_order() -> None:
    ended: list[int] = []
    with Runs(1, lambda: ended.append(1)) as runs:
        one, other, again = runs.of([SHORT, replace(SHORT, window=2), SHORT])
        assert one == again != other
        assert runs.of([replace(SHORT, window=2)]) == [other]
    assert len(ended) == 2


def test_processes_find_what_one_finds() -> None:
    asked = [replace(SHORT, window=number) for number in (1, 2)]
    with Runs(1) as alone, Runs(2) as several:
        assert several.of(asked) == alone.of(asked)


def test_backlogged_tenants_are_served_alike_whatever_they_ask_for() -> None:
    assert fairness(large_requests=30).requests_apart <= 2.0


@pytest.mark.parametrize("promised", [0.02, 0.1])
def test_a_class_gets_its_floor_in_every_ten_seconds_of_overload(promised: float) -> None:
    got = floor(seconds=60.0, promised=promised)
    assert got.least_share >= promised
    assert got.load == pytest.approx(1.2)


def test_decisions_are_counted_and_timed() -> None:
    cost = best_of(2, lambda: busy(4, 50, 120, places=2))
    assert (cost.workers, cost.waiting, cost.lives) == (4, 50, 120)
    assert 100 <= cost.dispatches <= 120  # nearly every end lets somebody go
    assert cost.dispatches_per_s > 0
    calm = idle(4, 60, each=2)
    assert calm.dispatches == 0  # nobody waited: each went when it came
    assert calm.life_s > 0


def test_pictures_need_the_extra_and_say_so(tmp_path: Path) -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        result = CliRunner().invoke(
            loadtest,
            ["simulate", "--windows", "1", "--seconds", "5", "--router", "lmetric", "--plot", str(tmp_path)],
        )
        assert result.exit_code == 1
        assert "headrace[plots]" in result.output
    else:
        found: dict[str, list[Figures]] = {"some load: lmetric": [SHORT.run()]}
        (path,) = plot_goodput(found, tmp_path / "pictures")
        assert path.read_bytes().startswith(b"\x89PNG")
