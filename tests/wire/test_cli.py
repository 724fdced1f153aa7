"""The command line as people and scripts meet it: help, mistakes, exit codes, what goes to stdout and stderr."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import headrace
from gateway.cli_policy import excerpt


def run(*words: str) -> Result:
    return CliRunner().invoke(headrace.cli, list(words))


def test_help_imports_none_of_the_packages() -> None:
    probe = (
        "import sys, headrace, click.testing\n"
        "assert click.testing.CliRunner().invoke(headrace.cli, ['--help']).exit_code == 0\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('gateway', 'policies', 'workers', 'loadtest')])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", headrace.COMMANDS)
def test_the_listed_help_is_the_commands_own(name: str) -> None:
    command = headrace.cli.get_command(click.Context(headrace.cli), name)
    assert command is not None
    assert command.get_short_help_str(200) == headrace.COMMANDS[name][2]
    assert command.name == name


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def test_every_command_has_json_and_every_option_a_help() -> None:
    for path, command in commands(headrace.cli):
        options = [each for each in command.params if isinstance(each, click.Option)]
        assert any("--json" in each.opts for each in options), path
        assert not [each.name for each in options if not each.help], path


def test_version_and_unknown_commands() -> None:
    assert run("--version").output.startswith("headrace 0.")
    assert run("--version").output.rstrip().endswith(("(plain Python)", "(compiled core)"))
    assert run("--version").exit_code == 0
    missing = run("polcy")
    assert missing.exit_code == 2
    assert "Did you mean one of: 'policy'" in missing.stderr


# -- policy check -----------------------------------------------------------------------------------------------------

FAULTY = """\
pools:
  short-chat: {max_budget_tokens: 0, colour: red}
