"""`headrace loadtest soak`: clients that leave in every state, and what the gateway holds afterwards."""

import pytest

from loadtest.soak import ACTS, run_soak


def soaked(requests, rest_s):
    figures, said = {}, []
    run_soak(
        lambda name, value, target, ok: figures.update({name: (value, ok)}),
        said.append,
        requests=requests,
        clients=24,
        seed=1,
        rest_s=rest_s,
    )
    return figures, "\n".join(said)


def test_a_few_requests_leave_nothing_behind():
    """So few do not fill what is bounded: objects and memory are for the long run."""
    figures, said = soaked(300, 0.5)
    assert figures["answers that were not as they must be"] == (0, True), said
    assert figures["requests running or waiting at the end, and work booked"] == (0, True), said
    assert figures["tasks more than after the first part"] == (0, True), said
    assert all(act in said for act in ACTS)


@pytest.mark.soak
def test_a_million_requests_leave_nothing_behind():
    figures, said = soaked(1_000_000, 6.0)
    assert all(ok for _, ok in figures.values()), (figures, said)
