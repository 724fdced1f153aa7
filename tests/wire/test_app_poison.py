"""Row 35: a request that kills each worker it meets."""

from pathlib import Path

from fault_server import Call, FaultServer, answers, hangs, http, ok
from running_gateway import running, settings_for, until

from gateway.http.upstream import UpstreamPool
from gateway.poison import MAX_PROBES, PoisonGuard

POISON = {"messages": [{"role": "user", "content": "die"}]}


async def deadly(call: Call) -> None:
    """An engine whose process dies of one prompt; its supervisor starts it again, after a while."""
    if b'"die"' in call.request.body:
        call.server._server.close()
        call.reset()
    else:
        await ok()(call)


async def test_a_request_that_kills_workers_meets_two_of_them_and_is_then_refused(tmp_path: Path) -> None:
    async with FaultServer(deadly) as one, FaultServer(deadly) as two, FaultServer(deadly) as three:
        engines = (one, two, three)
        async with running(settings_for(tmp_path, engines)) as gateway:  # type: ignore[arg-type]
            async with gateway.post(POISON) as answer:
                assert answer.status == 500
                assert answer.headers["x-should-retry"] == "false"
                assert (await answer.json())["error"]["code"] == "upstream_reset"
            assert sum(b'"die"' in request.body for engine in engines for request in engine.requests) == 2
            await until(lambda: gateway.lines("request_quarantined"))
            (line,) = gateway.lines("request_quarantined")
            assert len(line["workers"]) == 2
            async with gateway.post(POISON) as answer:
                assert answer.status == 422
                assert answer.headers["x-should-retry"] == "false"
                assert (await answer.json())["error"]["code"] == "request_quarantined"
            assert sum(b'"die"' in request.body for engine in engines for request in engine.requests) == 2
            assert await gateway.sample("headrace_poison_quarantined_total") == 1
            async with gateway.post({}) as answer:  # what is left serves all others
                assert answer.status == 200
            await gateway.idle()


async def test_workers_that_live_on_quarantine_nothing(tmp_path: Path) -> None:
    """Resets alone, as of a restarted proxy in between, are no death; the third worker is spared all the same."""

    async def resets(call: Call) -> None:
        if b'"die"' in call.request.body:
            call.reset()
        else:
            await ok()(call)

    async with (
        FaultServer(resets) as one,
        FaultServer(resets) as two,
        FaultServer(resets) as three,
        running(settings_for(tmp_path, (one, two, three))) as gateway,  # type: ignore[arg-type]
    ):
        async with gateway.post(POISON) as answer:
            assert answer.status == 500
        health = [b"GET /health HTTP/1.1"]
        await until(lambda: any(request.line in health for request in one.requests + two.requests))
        assert not gateway.lines("request_quarantined")


async def test_what_counts_as_dead() -> None:
    """A 5xx of `/health`, no such worker, silence until the time is over."""
    alive, broken, silent = FaultServer(ok()), FaultServer(answers(http(503, b"{}"))), FaultServer(hangs())
    async with alive, broken, silent:
        pools = {name: UpstreamPool(name, one.url) for name, one in (("a", alive), ("b", broken), ("s", silent))}
        now = 0.0
        held: list[object] = []
        guard = PoisonGuard(pools, lambda: now, held.append, probe_s=0.3, probe_every_s=0.01)
        for number, worker in enumerate(("b", "gone")):
            body = b"%d" % number
            assert not guard.on_reset(body, "a")
            assert guard.on_reset(body, worker)
            await until(lambda number=number: len(held) == number + 1)
            assert guard.refusal(body) is not None
        assert guard.refusal(b"another") is None
        guard.on_reset(b"s", "a")
        guard.on_reset(b"s", "s")
        await silent.call()
        now = 6.0  # its time is over
        await until(lambda: len(held) == 3)
        await guard.close()
        for pool in pools.values():
            pool.close()


async def test_probes_are_bounded() -> None:
    guard = PoisonGuard({}, lambda: 0.0, lambda _: None)
    for number in range(2 * MAX_PROBES):
        body = b"%d" % number
        guard.on_reset(body, "w1")
        guard.on_reset(body, f"w2-{number}")
    assert len(guard._probes) == MAX_PROBES
    await guard.close()
    assert not guard._probes
