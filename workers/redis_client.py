"""Clients for the ways in which Redis is run: one server, Sentinel, Cluster; over TLS or not; with short timeouts.

    redis://[user:password@]host[:port][/db]           one server; rediss:// over TLS, unix:///path by a socket
    redis+sentinel://[user:password@]host:port,host:port/service[/db]
    redis+cluster://[user:password@]host:port,host:port

Options after `?`: `ssl=true` for the last two, `ssl_ca_certs`, `ssl_certfile`, `ssl_keyfile` (paths),
`ssl_check_hostname`; for Sentinel's own login `sentinel_username`, `sentinel_password`.

Gateways and agents make theirs here, so that one setting does for both. Nobody retries but they: redis-py would try ten
times five seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, unquote

from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

TIMEOUT_S = 0.25
OPERATION_S = 1.0  # over connecting, logging in and waiting, name look-up included
MAX_CONNECTIONS = 4
DEFAULT_PORT = 6379
SENTINEL_PORT = 26379
MAX_NODES = 64

SENTINEL: Final = "redis+sentinel"
CLUSTER: Final = "redis+cluster"
SINGLE: Final = ("redis", "rediss", "unix")
SCHEMES: Final = (*SINGLE, SENTINEL, CLUSTER)

_TEXT_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_FLAG_OPTIONS = ("ssl", "ssl_check_hostname")
_LOGIN_OPTIONS = ("sentinel_username", "sentinel_password")

SILENT: Final = frozenset({"timeout", "connection"})
"""Kinds of failures that are no answer at all."""

FAILURES: Final = (
    exceptions.RedisError,
    exceptions.RedisClusterException,  # no RedisError: none of its nodes can be reached, or nobody has the slot
    OSError,
    TimeoutError,
    RuntimeError,  # see `closed_handle`; another one is a fault of ours
)
"""What an operation may raise for what a server or the way to it does."""

_KINDS = (
    (exceptions.AuthenticationError, "auth"),
    (exceptions.NoPermissionError, "auth"),
    (exceptions.BusyLoadingError, "loading"),
    (exceptions.ReadOnlyError, "readonly"),
    (exceptions.OutOfMemoryError, "out_of_memory"),
    (exceptions.TimeoutError, "timeout"),
    (TimeoutError, "timeout"),
    (exceptions.MaxConnectionsError, "timeout"),
    (exceptions.ConnectionError, "connection"),
    (exceptions.RedisClusterException, "connection"),
    (OSError, "connection"),
    (exceptions.ResponseError, "response"),
)
HIDDEN: Final = "is no URL of Redis (write what is special in user and password as %XX, docs/redis.md has the forms)"
KINDS: Final = (*dict.fromkeys(kind for _, kind in _KINDS), "other")


def kind_of(error: Exception) -> str:
    """The label of a failure, one of `KINDS`."""
    if isinstance(error, RuntimeError) and closed_handle(error):
        return "connection"
    return next((kind for cls, kind in _KINDS if isinstance(error, cls)), "other")


def why_of(error: Exception) -> str:
    """The failure for people: its kind, and what was said."""
    said = str(error)
    if isinstance(error, exceptions.MaxConnectionsError):
        # The client's own bound, which an operator would look for at the server.
        said = "no answer on any of this process's connections"
    return f"{kind_of(error)}: {said}" if said else kind_of(error)


def closed_handle(error: RuntimeError) -> bool:
    """Whether it is what uvloop says to a write on a connection that was closed meanwhile."""
    return str(error).endswith("the handler is closed")


@dataclass(frozen=True, slots=True)
class Target:
    """A URL with several nodes, taken apart. `options` are the client's own."""

    scheme: str
    nodes: tuple[tuple[str, int], ...]
    service: str = ""
    options: dict[str, Any] = field(default_factory=dict, repr=False)
    sentinel: dict[str, Any] = field(default_factory=dict, repr=False)


def check_url(url: str, *, others: str = "") -> None:
    """Raises ValueError, in words for whoever wrote it, for a URL that no client can be made of.

    `others`: what else the setting may be, for the message. Nothing of a URL that may hold a password is in it.
    """
    scheme = url.partition("://")[0]
    if scheme not in SCHEMES:
        raise ValueError(f"must be {others}a URL that begins with {'://, '.join(SCHEMES)}://")
    try:
        if scheme in SINGLE:
            Redis.from_url(url)
        else:
            parse_target(url)
    except ValueError as error:
        raise ValueError(HIDDEN if "@" in url else str(error)) from None


