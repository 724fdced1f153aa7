"""Corrects a worker's predictions by what it is seen to do.

Presets are for other people's machines. Only requests that nothing else disturbed are compared: a first token where
no other prefill was before it, a time per token where nothing was sent to the worker after it. What load does is in
the ledger; counted here again it would push work back and forth between workers (simulated: all requests' goodput at
high load falls by twelve points). Each comparison moves a factor by a small power of the ratio, so that one odd
request changes little and a hundred alike change everything. Factors stay within FLOOR and CEILING: beyond that it is
not the coefficients that are wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.scheduling.model import Lease, Outcome, OutcomeKind

if TYPE_CHECKING:
    from gateway.scheduling.worker import Worker

GAIN: Final = 0.05  # power of the ratio that one observation applies
FLOOR: Final = 0.5
CEILING: Final = 2.0
OUTLIER: Final = 4.0  # one observation counts as no more than so many times off
LEAST_S: Final = 0.002  # shorter predictions are below what the network adds
LONGEST_S: Final = 1e6
LEAST_TOKENS: Final = 8

_OK: Final = OutcomeKind.OK


def corrected(factor: float, observed_s: float, predicted_s: float) -> float:
    """The factor after one more observation; unchanged where the two cannot be compared."""
    # Written so that NaN and infinity cannot be compared either.
    if not (LEAST_S <= predicted_s < LONGEST_S and 0.0 < observed_s < LONGEST_S):
        return factor
    ratio = min(max(observed_s / predicted_s, 1.0 / OUTLIER), OUTLIER)
    return min(max(factor * float(ratio**GAIN), FLOOR), CEILING)


def learn_prefill(worker: Worker, lease: Lease) -> None:
    """The first token of a lease has come."""
    if lease.predicted_ttft_s and lease.first_token_at is not None:
        observed_s = lease.first_token_at - lease.dispatched
        worker.prefill_scale = corrected(worker.prefill_scale, observed_s, lease.predicted_ttft_s)


def learn_decode(worker: Worker, lease: Lease, outcome: Outcome, now: float) -> None:
    """A lease is about to be given back."""
    if outcome.kind is not _OK or lease.first_token_at is None or worker.picked != lease.number:
        return
    tokens = outcome.output_tokens if outcome.output_tokens is not None else lease.tokens
    tokens //= max(lease.ticket.request.sequences, 1)
    if tokens >= LEAST_TOKENS:
        predicted_s = worker.step.decode_step_s(worker.in_flight, worker.kv_tokens) * worker.decode_scale
        observed_s = (now - lease.first_token_at) / (tokens - 1)
        worker.decode_scale = corrected(worker.decode_scale, observed_s, predicted_s)
