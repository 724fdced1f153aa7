"""Proxies in front: whose word about the client counts, and how a connection of theirs begins."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from data_plane import Client, Plane, plane, request
from fault_server import ANSWER, FaultServer, ok
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.proxied import Trust
from gateway.http.proxy_protocol import SIGNATURE, Origin, ProxyFault, read_origin

V4 = bytes([192, 0, 2, 9]) + bytes([127, 0, 0, 1]) + b"\x00\x01\x00\x02"
V6 = bytes.fromhex("20010db8" + "00" * 11 + "05") + bytes(16) + b"\x00\x01\x00\x02"


def block(family: int, body: bytes, command: int = 0x21) -> bytes:
    return SIGNATURE + bytes([command, family]) + len(body).to_bytes(2) + body


BEGINNINGS = {
    b"PROXY TCP4 192.0.2.9 127.0.0.1 1 65535\r\n": "192.0.2.9",
    b"PROXY TCP6 2001:db8::5 ::1 1 2\r\n": "2001:db8::5",
    b"PROXY UNKNOWN\r\n": None,
    b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n": None,
    block(0x11, V4): "192.0.2.9",
    block(0x11, V4 + b"\x03\x00\x00"): "192.0.2.9",
    block(0x21, V6): "2001:db8::5",
    block(0x31, bytes(216)): None,
    block(0x00, b"", 0x20): None,
    block(0x11, V4, 0x20): None,
}
FAULTS = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"PROXY TCP4 192.0.2.999 127.0.0.1 1 2\r\n",
    b"PROXY TCP6 192.0.2.9 127.0.0.1 1 2\r\n",
    b"PROXY TCP4 192.0.2.9\r\n",
    b"PROXY " + b"x" * 107,
    block(0x11, V4[:-1]),
    block(0x11, V4, 0x11),
    block(0x11, V4, 0x22),
    SIGNATURE + b"\x21\x11\xff\xff",
    b"\x16\x03\x01",
]


@pytest.mark.parametrize("data", BEGINNINGS)
def test_beginnings_are_read_whole_and_in_pieces(data: bytes) -> None:
    assert read_origin(data) == Origin(BEGINNINGS[data], len(data))
    assert read_origin(data + b"POST / HTTP/1.1\r\n") == Origin(BEGINNINGS[data], len(data))
    for size in range(len(data)):
        assert read_origin(data[:size]) is None


@pytest.mark.parametrize("data", FAULTS)
def test_anything_else_is_a_fault(data: bytes) -> None:
    with pytest.raises(ProxyFault):
        read_origin(data)


@given(st.binary(max_size=300), st.sampled_from([b"", b"PROXY ", b"PROXY TCP4 ", SIGNATURE, SIGNATURE + b"\x21"]))
def test_no_bytes_do_harm(data: bytes, before: bytes) -> None:
    try:
        found = read_origin(before + data)
    except ProxyFault:
        return
    assert found is None or 0 < found.end <= len(before + data)


def test_the_client_is_the_nearest_address_that_is_not_ours() -> None:
    trust = Trust(["10.0.0.0/8", "::1/128"])
    assert trust.client_of("10.0.0.1", [b"1.1.1.1, 192.0.2.7", b"10.0.0.2"]) == "192.0.2.7"
    assert trust.client_of("::ffff:10.0.0.1", [b"192.0.2.7"]) == "192.0.2.7"
    assert trust.client_of("::1", [b"10.1.1.1"]) == "10.1.1.1"
    assert trust.client_of("192.0.2.1", [b"1.1.1.1"]) == "192.0.2.1"
    assert trust.client_of("10.0.0.1", [b"1.1.1.1, unknown"]) == "10.0.0.1"
    assert trust.client_of("10.0.0.1", []) == "10.0.0.1"
    assert trust.client_of("", [b"1.1.1.1"]) == ""
    assert Trust(["unix"]).client_of("", [b"1.1.1.1"]) == "1.1.1.1"
    assert not trust.trusts("not an address")


@asynccontextmanager
async def behind(trust: Trust) -> AsyncIterator[tuple[Plane, Client]]:
    """A plane, and a client at a listener that trusts so."""
    async with FaultServer(ok()) as engine, plane(engine) as p:
        _, port = await p.server.start("127.0.0.1", 0, trust=trust)
        async with Client(port) as client:
            yield p, client


async def test_forwarded_fields_of_a_trusted_proxy_count() -> None:
    async with behind(Trust(["127.0.0.0/8"])) as (p, client):
        for fields, peer, secure in (
            (b"X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: https\r\n", "192.0.2.7", True),
            (b"X-Forwarded-For: 192.0.2.8\r\n", "192.0.2.8", False),
            (b"", "127.0.0.1", False),
        ):
            assert (await client.post(fields=fields)).body == ANSWER
            assert (p.gate.seen[-1].peer, p.gate.seen[-1].secure) == (peer, secure)
            assert p.notes.records[-1].peer == peer


async def test_forwarded_fields_of_anybody_else_mean_nothing() -> None:
    async with behind(Trust(["192.0.2.0/24"])) as (p, client):
        await client.post(fields=b"X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: https\r\n")
        assert (p.gate.seen[-1].peer, p.gate.seen[-1].secure) == ("127.0.0.1", False)


@pytest.mark.parametrize("bytewise", [False, True])
async def test_a_connection_that_begins_with_its_origin(bytewise: bool) -> None:
    """The requests behind it, the second one too, are that client's."""
    async with behind(Trust(["127.0.0.0/8"], proxy_protocol=True)) as (p, client):
        data = block(0x11, V4) + request()
        for piece in [data[i : i + 1] for i in range(len(data))] if bytewise else [data]:
            await client.send(piece)
        assert (await client.answer()).body == ANSWER
        assert (await client.post()).body == ANSWER
        assert [raw.peer for raw in p.gate.seen] == ["192.0.2.9"] * 2


async def test_a_trusted_proxy_that_forgets_its_line_is_refused() -> None:
    async with behind(Trust(["127.0.0.0/8"], proxy_protocol=True)) as (p, client):
        answer = await client.post()
        assert answer.status == 400
        assert b"does not begin with a PROXY line" in answer.body
        assert not p.gate.seen


async def test_nobody_else_may_begin_with_one() -> None:
    async with behind(Trust(["192.0.2.0/24"], proxy_protocol=True)) as (p, client):
        await client.send(b"PROXY TCP4 192.0.2.9 127.0.0.1 1 2\r\n" + request())
        assert (await client.answer()).status == 400
        assert not p.gate.seen


async def test_a_worker_at_an_ipv6_address() -> None:
    async with FaultServer(ok(), host="::1") as engine, plane(engine) as p, p.client() as client:
        assert (await client.post()).body == ANSWER
        assert engine.requests[0].values(b"host") == [b"[::1]:%d" % engine.port]
