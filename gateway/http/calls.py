"""Calls of the ports: the gate, the dispatcher, the telemetry. Anything that has their methods will do.

Compiled, a call of a port looks its method up by name and packs its arguments as plain Python does, which costs more
than some of these methods; a call of a compiled class does neither. So the one that the gateway is built with is asked
for first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.dispatcher import Dispatcher
from gateway.guarded_gate import GuardedGate
from gateway.telemetry import Telemetry as Told

if TYPE_CHECKING:
    from gateway.admission import Admitted
    from gateway.dispatcher import Sink
    from gateway.errors import ErrorAnswer
    from gateway.local_answers import LocalAnswer
    from gateway.records import RequestRecord
    from gateway.scheduling.model import Lease, Outcome, Request, Ticket

    from .messages import Gate, RawRequest, Scheduling, Telemetry


def admit(gate: Gate, raw: RawRequest, request_id: str) -> Admitted | LocalAnswer | ErrorAnswer:
    """`Gate.admit`."""
    if isinstance(gate, GuardedGate):
        return gate.admit(raw, request_id)
    return gate.admit(raw, request_id)


def submit(dispatcher: Scheduling, request: Request, sink: Sink) -> Ticket:
    """`Scheduling.submit`."""
    if isinstance(dispatcher, Dispatcher):
        return dispatcher.submit(request, sink)
    return dispatcher.submit(request, sink)


def settle(dispatcher: Scheduling, lease: Lease, outcome: Outcome, retry: bool) -> None:
    """`Scheduling.settle`."""
    if isinstance(dispatcher, Dispatcher):
        dispatcher.settle(lease, outcome, retry=retry)
    else:
        dispatcher.settle(lease, outcome, retry=retry)


def first_token(dispatcher: Scheduling, lease: Lease) -> None:
    """`Scheduling.first_token`."""
    if isinstance(dispatcher, Dispatcher):
        dispatcher.first_token(lease)
    else:
        dispatcher.first_token(lease)


def progress(dispatcher: Scheduling, lease: Lease, tokens: int) -> None:
    """`Scheduling.progress`."""
    if isinstance(dispatcher, Dispatcher):
        dispatcher.progress(lease, tokens)
    else:
        dispatcher.progress(lease, tokens)


def attempted(telemetry: Telemetry, pool: str, worker: str, result: str) -> None:
    """`Telemetry.attempt`."""
    if isinstance(telemetry, Told):
        telemetry.attempt(pool, worker, result)
    else:
        telemetry.attempt(pool, worker, result)


def heard(telemetry: Telemetry, record: RequestRecord) -> None:
    """`Telemetry.first_token`."""
    if isinstance(telemetry, Told):
        telemetry.first_token(record)
    else:
        telemetry.first_token(record)


def gap(telemetry: Telemetry, pool: str, class_name: str, seconds: float) -> None:
    """`Telemetry.itl`."""
    if isinstance(telemetry, Told):
        telemetry.itl(pool, class_name, seconds)
    else:
        telemetry.itl(pool, class_name, seconds)


def finished(telemetry: Telemetry, record: RequestRecord, request: Request, ended: float) -> None:
    """`Telemetry.finished`, of a request that was let in."""
    if isinstance(telemetry, Told):
        telemetry.finished(record, request, ended)
    else:
        telemetry.finished(record, request, ended)
