"""Static configuration: sockets, paths, processes. Read once at start; what may change live is policy.

A value comes from the first of: the command line, an environment variable `HEADRACE_<KEY>`, the settings file, the
default. Inside the file `${NAME}` and `${NAME:-default}` are replaced from the environment (`$${` is a plain `${`),
and a secret may be `file:/path`. This is the only module of the gateway that reads the environment.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from gateway.settings_text import (
    Address,
    Problem,
    SettingsError,
    expand,
    parse_address,
    parse_yaml_value,
    problems_of,
    read_secrets,
    read_yaml,
    sourced,
    suggestions,
)
from policies.work import PRESETS
from workers.report import WORKER_URL, is_worker_id, is_worker_url

ENV_PREFIX = "HEADRACE_"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9.\[\]:-]{1,255}")


def _name(value: str) -> str:
    if not is_worker_id(value):
        raise ValueError("must be 1 to 128 of letters, digits, '.', '_', ':' and '-'")
    return value


def _words(value: object) -> object:
    """A list, or its items in one text with commas."""
    return [each.strip() for each in value.split(",") if each.strip()] if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_words)]
ListenAddress = Annotated[Address, BeforeValidator(parse_address)]
Name = Annotated[str, AfterValidator(_name)]


class StaticWorker(BaseModel):
    """An engine the settings name. What is left out is asked of the engine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Name = Field(description="Name in headers, logs and metrics.")
    url: str = Field(description="`http://host:port` of the engine, or `unix:///path` of its socket.")
    pool: Name = Field(description="The policy's pool it belongs to.")
    models: tuple[str, ...] = Field((), description="Names it serves; empty: asked at `/v1/models`.")
    max_model_len: int | None = Field(None, ge=1, description="Tokens; unset: asked at `/v1/models`.")
    max_num_seqs: int | None = Field(None, ge=1, description="Sequences it batches; unset: unknown.")
    max_num_batched_tokens: int = Field(2048, ge=1, description="Tokens it takes into one step.")
    kv_tokens: int | None = Field(None, ge=1, description="KV capacity in tokens; unset: asked at `/metrics`.")
    token: SecretStr | None = Field(None, description="Bearer token the engine wants; may be `file:/path`.")
    preset: str | None = Field(None, description="Step-time preset to start from.")

    @field_validator("url")
    @classmethod
    def _url(cls, value: str) -> str:
        url = value.removesuffix("/")
        if not is_worker_url(url):
            raise ValueError(f"must be {WORKER_URL}, without a path behind the host")
        return url

    @field_validator("preset")
    @classmethod
    def _preset(cls, value: str | None) -> str | None:
        if value is not None and value not in PRESETS:
            raise ValueError(f"must be one of {', '.join(sorted(PRESETS))}")
        return value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.kv_tokens is not None and self.max_model_len is not None and self.kv_tokens < self.max_model_len:
            raise ValueError(
                f"kv_tokens {self.kv_tokens} hold no request of max_model_len {self.max_model_len}; lower max_model_len"
            )
        return self


