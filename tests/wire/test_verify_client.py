"""The client and the tap of `headrace verify`: every way in which an answer can come, or not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
from fault_server import closed_port

from loadtest import verify_tap
from loadtest.live_target import open_session
from loadtest.verify_client import MAX_BODY_BYTES, Caller, Fate, Told, Writer
from loadtest.verify_stage import Lateness, load
from loadtest.verify_tap import Tap

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT, DONE = b'data: {"choices": []}\n\n', b"data: [DONE]\n\n"
CHAT = {"stream": True}


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@asynccontextmanager
async def server(script: Script) -> AsyncIterator[str]:
    """Answers each connection's first request by a script, then closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await script(reader, writer)
            await writer.drain()
        except ConnectionError:
            return
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()


def saying(*parts: bytes) -> Script:
    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.writelines(parts)

    return script


async def asked(url: str, **more: Any) -> Told:
    async with open_session() as session:
        return await Caller(session, url).ask(CHAT, **more)


@pytest.mark.parametrize(
    ("parts", "fate", "status", "code"),
    [
        ([HEAD, chunk(EVENT), chunk(DONE), b"0\r\n\r\n"], Fate.ANSWERED, 200, ""),
        ([HEAD, chunk(EVENT), b"0\r\n\r\n"], Fate.BROKEN, 200, ""),
        ([HEAD, chunk(EVENT)], Fate.BROKEN, 200, "ClientPayloadError"),
        ([HEAD, chunk(b'data: {"error": {"code": "upstream_reset"}}\n\n')], Fate.TOLD, 200, "upstream_reset"),
        ([b"HTTP/1.1 429 x\r\nContent-Length: 27\r\n\r\n", b'{"error": {"code": "shed"}}'], Fate.REFUSED, 429, "shed"),
        ([b"HTTP/1.1 429 x\r\nContent-Length: 99\r\n\r\n", b'{"error"'], Fate.BROKEN, 429, "ClientPayloadError"),
        ([], Fate.BROKEN, 0, "ServerDisconnectedError"),
        ([b"what?\r\n\r\n"], Fate.BROKEN, 0, "ClientResponseError"),
    ],
)
async def test_every_way_to_end_is_one_fate(parts: list[bytes], fate: Fate, status: int, code: str) -> None:
    async with server(saying(*parts)) as url:
        told = await asked(url)
    assert (told.fate, told.status, told.code) == (fate, status, code)


async def test_nobody_there_and_nobody_who_answers() -> None:
    told = await asked(f"http://127.0.0.1:{closed_port()}")
    assert (told.fate, told.status, told.code) == (Fate.BROKEN, 0, "ClientConnectorError")
    over = asyncio.Event()

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(EVENT))
        await over.wait()

    async with server(silent) as url:
        told = await asked(url, answer_s=0.2)
        over.set()
    assert (told.fate, told.body) == (Fate.SILENT, EVENT)


async def test_an_answer_without_an_end_is_given_up() -> None:
    async def endless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        while True:
            writer.write(chunk(EVENT * 4000))
            await writer.drain()

    async with server(endless) as url:
        told = await asked(url)
    assert (told.fate, told.code) == (Fate.BROKEN, "ValueError")
    assert len(told.body) < 2 * MAX_BODY_BYTES


async def test_a_client_leaves_when_it_is_told_to_and_the_server_sees_it() -> None:
    gone = asyncio.Event()

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(EVENT))
        while await reader.read(1000):
            pass
        gone.set()

    async with server(stream) as url, asyncio.timeout(30):
        told = await asked(url, leave_at_first=True)
        assert (told.fate, told.left_s is not None) == (Fate.LEFT, True)
        await gone.wait()
        gone.clear()
        leave = asyncio.Event()
        told = await asked(url, leave=leave, began=lambda _: leave.set())
        assert told.fate is Fate.LEFT
        await gone.wait()


async def test_load_runs_beside_what_is_done_and_is_whole_afterwards() -> None:
    async with server(saying(HEAD, chunk(EVENT), chunk(DONE), b"0\r\n\r\n")) as url, open_session() as session:
        async with Lateness() as late, load(Caller(session, url), [CHAT] * 40) as coming:
            await coming.answers(5)
            assert coming.ended >= 5
            await coming.answers(99, within_s=0.1)  # more than there are: given up in time
        assert [told.fate for told in coming.told] == [Fate.ANSWERED] * 40
        assert late.most_s >= 0


def test_prompts_are_alike_by_seed_and_never_twice() -> None:
    one, other = Writer(Random("7/x")), Writer(Random("7/x"))
    first, second = one.chat(), one.chat()
    assert (first, second) == (other.chat(), other.chat())
    assert first["messages"] != second["messages"]


async def test_the_tap_passes_bytes_and_keeps_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = [HEAD, chunk(EVENT), chunk(DONE), b"0\r\n\r\n"]
    async with server(saying(*answer)) as engine, Tap(engine) as tap:
        told = [await asked(tap.url) for _ in range(3)]
        assert [one.body for one in told] == [EVENT + DONE] * 3
        assert tap.bodies == [EVENT + DONE] * 3
        monkeypatch.setattr(verify_tap, "MAX_BODIES", 3)
        assert (await asked(tap.url)).fate is Fate.ANSWERED
        assert len(tap.bodies) == 3
    async with server(saying(HEAD, chunk(EVENT))) as engine, Tap(engine) as tap:
        assert (await asked(tap.url)).fate is Fate.BROKEN
        assert tap.bodies == []
    async with Tap(f"http://127.0.0.1:{closed_port()}") as tap:
        assert (await asked(tap.url)).status == 0


async def test_the_tap_ends_with_connections_open() -> None:
    over = asyncio.Event()

    async def silent(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        await over.wait()

    async with server(silent) as engine:
        async with Tap(engine) as tap, asyncio.timeout(30):
            asking = asyncio.ensure_future(asked(tap.url))
            while not tap.running:  # noqa: ASYNC110 - the tap tells nobody
                await asyncio.sleep(0.01)
        assert (await asking).fate is Fate.BROKEN
        over.set()
