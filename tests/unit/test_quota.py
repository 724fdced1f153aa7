"""Tenants' minutes: reserve, settle, refund; alone and with other gateways."""

from gateway.quota import MAX_TENANTS, SPAN_S, Quota, Refused, Room, Telling, Usage
from policies.document import TenantPolicy

POLICIES = {
    "r": TenantPolicy(requests_per_min=3),
    "t": TenantPolicy(tokens_per_min=100),
    "both": TenantPolicy(requests_per_min=10, tokens_per_min=100),
}
FREE = TenantPolicy()


def quota(share: float | None = 1.0) -> Quota:
    return Quota(lambda tenant: POLICIES.get(tenant, FREE), lambda: share)


def test_a_tenant_without_limits_costs_nothing():
    one = quota()
    assert one.take("a", "free", 10**9, 0.0) is None
    assert one.untold(0.0) == {}
    one.settle("a", 5, 0.0)


def test_requests_come_in_until_the_minute_is_full_and_again_when_it_has_passed():
    one = quota()
    assert [isinstance(one.take(str(n), "r", 1, 10.2), Room) for n in range(3)] == [True] * 3
    refused = one.take("x", "r", 1, 20.0)
    assert isinstance(refused, Refused)
    assert (refused.what, refused.limit) == ("requests", 3)
    assert refused.retry_in_s == 50.0
    assert isinstance(one.take("x", "r", 1, 69.9), Refused)
    assert isinstance(one.take("x", "r", 1, 70.0), Room)


def test_a_steady_client_at_its_limit_is_never_limited():
    """BR-10-09: exactly the allowed rate, forever; no edge of a window may bite."""
    one = quota()
    assert all(isinstance(one.take(str(n), "r", 1, 20.0 * n), Room) for n in range(50))


def test_a_refusal_uses_nothing_up():
    one = quota()
    one.take("a", "both", 90, 0.0)
    for n in range(20):
        assert isinstance(one.take(str(n), "both", 20, 0.0), Refused)
    room = one.take("b", "both", 10, 0.0)
    assert isinstance(room, Room)
    assert room.requests == (10, 8, 60.0)
    assert room.tokens == (100, 0, 60.0)


def test_what_was_not_used_goes_back():
    one = quota()
    one.take("a", "t", 100, 0.0)
    one.settle("a", 30, 5.0)
    assert isinstance(one.take("b", "t", 70, 6.0), Room)
    one.settle("b", None, 7.0)
    assert isinstance(one.take("c", "t", 70, 8.0), Room)
    one.settle("c", 90, 9.0)
    assert isinstance(one.take("d", "t", 1, 10.0), Refused), "more than expected counts too"
    one.settle("c", 0, 9.0)
    assert isinstance(one.take("d", "t", 1, 10.0), Refused), "settled once"


def test_a_request_settled_after_its_minute_changes_nothing():
    one = quota()
    one.take("a", "t", 100, 0.0)
    one.take("b", "t", 100, 70.0)
    one.settle("a", None, 71.0)
    assert isinstance(one.take("c", "t", 1, 71.0), Refused)


def test_a_request_larger_than_a_minute_may_come_alone():
    one = quota()
    assert isinstance(one.take("a", "t", 1000, 0.0), Room)
    refused = one.take("b", "t", 1, 1.0)
    assert isinstance(refused, Refused)
    assert refused.retry_in_s == 59.0


def test_gateways_hear_of_each_other():
    one, two = quota(None), quota(None)
    one.take("a", "r", 1, 5.0)
    one.take("b", "r", 1, 6.5)
    told = one.untold(7.0)
    assert sorted(told["r"]) == [(1, 1, 1), (2, 1, 1)]
    two.take("c", "r", 1, 100.0)
    two.heard("r", told["r"], 100.0)
    assert isinstance(two.take("d", "r", 1, 100.0), Refused), "two of the other, one of its own that is not told yet"
    assert one.untold(7.0) == {"r": []}
    one.not_told(told, 7.0)
    assert one.untold(7.0) == told


def test_what_redis_forgot_this_gateway_still_knows():
    one = quota(None)
    for name in "abc":
        one.take(name, "r", 1, 5.0)
    one.untold(5.0)
    one.heard("r", [], 6.0)
    assert isinstance(one.take("d", "r", 1, 6.0), Refused)


def test_what_redis_forgot_is_told_once_more():
    """A telling is answered with the number of the last one that is remembered: less than there was is a loss."""
    one = quota(None)
    one.take("a", "both", 10, 5.0)
    first = one.untold(5.0)["both"]
    one.heard("both", first, 5.0, Telling(1, 0, first, 5.0))
    assert one.untold(5.2) == {"both": []}
    one.heard("both", first, 5.2, Telling(2, 1, (), 5.2))
    assert one.untold(5.3) == {"both": []}, "all is there"
    one.take("b", "both", 20, 6.0)
    second = one.untold(6.0)["both"]
    one.take("c", "both", 30, 6.1)
    one.heard("both", second, 6.2, Telling(3, 0, second, 6.0))
    assert sorted(entry for entry in one.untold(6.3)["both"] if entry[1] or entry[2]) == [(0, 1, 30), (1, 1, 10)]
    one.heard("both", [], 6.4, Telling(4, 0, [(0, 1, 30), (1, 1, 10)], 6.3))
    assert one.untold(6.5)["both"] == [(0, 1, 20)], "what was lost once more, but for what has just arrived"


def test_what_all_had_used_before_a_restart_counts_and_is_not_told():
    one = quota(None)
    one.take("a", "r", 1, 5.0)
    one.heard("r", [(0, 2, 2)], 6.0)
    one.untold(6.0)
    kept = one.snapshot(7.0)
    assert kept == {"r": [(1, 2, 2)]}
    for share, allowed in ((None, 1), (1.0, 1)):
        again = quota(share)
        again.restore("r", kept["r"], 100.0)
        taken = [isinstance(again.take(str(n), "r", 1, 101.0), Room) for n in range(3)]
        assert taken.count(True) == allowed
        assert again.untold(101.0)["r"] == [(0, 1, 1)], "its own only"
        assert isinstance(again.take("later", "r", 1, 159.0), Room), "the minute has passed for what was before"
    assert quota().snapshot(0.0) == {}


def test_alone_each_has_its_part():
    for share, allowed in ((1 / 3, 1), (1.0, 3), (0.0, 0)):
        one = quota(share)
        taken = [one.take(str(n), "r", 1, 0.0) for n in range(4)]
        assert sum(isinstance(each, Room) for each in taken) == allowed


def test_accounts_are_bounded_and_forgotten():
    one = Quota(lambda tenant: TenantPolicy(requests_per_min=1), lambda: 1.0)
    for n in range(MAX_TENANTS + 5):
        one.take(f"r{n}", f"t{n}", 1, n / 1000)
    assert len(one.untold(5.0)) == MAX_TENANTS
    assert one.untold(5.0 + SPAN_S + 2) == {}
    one.heard("unknown", [(0, 1, 1)], 100.0)


def test_limits_follow_the_policy_and_use_stays():
    one = quota()
    one.take("a", "r", 1, 0.0)
    one.adopt(lambda tenant: TenantPolicy(requests_per_min=1))
    assert isinstance(one.take("b", "r", 1, 0.0), Refused)


def test_an_excess_that_never_leaves():
    usage = Usage()
    usage.add(3, 1, 1)
    assert usage.free_in(0, 5.0, 2.0) == float("inf")
    assert usage.free_in(0, 5.0, 1.0) == 58.0
