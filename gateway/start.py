"""Single steps of the gateway's start: each reads what the settings name, or says in one line why it cannot."""

from __future__ import annotations

import asyncio
import gc
import signal
import ssl
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.admin.access import TokenError, Tokens, read_or_make_tokens
from gateway.allocator import keep_freed_memory
from gateway.descriptors import connection_cap, raise_limit
from gateway.embedded import EmbeddedRedis
from gateway.http.messages import HttpLimits
from gateway.http.proxied import Trust
from gateway.keys import KeyFileError, KeyStore
from gateway.log import Log, open_log
from gateway.settings import Settings, exposed_without_keys
from gateway.tls import client_context, server_context
from gateway.upkeep import keep_doing
from policies.document import Policy

if TYPE_CHECKING:
    from gateway.keys_shared import SharedKeys

GC_THRESHOLD = 50_000
CANCEL_AGAIN_S = 0.5
"""How long background work has to end after it was cancelled, until it is cancelled once more."""
REDIS_URL = "redis.url"  # where `workers.settings` looks for it


class StartError(RuntimeError):
    """The gateway cannot start as it is told to, in one line: wrong input, not bad luck."""


def start_log(settings: Settings) -> Log:
    """The logs; raises `StartError`."""
    try:
        return open_log(settings.access_log, settings.event_log)
    except OSError as error:
        raise StartError(f"cannot write the log {error.filename}: {error.strerror}") from error


def start_keys(settings: Settings) -> KeyStore:
    """The clients' keys that this host knows; raises `StartError`."""
    try:
        keys = KeyStore(settings.keys_file)
    except KeyFileError as error:
        raise StartError(str(error)) from error
    if settings.redis_mode != "url":
        _refuse_exposed(settings, keys)
    return keys


async def check_keys(settings: Settings, keys: KeyStore, shared: SharedKeys | None) -> None:
    """Take over the fleet's keys before anybody is let in; raises `StartError` for a listener that needs keys where
    neither this host nor Redis knows any."""
    if shared is not None:
        try:
            await shared.sync()
        except KeyFileError as error:
            raise StartError(str(error)) from error
    _refuse_exposed(settings, keys)


def _refuse_exposed(settings: Settings, keys: KeyStore) -> None:
    exposed = exposed_without_keys(settings, has_keys=keys.required)
    if exposed is not None:
        raise StartError(exposed)


def start_tokens(settings: Settings) -> Tokens:
    """The tokens of the admin plane; raises `StartError`.

    They are in the state directory, also those of a gateway that keeps nothing else: the command line looks for them
    there. Where nothing can be written they are for this run only, if the admin's is given or nothing is to be kept.
    """
    given = settings.admin_token.get_secret_value() if settings.admin_token is not None else None
    try:
        return read_or_make_tokens(settings.state_dir, given)
    except TokenError as error:
        raise StartError(str(error)) from error
    except OSError as error:
        if settings.ephemeral or given is not None:
            return read_or_make_tokens(None, given)
        cure = "name another state_dir, or give HEADRACE_ADMIN_TOKEN"
        raise StartError(f"cannot keep the admin tokens in {settings.state_dir}: {error.strerror}; {cure}") from error


async def start_redis(settings: Settings, stack: AsyncExitStack, log: Log) -> str | None:
    """Where Redis is; an embedded one is started, started again when it dies, and stops with us."""
    if settings.redis_mode == "none":
        return None
    if settings.redis_mode == "url":
        return settings.redis.get_secret_value()
    redis = await EmbeddedRedis.start(lambda event, why: log.event(event, why=why))
    stack.push_async_callback(redis.stop)
    background(stack, keep_doing(redis.keep, "embedded-redis"), "embedded-redis")
    if not settings.ephemeral:
        stack.enter_context(_told(settings.state_dir / REDIS_URL, redis.url))
    return redis.url


@contextmanager
def _told(path: Path, url: str) -> Iterator[None]:
    """The URL in a file, for agents on this host, while the server runs."""
    with suppress(OSError):  # a host that keeps nothing; agents are told the URL by hand there, or are not there
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_text(f"{url}\n")
    yield
    with suppress(OSError):  # gone already, or another gateway's by now, which then still stands there
        if path.read_text().strip() == url:
            path.unlink()


@dataclass(frozen=True, slots=True)
class Edge:
    """How connections to both sides are made; None: as they come."""

    tls: ssl.SSLContext | None
    worker_tls: ssl.SSLContext | None  # None: no worker has needed one of its own, the system's authorities count
    trust: Trust | None


def start_edge(settings: Settings) -> Edge:
    """The TLS contexts of both sides, and whose word about clients counts. Raises `StartError`."""
    tls = worker_tls = trust = None
    try:
        if settings.tls_cert is not None and settings.tls_key is not None:
            tls = server_context(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
        if settings.worker_ca is not None or settings.worker_cert is not None:
            worker_tls = client_context(settings.worker_ca, settings.worker_cert, settings.worker_key)
    except ValueError as error:
        raise StartError(str(error)) from error
    if settings.trusted_proxies:
        trust = Trust(settings.trusted_proxies, proxy_protocol=settings.proxy_protocol)
    return Edge(tls, worker_tls, trust)


def start_connections(settings: Settings) -> int:
    """Take all descriptors there are; how many clients may be connected with them. Raises `StartError`."""
    try:
        return connection_cap(raise_limit(), settings.max_connections)
    except ValueError as error:
        raise StartError(str(error)) from error


def http_limits(policy: Policy, connections: int) -> HttpLimits:
    """The data listener's bounds by this policy, and the connections that descriptors allow."""
    limits, timeouts = policy.limits, policy.timeouts
    return HttpLimits(
        connections=connections,
        body_bytes=limits.body_bytes,
        header_bytes=limits.header_bytes,
        header_s=timeouts.header_s,
        body_s=timeouts.body_s,
        write_stall_s=timeouts.write_stall_s,
    )


def background(stack: AsyncExitStack, work: Coroutine[Any, Any, None], name: str) -> None:
    """Run `work` until the stack closes. Whatever takes a cancellation for something else gets another one."""
    task = asyncio.get_running_loop().create_task(work, name=name)

    async def end() -> None:
        while not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=CANCEL_AGAIN_S)

    stack.push_async_callback(end)


def on_hangup(stack: AsyncExitStack | ExitStack, reload: Callable[[], None]) -> None:
    """SIGHUP reads the policy again, where it cannot mean that our terminal is gone."""
    if sys.stdin is not None and sys.stdin.isatty():
        return
    loop = asyncio.get_running_loop()
    if threading.current_thread() is threading.main_thread():
        loop.add_signal_handler(signal.SIGHUP, reload)
        stack.callback(loop.remove_signal_handler, signal.SIGHUP)


def settle_memory(stack: AsyncExitStack) -> None:
    """What exists now lives to the end: the collector need not look at it again, and runs less often.

    Memory that is freed from now on will be needed again: the allocator keeps some.
    """
    keep_freed_memory()
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, *before[1:])
    stack.callback(gc.set_threshold, *before)
    stack.callback(gc.unfreeze)
