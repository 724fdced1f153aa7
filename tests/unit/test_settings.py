"""Settings: where values come from, and that everything wrong is said at once."""

from pathlib import Path

import pytest

from gateway.settings import exposed_without_keys, load_settings
from gateway.settings_reference import reference
from gateway.settings_text import Address, SettingsError, parse_address


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "headrace.yaml"
    path.write_text(text)
    return path


def problems(**kwargs: object) -> dict[str, str]:
    with pytest.raises(SettingsError) as caught:
        load_settings(**kwargs)  # type: ignore[arg-type]
    return {problem.path: str(problem) for problem in caught.value.problems}


def test_defaults_need_no_file():
    settings = load_settings(environ={})
    assert str(settings.listen) == "127.0.0.1:8080"
    assert str(settings.admin) == "127.0.0.1:8081"
    assert settings.redis_mode == "embedded"
    assert settings.fleet == "default"
    assert settings.workers == ()
    assert settings.keys_file.parent == settings.state_dir
    assert "~" not in str(settings.state_dir)


def test_command_line_beats_environment_beats_file(tmp_path):
    path = write(tmp_path, "fleet: file\nlisten: 127.0.0.1:1\nadmin: 127.0.0.1:2\n")
    env = {"HEADRACE_LISTEN": "127.0.0.1:3", "HEADRACE_ADMIN": "127.0.0.1:4", "HEADRACE_PORT": "tcp://10.0.0.1:80"}
    settings = load_settings(path, {"admin": "127.0.0.1:5", "fleet": None}, environ=env)
    assert (settings.fleet, settings.listen.port, settings.admin.port) == ("file", 3, 5)


def test_br_13_05_a_worker_whose_cache_holds_no_request_of_its_length_is_refused():
    one = {"id": "w", "url": "unix:///run/w.sock", "pool": "p", "max_model_len": 32768, "kv_tokens": 20000}
    with pytest.raises(SettingsError, match="kv_tokens 20000 hold no request of max_model_len 32768"):
        load_settings(overrides={"workers": [one]}, environ={})
    assert load_settings(overrides={"workers": [one | {"kv_tokens": 32768}]}, environ={}).workers[0].url == one["url"]


def test_workers_from_file_and_environment(tmp_path):
    path = write(
        tmp_path,
        'workers:\n  - {id: w1, url: "http://127.0.0.1:9001/", pool: short-chat, models: [tiny], max_model_len: 4096,'
        " max_num_seqs: 16, kv_tokens: 65536, preset: llama3-8b/a100-80}\n",
    )
    (worker,) = load_settings(path, environ={}).workers
    assert worker.url == "http://127.0.0.1:9001"
    assert worker.models == ("tiny",)
    (other,) = load_settings(
        path, environ={"HEADRACE_WORKERS": '[{"id": "w2", "url": "http://[::1]:1", "pool": "p"}]'}
    ).workers
    assert (other.id, other.models, other.max_num_seqs) == ("w2", (), None)


def test_variables_and_their_defaults(tmp_path):
    path = write(
        tmp_path, "fleet: ${FLEET:-blue}\nlisten: 127.0.0.1:${PORT:-80}\nredis: ${URL}\naccess_log: /x/$${y}\n"
    )
    settings = load_settings(path, environ={"PORT": "81", "FLEET": "", "URL": "redis://r:1"})
    assert settings.fleet == "blue"
    assert settings.listen.port == 81
    assert settings.redis.get_secret_value() == "redis://r:1"
    assert settings.access_log == "/x/${y}"
    assert problems(path=path, environ={})["redis"].startswith("redis: environment variable URL is not set")


