"""Connections that may come through a proxy of ours: who the client is, said by those who may say it.

Only built where the settings trust somebody. From everybody else `X-Forwarded-*` means nothing, as everywhere.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.errors import ErrorAnswer, ErrorCode

from .connection import ClientConnection
from .proxy_protocol import ProxyFault, read_origin

if TYPE_CHECKING:
    from .messages import RawRequest
    from .server import DataServer

UNIX = "unix"
MAX_HOPS = 32


class Trust:
    """Whose word counts: networks, or `unix` for the peers of a unix socket. `proxy_protocol`: they begin with it."""

    def __init__(self, trusted: Sequence[str], *, proxy_protocol: bool = False) -> None:
        self._networks = tuple(ipaddress.ip_network(each) for each in trusted if each != UNIX)
        self._sockets = UNIX in trusted
        self.proxy_protocol = proxy_protocol

    def trusts(self, peer: str) -> bool:
        """Whether this peer may say who is behind it; one without an address came by a unix socket."""
        if not peer:
            return self._sockets
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)

    def client_of(self, peer: str, forwarded: Sequence[bytes]) -> str:
        """The nearest address that is not one of ours, going back from `peer` through `X-Forwarded-For`."""
        hops = [hop.strip() for value in forwarded for hop in value.decode("latin-1").split(",")][-MAX_HOPS:]
        while hops and self.trusts(peer):
            try:
                peer = str(ipaddress.ip_address(hops.pop()))
            except ValueError:
                break  # not an address: nobody behind it can be known
        return peer


class ProxiedConnection(ClientConnection):
    """A connection whose client may be behind a trusted proxy."""

    __slots__ = ("_begun", "_first", "_trust")

    def __init__(self, server: DataServer, trust: Trust, *, secure: bool = False) -> None:
        super().__init__(server, secure=secure)
        self._trust = trust
        self._begun = True
        self._first = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # noqa: D102
        super().connection_made(transport)
        self._begun = not (self._trust.proxy_protocol and self._trust.trusts(self._reader.peer))

    def data_received(self, data: bytes) -> None:  # noqa: D102
        if not self._begun:
            data = self._first + data
            try:
                origin = read_origin(data)
            except ProxyFault as fault:
                self._begun = True
                self._reject(ErrorAnswer(ErrorCode.BAD_REQUEST, f"From this address {fault}."))
                return
            if origin is None:
                self._first = data
                return
            self._begun, self._first = True, b""
            self._reader.peer = origin.peer or self._reader.peer
            data = data[origin.end :]
            if not data:
                return
        super().data_received(data)

    def _serve(self, raw: RawRequest) -> None:
        if self._trust.trusts(raw.peer):
            proto = [value for name, value in raw.headers if name == b"x-forwarded-proto"]
            if len(proto) == 1:
                raw.secure = proto[0].strip().lower() == b"https"
            raw.peer = self._trust.client_of(raw.peer, [v for name, v in raw.headers if name == b"x-forwarded-for"])
        super()._serve(raw)
