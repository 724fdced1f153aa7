"""Revisions: numbers that only grow, digests that tell what documents mean."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.document import Policy, parse_policy
from policies.revisions import digest, first_revision, next_revision


def test_the_first_one() -> None:
    one = first_revision(Policy(), "{}", 12.5)
    assert (one.number, one.text, one.author, one.note, one.created) == (1, "{}", "file", "", 12.5)
    assert one.digest == digest(Policy())


def test_a_rollback_is_a_new_number_with_old_content() -> None:
    one = first_revision(Policy(), "{}", 1.0)
    two = next_revision(one, parse_policy("redis_loss: open"), "redis_loss: open", "ann", "try", 2.0)
    three = next_revision(two, one.policy, one.text, "ann", "back", 3.0)
    assert [one.number, two.number, three.number] == [1, 2, 3]
    assert (two.author, two.note, two.created) == ("ann", "try", 2.0)
    assert three.digest == one.digest != two.digest


def test_digests_are_short_hex() -> None:
    assert len(digest(Policy())) == 16
    int(digest(Policy()), 16)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("{}", "# a comment\nredis_loss: local_share\nbalancing: {beta: 0.1}"),
        ("tenants: {a: {weight: 2}, b: {}}", "tenants: {b: {}, a: {weight: 2.0}}"),
        ("models: {a: {}, b: {}}", "models: {b: {}, a: {}}"),
    ],
)
def test_what_means_the_same_has_the_same_digest(one: str, other: str) -> None:
    assert digest(parse_policy(one)) == digest(parse_policy(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("pools: {a: {}, b: {}}", "pools: {b: {}, a: {}}"),
        ("{}", "retries: {max_attempts: 4}"),
        ("rules: [{class: batch}, {class: standard}]", "rules: [{class: standard}, {class: batch}]"),
    ],
)
def test_what_differs_has_another(one: str, other: str) -> None:
    assert digest(parse_policy(one)) != digest(parse_policy(other))


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=2, unique=True))
def test_every_number_counts(values: list[int]) -> None:
    one, other = (digest(parse_policy(f"admission: {{max_queued: {value}}}")) for value in values)
    assert one != other