def test_secrets_from_files_never_show(tmp_path):
    secret = tmp_path / "token"
    secret.write_text("s3cret\n")
    secret.chmod(0o600)
    path = write(
        tmp_path, f'admin_token: file:{secret}\nworkers: [{{id: a, url: "http://h", pool: p, token: "file:{secret}"}}]'
    )
    settings = load_settings(path, environ={})
    assert settings.admin_token is not None
    assert settings.admin_token.get_secret_value() == "s3cret"
    assert settings.workers[0].token is not None
    assert settings.workers[0].token.get_secret_value() == "s3cret"
    assert "s3cret" not in repr(settings)

    secret.chmod(0o666)
    assert "can be changed by others" in problems(path=path, environ={})["admin_token"]
    secret.unlink()
    assert "cannot read secret file" in problems(path=path, environ={})["workers[0].token"]
    found = problems(overrides={"redis": "mysql://user:hunter2@db"}, environ={})
    assert "redis" in found
    assert "hunter2" not in found["redis"]


def test_every_problem_at_once_with_path_and_value(tmp_path):
    path = write(
        tmp_path,
        "listne: 1\nadmin: nowhere\nfleet: 'a b'\nprocesses: 0\ndrain_s: -1\n"
        "workers:\n  - {id: 'a/b', url: 'ftp://x', pool: p, preset: none, max_model_len: 0}\n  - {id: c}\n",
    )
    found = problems(path=path, environ={})
    assert found["listne"] == "listne: unknown key, did you mean listen?"
    assert found["admin"] == "admin: must be host:port with a port from 0 to 65535, got 'nowhere'"
    assert found["fleet"].endswith("got 'a b'")
    assert found["processes"] == "processes: must be at least 1, got 0"
    assert found["workers[0].url"].endswith("got 'ftp://x'")
    assert "llama3-8b/a100-80" in found["workers[0].preset"]
    assert found["workers[1].url"] == "workers[1].url: is required"
    assert {"drain_s", "workers[0].id", "workers[0].max_model_len", "workers[1].pool"} <= found.keys()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "is not YAML"),
        ("- 1", "must be a mapping"),
        ("fleet: a\nfleet: b", "given twice"),
        ("a: &x [1]\nb: *x", "aliases are not allowed"),
        ("fleet: " + "x" * (1 << 20), "at most 1048576 bytes"),
        ("[" * 5000, "is not YAML"),
        ("\xff", None),
    ],
)
def test_a_broken_file_is_one_problem(tmp_path, text, said):
    path = tmp_path / "s.yaml"
    path.write_bytes(text.encode("latin-1"))
    found = problems(path=path, environ={})
    assert said is None or said in found[""]


def test_a_missing_file_and_broken_environment():
    assert "cannot read settings file" in problems(path="/nowhere/s.yaml", environ={})[""]
    assert "is not YAML" in problems(environ={"HEADRACE_WORKERS": "["})["workers"]
    assert problems(overrides={"workers": [{"id": "a", "url": "http://h", "pool": "p"}] * 2}, environ={})[
        "workers"
    ].startswith("--workers: ids must differ, given twice: a")


@pytest.mark.parametrize("url", ["redis+sentinel://a", "http://a", ""])
def test_redis_urls_that_lead_nowhere(url):
    assert "redis" in problems(overrides={"redis": url}, environ={})


def test_listeners_must_differ_unless_the_system_chooses():
    same = {"listen": "127.0.0.1:9", "admin": "127.0.0.1:9"}
    assert problems(overrides=same, environ={})["admin"] == "--admin: must differ from listen, got 127.0.0.1:9"
    same["listen"] = "localhost:9"
    told = "--admin: must differ from listen, and localhost:9 is the same place, got 127.0.0.1:9"
    assert problems(overrides=same, environ={})["admin"] == told
    load_settings(overrides={"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "redis": "none"}, environ={})


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        ("localhost:9", "127.0.0.1:9", True),
        (":9", "127.0.0.1:9", True),
        ("[::]:9", "127.0.0.1:9", True),
        (":9", "[::1]:9", False),
        ("127.0.0.1:9", "127.0.0.2:9", False),
        ("127.0.0.1:9", "127.0.0.1:10", False),
        ("127.0.0.1:0", "127.0.0.1:0", False),
        ("gw.example:9", "127.0.0.1:9", False),
        ("unix:/a", "unix:/a", False),
    ],
)
def test_listeners_in_each_others_way(one, other, meet):
    one, other = parse_address(one), parse_address(other)
    assert one.meets(other) is other.meets(one) is meet


