"""Tables at every width: rows can be told apart, and a pipe gets all of it."""

import io
import os
import pty
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from gateway.cli_tables import attempt_table, audit_table, pool_table, revision_table, tenant_table, worker_table
from workers.plain_tables import new_table, print_table

DIGEST = "5f3a9c0d1e2b4a68"
URL = "http://127.0.0.1:41234"
NAMES = [f"short-chat-{place}-in-the-cellar" for place in range(2)]


def worker(name: str) -> dict[str, Any]:
    return {
        "id": name, "pool": "short-chat", "models": ["tiny"], "state": "ready", "in_flight": 3, "limit": 64,
        "max_model_len": 131072, "kv_capacity_tokens": 1234567, "kv_usage": 0.5, "url": URL,
    }  # fmt: skip


def pool(name: str) -> dict[str, Any]:
    counts = dict.fromkeys(("workers", "ready", "in_flight", "limit", "queued"), 12)
    more = {"oldest_wait_s": 0.25, "kv_capacity_tokens": 10, "kv_used_tokens": 5, "models": ["tiny", "large"] * 9}
    return {"name": name, **counts, **more}


def tenant(name: str) -> dict[str, Any]:
    counts = dict.fromkeys(("in_flight", "max_in_flight", "queued", "max_queued"), 1000)
    return {"name": name, "weight": 1.5, "max_class": "interactive", "served_tokens": {"a": 10**9}, **counts}


def entry(name: str) -> dict[str, Any]:
    said = {"who": "operator", "role": "operator", "peer": "127.0.0.1", "action": "policy.rollback", "at": 1.0}
    return {"sequence": 1, "target": name, "result": "applied", **said}


def revision(name: str) -> dict[str, Any]:
    said = {"digest": DIGEST, "created": 1.0, "author": "somebody@example", "source": "rollback", "reverts": 3}
    return {"number": 12, "note": name, **said}


def attempt(name: str) -> dict[str, Any]:
    considered = [{"worker": one, "score": 0.25, "signal_age_s": 0.4} for one in NAMES * 4]
    return {
        "worker": name, "pool": "short-chat", "queued_s": 0.2, "wait_cause": "kv_cache", "score": 0.25,
        "outcome": "ok", "considered": considered,
    }  # fmt: skip


DRAWN = [
    (worker_table, worker, {"ready"}),
    (pool_table, pool, {"12"}),
    (tenant_table, tenant, {"1,000,000,000"}),
    (audit_table, entry, {"policy.rollback", "operator", "applied"}),
    (revision_table, revision, {DIGEST}),
    (attempt_table, attempt, {"ok"}),
]


def on_terminal(table: Table, width: int) -> str:
    """What is written to a real terminal of that width."""
    leader, follower = pty.openpty()
    try:
        with os.fdopen(follower, "w") as file:
            print_table(table, Console(file=file, width=width, color_system=None))
            file.flush()
            return os.read(leader, 65536).decode()
    finally:
        os.close(leader)


def piped(table: Table) -> str:
    file = io.StringIO()
    print_table(table, Console(file=file, width=40))
    return file.getvalue()


@pytest.mark.parametrize(("draw", "make", "kept"), DRAWN)
def test_names_are_whole_on_a_narrow_terminal(draw, make, kept):
    text = on_terminal(draw([make(name) for name in NAMES]), 80)
    assert all(len(line) <= 80 for line in text.splitlines())
    for word in (*NAMES, *kept):
        assert word in text
    assert "…" not in text


@pytest.mark.parametrize(("draw", "make", "kept"), DRAWN)
def test_a_pipe_gets_every_column_and_a_line_for_each_row(draw, make, kept):
    table = draw([make(name) for name in NAMES])
    heads = [str(column.header) for column in table.columns]
    lines = piped(table).splitlines()
    assert len(lines) == 2 + len(NAMES)
    assert "…" not in "".join(lines)
    assert all(head and head in lines[0] for head in heads)
    for line, name in zip(lines[2:], NAMES, strict=True):
        assert name in line
        assert kept <= {word.strip() for word in line.split("  ")} | set(line.split())


def test_the_least_columns_go_first_and_only_where_there_is_no_room():
    def made() -> Table:
        table = new_table("name", "#much", "more", "most", least=("more", "much"))
        table.add_row("alpha-beta", "1", "x" * 20, "y" * 10)
        return table

    assert on_terminal(made(), 60).split()[:4] == ["name", "much", "more", "most"]
    assert on_terminal(made(), 40).split()[:3] == ["name", "much", "most"]
    assert on_terminal(made(), 25).split()[:2] == ["name", "most"]


def test_what_nothing_can_be_left_out_of_takes_more_lines():
    table = new_table("name", "words")
    table.add_row("alpha-beta", "z" * 100)
    text = on_terminal(table, 30)
    assert "alpha-beta" in text
    assert text.count("z") == 100
    assert all(len(line) <= 30 for line in text.splitlines())
