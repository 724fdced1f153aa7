"""The line or block that a proxy puts in front of a connection to say who is behind it (PROXY protocol 1 and 2)."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
MAX_V1_BYTES = 107
MAX_V2_BYTES = 2048
"""Of the block behind its head: addresses and whatever a proxy adds to them."""

_V1 = re.compile(rb"PROXY (?:UNKNOWN[ -~]*|TCP([46]) ([0-9A-Fa-f:.]+) [0-9A-Fa-f:.]+ ([0-9]{1,5}) ([0-9]{1,5}))\r\n")
_HEAD = 16
_LENGTHS = {0x11: 4, 0x21: 16}  # TCP over IPv4 and IPv6: bytes of an address


class ProxyFault(ValueError):  # noqa: N818  (the peer's fault, not an error of ours)
    """What came is no such beginning."""


class Origin(NamedTuple):
    """Who is behind the proxy (None: itself, or it does not say), and where the client's own bytes begin."""

    peer: str | None
    end: int


def read_origin(data: bytes) -> Origin | None:
    """The beginning of a connection; None while more of it has to come. Raises `ProxyFault`."""
    if data.startswith(SIGNATURE[: len(data)]):
        return _version_2(data) if len(data) >= _HEAD else None
    if not data.startswith(b"PROXY "[: len(data)]):
        raise ProxyFault("the connection does not begin with a PROXY line")
    end = data.find(b"\r\n", 0, MAX_V1_BYTES) + 2
    if end == 1:
        if len(data) >= MAX_V1_BYTES:
            raise ProxyFault("the PROXY line is too long")
        return None
    match = _V1.fullmatch(data[:end])
    if match is None:
        raise ProxyFault("the PROXY line is malformed")
    family, source = match[1], match[2]
    return Origin(None if family is None else _address(source.decode("ascii"), int(family)), end)


def _address(text: str, family: int) -> str:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        raise ProxyFault("the PROXY line has no address") from None
    if found.version != family:
        raise ProxyFault("the PROXY line's address is of another family")
    return str(found)


def _version_2(data: bytes) -> Origin | None:
    command, family, length = data[12], data[13], int.from_bytes(data[14:16])
    if command >> 4 != 2 or command & 15 > 1 or length > MAX_V2_BYTES:
        raise ProxyFault("the PROXY block is malformed")
    end = _HEAD + length
    if len(data) < end:
        return None
    size = _LENGTHS.get(family)
    if command & 15 == 0 or size is None:  # the proxy's own check, or a family without addresses
        return Origin(None, end)
    if length < 2 * size + 4:
        raise ProxyFault("the PROXY block is too short for its addresses")
    return Origin(str(ipaddress.ip_address(data[_HEAD : _HEAD + size])), end)
