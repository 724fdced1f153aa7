"""Stopping: not ready at once, what runs ends, what waits is served or told, the rest gets an error event."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from plain_worker import ANSWER, EVENTS, plain_worker
from running_gateway import running, settings_for, until

from gateway.app import Addresses, serve


async def test_streams_end_normally_and_what_waits_is_served(tmp_path):
    """BR-12-01: readiness 503 at once, liveness 200, open streams end with [DONE], the queued one is served."""
    async with plain_worker() as worker, running(settings_for(tmp_path, [worker])) as gateway:
        worker.gate.clear()
        streams = [await gateway.post({"stream": True}) for _ in range(4)]
        for stream in streams:
            assert await stream.content.readuntil(b"\n\n") == EVENTS[0]
        waiting = asyncio.ensure_future(_read(gateway.post({})))
        await gateway.queued(1)
        gateway.stop.set()
        await until(lambda: gateway.lines("draining"))
        status, body = await gateway.get("/readyz")
        assert (status, body) == (503, b"shutting down\n")
        assert (await gateway.get("/livez"))[0] == 200
        with pytest.raises(aiohttp.ClientConnectionError):
            async with aiohttp.ClientSession() as stranger, stranger.get(f"{gateway.data}/livez"):
                pass
        worker.gate.set()
        for stream in streams:
            assert await stream.read() == b"".join(EVENTS[1:])
        assert await waiting == (200, ANSWER)


async def test_at_the_end_of_the_drain_streams_get_an_error_event(tmp_path):
    async with plain_worker() as worker, running(settings_for(tmp_path, [worker], drain_s=0.3)) as gateway:
        worker.gate.clear()
        stream = await gateway.post({"stream": True})
        first = await stream.content.readuntil(b"\n\n")
        gateway.stop.set()
        rest = await _read_until_cut(stream)
        stream.close()
        assert first == EVENTS[0]
        assert b"[DONE]" not in rest
        event = json.loads(rest.removeprefix(b"data: "))
        assert event["error"]["code"] == "shutting_down"


async def test_what_still_waits_at_the_end_is_told_to_try_again(tmp_path):
    async with plain_worker() as worker, running(settings_for(tmp_path, [worker], drain_s=0.3)) as gateway:
        worker.gate.clear()
        tasks = [asyncio.ensure_future(_status(gateway.post({}))) for _ in range(6)]
        await gateway.queued(2)
        gateway.stop.set()
        found = await asyncio.gather(*tasks)
        assert found.count((503, "shutting_down", "true")) == 6


async def _read_until_cut(stream: aiohttp.ClientResponse) -> bytes:
    parts = []
    while True:
        try:
            parts.append(await stream.content.readany())
        except aiohttp.ClientPayloadError:
            return b"".join(parts)
        assert parts[-1], "the stream ended as if it were complete"


async def _read(call: Any) -> tuple[int, bytes]:
    async with call as answer:
        return answer.status, await answer.read()


async def _status(call: Any) -> tuple[int, str, str]:
    async with call as answer:
        return answer.status, (await answer.json())["error"]["code"], answer.headers["x-should-retry"]


async def test_a_second_signal_does_not_wait(tmp_path):
    """Row 71: cancelling while it drains ends it at once, with an error event."""
    async with plain_worker() as worker:
        worker.gate.clear()
        stop = asyncio.Event()
        ready: asyncio.Future[Addresses] = asyncio.get_running_loop().create_future()
        settings = settings_for(tmp_path, [worker], drain_s=600)
        gateway = asyncio.ensure_future(serve(settings, on_ready=ready.set_result, stop=stop))
        addresses = await ready
        async with aiohttp.ClientSession() as session:
            body = {"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "x"}]}
            stream = await session.post(f"{addresses.data}/v1/chat/completions", json=body)
            await stream.content.readuntil(b"\n\n")
            stop.set()
            done, _ = await asyncio.wait({gateway}, timeout=0.3)
            assert not done, "a stream runs: the first signal waits for it"
            gateway.cancel()
            done, _ = await asyncio.wait({gateway}, timeout=5)
            assert done
            assert gateway.cancelled()
            with pytest.raises(aiohttp.ClientPayloadError):
                await stream.read()
            stream.close()
        await asyncio.wait_for(worker.idle.wait(), 2)


async def test_where_somebody_watches_connections_are_still_taken_for_a_while(tmp_path, monkeypatch):
    """Row 70: /readyz is 503 at once; who has not seen it yet is still served, and told to close."""
    monkeypatch.setattr("gateway.app.ACCEPT_S", 60.0)
    async with plain_worker() as worker:
        settings = settings_for(tmp_path, [worker], drain_s=1.0)
        async with running(settings) as gateway:
            assert (await gateway.get("/readyz"))[0] == 200
            gateway.stop.set()
            await until(lambda: gateway.lines("draining"))
            assert gateway.lines("draining")[0]["accept_s"] == 1.0
            assert (await gateway.get("/readyz"))[0] == 503
            async with aiohttp.ClientSession() as stranger:
                body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
                async with stranger.post(f"{gateway.data}/v1/chat/completions", json=body) as answer:
                    assert answer.status == 200
                    assert answer.headers["connection"] == "close"
            await until(lambda: gateway.lines("stopped"))
