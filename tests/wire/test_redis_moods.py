"""Redis in all its moods: passwords, an ACL user with the least commands, Sentinel with a failover, a cluster.

The bundled Valkey plays all parts; another server's path in HEADRACE_TEST_REDIS_SERVER plays them too.
"""

import asyncio
import logging
import re
import subprocess
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import redis.asyncio as redis_client
from plain_worker import plain_worker
from redis_support import SERVERS, a_cluster, behind_sentinels, free_ports, server
from reporting_support import changes, gone, lines, reporting, seen, set_sentinel_user, set_user
from running_gateway import running, settings_for, until

from gateway.leasing.holder import Holder
from gateway.leasing.script import send
from gateway.leasing.words import Demand, read_heard
from gateway.redis_link import RedisLink
from workers.report import WorkerReport, encode, report_key, workers_key

DOCS = Path(__file__).parents[2] / "docs" / "redis.md"


def link_to(url: str) -> tuple[RedisLink, list[str]]:
    errors: list[str] = []
    return RedisLink(url, clock=time.monotonic, on_change=lambda up, why: None, on_error=errors.append), errors


async def works(link: RedisLink, holder: Holder, within_s: float = 20.0) -> int:
    """Lease on one worker until slots come, as the keeper does; how many."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        step = holder.plan({"w1": Demand(8, 0)}, time.monotonic())
        value = await link.run(lambda redis, step=step: send(redis, "f", step))
        if value is not None:
            heard = read_heard(value)
            holder.answered(step, heard)
            if not heard.refused and holder.shares["w1"].held:
                return holder.shares["w1"].held
        await asyncio.sleep(0.05)
    return 0


def acl_rules() -> list[str]:
    """The user's rules as the documentation has them."""
    match = re.search(r"^ACL SETUSER headrace (.+)$", DOCS.read_text(), re.MULTILINE)
    assert match is not None
    return match[1].split()


async def test_the_documented_user_may_do_all_that_is_needed_and_no_more(tmp_path):
    """S33: the least commands; everything of a whole gateway works with them."""
    (port,) = free_ports(1)
    async with server(port, tmp_path / "redis") as child:
        admin = redis_client.Redis.from_url(child.url)
        rules = [rule.replace("PASSWORD", "secret") for rule in acl_rules()]
        if (await admin.info("server"))["redis_version"].startswith("7.0."):
            rules.remove("+client|setinfo")  # as the documentation says
        await admin.execute_command("ACL", "SETUSER", "headrace", *rules)
        await admin.execute_command("ACL", "LOG", "RESET")
        url = f"redis://headrace:secret@127.0.0.1:{port}/0"
        report = WorkerReport("w9", "i1", 1, "http://127.0.0.1:1", "vllm", "short-chat", ("tiny",))
        agent = redis_client.Redis.from_url(url)
        await agent.set(report_key("default", "w9"), encode(report), ex=10)
        await agent.sadd(workers_key("default"), "w9")
        policy = tmp_path / "policy.yaml"
        policy.write_text("tenants: {default: {requests_per_min: 100}}\n")
        async with plain_worker() as worker:
            settings = settings_for(tmp_path, [worker], redis=url, policy=str(policy))
            async with running(settings) as gateway:
                async with gateway.post({}) as answer:
                    assert answer.status == 200
                    assert answer.headers["x-ratelimit-limit-requests"] == "100"
                    assert answer.headers["x-ratelimit-remaining-requests"] == "99"
                policy.write_text("tenants: {default: {requests_per_min: 101}}\n")
                await until(lambda: len(gateway.lines("policy_adopted")) >= 1, 10)
                assert any(each["id"] == "w9" for each in (await gateway.fleet())["workers"])
                assert await gateway.sample("headrace_lease_epoch") >= 1
                await told(admin)
        await agent.aclose()
        denied = await admin.execute_command("ACL", "LOG")
        assert denied == [], denied
        stranger = redis_client.Redis.from_url(url)
        for command in (["FLUSHALL"], ["KEYS", "*"], ["CONFIG", "GET", "*"], ["GET", "other"], ["SHUTDOWN"]):
            with pytest.raises(redis_client.ResponseError):
                await stranger.execute_command(*command)
        await stranger.aclose()
        await admin.aclose()


async def told(admin) -> None:
    """A quarter of a second later the tenant's minute is in Redis."""
    deadline = time.monotonic() + 10
    while not await admin.exists("headrace:{default}:quota:default"):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def test_a_password_and_what_happens_without_it(tmp_path):
    (port,) = free_ports(1)
    async with server(port, tmp_path / "redis", "--requirepass", "secret"):
        link, errors = link_to(f"redis://:secret@127.0.0.1:{port}/0")
        assert await works(link, Holder("a", "who", fresh=True)) == 8
        await link.close()
        link, errors = link_to(f"redis://127.0.0.1:{port}/0")
        assert await link.run(lambda redis: redis.ping()) is None
        assert link.up is False
        assert set(errors) <= {"auth", "response"}
        await link.close()