class Settings(BaseModel):
    """Everything `headrace serve` wants to know before it starts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    listen: ListenAddress = Field(Address("127.0.0.1", 8080), description="Where clients call.")
    admin: ListenAddress = Field(
        Address("127.0.0.1", 8081),
        description="Admin API, `/metrics`, `/livez`, `/readyz`. Commands that ask a gateway look there, too, where "
        "the variable is set and they are given no `--admin URL`.",
    )
    fleet: Name = Field("default", description="Workers and gateways of one fleet see each other in Redis.")
    redis: SecretStr = Field(
        SecretStr("embedded"),
        description="`embedded` (a Valkey of our own), `none`, or a URL: `redis://`, `rediss://`, `unix://`, "
        "`redis+sentinel://`, `redis+cluster://`; may be `file:/path`.",
    )
    policy: Path | None = Field(None, description="Policy file; unset: the shipped default.")
    processes: int = Field(
        1, ge=1, le=256, description="Gateway processes that share the port; more than one need a Redis."
    )
    workers: tuple[StaticWorker, ...] = Field((), max_length=4096, description="Workers besides those in Redis.")
    state_dir: Path = Field(
        Path("~/.local/state/headrace"), validate_default=True, description="Keys and tokens are kept here."
    )
    access_log: str = Field("-", description="One JSON line a request: `-` (standard error), `none`, or a file.")
    event_log: str = Field("-", description="One JSON line a change of state: `-`, `none`, or a file.")
    insecure: bool = Field(False, description="Allow a listener beyond this host without keys.")
    tls_cert: Path | None = Field(
        None, description="Certificate chain (PEM) of the data listener; with `tls_key` it speaks TLS only."
    )
    tls_key: Path | None = Field(None, description="Key (PEM) of `tls_cert`.")
    tls_client_ca: Path | None = Field(
        None, description="Authorities (PEM); set: clients need a certificate of one of them."
    )
    worker_ca: Path | None = Field(
        None, description="Authorities (PEM) for workers at `https://`, instead of the system's."
    )
    worker_cert: Path | None = Field(None, description="Certificate (PEM) that workers are shown, with `worker_key`.")
    worker_key: Path | None = Field(None, description="Key (PEM) of `worker_cert`.")
    trusted_proxies: Names = Field(
        (),
        max_length=256,
        description="Networks whose `X-Forwarded-For` and `-Proto` are believed; `unix`: the peers of a unix socket.",
    )
    proxy_protocol: bool = Field(
        False, description="Trusted proxies begin each connection with the PROXY protocol, version 1 or 2."
    )
    cors_origins: Names = Field(
        (), max_length=256, description="Origins whose pages may call the data listener from a browser; `*`: any."
    )
    max_connections: int = Field(
        20_000,
        ge=1,
        le=1_000_000,
        description="Client connections at once; fewer where the open files allowed (`ulimit -n`) do not suffice.",
    )
    drain_s: float = Field(300.0, ge=0, le=3600, description="How long streams may finish after SIGTERM.")
    admin_token: SecretStr | None = Field(None, description="Token of role admin; may be `file:/path`.")
    ephemeral: bool = Field(
        False,
        description="Keep nothing: no keys, no policy revisions, no audit log, no traffic record; for trying out.",
    )

    @field_validator("redis")
    @classmethod
    def _redis(cls, value: SecretStr) -> SecretStr:
        text = value.get_secret_value()
        if text not in {"embedded", "none"}:
            from workers.redis_client import check_url  # its imports are slow, and few commands need it

            check_url(text, others="embedded, none, or ")
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            if each != "unix":
                ipaddress.ip_network(each)  # its own message names what is wrong
        return value

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            if each != "*" and not _ORIGIN.fullmatch(each):
                raise ValueError("must be origins as browsers send them, such as https://app.example.com, or *")
        return value

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        for cert, key in (("tls_cert", "tls_key"), ("worker_cert", "worker_key")):
            if (getattr(self, cert) is None) is not (getattr(self, key) is None):
                raise ValueError(f"{cert} and {key} belong together: give both or none")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("tls_client_ca needs tls_cert and tls_key")
        if self.proxy_protocol and not self.trusted_proxies:
            raise ValueError("proxy_protocol needs trusted_proxies: from nobody else it is read")
        if self.proxy_protocol and self.tls_cert is not None:
            raise ValueError("proxy_protocol and tls_cert exclude each other: let the proxy end TLS")
        return self

    @field_validator("admin")
    @classmethod
    def _tcp(cls, value: Address) -> Address:
        if value.is_unix:
            raise ValueError("must be host:port; only listen may be a unix socket")
        return value

    @field_validator(
        "state_dir", "policy", "tls_cert", "tls_key", "tls_client_ca", "worker_ca", "worker_cert", "worker_key"
    )
    @classmethod
    def _home(cls, value: Path | None) -> Path | None:
        return value.expanduser() if value is not None else None

    @field_validator("workers")
    @classmethod
    def _distinct(cls, value: tuple[StaticWorker, ...]) -> tuple[StaticWorker, ...]:
        ids = [worker.id for worker in value]
        twice = sorted({name for name in ids if ids.count(name) > 1})
        if twice:
            raise ValueError(f"ids must differ, given twice: {', '.join(twice)}")
        by_place: dict[str, list[StaticWorker]] = {}
        for worker in value:
            place = worker.url if worker.url.startswith("unix:") else worker.url.lower()
            by_place.setdefault(place, []).append(worker)
        same = [each for each in by_place.values() if len(each) > 1]
        if same:
            told = (f"{' and '.join(one.id for one in each)} have the same url, {each[0].url}" for each in same)
            cure = "one engine is one worker, whose limits must count once: leave all but one out, or correct the url"
            raise ValueError(f"{'; '.join(told)}: {cure}")
        return value

    @property
    def redis_mode(self) -> Literal["embedded", "none", "url"]:
        """Where the fleet's shared state lives."""
        text = self.redis.get_secret_value()
        return "embedded" if text == "embedded" else "none" if text == "none" else "url"

    @property
    def keys_file(self) -> Path | None:
        """Where hashes of the clients' keys are kept; None where nothing is."""
        return None if self.ephemeral else self.state_dir / "keys.json"


