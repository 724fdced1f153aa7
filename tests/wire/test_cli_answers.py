"""What commands say where there is nothing to show, something is refused, or a remedy is to be named."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import headrace
from gateway.audit import AuditLog, tail, verify


def run(*words: str) -> Result:
    return CliRunner().invoke(headrace.cli, list(words))


def test_a_log_that_was_never_written_is_no_fault_and_a_lost_one_is(tmp_path: Path) -> None:
    place = ("--state-dir", str(tmp_path))
    for command in ("show", "verify"):
        done = run("audit", command, *place)
        assert (done.exit_code, done.output) == (0, f"no changes recorded yet in {tmp_path}\n")
    assert run("audit", "show", "--json", *place).stdout == ""
    assert json.loads(run("audit", "verify", "--json", *place).stdout)["entries"] == 0
    (tmp_path / "audit.jsonl.1").write_text("")
    assert run("audit", "verify", *place).exit_code == 1


def test_keys_made_here_are_in_the_log_between_what_a_gateway_writes(tmp_path: Path) -> None:
    place, file = ("--state-dir", str(tmp_path)), tmp_path / "audit.jsonl"
    gateway = AuditLog(file)
    gateway.note("ann", "admin", "10.0.0.1", "policy.apply", "", "ok", {})
    made = run("key", "create", "--tenant", "acme", *place)
    key_id = made.stdout.split("_")[1]
    gateway.note("ann", "admin", "10.0.0.1", "policy.apply", "", "ok", {})
    assert run("key", "rotate", key_id, *place).exit_code == 0
    assert run("key", "revoke", "nope", *place).exit_code == 1
    assert run("key", "revoke", key_id, *place).exit_code == 0
    gateway.note("ann", "admin", "10.0.0.1", "policy.apply", "", "ok", {})
    ours = [one for one in reversed(tail(file, 20)) if one["action"].startswith("key.")]
    assert [(one["action"], one["target"], one["result"]) for one in ours] == [
        ("key.create", key_id, "ok"),
        ("key.rotate", key_id, "ok"),
        ("key.revoke", "nope", "failed"),
        ("key.revoke", key_id, "ok"),
    ]
    assert {one["peer"] for one in ours} == {"command line"}
    assert ours[0]["detail"] == {"tenant": "acme"}
    assert made.stdout.strip() not in file.read_text(), "no secret"
    assert verify(file).whole
    assert gateway.verify().whole, "nor does the gateway miss what it wrote"


def test_a_key_is_made_though_the_log_cannot_be_written_and_that_is_told(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").mkdir()
    done = run("key", "create", "--tenant", "acme", "--state-dir", str(tmp_path))
    assert (done.exit_code, done.stdout[:3]) == (0, "hr_")
    assert f"headrace: not in the audit log: {tmp_path}/audit.jsonl: Is a directory" in done.stderr


def test_a_new_key_tells_its_file_and_what_it_shuts_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = run("key", "create", "--tenant", "acme", "--state-dir", "state")
    file = tmp_path / "state/keys.json"
    assert file.is_file()
    second = made.stderr.splitlines()[1]
    assert second.startswith(f"Written to {file}. Gateways with this state directory answer callers without a key 401")
    assert "also when all keys are revoked" in second
    place = ("--state-dir", "state", "--json")
    assert json.loads(run("key", "create", "--tenant", "acme", *place).stdout)["file"] == str(file)
    key_id = made.stdout.split("_")[1]
    assert json.loads(run("key", "rotate", key_id, *place).stdout)["file"] == str(file)
    assert run("key", "rotate", key_id, *place[:2]).stderr.splitlines()[1] == f"Written to {file}."


def test_a_gateway_names_the_policy_file_whose_faults_it_tells(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("pools:\n  short-chat: {max_budget_tokens: 0, colour: red}\n")
    place = ("--state-dir", str(tmp_path / "state"), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "serve", "--policy", str(file), "--redis", "none", *place],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    at = f"headrace: {file}: line 2: pools.short-chat.max_budget_tokens: must be at least 1, got 0"
    assert at in done.stderr.splitlines()
    assert f"headrace: {file}: line 2: pools.short-chat.colour: " in done.stderr


def test_a_setting_that_is_bad_is_said_once_and_where_it_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "headrace.yaml"
    done = run("serve", "-c", str(file))
    assert done.stderr == f"headrace: {file}: cannot read settings file: No such file or directory\n"
    file.write_text("max_connections: many\n")
    monkeypatch.setenv("HEADRACE_ADMIN", "http://127.0.0.1:9")
    done = run("serve", "-c", str(file))
    assert done.exit_code == 2
    assert f"headrace: {file}: max_connections: must be a whole number, got 'many'" in done.stderr.splitlines()
    assert [line for line in done.stderr.splitlines() if line.startswith("headrace: HEADRACE_ADMIN: must be host:port")]


def test_commands_ask_the_gateway_that_the_variable_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for said, asked in (
        ("127.0.0.1:1", "127.0.0.1:1"),
        (":1", "127.0.0.1:1"),
        ("[::]:1", "[::1]:1"),
        ("1", "127.0.0.1:1"),
    ):
        monkeypatch.setenv("HEADRACE_ADMIN", said)
        done = run("workers")
        assert done.exit_code == 1
        assert f"http://{asked}" in done.stderr
    assert "no gateway answers at http://127.0.0.1:2;" in run("workers", "--admin", "http://127.0.0.1:2").stderr
    monkeypatch.setenv("HEADRACE_ADMIN", "http://127.0.0.1:1")
    done = run("workers")
    assert done.exit_code == 2
    assert "HEADRACE_ADMIN: must be host:port" in done.stderr
    assert "A URL can be given by --admin" in done.stderr


def test_two_listeners_at_one_place_are_refused_before_anything_starts() -> None:
    for command in ("up", "serve"):
        done = run(command, "--listen", "localhost:9", "--admin", "127.0.0.1:9")
        told = "--admin: must differ from listen, and localhost:9 is the same place, got 127.0.0.1:9"
        assert (done.exit_code, done.stderr) == (2, f"headrace: {told}\n")