def speaks_tls() -> bool:
    argv = [SERVERS[-1], "--tls-port", "1", "--port", "0"]
    return b"TLS support" not in subprocess.run(argv, capture_output=True, check=False, timeout=10).stdout


def self_signed(directory: Path) -> tuple[Path, Path]:
    key, certificate = directory / "key.pem", directory / "certificate.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    argv += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(argv, check=True, capture_output=True)
    return key, certificate


async def test_tls_is_checked_and_works(tmp_path):
    """Only a server that was built with it can show it; the bundled one is not."""
    if not speaks_tls():
        pytest.skip("this server was built without TLS; name one in HEADRACE_TEST_REDIS_SERVER")
    key, certificate = self_signed(tmp_path)
    plain, port = free_ports(2)
    options = ["--tls-port", str(port), "--tls-auth-clients", "no"]
    options += ["--tls-cert-file", str(certificate), "--tls-key-file", str(key)]
    async with server(plain, tmp_path / "redis", *options):
        link, errors = link_to(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}")
        assert await works(link, Holder("a", "who", fresh=True)) == 8, errors
        await link.close()
        async with reporting(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}"):
            await seen(f"redis://127.0.0.1:{plain}/0", 1)
        link, errors = link_to(f"rediss://127.0.0.1:{port}/0")
        assert await link.run(lambda redis: redis.ping()) is None
        assert set(errors) <= {"connection", "timeout"}, "a certificate that nobody vouches for"
        await link.close()


async def test_a_cluster_keeps_a_fleet_in_one_slot(tmp_path):
    async with a_cluster(tmp_path) as nodes:
        link, errors = link_to(f"redis+cluster://{nodes}")
        holders = [Holder("a", "who", fresh=True), Holder("b", "who2")]
        assert await works(link, holders[0]) == 8, errors
        heard: list[bytes] = []
        listening = asyncio.create_task(link.listen("headrace:{f}:hints", heard.append))
        until = time.monotonic() + 20
        need = 1
        while not heard:
            assert time.monotonic() < until, errors
            need = 3 - need  # what others need changes, which is worth a hint
            for holder, wanted in zip(holders, (0, need), strict=True):
                step = holder.plan({"w1": Demand(8, 8 if holder is holders[0] else 0, wanted, 0)}, time.monotonic())
                value = await link.run(lambda redis, step=step: send(redis, "f", step))
                assert value is not None, errors
                holder.answered(step, read_heard(value))
            await asyncio.sleep(0.1)
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await link.close()
        await reports_reach(nodes)


async def reports_reach(nodes: str) -> None:
    """An agent's report comes into the cluster and is taken out again, by the user that is documented for it."""
    admins = [redis_client.Redis.from_url(f"redis://{node}") for node in nodes.split(",")]
    for admin in admins:
        await set_user(admin, "+cluster|slots", "+cluster|shards", "+cluster|nodes", "+command")
    async with reporting(f"redis+cluster://agent:secret@{nodes}") as engine:
        engine.values["running"] = 3
        await seen(f"redis+cluster://{nodes}", 3)
    assert await gone(f"redis+cluster://{nodes}")
    for admin in admins:
        assert await admin.execute_command("ACL", "LOG") == []
        await admin.aclose()


async def test_sentinel_finds_the_primary_and_the_next_one(tmp_path, caplog):
    """Row 58: a failover is another server; the gateways tell it what they hold, and nobody gets more meanwhile.

    Agents report to it, too: one line when it begins to fail, one when it works again.
    """
    caplog.set_level(logging.INFO, "headrace.agent")
    async with AsyncExitStack() as stack:
        first, nodes = await stack.enter_async_context(behind_sentinels(tmp_path))
        url = f"redis+sentinel://{nodes}/mymaster/0"
        for node in nodes.split(","):
            async with redis_client.Redis.from_url(f"redis://{node}") as sentinel:
                await set_sentinel_user(sentinel)
        taken: list[bool] = []
        login = "sentinel_username=asks&sentinel_password=asked"
        engine = await stack.enter_async_context(reporting(f"{url}?{login}", taken))
        engine.values["running"] = 3
        await seen(url, 3)
        link, errors = link_to(url)
        holder = Holder("a", "who", fresh=True)
        assert await works(link, holder) == 8, errors
        epoch = holder.epoch
        first.kill()
        await first.wait()
        until = time.monotonic() + 40
        while holder.epoch == epoch:
            assert time.monotonic() < until, errors
            await works(link, holder, 0.1)
            assert holder.shares["w1"].held == 8
            await asyncio.sleep(0.1)
        assert await works(link, holder) == 8, "what it tells the new one that it holds"
        assert not holder.open, "another server: it listens first"
        await link.close()
        engine.values["running"] = 5
        await seen(url, 5)
        told = lines(caplog)
        assert told[0].startswith("reporting w1 to Redis fails: ")
        # By turns nobody answers and an old primary refuses.
        assert len(told) <= changes(taken) + 3, "a line a change, not one a failure"