def make_client(url: str, *, timeout_s: float | None = TIMEOUT_S, connections: int = MAX_CONNECTIONS) -> Redis:
    """A client for the URL; nothing is connected yet. `timeout_s` None waits for ever, which only a subscriber may.

    Raises ValueError for a URL that is none.
    """
    common: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": TIMEOUT_S,
        "retry": Retry(NoBackoff(), 0),
        "max_connections": connections,
    }
    scheme = url.partition("://")[0]
    if scheme not in (SENTINEL, CLUSTER):
        return Redis.from_url(url, **common)
    target = parse_target(url)
    if scheme == SENTINEL:
        sentinels = {**common, **target.sentinel, "max_connections": 1, "socket_timeout": TIMEOUT_S}
        sentinel: Any = Sentinel(  # type: ignore[no-untyped-call] # redis-py left it out
            target.nodes, sentinel_kwargs=sentinels, **common, **target.options
        )
        client: Redis = sentinel.master_for(target.service)
        return client
    nodes = [ClusterNode(host, port) for host, port in target.nodes]
    # The cluster client speaks Redis's commands and has no class in common with the other.
    # One more try: the first answer after a failover or a move may only say where the slots are now.
    options = {**common, **target.options, "retry": Retry(NoBackoff(), 1)}
    cluster: Any = RedisCluster(startup_nodes=nodes, **options)
    found: Redis = cluster
    return found


async def drop_connections(client: Redis) -> None:
    """Close every connection of a client; the next operation makes new ones and asks Sentinel or Cluster anew."""
    any_client: object = client
    if isinstance(any_client, RedisCluster):
        await client.aclose()
    else:
        await client.connection_pool.disconnect(inuse_connections=True)


async def close_client(client: Redis) -> None:
    """Close a client for good, the ones that ask Sentinels for it included."""
    await client.aclose()
    manager: Any = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
    for sentinel in manager.sentinels if manager is not None else ():
        await sentinel.aclose()


def parse_target(url: str) -> Target:
    """Take apart a URL with several nodes. Raises ValueError that names the part."""
    scheme, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    login, at, rest = rest.rpartition("@")
    hosts, _, path = rest.partition("/")
    port = SENTINEL_PORT if scheme == SENTINEL else DEFAULT_PORT
    nodes = tuple(_node(each, port) for each in hosts.split(","))
    if len(nodes) > MAX_NODES:
        raise ValueError(f"has {len(nodes)} nodes; at most {MAX_NODES}")
    options, sentinel = _options(query)
    if at:
        user, _, password = login.partition(":")
        options |= {"username": unquote(user) or None, "password": unquote(password) or None}
    service, _, db = path.partition("/")
    if scheme == SENTINEL:
        if not service:
            raise ValueError("a redis+sentinel:// URL ends with the service's name: …/mymaster")
        if db:
            if not (db.isascii() and db.isdigit() and len(db) < 4):
                raise ValueError(f"{db!r} is not the number of a database")
            options["db"] = int(db)
        if options.get("ssl"):
            sentinel |= {key: value for key, value in options.items() if key.startswith("ssl")}
    elif path.strip("/") not in {"", "0"}:
        raise ValueError("a cluster has one database only: leave out what follows the nodes")
    return Target(scheme, nodes, service, options, sentinel)


def _node(text: str, default: int) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(default)
    host = host.strip("[]")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is not a node: write host:port, several with commas")
    return host, int(port)


def _options(query: str) -> tuple[dict[str, Any], dict[str, Any]]:
    options: dict[str, Any] = {}
    sentinel: dict[str, Any] = {}
    for key, values in parse_qs(query, keep_blank_values=True).items():
        value = values[-1]
        if key in _TEXT_OPTIONS:
            options[key] = value
        elif key in _FLAG_OPTIONS:
            options[key] = value.lower() in {"1", "true", "yes"}
        elif key in _LOGIN_OPTIONS:
            sentinel[key.removeprefix("sentinel_")] = value
        else:
            known = ", ".join((*_FLAG_OPTIONS, *_TEXT_OPTIONS, *_LOGIN_OPTIONS))
            raise ValueError(f"option {key!r} is not known; there are {known}")
    return options, sentinel
