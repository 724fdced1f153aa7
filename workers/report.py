"""The published language between workers and gateways: what a worker says about itself, and where.

A report is one JSON object under `headrace:{fleet}:worker:<id>`, set with a time to live and rewritten at most a
second apart; `headrace:{fleet}:workers` is the set of ids. The braces are a Redis Cluster hash tag: all keys of a
fleet live in one slot. Readers trust no field: `decode` checks type and range of everything and names what is wrong.
Times inside a report are not compared with the reader's clock; a reader measures age from when it first saw a
sequence number.
"""

from __future__ import annotations

from dataclasses import dataclass

REPORT_TTL_S = 10.0
REPORT_INTERVAL_S = 1.0


def workers_key(fleet: str) -> str:
    """Name of the set of worker ids of a fleet."""
    return f"headrace:{{{fleet}}}:workers"


def report_key(fleet: str, worker_id: str) -> str:
    """Name of the key that holds one worker's report."""
    return f"headrace:{{{fleet}}}:worker:{worker_id}"


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """One report. Counters are totals since the engine started; tokens are the engine's own."""

    id: str
    incarnation: str  # random per engine start
    sequence: int  # grows by one a report
    url: str
    engine: str  # vllm | llamacpp | simulator | …
    pool: str
    models: tuple[str, ...]
    state: str = "ready"  # starting | ready | draining | unreachable
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_tokens: int | None = None
    kv_usage: float | None = None  # 0 … 1
    running: int = 0
    waiting: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    version: str = ""
    preset: str | None = None
    supports_priority: bool = False
    supports_continuation: bool = False
