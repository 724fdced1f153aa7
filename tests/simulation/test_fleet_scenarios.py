"""Seeded fleet scenarios on recorded traffic: the production scheduler against the classic rules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner

from loadtest.baselines import RULES
from loadtest.cli import loadtest
from loadtest.simulate import WINDOWS, Scenario, mean_goodput, windows_of

MINUTES = Scenario(seconds=100.0)


def test_shared_prefixes_are_found_by_the_engines() -> None:
    with_prefixes = replace(MINUTES, prefixes=True).run()
    assert with_prefixes.cached_share > 0.01
    assert MINUTES.run().cached_share == 0.0


def test_windows_leave_out_the_one_for_tuning_and_differ() -> None:
    runs = dict(windows_of(replace(MINUTES, seconds=20.0, router="round_robin"), 3))
    assert list(runs) == [1, 2, 3]
    assert len({figures.all.requests for figures in runs.values()}) > 1
    assert 0 < min(mean_goodput(list(runs.values()))) <= 1
    assert len(set(WINDOWS)) == len(WINDOWS)


def test_a_router_nobody_has_is_refused() -> None:
    with pytest.raises(ValueError, match="headrace, round_robin"):
        replace(MINUTES, router="nope").run()


def test_one_kind_of_traffic_alone() -> None:
    short = replace(MINUTES, long_per_s=0.0, seconds=30.0).run()
    assert set(short.tenants) == {"chat"}


class TestCommand:
    def test_a_table_for_people_and_lines_for_programs(self) -> None:
        arguments = ["simulate", "--windows", "1", "--seconds", "20", "--router", "headrace", "--router", "lmetric"]
        table = CliRunner().invoke(loadtest, arguments)
        assert table.exit_code == 0, table.output
        assert [line.split()[0] for line in table.output.splitlines()[1:]] == ["router", "headrace", "lmetric"]
        lines = CliRunner().invoke(loadtest, [*arguments, "--json"]).output.splitlines()
        first = orjson.loads(lines[0])
        assert (first["router"], first["window"]) == ("headrace", 1)
        assert 0 <= first["all"]["goodput"] <= 1

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["--router", "nope"], "headrace, round_robin"),
            (["--algorithm", "nope"], "least_outstanding_work"),
            (["--preset", "nope"], "llama3-8b/a100-80"),
            (["--short", "0"], "at least one worker"),
        ],
    )
    def test_usage_errors_name_what_there_is(self, arguments: list[str], says: str) -> None:
        result = CliRunner().invoke(loadtest, ["simulate", "--seconds", "5", *arguments])
        assert result.exit_code == 2
        assert says in result.output

    def test_a_policy_of_ones_own(self, tmp_path: Path) -> None:
        own = tmp_path / "policy.yaml"
        own.write_text("balancing: {algorithm: nope}")
        bad = CliRunner().invoke(loadtest, ["simulate", "--policy", str(own)])
        assert bad.exit_code == 2
        assert "balancing.algorithm" in bad.output
        own.write_text("balancing: {beta: 0.2}")
        arguments = ["--router", "headrace", "--windows", "1", "--seconds", "5"]
        good = CliRunner().invoke(loadtest, ["simulate", "--policy", str(own), *arguments])
        assert good.exit_code == 0, good.output

    def test_every_rule_has_a_row(self) -> None:
        table = CliRunner().invoke(
            loadtest, ["simulate", "--windows", "1", "--seconds", "5", "--algorithm", "round_robin"]
        )
        assert [line.split()[0] for line in table.output.splitlines()[2:]] == ["headrace", *RULES]