default_clas: standard
"""


def test_a_valid_policy_is_said_to_be_valid(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("{}\n")
    done = run("policy", "check", str(file))
    assert done.exit_code == 0
    assert ": valid (3 classes, 3 pools, 2 tenants" in done.output
    file.write_text("rules: []\npools: {only: {}}\n")
    assert ": valid (3 classes, 1 pool, 2 tenants, 0 rules;" in run("policy", "check", str(file)).output
    answer = json.loads(run("policy", "check", "--json", str(file)).output)
    assert answer["ok"] is True
    assert answer["problems"] == []


def test_every_fault_is_shown_where_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(FAULTY)
    done = run("policy", "check", str(file))
    assert done.exit_code == 2
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0] == f"{file}: line 2: pools.short-chat.max_budget_tokens: must be at least 1, got 0"
    assert lines[1] == "    2 |   short-chat: {max_budget_tokens: 0, colour: red}"
    assert lines[1][lines[2].index("^") :].startswith("max_budget_tokens")
    assert lines[4][lines[5].index("^") :].startswith("colour")
    assert "(did you mean default_class?)" in done.stderr
    assert lines[-1].endswith(": 3 problems")


def test_faults_for_programs(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(FAULTY)
    done = run("policy", "check", "--json", str(file))
    assert done.exit_code == 2
    answer = json.loads(done.stdout)
    assert [one["line"] for one in answer["problems"]] == [2, 2, 3]
    assert answer["ok"] is False


def test_a_file_that_cannot_be_read_is_invalid_input(tmp_path: Path) -> None:
    done = run("policy", "check", str(tmp_path / "none.yaml"))
    assert done.exit_code == 2
    assert done.stderr == f"headrace: cannot read {tmp_path}/none.yaml: No such file or directory\n"


def test_a_long_line_is_cut_around_the_fault() -> None:
    shown, caret = excerpt("x" * 500 + "HERE" + "\x1b" + "y" * 500, 7, 501).splitlines()
    assert len(shown) < 120
    assert shown[caret.index("^") :].startswith("HERE?y")
    assert excerpt("a: b", 1, None) == "    1 | a: b"


# -- commands that ask a running gateway ------------------------------------------------------------------------------


class Admin:
    """An admin listener that answers what a test wants."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.authorizations: list[str | None] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.authorizations.append(self.headers.get("authorization"))
                status, body = outer.answers.get(self.path, (404, b'{"error": {"message": "no such thing"}}'))
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("0.0.0.0", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def admin() -> Iterator[Admin]:
    admin = Admin()
    thread = threading.Thread(target=admin.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield admin
    admin.server.shutdown()
    admin.server.server_close()
    thread.join()


def test_without_a_gateway_it_says_how_to_start_one(admin: Admin) -> None:
    port = admin.server.server_port + 1 if admin.server.server_port < 65535 else 1
    done = run("workers", "--admin", f"http://127.0.0.1:{port}")
    assert done.exit_code == 1
    where = f"no gateway answers at http://127.0.0.1:{port}; say where it is (--admin URL, or HEADRACE_ADMIN=HOST:PORT)"
    assert done.stderr == f"headrace: {where}, or start one with `headrace up`\n"


@pytest.mark.parametrize("url", ["127.0.0.1:8081", "ftp://127.0.0.1", "http://127.0.0.1:99999", "http://127.0.0.1/x"])
def test_a_url_that_is_none_is_named(url: str) -> None:
    done = run("workers", "--admin", url)
    assert done.exit_code == 1
    assert f"{url} is not the URL of an admin listener" in done.stderr


def test_what_the_gateway_refuses_is_told_in_its_words(admin: Admin) -> None:
    done = run("explain", "abc/def", "--admin", admin.url)
    assert done.exit_code == 1
    assert done.stderr == "headrace: no such thing\n"
    admin.answers["/admin/v1/requests/abc%2Fdef"] = (500, b"{}")
    done = run("explain", "abc/def", "--admin", admin.url)
    assert done.stderr == f"headrace: {admin.url}/admin/v1/requests/abc%2Fdef answered 500: no reason given\n"


def test_an_answer_that_is_no_json_is_said_to_be_none(admin: Admin) -> None:
    admin.answers["/admin/v1/pools"] = (200, b"<html>")
    done = run("pools", "--admin", admin.url)
    assert done.exit_code == 1
    assert "answered 200 with something that is not JSON" in done.stderr


def test_the_policy_in_force(admin: Admin) -> None:
    revision = {"number": 3, "digest": "abc", "author": "file", "note": "", "created": 1.0}
    document = {"revision": revision, "policy": {"default_class": "standard"}}
    admin.answers["/admin/v1/policy"] = (200, json.dumps(document).encode())
    done = run("policy", "show", "--admin", admin.url)
    assert done.output == "# revision 3 (digest abc), by file\ndefault_class: standard\n"
    assert json.loads(run("policy", "show", "--json", "--admin", admin.url).output) == document


WORKER = {
    "id": "[red]w1",
    "pool": "short-chat",
    "models": ["tiny"],
    "state": "ready",
    "in_flight": 3,
    "limit": 64,
    "max_model_len": 4096,
    "kv_capacity_tokens": 123456,
    "kv_usage": 0.257,
    "url": "http://127.0.0.1:9001",
}


def test_workers_are_drawn_or_listed(admin: Admin) -> None:
    unknown = WORKER | {"id": "w2", "max_model_len": None, "kv_capacity_tokens": None, "kv_usage": None, "url": None}
    admin.answers["/admin/v1/workers"] = (200, json.dumps({"workers": [WORKER, unknown]}).encode())
    head, _, first, second = run("workers", "--admin", admin.url).output.splitlines()
    assert head.split()[:4] == ["worker", "pool", "model", "state"]
    assert " ".join(first.split()) == "[red]w1 short-chat tiny ready 3 64 4,096 123,456 26% http://127.0.0.1:9001"
    assert " ".join(second.split()) == "w2 short-chat tiny ready 3 64 - - - -"
    listed = [json.loads(line) for line in run("workers", "--json", "--admin", admin.url).output.splitlines()]
    assert listed == [WORKER, unknown]


def test_pools_are_drawn_or_listed(admin: Admin) -> None:
    pool = {
        "name": "short-chat",
        "workers": 2,
        "ready": 1,
        "models": ["tiny"],
        "in_flight": 3,
        "limit": 64,
        "queued": 5,
    }
    pool |= {"oldest_wait_s": 12.34, "kv_used_tokens": 10, "kv_capacity_tokens": 40}
    idle = {"name": "embeddings", "workers": 0, "ready": 0, "models": [], "in_flight": 0, "limit": 0, "queued": 0}
    idle |= {"oldest_wait_s": 0.0, "kv_used_tokens": 0, "kv_capacity_tokens": 0}
    admin.answers["/admin/v1/pools"] = (200, json.dumps({"pools": [pool, idle]}).encode())
    _, _, first, second = run("pools", "--admin", admin.url).output.splitlines()
    assert " ".join(first.split()) == "short-chat 2 1 3 64 5 12.3 s 25% tiny"
    assert " ".join(second.split()) == "embeddings 0 0 0 0 0 0.000 s -"
    assert [json.loads(line) for line in run("pools", "--json", "--admin", admin.url).output.splitlines()] == [
        pool,
        idle,
    ]


def test_explain_shows_the_request_and_its_attempts(admin: Admin) -> None:
    attempt = {"worker": "w1", "pool": "short-chat", "queued_s": 0.5, "score": 0.25, "canary": False, "outcome": "ok"}
    attempt["considered"] = [{"worker": "w1", "score": 0.25, "signal_age_s": 0.4}, {"worker": "w2", "score": 0.5}]
    estimate = {"prompt_tokens": 900, "output_tokens": 50, "cached_tokens": 512, "prefill_s": 0.02, "decode_s": 0.6}
    estimate["kv_tokens"] = 950
    attempt |= {"wait_cause": "tenant_limit", "estimate": estimate, "class": "batch"}
    story = {
        "request_id": "r1",
        "finished": True,
        "request": {"pool": "a", "status": 200, "ttft_s": None, "queue_s": 0.1 + 0.2},
    }
    story["attempts"] = [attempt]
    admin.answers["/admin/v1/requests/r1"] = (200, json.dumps(story).encode())
    lines = run("explain", "r1", "--admin", admin.url).output.splitlines()
    assert lines[:4] == ["pool     a", "status   200", "queue_s  0.3", ""]
    told = "1 w1 short-chat 0.500 s tenant limit 0.250 ok w1 0.250 (0.4 s), w2 0.500"
    assert " ".join(lines[-2].split()) == told
    told = "900 + 50 tokens (512 cached): 0.020 + 0.600 s, 950 tokens of KV"
    assert lines[-1] == f"attempt 1 was estimated at {told}"
    assert json.loads(run("explain", "r1", "--json", "--admin", admin.url).output) == story


def test_explain_of_a_running_request(admin: Admin) -> None:
    story = {"request_id": "r1", "finished": False, "request": None, "attempts": []}
    admin.answers["/admin/v1/requests/r1"] = (200, json.dumps(story).encode())
    assert run("explain", "r1", "--admin", admin.url).output == "state  running\n"


def test_explain_of_a_waiting_request(admin: Admin) -> None:
    waiting = {"class": "batch", "pools": ["long-context"], "cause": "kv", "waited_s": 1.5, "left_s": 118.5, "ahead": 2}
    waiting |= {"estimate": {"prompt_tokens": 900, "output_tokens": 50}, "workers": [{"worker": "w1", "cause": "kv"}]}
    story = {"request_id": "r1", "finished": False, "request": None, "waiting": waiting, "attempts": []}
    admin.answers["/admin/v1/requests/r1"] = (200, json.dumps(story).encode())
    told = dict(line.split(maxsplit=1) for line in run("explain", "r1", "--admin", admin.url).output.splitlines())
    assert (told["state"], told["waits_for"], told["ahead"], told["workers"]) == ("waiting", "kv", "2", "w1: kv")


def test_beyond_this_host_the_admin_token_is_sent(
    admin: Admin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 127.0.0.2 stands for another host: not one of the names that need no token.
    url = f"http://127.0.0.2:{admin.server.server_port}"
    (tmp_path / "headrace").mkdir()
    token = tmp_path / "headrace/admin.token"
    token.write_text("secret-1\n")
    token.chmod(0o600)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    admin.answers["/admin/v1/workers"] = (200, b'{"workers": []}')
    assert run("workers", "--json", "--admin", url).exit_code == 0
    monkeypatch.setenv("HEADRACE_ADMIN_TOKEN", "secret-2")
    assert run("workers", "--json", "--admin", url).exit_code == 0
    monkeypatch.delenv("HEADRACE_ADMIN_TOKEN")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "none"))
    assert run("workers", "--json", "--admin", url).exit_code == 0
    assert run("workers", "--json", "--admin", admin.url).exit_code == 0
    assert admin.authorizations == ["Bearer secret-1", "Bearer secret-2", None, None]


# -- keys -------------------------------------------------------------------------------------------------------------


def test_a_keys_life(tmp_path: Path) -> None:
    place = ("--state-dir", str(tmp_path / "state"))
    made = run("key", "create", "--tenant", "acme", "--note", "[b]laptop", *place)
    assert made.exit_code == 0
    key = made.stdout.strip()
    assert key.startswith("hr_")
    assert "for tenant acme" in made.stderr
    key_id = key.split("_")[1]
    assert "[b]laptop" in run("key", "list", *place).output
    (listed,) = [json.loads(line) for line in run("key", "list", "--json", *place).output.splitlines()]
    assert (listed["id"], listed["tenant"], listed["trusted"], listed["revoked"]) == (key_id, "acme", False, None)
    assert "sha256" not in listed
    rotated = run("key", "rotate", key_id, *place).stdout.strip()
    assert rotated.split("_")[:2] == key.split("_")[:2]
    assert rotated != key
    assert run("key", "revoke", key_id, *place).output == f"Key {key_id} of tenant acme is revoked.\n"
    assert json.loads(run("key", "revoke", key_id, "--json", *place).output)["revoked"] > 0
    assert " revoked " in run("key", "list", *place).output


def test_a_key_for_programs(tmp_path: Path) -> None:
    made = json.loads(run("key", "create", "--tenant", "a", "--trusted", "--json", "--state-dir", str(tmp_path)).stdout)
    assert made["key"].startswith(f"hr_{made['id']}_")
    assert made["trusted"] is True


def test_a_key_that_does_not_exist_is_one_line(tmp_path: Path) -> None:
    done = run("key", "revoke", "nope", "--state-dir", str(tmp_path))
    assert done.exit_code == 1
    assert done.stderr == f"headrace: {tmp_path}/keys.json has no key 'nope'\n"


# -- serve and up before they start -----------------------------------------------------------------------------------


def test_settings_that_cannot_be_used_are_all_named(tmp_path: Path) -> None:
    file = tmp_path / "headrace.yaml"
    file.write_text("listen: nowhere\nprocesses: 0\nlisten_to: x\n")
    done = run("serve", "-c", str(file))
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 3
    assert all(line.startswith(f"headrace: {file}: ") for line in done.stderr.splitlines())


def test_an_engine_that_up_does_not_know_or_cannot_start_is_refused() -> None:
    done = run("up", "--engine", "sglang")
    assert done.exit_code == 2
    assert "'sglang' is not one of 'sim', 'vllm', 'llamacpp'" in done.stderr
    done = run("up", "--engine", "vllm")
    assert done.exit_code == 2
    assert done.stderr == "headrace: --engine vllm needs --model PATH, a directory with config.json\n"


def test_a_fleet_needs_a_worker() -> None:
    done = run("up", "--short", "0", "--long", "0")
    assert done.exit_code == 2
    assert "at least one worker" in done.stderr


@pytest.mark.parametrize("command", ["up", "serve"])
@pytest.mark.parametrize("taken", ["--listen", "--admin"])
def test_a_port_in_use_is_one_line_that_names_it_and_its_holder(command: str, taken: str, admin: Admin) -> None:
    other = {"--listen": "--admin", "--admin": "--listen"}[taken]
    address = f"127.0.0.1:{admin.server.server_port}"
    done = subprocess.run(
        [sys.executable, "-m", "headrace", command, taken, address, other, "127.0.0.1:0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"headrace: {address} is in use by pid {os.getpid()} (")
    assert done.stderr.count("\n") == 1
