"""The allocator's setting: made where it exists, and nothing happens where it does not."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from gateway import allocator

FAULTS = """
import resource
from gateway.allocator import keep_freed_memory
{set}
def work():
    for _ in range(100):
        bytes(8 << 20)[:0], bytearray(b"x" * (8 << 20))
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's setting")
def test_what_was_freed_is_not_asked_for_again() -> None:
    code = FAULTS.format(set="assert keep_freed_memory()")
    root = Path(__file__).parents[2]
    said = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True).stdout
    assert int(said) < 100, "less than one page a round, of blocks of 2,048 pages each"


def test_another_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: object())
    assert not allocator.keep_freed_memory()
    monkeypatch.setattr(allocator.sys, "platform", "darwin")
    assert not allocator.keep_freed_memory()
