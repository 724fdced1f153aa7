"""Workers that have a name: every address of it is tried, and a later connection asks for it again."""

import socket
from typing import Any

import pytest
from data_plane import plane
from fault_server import ANSWER, FaultServer, closed_port, ok


async def test_a_name_is_looked_up_again_for_a_later_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http.dial.RESOLVED_S", 0.0)
    async with FaultServer(ok()) as old, FaultServer(ok()) as new:
        ports: list[int] = [closed_port(), old.port]
        real = socket.getaddrinfo

        def lookup(host: Any, *rest: Any, **more: Any) -> Any:
            if host != "engine.example":
                return real(host, *rest, **more)
            found = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
            return [(*found, ("127.0.0.1", port)) for port in ports]

        monkeypatch.setattr(socket, "getaddrinfo", lookup)
        async with plane("http://engine.example:80", rest_s=60.0) as p, p.client() as client:
            assert (await client.post()).body == ANSWER  # the first address takes nothing, the second does
            ports[:] = [new.port]
            assert (await client.post()).body == ANSWER
        assert (len(old.requests), len(new.requests)) == (1, 1)
        assert new.requests[0].values(b"host") == [b"engine.example:80"]
