"""What simulating a change costs: an hour of recorded traffic through both policies, as the gateway replays it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random
from typing import Any, Final

import orjson

from loadtest.what_if import FIELDS, replay

PER_S: Final = 20.0
WORKERS: Final = 12
TENANTS: Final = 8
CLASSES: Final = (("interactive", 0.3), ("standard", 0.6), ("batch", 0.1))
BEFORE: Final = (
    "pools: {short-chat: {max_budget_tokens: 4096, may_borrow: [long-context]}, long-context: {}}\n"
    "models: {}\nrules: []\n"
)
AFTER: Final = BEFORE.replace("4096", "2048")


def an_hour(seconds: float = 3600.0, per_s: float = PER_S, seed: int = 1) -> tuple[float, dict[str, Any]]:
    """Processor seconds of one simulation, and what it found. Requests have lengths of a chat service (lognormal, a
    tenth of them long) and go to a fleet that is two thirds busy with them."""
    lines = list(record(seconds, per_s, Random(seed)))
    pools = ["short-chat"] * (WORKERS - 4) + ["long-context"] * 4
    workers = [
        {
            "id": f"w{number}",
            "pool": pool,
            "models": ["m"],
            "max_model_len": 32768,
            "max_num_seqs": 64,
            "kv_tokens": 440_000,
        }
        for number, pool in enumerate(pools)
    ]
    began = time.process_time()
    found = replay({"before": BEFORE, "after": AFTER, "workers": workers}, lines)
    return time.process_time() - began, found


def record(seconds: float, per_s: float, rng: Random) -> Iterator[bytes]:
    """Lines as the gateway records them."""
    names, weights = [name for name, _ in CLASSES], [share for _, share in CLASSES]
    at = 0.0
    while (at := at + rng.expovariate(per_s)) < seconds:
        long = rng.random() < 0.1
        prompt = min(int(rng.lognormvariate(8.7 if long else 6.2, 0.8)) + 8, 30_000)
        output = min(int(rng.lognormvariate(5.0, 0.7)) + 1, 1500)
        entry = {
            "at": at,
            "tenant": f"t{rng.randrange(TENANTS)}",
            "asked_class": rng.choices(names, weights)[0],
            "class": "standard",
            "pool": "short-chat",
            "model": "m",
            "endpoint": "chat",
            "stream": True,
            "prompt_tokens": prompt,
            "max_output_tokens": 1500,
            "sequences": 1,
            "output_tokens": output,
            "session": "",
            "prefix": [],
            "outcome": "ok",
            "ttft_s": 0.1,
            "duration_s": 5.0,
        }
        yield orjson.dumps([entry[name] for name in FIELDS])
