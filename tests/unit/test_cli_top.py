"""`headrace top`: everything on one screen, whatever its size is and however large the fleet."""

import io
from functools import partial
from typing import Any

import pytest
from rich.console import Console

from gateway import cli_top
from gateway.cli_output import Output
from gateway.cli_top import screen


def worker(number: int, **more: Any) -> dict[str, Any]:
    usual = {
        "id": f"short-{number}", "pool": "short-chat", "state": "ready", "in_flight": 3, "limit": 64,
        "kv_usage": 0.25, "signal_age_s": 0.4, "failures": 0,
    }  # fmt: skip
    return {**usual, **more}


def fleet(workers: int) -> dict[str, Any]:
    pool = {
        "name": "long-context", "ready": 2, "workers": workers, "in_flight": 12, "limit": 128, "queued": 3,
        "oldest_wait_s": 1.5, "kv_used_tokens": 10, "kv_capacity_tokens": 100, "models": ["tiny"],
    }  # fmt: skip
    latency = {"requests": 30, "ttft_p50_s": 0.02, "ttft_p95_s": 0.26, "rejected": 1, "failed": 0}
    return {
        "why": f"ready: {workers} of {workers} workers usable",
        "ready": True,
        "revision": {"number": 4},
        "in_flight": 12,
        "queue": {
            "queued": 3,
            "oldest_wait_s": 1.5,
            "drain_per_s": 1.9,
            "by_class": {"batch": {"queued": 3, "oldest_wait_s": 1.5}},
        },
        "pools": [pool, {**pool, "name": "short-chat"}],
        "workers": [worker(number) for number in range(workers)],
        "latency": {"standard": latency},
    }


def drawn(found: dict[str, Any], width: int, height: int) -> list[str]:
    console = Console(width=width, height=height, record=True, file=io.StringIO(), force_terminal=True)
    console.print(screen(found, "", width, height))
    return console.export_text().rstrip("\n").splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (160, 50), (300, 80)])
@pytest.mark.parametrize("workers", [1, 3, 500])
def test_it_fits_and_nothing_is_cut(width, height, workers):
    lines = drawn(fleet(workers), width, height)
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    text = "\n".join(lines)
    assert text.count("…") == (1 if workers == 500 and height < 500 else 0)
    for word in ("long-context", "short-chat", "short-0", "12/128", "TTFT p95", "batch", "revision 4"):
        assert word in text
    if workers == 500:
        assert " more" in text


def test_a_small_terminal_has_what_matters():
    lines = drawn(fleet(3), 50, 24)
    assert all(len(line) <= 50 for line in lines)
    assert "short-chat" in "\n".join(lines)
    assert "3/64" in "\n".join(lines)


def test_of_many_workers_those_that_need_a_look_come_first():
    found = fleet(500)
    found["workers"][321] = worker(321, state="ejected")
    found["workers"][99] = worker(99, in_flight=60)
    text = "\n".join(drawn(found, 80, 24))
    assert text.index("short-321 ") < text.index("short-99 ")


class Gateway:
    """One that always says the same."""

    def get(self, path: str, timeout_s: float) -> dict[str, Any]:
        assert timeout_s > 0
        return fleet(3)


@pytest.mark.parametrize("terminal", [True, False])
def test_the_last_look_stays_when_their_number_is_given(monkeypatch, terminal):
    shown = io.StringIO()
    made = partial(Console, file=shown, force_terminal=terminal, **({"width": 80, "height": 24} if terminal else {}))
    monkeypatch.setattr(cli_top, "Console", made)
    monkeypatch.setattr(cli_top, "gateway_at", lambda out, url: Gateway())
    assert cli_top.watch("http://127.0.0.1:1", 0.01, 2, Output(as_json=False)) == 0
    text = shown.getvalue()
    assert "\x1b[?1049h" not in text  # the alternate screen
    assert text.count("revision 4") >= 2
    assert "short-2" in text.removesuffix("\x1b[?25h").rstrip().splitlines()[-1]  # the cursor is shown again


def test_a_pipe_gets_long_names_whole(monkeypatch):
    shown = io.StringIO()
    name = "a-worker-with-a-name-that-is-longer-than-most-terminals-are-wide" * 3
    found = {**fleet(1), "workers": [worker(1, id=name)]}
    monkeypatch.setattr(cli_top, "Console", partial(Console, file=shown))
    monkeypatch.setattr(cli_top, "gateway_at", lambda out, url: Gateway())
    monkeypatch.setattr(Gateway, "get", lambda self, path, timeout_s: found)
    assert cli_top.watch("http://127.0.0.1:1", 0.01, None, Output(as_json=False)) == 0
    assert name in shown.getvalue()
