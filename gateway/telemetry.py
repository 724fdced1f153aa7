"""Where the data plane's events go: metrics, the access log, the recent requests, and what is learned from usage."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from gateway.admission import Admitted
from gateway.errors import ErrorAnswer, ErrorCode, dialect_of
from gateway.metrics import DISCONNECTS
from gateway.modes import PRESSURE_HOLD_S
from gateway.records import Terminal

if TYPE_CHECKING:
    from gateway.admission import LocalAnswer
    from gateway.http.messages import Gate, RawRequest
    from gateway.log import Log
    from gateway.metrics import Metrics
    from gateway.modes import Pressure
    from gateway.poison import PoisonGuard
    from gateway.recent import Recent
    from gateway.records import RequestRecord


class Learner(Protocol):
    """Who learns from finished requests: token estimates, output lengths."""

    def finished(self, record: RequestRecord) -> None:
        """A request ended."""
        ...


class Learners:
    """Several that learn, one after the other."""

    def __init__(self, *learners: Learner) -> None:
        self._learners = learners

    def finished(self, record: RequestRecord) -> None:
        """A request ended."""
        for learner in self._learners:
            learner.finished(record)


class Follower(Learner, Protocol):
    """Who follows requests on their way too."""

    def first_token(self, record: RequestRecord) -> None:
        """The first token has come; `record.ttft_s` is set."""
        ...

    def itl(self, class_name: str, seconds: float) -> None:
        """The mean gap between the events of a stretch of one stream."""
        ...


class TimedGate:
    """The gate, with the time that it takes counted as our own, the lowest class kept out under pressure, and what
    workers died of kept from the others."""

    def __init__(
        self, gate: Gate, metrics: Metrics, pressure: Pressure, lowest: Callable[[], int], poison: PoisonGuard
    ) -> None:
        self._admit = gate.admit
        self._poison = poison
        self._lowest = lowest
        self._pressure = pressure
        self._overhead = metrics.overhead

    def admit(self, raw: RawRequest, request_id: str) -> Admitted | LocalAnswer | ErrorAnswer:
        """As the gate itself."""
        began = perf_counter()
        answer = self._admit(raw, request_id)
        self._overhead(perf_counter() - began)
        if self._poison.active and isinstance(answer, Admitted):
            refusal = self._poison.refusal(raw.body)
            if refusal is not None:
                return refusal.in_dialect(dialect_of(raw.path))
        if self._pressure.on and isinstance(answer, Admitted) and answer.request.klass >= max(self._lowest(), 1):
            message = "The gateway is overloaded and takes no request of the lowest class for the moment."
            return ErrorAnswer(ErrorCode.GATEWAY_OVERLOADED, message, retry_after_s=PRESSURE_HOLD_S)
        return answer


class Telemetry:
    """The data plane's telemetry port."""

    def __init__(self, metrics: Metrics, log: Log, recent: Recent, follower: Follower) -> None:
        self._log = log
        self._recent = recent
        self._follower = follower
        self._metrics = metrics
        self.attempt = metrics.attempt
        self.first_token = follower.first_token

    def itl(self, pool: str, class_name: str, seconds: float) -> None:
        """The mean gap between the events of a stretch of one stream."""
        self._metrics.itl(pool, class_name, seconds)
        self._follower.itl(class_name, seconds)

    def finished(self, record: RequestRecord) -> None:
        """One request ended: count it, log it, keep it for `explain`, learn from it."""
        self._metrics.finished(record)
        if record.outcome is Terminal.CANCELLED:
            self._metrics.count(DISCONNECTS, state_of(record))
        self._log.request(record)
        self._recent.finished(record)
        self._follower.finished(record)


def state_of(record: RequestRecord) -> str:
    """What a request was doing when its client left: queued, prefill or stream."""
    if record.ttft_s is not None:
        return "stream"
    return "prefill" if record.attempts else "queued"
