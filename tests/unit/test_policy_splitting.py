"""What a canary may change: only what is read once for each request."""

import pytest

from policies.document import parse_policy
from policies.splitting import inseparable


@pytest.mark.parametrize(
    "change",
    [
        "models: {chat: {served_as: other}}",
        "rules: [{when: {tenant: acme}, class: batch}]",
        "default_class: batch",
        "timeouts: {ttft_s: 5, total_s: 90}",
        "admission: {default_output_tokens: 9}",
        "limits: {json_depth: 10}",
    ],
)
def test_separable(change):
    assert inseparable(parse_policy("{}"), parse_policy(change)) == []


def test_pools_and_the_ways_there():
    old = parse_policy("pools: {a: {max_budget_tokens: 9}, b: {}}")
    new = parse_policy("pools: {c: {}, b: {may_borrow: [c]}, a: {max_budget_tokens: 7}}")
    assert inseparable(old, new) == []


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ("balancing: {algorithm: round_robin}", "balancing.algorithm"),
        ("admission: {max_queued: 3}", "admission.max_queued"),
        ("limits: {max_in_flight_per_worker: 3}", "limits.max_in_flight_per_worker"),
        ("timeouts: {connect_s: 3}", "timeouts.connect_s"),
        ("retries: {max_attempts: 1}", "retries.max_attempts"),
        ("redis_loss: open", "redis_loss"),
        ("classes: [{name: standard}, {name: interactive}, {name: batch}]", "classes"),
        ("tenants: {default: {weight: 2}}", "tenants.default.weight"),
    ],
)
def test_what_holds_for_all_at_once(change, path):
    assert path in inseparable(parse_policy("{}"), parse_policy(change))