SECRET_KEYS = frozenset({"redis", "admin_token", "token"})
"""Keys that may be `file:/path` and whose values never show in an error."""


def load_settings(
    path: Path | str | None = None,
    overrides: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Read the settings; raises `SettingsError` with every problem at once.

    `overrides` are the command line's (None values are left out); `environ` stands in for the process's environment.
    """
    env = os.environ if environ is None else environ
    problems: list[Problem] = []
    values: dict[str, object] = {}
    if path is not None:
        values |= read_yaml(Path(path), problems)
        if isinstance(policy := values.get("policy"), str):
            values["policy"] = str(Path(path).parent / Path(policy).expanduser())
    found = _from_environment(env, problems)
    said = {key: value for key, value in (overrides or {}).items() if value is not None}
    values |= found | said
    sources = {key: f"{ENV_PREFIX}{key.upper()}" for key in found}
    sources |= {key: f"--{key.replace('_', '-')}" for key in said}
    if "state_dir" not in values and env.get("XDG_STATE_HOME"):
        values["state_dir"] = str(Path(env["XDG_STATE_HOME"]) / "headrace")

    expanded = expand(values, env, problems)
    secrets = read_secrets(expanded, SECRET_KEYS, problems)
    try:
        settings = Settings.model_validate(secrets)
    except ValidationError as error:
        known = {problem.path for problem in problems}
        problems += [problem for problem in problems_of(error, SECRET_KEYS) if problem.path not in known]
        problems = suggestions(problems, Settings, StaticWorker)
    else:
        if settings.processes > 1 and settings.redis_mode == "none":
            told = "several processes share their limits through Redis, and redis is none; set embedded or a URL"
            problems.append(Problem("processes", told, str(settings.processes)))
        if settings.listen.meets(settings.admin):
            told = "must differ from listen"
            if settings.listen != settings.admin:
                told += f", and {settings.listen} is the same place"
            problems.append(Problem("admin", told, str(settings.admin)))
        if not problems:
            return settings
    raise SettingsError(sourced(problems, sources))


def exposed_without_keys(settings: Settings, *, has_keys: bool) -> str | None:
    """What is wrong with offering the data listener to other hosts, or None.

    Anybody who reaches a listener without keys can spend the fleet's time, so that must be asked for.
    """
    if settings.listen.is_loopback or has_keys or settings.insecure:
        return None
    return (
        f"listen: {settings.listen} is reachable from other hosts and no client keys exist; "
        "make one (headrace key create), listen on 127.0.0.1, or say --insecure"
    )


def _from_environment(env: Mapping[str, str], problems: list[Problem]) -> dict[str, object]:
    """Settings from `HEADRACE_<KEY>`; lists are YAML. Other names may be others' (Kubernetes adds some)."""
    found: dict[str, object] = {}
    for key in Settings.model_fields:
        text = env.get(ENV_PREFIX + key.upper())
        if text is not None:
            found[key] = parse_yaml_value(text, key, problems) if key == "workers" else text
    return found
