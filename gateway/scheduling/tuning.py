"""What tuning of pools' budgets (`policies/tuning.py`) learns from: the work of what ended, and who works where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.scheduling.model import OutcomeKind, WorkerState
from policies.tuning import Staff

if TYPE_CHECKING:
    from gateway.scheduling.model import Lease, Outcome
    from gateway.scheduling.snapshot import FleetSnapshot
    from policies.tuning import BudgetTuner


def learn(tuner: BudgetTuner, lease: Lease, outcome: Outcome) -> None:
    """A lease ended: where it went well, its work counts for the pool that the request is at home in."""
    request, worker = lease.ticket.request, lease.booked_on
    if outcome.kind is not OutcomeKind.OK or worker is None or not request.pools:
        return
    prompt = outcome.prompt_tokens if outcome.prompt_tokens is not None else request.prompt_tokens
    output = outcome.output_tokens if outcome.output_tokens is not None else lease.tokens
    work_s = worker.step.occupancy_s(max(prompt - lease.held, 0), output)
    tuner.ended(request.pools[0], request.budget_tokens, work_s)


def staff_of(fleet: FleetSnapshot) -> dict[str, Staff]:
    """The pools whose workers take requests now."""
    found: dict[str, Staff] = {}
    for worker in fleet.workers:
        if worker.state is not WorkerState.READY:
            continue
        known = found.get(worker.pool)
        lengths = [] if known is None or known.max_model_len is None else [known.max_model_len]
        if worker.max_model_len is not None:
            lengths.append(worker.max_model_len)
        found[worker.pool] = Staff(1 if known is None else known.workers + 1, min(lengths, default=None))
    return found
