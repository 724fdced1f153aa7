"""KV blocks: what is counted as used, what is cached, what is evicted first."""

import pytest

from workers.engines.paging import BlockPool


def cached(pool: BlockPool, *units: int) -> None:
    """Compute and publish `units`, then let go of them."""
    pool.take(len(units) * pool.unit_blocks)
    assert all(pool.publish(unit) for unit in units)
    pool.release(units)


def test_one_block_is_the_null_block() -> None:
    pool = BlockPool(65)
    assert (pool.capacity, pool.free, pool.usage) == (64, 64, 0.0)
    pool.take(16)
    assert (pool.free, pool.usage) == (48, 0.25)
    pool.give(16)
    assert pool.used == 0


@pytest.mark.parametrize(("blocks", "unit"), [(1, 1), (2, 0)])
def test_a_pool_without_room_is_refused(blocks: int, unit: int) -> None:
    with pytest.raises(ValueError, match="at least 2 blocks"):
        BlockPool(blocks, unit)


def test_idle_units_count_as_free_until_they_are_adopted() -> None:
    pool = BlockPool(11, unit_blocks=2)
    cached(pool, 1, 2, 3)
    assert (pool.used, pool.free, pool.cached_units) == (0, 10, 3)
    assert pool.match([1, 2, 9, 3], limit=4) == (2, 2)
    assert pool.match([1, 2, 3], limit=1) == (1, 1)
    pool.adopt([1, 2])
    assert (pool.used, pool.cached_units) == (4, 3)
    pool.adopt([1])
    assert pool.used == 4
    assert pool.match([1, 2, 3], limit=3) == (3, 1)
    pool.release([1, 2])
    assert pool.used == 2
    pool.release([1])
    assert pool.used == 0


def test_blank_blocks_go_first_then_the_least_recently_used_units_tail_before_head() -> None:
    pool = BlockPool(7)
    cached(pool, 1, 2)
    cached(pool, 3)
    pool.take(3)
    assert pool.match([1, 2], 2) == (2, 2)
    pool.take(1)
    assert pool.match([1, 2], 2) == (1, 1), "the tail of the oldest prompt went first"
    pool.take(1)
    assert pool.match([1], 1) == (0, 0)
    assert pool.match([3], 1) == (1, 1)


def test_publishing_what_is_cached_already() -> None:
    pool = BlockPool(9)
    pool.take(2)
    assert pool.publish(1)
    assert not pool.publish(1), "in use elsewhere: the second copy stays private"
    pool.release([1])
    assert pool.publish(1), "an idle copy gives way to the one in use"
    assert (pool.used, pool.cached_units) == (1, 1)
