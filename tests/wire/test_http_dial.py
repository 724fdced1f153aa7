"""Where connections to a worker go: several addresses of a name, both families, names that move, unix sockets."""

import asyncio
import contextlib
import os
import socket
import time

import pytest
from data_plane import plane
from fault_server import ANSWER, FaultServer, ok

from gateway.http import dial
from gateway.http.dial import MAX_ADDRESSES, Dialer, in_turn, is_literal
from gateway.ports import free_port

V4, V6 = socket.AF_INET, socket.AF_INET6


class Name:
    """A resolver for one name; `asked` counts."""

    def __init__(self, *addresses):
        self.addresses = addresses
        self.asked = 0
        self.known = None  # or an event: answers only then

    async def __call__(self, host, port):
        self.asked += 1
        if self.known is not None:
            await self.known.wait()
        if not self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(V6 if ":" in where[0] else V4, where) for where in self.addresses]


class Greeted(asyncio.Protocol):
    """Reads the one line that a server says."""

    def __init__(self):
        self.said = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.said.set_result(data)


@contextlib.asynccontextmanager
async def greeter(word, host="127.0.0.1", port=0):
    def greet(_, writer):
        writer.write(word)
        writer.close()

    async with await asyncio.start_server(greet, host, port) as server:
        yield server.sockets[0].getsockname()[:2]


@contextlib.contextmanager
def black_hole():
    """An address that takes no connection and refuses none: its accept queue is full."""
    with contextlib.ExitStack() as stack:
        hole = stack.enter_context(socket.socket())
        hole.bind(("127.0.0.1", 0))
        hole.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(hole.getsockname())
        yield hole.getsockname()


def descriptors():
    return len(os.listdir("/proc/self/fd"))


async def said(dialer):
    async with asyncio.timeout(20):
        greeted = await dialer.open(Greeted)
        try:
            return await greeted.said
        finally:
            greeted.transport.abort()


async def test_an_address_that_swallows_everything_costs_a_head_start_only():
    async with greeter(b"good") as good:
        with black_hole() as hole:
            assert await said(Dialer("engine.test", 80, resolve=Name(hole, hole, good))) == b"good"


async def test_an_address_that_refuses_costs_nothing(monkeypatch):
    monkeypatch.setattr(dial, "HEAD_START_S", 3600)
    async with greeter(b"good") as good:
        refusing = ("127.0.0.1", free_port())
        assert await said(Dialer("engine.test", 80, resolve=Name(refusing, good))) == b"good"


async def test_where_all_refuse_that_is_said():
    refusing = [("127.0.0.1", free_port()) for _ in range(2)]
    with pytest.raises(ConnectionRefusedError):
        await said(Dialer("engine.test", 80, resolve=Name(*refusing)))
    with pytest.raises(socket.gaierror):
        await said(Dialer("engine.test", 80, resolve=Name()))


async def test_a_race_is_bounded_and_leaves_no_socket_behind():
    before = descriptors()
    with black_hole() as hole:
        dialer = Dialer("engine.test", 80, resolve=Name(*[hole] * 50))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(dial.HEAD_START_S * 3):
                await dialer.open(Greeted)
        assert len(dialer.addresses) == MAX_ADDRESSES
    deadline = time.monotonic() + 10
    while descriptors() > before:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_both_families_work():
    async with greeter(b"six", "::1") as six, greeter(b"four") as four:
        assert await said(Dialer("::1", six[1])) == b"six"
        assert await said(Dialer("engine.test", six[1], resolve=Name((*six, 0, 0)))) == b"six"
        assert await said(Dialer("engine.test", 80, resolve=Name(("::1", free_port(), 0, 0), four))) == b"four"
        assert await said(Dialer("localhost", four[1])) == b"four"


async def test_a_name_is_looked_up_again_when_it_leads_nowhere_and_now_and_then(monkeypatch):
    async with greeter(b"old") as old, greeter(b"new") as new:
        name = Name(old, old)
        dialer = Dialer("engine.test", 80, resolve=name)
        assert [await said(dialer) for _ in range(3)] == [b"old"] * 3
        assert name.asked == 1
        name.addresses = (new, new)
        monkeypatch.setattr(dial, "RESOLVED_S", -1.0)
        dialer = Dialer("engine.test", 80, resolve=name)
        assert await said(dialer) == b"new"
        name.addresses = (old, old)
        assert await said(dialer) == b"old"
    monkeypatch.undo()
    name = Name(old, new)
    dialer = Dialer("engine.test", 80, resolve=name)
    for asked in (1, 2):  # nobody is there any more
        with pytest.raises(ConnectionRefusedError):
            await said(dialer)
        assert name.asked == asked


async def test_one_question_serves_all_who_wait_and_outlives_those_who_do_not():
    async with greeter(b"good") as good:
        name = Name(good, good)
        name.known = asyncio.Event()
        dialer = Dialer("engine.test", 80, resolve=name)
        first = asyncio.ensure_future(said(dialer))
        others = [asyncio.ensure_future(said(dialer)) for _ in range(5)]
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait({first})
        name.known.set()
        assert await asyncio.gather(*others) == [b"good"] * 5
        assert name.asked == 1


async def test_a_single_address_that_leads_nowhere_is_looked_up_again():
    name = Name(("127.0.0.1", free_port()))
    dialer = Dialer("engine.test", name.addresses[0][1], resolve=name)
    for asked in (1, 2):
        with pytest.raises(ConnectionRefusedError):
            await said(dialer)
        assert name.asked == asked


def test_families_take_turns():
    six, four = [(V6, ("::1", port)) for port in (1, 2, 3)], [(V4, ("1.1.1.1", 4))]
    assert [where[1] for _, where in in_turn([*six, *four])] == [1, 4, 2, 3]
    assert in_turn([]) == ()


def test_addresses_are_no_names():
    assert [is_literal(host) for host in ("127.0.0.1", "::1", "localhost", "1.2.3", "w1.fleet")] == [
        *(True, True, False, False, False)
    ]


@pytest.mark.parametrize("form", ["unix://{path}", "http+unix://{quoted}"])
async def test_a_worker_behind_a_unix_socket(tmp_path, form):
    path = tmp_path / "engine.sock"
    url = form.format(path=path, quoted=str(path).replace("/", "%2F"))
    async with FaultServer(ok()) as engine, plane(url) as p, p.client() as client:
        assert (await client.post()).status == 503
        assert p.notes.attempts[0] == ("pool-a", "w0", "connect_refused")

        async def pass_on(reader, writer):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", engine.port)

            async def pump(source, sink):
                while data := await source.read(65536):
                    heads.append(data)
                    sink.write(data)
                sink.close()

            async with asyncio.TaskGroup() as group:
                group.create_task(pump(reader, far_writer))
                group.create_task(pump(far_reader, writer))

        heads = []
        async with await asyncio.start_unix_server(pass_on, path):
            assert (await client.post()).body == ANSWER
            assert (await client.post()).body == ANSWER
        assert b"\r\nhost: localhost\r\n" in heads[0].lower()
