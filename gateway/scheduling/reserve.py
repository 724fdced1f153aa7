"""What is kept of each worker for the highest class: a share of its places and of its KV cache.

A share that is less than one whole place keeps nothing, so that small workers are never held back, and a worker that
holds nothing takes anything: what is kept is a reserve, not a partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.scheduling.queue import Bucket
    from gateway.scheduling.worker import Worker


def beside_reserve(
    workers: list[Worker], factors: list[float], bucket: Bucket, share: float, watermark: float
) -> tuple[list[Worker], list[float]]:
    """Those of `workers`, with their factors, that can take a ticket of a lower class and still keep the reserve."""
    found = [at for at, worker in enumerate(workers) if leaves_reserve(worker, bucket, share, watermark)]
    return [workers[at] for at in found], [factors[at] for at in found]


def leaves_reserve(worker: Worker, bucket: Bucket, share: float, watermark: float) -> bool:
    """Whether a worker keeps `share` of its places and KV cache free beside one more ticket of that bucket."""
    kept = int(worker.limit * share)
    if not kept or not worker.leases:
        return True
    if worker.in_flight + min(bucket.sequences, worker.limit) > worker.limit - kept:
        return False
    need = min(bucket.kv_each, worker.max_len) * bucket.sequences
    return need <= worker.kv_free - share * watermark * worker.kv_capacity
