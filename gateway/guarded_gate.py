"""The gate as the data plane asks it: admission, and what may still keep a request out that it lets in.

The time that it takes counts as our own. Tenants' minutes, what workers died of, and the lowest class under pressure
cost nothing while there are none.
"""

from __future__ import annotations

from time import perf_counter, time
from typing import TYPE_CHECKING

from gateway.admission import Admitted
from gateway.errors import ErrorAnswer, ErrorCode, dialect_of
from gateway.modes import PRESSURE_HOLD_S
from gateway.quota_gate import count_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.admission import Admission
    from gateway.http.messages import RawRequest
    from gateway.local_answers import LocalAnswer
    from gateway.metrics import Metrics
    from gateway.modes import Pressure
    from gateway.poison import PoisonGuard
    from gateway.quota import Quota
    from gateway.traffic import Traffic


class GuardedGate:
    """`clock` is the one of tenants' minutes."""

    def __init__(
        self,
        admission: Admission,
        metrics: Metrics,
        quota: Quota,
        poison: PoisonGuard,
        pressure: Pressure,
        traffic: Traffic,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._admission = admission
        self._metrics = metrics
        self._quota = quota
        self._poison = poison
        self._pressure = pressure
        self._traffic = traffic
        self._clock = clock
        # Attributes, because compiled code finds them without a dictionary.
        self._wall, self._timer = time, perf_counter
        self._asked, self._asked_until = "", 0.0  # the model of the last request, and until when it counts as told

    def admit(self, raw: RawRequest, request_id: str) -> Admitted | LocalAnswer | ErrorAnswer:
        """Decide about a request that has been read. Never raises for what a client sent."""
        began = self._timer()
        answer = self._admission.admit(raw, request_id)
        if not isinstance(answer, Admitted):
            self._metrics.overhead(self._timer() - began)
            return answer
        refusal = None
        if self._quota.limits(answer.tenant):
            refusal = count_in(self._quota, answer, raw.path, request_id, self._clock())
        self._metrics.overhead(self._timer() - began)
        if refusal is None and self._poison.active:
            refusal = self._poison.refusal(raw.body)
            if refusal is not None:
                refusal = refusal.in_dialect(dialect_of(raw.path))
        klass = answer.request.klass
        if refusal is None and klass > 0 and self._pressure.on and klass >= self._admission.lowest:
            told = self._pressure.told
            refusal = ErrorAnswer(ErrorCode.GATEWAY_OVERLOADED, told, retry_after_s=PRESSURE_HOLD_S)
        if refusal is not None:
            return refusal
        # Who has asked for which model lately is known to the second.
        if answer.model_public != self._asked or began >= self._asked_until:
            self._asked, self._asked_until = answer.model_public, began + 1.0
            self._traffic.asked(answer.model_public, self._wall())
        return answer