def test_a_bad_value_names_where_it_came_from(tmp_path):
    path = write(tmp_path, "max_connections: many\ndrain_s: soon\ninsecure: 7\nworkers: one\n")
    env = {"HEADRACE_ADMIN": "http://127.0.0.1:8081", "HEADRACE_FLEET": "a b", "HEADRACE_WORKERS": '[{"id": "w"}]'}
    found = problems(path=path, overrides={"fleet": "c d"}, environ=env)
    assert found["admin"] == "HEADRACE_ADMIN: must be host:port, not a URL, got 'http://127.0.0.1:8081'"
    assert found["fleet"].startswith("--fleet: must be 1 to 128 of")
    assert found["workers[0].url"] == "HEADRACE_WORKERS: workers[0].url: is required"
    assert found["max_connections"] == "max_connections: must be a whole number, got 'many'"
    assert found["drain_s"] == "drain_s: must be a number, got 'soon'"
    assert found["insecure"] == "insecure: must be true or false, got 7"
    assert problems(path=path, environ={})["workers"] == "workers: must be a list, got 'one'"


def test_one_engine_is_one_worker():
    workers = [
        {"id": name, "url": url, "pool": "p", "token": "s3cret"}
        for name, url in (("a", "http://Host:1/"), ("b", "http://host:1"), ("c", "unix:///A"), ("d", "unix:///a"))
    ]
    said = problems(overrides={"workers": workers}, environ={})["workers"]
    assert said.startswith("--workers: a and b have the same url, http://Host:1: one engine is one worker")
    assert "leave all but one out, or correct the url" in said
    assert "s3cret" not in said
    load_settings(overrides={"workers": workers[1:]}, environ={})


@pytest.mark.parametrize(
    ("text", "address", "loopback"),
    [
        ("127.0.0.1:80", Address("127.0.0.1", 80), True),
        ("localhost:80", Address("localhost", 80), True),
        ("[::1]:80", Address("::1", 80), True),
        (8080, Address("127.0.0.1", 8080), True),
        ("8080", Address("127.0.0.1", 8080), True),
        (":80", Address("0.0.0.0", 80), False),
        ("0.0.0.0:80", Address("0.0.0.0", 80), False),
        ("gw.example:80", Address("gw.example", 80), False),
        ("[::]:0", Address("::", 0), False),
    ],
)
def test_addresses(text, address, loopback):
    assert parse_address(text) == address
    assert parse_address(address) is address
    assert address.is_loopback is loopback
    assert parse_address(str(address)) == address


@pytest.mark.parametrize("text", ["h", "h:", "h:x", "h:70000", "::1:80", "[x]:1", "a b:1", "-:1", None, True, "h:٣"])
def test_no_addresses(text):
    with pytest.raises(ValueError, match=r".+"):
        parse_address(text)


def test_no_open_listener_without_keys_unless_asked_for():
    def exposed(listen: str, has_keys: bool, insecure: bool) -> str | None:
        settings = load_settings(overrides={"listen": listen, "insecure": insecure}, environ={})
        return exposed_without_keys(settings, has_keys=has_keys)

    said = exposed("0.0.0.0:8080", False, False)
    assert said is not None
    assert "--insecure" in said
    assert exposed("0.0.0.0:8080", True, False) is None
    assert exposed("0.0.0.0:8080", False, True) is None
    assert exposed("127.0.0.1:8080", False, False) is None


def test_state_directory_follows_the_desktop_rule():
    assert load_settings(environ={"XDG_STATE_HOME": "/s"}).state_dir == Path("/s/headrace")


def test_policy_path_is_relative_to_the_settings_file(tmp_path):
    path = write(tmp_path, "policy: p.yaml\n")
    assert load_settings(path, environ={}).policy == tmp_path / "p.yaml"
    assert load_settings(path, {"policy": "q.yaml"}, environ={}).policy == Path("q.yaml")


def test_the_reference_is_current():
    page = Path(__file__).parents[2] / "docs" / "settings.md"
    assert page.read_text() == reference(), "run: python -m gateway.settings_reference > docs/settings.md"
