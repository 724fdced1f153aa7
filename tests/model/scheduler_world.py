"""The fleet, the policies and the requests of the scheduler's model test."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from gateway.scheduling.model import OutcomeKind
from policies.document import Policy, policy_from_mapping

CLASSES = [
    {"name": "high", "floor": 0.0},
    {"name": "mid", "floor": 0.1},
    {"name": "low", "floor": 0.02},
]
TENANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "small": {"max_in_flight": 2, "max_queued": 3},
    "heavy": {"weight": 4},
}


def policy(
    limit: int | None = None, queued: int = 12, algorithm: str = "least_outstanding_work", floors: bool = True
) -> Policy:
    return policy_from_mapping(
        {
            "classes": CLASSES if floors else [{"name": one["name"]} for one in CLASSES],
            "default_class": "mid",
            "tenants": TENANTS,
            "pools": {"short": {"max_budget_tokens": 1000}, "long": {}, "spare": {}},
            "models": {},
            "rules": [],
            "balancing": {"algorithm": algorithm},
            "admission": {"max_queued": queued, "max_queued_bytes": 5000},
            "limits": {"max_in_flight_per_worker": limit},
            "health": {"slow_start_s": 20.0, "ejection_s": 4.0, "ejection_cap_s": 15.0},
        }
    )


SPECS = {
    "s1": {"pool": "short", "max_model_len": 2000, "max_num_seqs": 3, "kv_tokens": 4000},
    "s2": {"pool": "short", "max_model_len": 2000, "max_num_seqs": 2},
    "l1": {"pool": "long", "max_model_len": 20_000, "max_num_seqs": 4, "kv_tokens": 30_000},
    "x1": {"pool": "spare", "max_num_seqs": 1},
}
workers = st.sampled_from(sorted(SPECS))
kinds = st.sampled_from(list(OutcomeKind))
pools = st.sampled_from([("short", "long"), ("long", "short"), ("long",), ("short",), ("spare",), ("missing",)])
requests = st.builds(
    dict,
    tenant=st.sampled_from(["small", "heavy", "other"]),
    klass=st.integers(0, 2),
    model=st.sampled_from(["m", "m", "m", "m", "n"]),
    pools=pools,
    prompt_tokens=st.sampled_from([300, 50, 1, 900, 1900, 3000, 19_000, 60_000]),
    max_output_tokens=st.sampled_from([None, 1, 100, 1500]),
    expected_output=st.sampled_from([1, 100, 400]),
    p90_output=st.sampled_from([1, 300, 900]),
    sequences=st.sampled_from([1, 1, 1, 2, 5]),
    generates=st.sampled_from([True, True, False]),
    body_bytes=st.sampled_from([0, 10, 900, 4000]),
    queue_timeout_s=st.sampled_from([0.5, 5.0, 30.0]),
    may_queue=st.sampled_from([True, True, True, False]),
    fallback_pools=st.sampled_from([(), ("spare",), ("long",)]),
    prompt_exact=st.booleans(),
)

ORDINARY = {"model": "m", "prompt_tokens": 300, "max_output_tokens": 100, "expected_output": 50, "p90_output": 100}
