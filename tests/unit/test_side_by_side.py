"""C files are compiled several at once."""

import os
import threading
import time

import pytest

from gateway.compiled.side_by_side import side_by_side


def test_sources_are_compiled_at_once_and_objects_come_in_their_order(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    together = threading.Barrier(3, timeout=30)

    def compile_one(sources: list[str], ending: str, *, debug: bool) -> list[str]:
        together.wait()
        assert debug
        return [source + ending for source in sources]

    heard: list[tuple[int, int]] = []
    compile_all = side_by_side(compile_one, lambda done, whole: heard.append((done, whole)))
    assert compile_all(["a", "b", "c"], ".o", debug=True) == ["a.o", "b.o", "c.o"]
    assert heard == [(1, 3), (2, 3), (3, 3)]


def test_what_the_compiler_refuses_ends_it(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    begun: list[str] = []

    def compile_one(sources: list[str]) -> list[str]:
        begun.extend(sources)
        if len(begun) == 2:
            raise RuntimeError("no space left on device")
        time.sleep(0.02)  # the others are dropped while the one behind it runs
        return sources

    with pytest.raises(RuntimeError, match="no space"):
        side_by_side(compile_one, lambda done, whole: None)([str(n) for n in range(100)])
    assert len(begun) < 100
