"""Who holds a port: read from the real tables, and from made-up ones for what a test machine does not have."""

import os
import socket
from ipaddress import ip_address
from pathlib import Path

import pytest

from gateway.ports import command_line, decode_address, free_port, overlaps, port_holder, port_in_use

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def row(address: str, port: int, inode: int, state: str = "0A") -> str:
    return f"   0: {address}:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  0  0 {inode} 1\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc: pid 7 listens on 8080 (all addresses), pid 8 on 127.0.0.1:9090; 9191 belongs to nobody we see."""
    (tmp_path / "net").mkdir()
    (tmp_path / "net/tcp").write_text(
        HEAD
        + row("00000000", 8080, 100)
        + row("0100007F", 9090, 101)
        + row("0100007F", 9191, 102)
        + row("0100007F", 9292, 103, state="01")
    )
    for pid, inode, argv in ((7, 100, b"/usr/bin/python3\0-m\0http.server\0"), (8, 101, b"x" * 200)):
        (tmp_path / str(pid) / "fd").mkdir(parents=True)
        (tmp_path / str(pid) / "fd/0").symlink_to("/dev/null")
        (tmp_path / str(pid) / "fd/5").symlink_to(f"socket:[{inode}]")
        (tmp_path / str(pid) / "cmdline").write_bytes(argv)
    (tmp_path / "9").mkdir()  # ended between the listing and the look: no fd
    return tmp_path


def test_a_real_listener_is_found() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert port_holder("127.0.0.1", port).startswith(f"pid {os.getpid()} (")
        assert port_holder("localhost", port).startswith(f"pid {os.getpid()} (")
        assert port_in_use("localhost", port).startswith(f"localhost:{port} is in use by another listener of this very")


def test_a_free_port_can_be_bound_and_has_no_holder() -> None:
    port = free_port()
    assert port_holder("127.0.0.1", port) == "an unknown process"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))


def test_the_line_names_port_and_holder(proc: Path) -> None:
    assert port_in_use("127.0.0.1", 8080, proc) == "127.0.0.1:8080 is in use by pid 7 (python3 -m http.server)"


def test_a_long_command_is_shortened(proc: Path) -> None:
    assert len(command_line(8, proc)) == 80
    assert command_line(8, proc).endswith("…")


def test_an_owner_we_may_not_see_is_said_to_be_another_users(proc: Path) -> None:
    assert port_holder("127.0.0.1", 9191, proc) == "a process of another user"


def test_connections_are_not_listeners(proc: Path) -> None:
    assert port_holder("127.0.0.1", 9292, proc) == "an unknown process"


def test_without_tables_it_is_unknown(tmp_path: Path) -> None:
    assert port_holder("127.0.0.1", 80, tmp_path) == "an unknown process"
    assert command_line(80, tmp_path) == "ended meanwhile"


def test_addresses_are_decoded() -> None:
    assert decode_address("0100007F") == "127.0.0.1"
    assert decode_address("00000000000000000000000001000000") == "::1"
    mapped = ip_address(decode_address("0000000000000000FFFF00000100007F"))  # written in two ways, by Python version
    assert mapped == ip_address("::ffff:127.0.0.1")


@pytest.mark.parametrize(
    ("host", "listening", "expected"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "0.0.0.0", True),
        ("0.0.0.0", "127.0.0.2", True),
        ("127.0.0.1", "::", True),
        ("127.0.0.1", "::ffff:127.0.0.1", True),
        ("127.0.0.1", "127.0.0.2", False),
        ("127.0.0.1", "::1", False),
        ("gateway.internal", "10.0.0.1", True),
    ],
)
def test_which_listeners_keep_us_from_an_address(host: str, listening: str, expected: bool) -> None:
    assert overlaps(host, listening) is expected
