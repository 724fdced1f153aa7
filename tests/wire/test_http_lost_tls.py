"""A TLS connection is lost a turn of the loop before its protocol hears of it: nothing fails in between."""

from __future__ import annotations

import asyncio
import ssl

from certificates import Authority
from data_plane import plane
from fault_server import FaultServer, ok

from gateway.http.uptake import unread, untaken


async def test_a_server_drains_in_the_turn_in_which_a_client_is_lost(tmp_path):
    authority = Authority(tmp_path)
    pair = authority.sign("gateway")
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(pair.cert, pair.key)
    theirs = ssl.create_default_context(cafile=str(authority.ca))
    async with FaultServer(ok()) as engine, plane(engine) as p:
        _, port = await p.server.start("127.0.0.1", 0, ssl=ours)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=theirs)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: gateway\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        (connection,) = p.server._connections
        transport = connection._transport
        writer.transport.abort()
        async with asyncio.timeout(10):
            while transport.get_extra_info("socket") is not None:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert p.server._connections == {connection}, "it has not been told yet"
        assert untaken(transport) == 0
        assert not unread(transport)
        assert await p.server.drain(1.0)
        assert not p.errors
