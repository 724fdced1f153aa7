"""What `headrace loadtest replay` and `ramp` are told, and what they say to what cannot be."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from loadtest.cli_live import ramp, replay
from loadtest.live_options import goal_of, seed_of, shared, target_of, trace_of, traffic_of


def parsed(*words: str, **env: str) -> dict[str, object]:
    found: dict[str, object] = {}

    @click.command()
    @shared
    def command(**options: object) -> None:
        found.update(options)

    result = CliRunner(env=env).invoke(command, list(words))
    assert result.exit_code == 0, result.output
    return found


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080"),
        ("https://gateway.example/v1", "https://gateway.example"),
        ("http://[::1]:9/v1/", "http://[::1]:9"),
    ],
)
def test_a_url_with_or_without_what_clients_add(url: str, base: str) -> None:
    assert parsed("--url", url)["url"] == base


def test_what_is_said_when_nothing_is() -> None:
    options = parsed()
    target = target_of(options)
    assert (target.url, target.key, target.model, target.priority) == ("http://127.0.0.1:8080", "", "", "")
    assert (goal_of(options).ttft_s, goal_of(options).tpot_s) == (2.0, 0.1)
    assert seed_of(options) != seed_of(options)  # prompts that no cache has
    assert seed_of(parsed("--seed", "7")) == 7
    assert trace_of(options).name == "azure2023_conv"


def test_the_key_may_be_in_a_file_or_in_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("hr_filed\nmore\n")
    assert target_of(parsed("--key", "hr_said")).key == "hr_said"
    assert target_of(parsed("--key", f"file:{file}")).key == "hr_filed"
    assert target_of(parsed(HEADRACE_API_KEY=f"file:{file}")).key == "hr_filed"
    assert target_of(parsed("--key", "hr_said", HEADRACE_API_KEY="hr_env")).key == "hr_said"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--url", "ftp://h"], "must be http://HOST:PORT or https://HOST:PORT"),
        (["--url", "127.0.0.1:8080"], "must be http://HOST:PORT"),
        (["--url", "http://h:99999"], "Port out of range"),
        (["--url", "http://u:hidden@h"], "a key does not belong into the URL"),
        (["--url", "http://h/dashboard"], "must end after the port, or with /v1"),
        (["--url", "http://h/?q"], "must end after the port"),
        (["--key", "hidden key"], "visible characters without spaces"),
        (["--key", "hidden\nkey"], "visible characters without spaces"),
        (["--key", "file:/nonexistent"], "/nonexistent: cannot be read: No such file or directory"),
        (["--key", "file:/dev/null"], "/dev/null: its first line is empty"),
        (["--priority", "a\nb"], "must be a name of at most 64 characters"),
        (["--priority", "x" * 65], "must be a name"),
        (["--limit", "0"], "0 is not in the range x>=1"),
        (["--rate", "nan"], "must be a finite number, got nan"),
        (["--seconds", "inf"], "is not in the range"),
        (["--rate", "0"], "is not in the range"),
        (["--timeout", "0"], "is not in the range"),
        (["--max-in-flight", "0"], "is not in the range"),
        (["--rate", "2", "--rate-scale", "2"], "say the same thing; give one"),
        (["--rate", "100000", "--seconds", "3600"], "are more than 200000 requests"),
        (["--rate-scale", "10000", "--seconds", "3600"], "are more than 200000 requests"),
        (["--skip", "99999"], "azure2023_conv is 3502 s long; leave out less of it"),
        (["nosuch"], "'nosuch' is no file and no trace; there are azure2023_conv"),
        (["/dev"], "is no file and no trace"),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(words: list[str], told: str) -> None:
    result = CliRunner().invoke(replay, words)
    assert result.exit_code == 2
    # As on one line: a long path is broken where the terminal ends.
    assert told in " ".join(result.output.split())
    assert "hidden" not in result.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--from", "5", "--to", "3"], "--from 5 is above --to 3"),
        (["--to", "100000"], "--to 100000 for --step-seconds 30 are more than 200000 requests"),
        (["--step-factor", "1"], "is not in the range"),
        (["--goodput", "1.5"], "is not in the range"),
    ],
)
def test_a_ramp_that_cannot_be(words: list[str], told: str) -> None:
    result = CliRunner().invoke(ramp, words)
    assert result.exit_code == 2
    assert told in result.output


def test_a_rate_or_a_multiple_of_the_recorded_one() -> None:
    usual = {**parsed(), "rate": None, "rate_scale": None, "seconds": None, "limit": None}
    _, (seconds, recorded) = traffic_of(usual)
    _, (_, doubled) = traffic_of({**usual, "rate_scale": 2.0})
    _, (_, rated) = traffic_of({**usual, "rate": 3.0, "seconds": 10.0})
    assert seconds == 60.0
    assert len(doubled) > len(recorded)
    assert len(rated) == 30
