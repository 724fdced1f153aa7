"""Views of several processes as one."""

from gateway.supervision.joined import (
    JOINED,
    join_fleet,
    join_history,
    join_latency,
    join_pools,
    join_tenants,
    join_workers,
)

WORKER = {"id": "w1", "incarnation": "i", "state": "ready", "leases": 2, "in_flight": 3, "limit": 4, "slots": None}
FLEET = {
    "ready": False,
    "why": "no",
    "pools": [{"name": "p", "leases": 2, "queued": 1, "oldest_wait_s": 0.5}],
    "workers": [WORKER],
    "queues": [{"class": "c", "pool": "p", "tenant": "t", "queued": 1, "bytes": 5, "oldest_wait_s": 0.5}],
    "queue": {"queued": 1, "oldest_wait_s": 0.5, "by_class": {"c": {"queued": 1, "oldest_wait_s": 0.5}}, "note": "x"},
    "in_flight": 2,
}


def test_work_adds_up_and_facts_stay():
    other = {**WORKER, "in_flight": 1, "slots": 7}
    workers = join_workers([{"workers": [WORKER]}, {"workers": [other, {**WORKER, "id": "w2"}]}])["workers"]
    assert [(each["id"], each["in_flight"], each["limit"], each["slots"], each["state"]) for each in workers] == [
        ("w1", 4, 8, 7, "ready"),
        ("w2", 3, 4, None, "ready"),
    ]
    assert WORKER["in_flight"] == 3
    assert join_pools([FLEET, FLEET])["pools"][0]["queued"] == 2


def test_one_that_is_ready_makes_the_fleet_ready():
    joined = join_fleet(
        [FLEET, {**FLEET, "ready": True, "why": "yes", "queue": {**FLEET["queue"], "oldest_wait_s": 2.0}}]
    )
    assert (joined["ready"], joined["why"], joined["processes"], joined["in_flight"]) == (True, "yes", 2, 4)
    assert joined["queue"]["queued"] == 2
    assert joined["queue"]["oldest_wait_s"] == 2.0
    assert joined["queue"]["by_class"] == {"c": {"queued": 2, "oldest_wait_s": 0.5}}
    assert joined["queue"]["note"] == "x"
    assert joined["queues"][0]["bytes"] == 10


def test_answers_that_lack_something_are_no_reason_to_fail():
    for join in JOINED.values():
        assert join([{}])
    assert join_tenants([{"tenants": [{"name": "a", "queued": 1}]}, {}])["tenants"] == [{"name": "a", "queued": 1}]


def test_of_latencies_requests_add_up_and_the_slowest_is_told():
    one = {"a": {"requests": 2, "ttft_p95_s": 0.5, "itl_p95_s": None}}
    other = {"a": {"requests": 3, "ttft_p95_s": 0.2, "itl_p95_s": None}, "b": {"requests": 1, "ttft_p95_s": None}}
    both = {
        "a": {"requests": 5, "ttft_p95_s": 0.5, "itl_p95_s": None},
        "b": {"requests": 1, "ttft_p95_s": None},
    }
    assert join_latency([one, other]) == both
    assert join_fleet([{**FLEET, "latency": one}, {**FLEET, "latency": other}])["latency"] == both
    steps = join_history(
        [
            {"step_s": 10, "steps": [{"number": 7, "age_s": 1.0, "classes": one}]},
            {"step_s": 10, "steps": [{"number": n, "age_s": 1.1, "classes": other} for n in (6, 7)]},
        ]
    )
    assert [(step["number"], step["classes"]["a"]["requests"]) for step in steps["steps"]] == [(6, 3), (7, 5)]
    assert steps["step_s"] == 10


def test_what_tenants_were_served_adds_up_by_class():
    one = {"tenants": [{"name": "a", "served_tokens": {"x": 1}}]}
    other = {"tenants": [{"name": "a", "served_tokens": {"x": 2, "y": 3}}]}
    assert join_tenants([one, other])["tenants"] == [{"name": "a", "served_tokens": {"x": 3, "y": 3}}]
