"""What the environment says to the worker side."""

from pathlib import Path

import pytest

from workers import settings
from workers.report_link import connect


@pytest.fixture(autouse=True)
def _clean(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("HEADRACE_STATE_DIR", "HEADRACE_REDIS", "HEADRACE_FLEET", "HEADRACE_ENGINE_TOKEN", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)


def test_the_command_line_comes_before_the_environment_and_that_before_the_default(monkeypatch):
    assert settings.redis_url() == "redis://127.0.0.1:6379/0"
    assert settings.fleet() == "default"
    assert settings.engine_token() is None
    monkeypatch.setenv("HEADRACE_REDIS", "rediss://there:1/2")
    monkeypatch.setenv("HEADRACE_FLEET", "east")
    monkeypatch.setenv("HEADRACE_ENGINE_TOKEN", "sesame")
    assert settings.redis_url() == "rediss://there:1/2"
    assert settings.fleet() == "east"
    assert settings.engine_token() == "sesame"
    assert settings.redis_url("unix:///run/valkey.sock") == "unix:///run/valkey.sock"
    assert settings.fleet("west") == "west"
    assert settings.engine_token("other") == "other"


def test_without_a_word_the_gateway_of_this_host_is_asked(monkeypatch, tmp_path):
    (tmp_path / "state" / "headrace").mkdir(parents=True)
    (tmp_path / "state" / "headrace" / "redis.url").write_text("redis://127.0.0.1:4711\n")
    assert settings.redis_url() == "redis://127.0.0.1:4711"
    assert settings.redis_url("embedded") == "redis://127.0.0.1:4711"
    monkeypatch.setenv("HEADRACE_REDIS", "embedded")
    assert settings.redis_url() == "redis://127.0.0.1:4711"
    monkeypatch.setenv("HEADRACE_REDIS", "redis://there:1")
    assert settings.redis_url() == "redis://there:1"


def test_the_state_directory_named_for_the_gateway_is_the_agents_too(monkeypatch, tmp_path):
    (tmp_path / "state" / "headrace").mkdir(parents=True)
    (tmp_path / "state" / "headrace" / "redis.url").write_text("redis://127.0.0.1:4711\n")
    monkeypatch.setenv("HEADRACE_STATE_DIR", str(tmp_path / "x"))
    assert settings.redis_url() == "redis://127.0.0.1:6379/0"  # no other gateway's
    with pytest.raises(settings.SettingsError, match=f"none has left {tmp_path}/x/redis.url"):
        settings.redis_url("embedded")
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "redis.url").write_text("redis://127.0.0.1:4712\n")
    assert settings.redis_url() == settings.redis_url("embedded") == "redis://127.0.0.1:4712"
    assert settings.state_dir() == tmp_path / "x" / "workers"


def test_embedded_without_a_gateway_says_where_it_looked(tmp_path):
    with pytest.raises(settings.SettingsError, match=f"none has left {tmp_path}"):
        settings.redis_url("embedded")


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://u:p%40ss@a:1,b,[::1]:3/mymaster/2?ssl=true&sentinel_password=s",
        "redis+cluster://a:1,b:2",
        "rediss://u:p@h:1/0?ssl_ca_certs=/ca.pem",
    ],
)
def test_every_url_of_the_gateways_is_taken(url, tmp_path):
    (tmp_path / "url").write_text(f"{url}\n")
    assert settings.redis_url(url) == settings.redis_url(f"file:{tmp_path / 'url'}") == url
    assert connect(url) is not None, "a client can be made outside of an event loop"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("none", "must be a URL that begins with redis://"),
        ("redis+sentinel://h", "service's name"),
        ("redis+cluster://h?retry=9", "'retry' is not known"),
        ("http://u:secret@h", "must be a URL that begins with"),
        ("redis://u:secret/x@h", "is no URL of Redis"),
        ("redis+cluster://u:secret?x@h", "is no URL of Redis"),
    ],
)
def test_a_redis_that_cannot_be_one_is_refused_without_showing_it(url, told):
    with pytest.raises(settings.SettingsError, match=rf"^redis: .*{told}.*the URL that the gateways have$") as caught:
        settings.redis_url(url)
    assert "secret" not in str(caught.value)


def test_secrets_may_lie_in_files(tmp_path):
    file = tmp_path / "token"
    file.write_text("  sesame\n")
    assert settings.engine_token(f"file:{file}") == "sesame"
    for content in (b"", b" \n", b"x" * 65537, b"\xff"):
        file.write_bytes(content)
        with pytest.raises(settings.SettingsError, match=r"^token: "):
            settings.engine_token(f"file:{file}")
    with pytest.raises(settings.SettingsError, match="cannot read"):
        settings.redis_url(f"file:{tmp_path / 'nowhere'}")


def test_engines_are_kept_in_the_cache(monkeypatch):
    assert settings.engines_dir() == Path.home() / ".cache/headrace/engines"
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert settings.engines_dir() == Path("/somewhere/headrace/engines")


def test_a_childs_environment_is_ours_with_changes(monkeypatch):
    monkeypatch.setenv("HEADRACE_FLEET", "east")
    monkeypatch.setenv("HEADRACE_REDIS", "redis://h")
    child = settings.child_environment({"HEADRACE_FLEET": None, "NEW": "1"})
    assert "HEADRACE_FLEET" not in child
    assert child["HEADRACE_REDIS"] == "redis://h"
    assert child["NEW"] == "1"
