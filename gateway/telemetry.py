"""Where the data plane's events go: metrics, the access log, the recent requests, and what is learned from usage."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic, time
from typing import TYPE_CHECKING, Final

from gateway.admin.views import request_view
from gateway.log import said_of
from gateway.metrics import DISCONNECTS
from gateway.quota_gate import used_tokens
from gateway.records import Terminal
from gateway.traffic import names_of

if TYPE_CHECKING:
    from gateway.control import Control
    from gateway.learning import Learning
    from gateway.log import Log
    from gateway.metrics import Metrics
    from gateway.quota import Quota
    from gateway.recent import Recent
    from gateway.records import RequestRecord
    from gateway.scheduling.model import Request
    from gateway.tally import Tally
    from gateway.traffic import Names

_CANCELLED: Final = Terminal.CANCELLED


COMMON_MAX: Final = 1024


@dataclass(slots=True, eq=False)
class _Common:
    """What requests have in common that differ in nothing but numbers and their ids, made for the first of them."""

    first: RequestRecord  # the request that it was made for
    tally: Tally
    vocabulary: int  # of the metrics, that the tally goes by
    said: bytes | None  # in a line of the log
    names: Names  # in a line of the traffic


class Telemetry:
    """The data plane's telemetry port: each part is told by name, and only what it asks for."""

    def __init__(
        self, metrics: Metrics, log: Log, recent: Recent, learning: Learning, quota: Quota, control: Control
    ) -> None:
        self._metrics = metrics
        self._log = log
        self._recent = recent
        self._learning = learning
        self._quota = quota
        self._history = control.history
        self._traffic = control.traffic
        self._trials = control.trials
        self._stories = control.stories
        self._events = control.events
        # Attributes, because compiled code finds them without a dictionary.
        self._wall, self._clock = time, monotonic
        self._common: dict[tuple[object, ...], _Common] = {}
        self._latest: dict[str, _Common] = {}  # of each worker, what its last request had

    def attempt(self, pool: str, worker: str, result: str) -> None:
        """One upstream attempt ended; `result` from a closed set."""
        self._metrics.attempt(pool, worker, result)

    def first_token(self, record: RequestRecord) -> None:
        """The first token has come; `record.ttft_s` is set."""
        if record.ttft_s is not None:
            self._history.first_token(record.class_name, record.ttft_s, self._clock())

    def itl(self, pool: str, class_name: str, seconds: float) -> None:
        """The mean gap between the events of a stretch of one stream."""
        self._metrics.itl(pool, class_name, seconds)
        self._history.itl(class_name, seconds, self._clock())

    def finished(self, record: RequestRecord, request: Request | None = None, ended: float = 0.0) -> None:
        """One request ended: count it, log it, keep it for `explain`, learn from it.

        `request`: where it was let in. `ended`: when, by the monotonic clock; 0 where that was not asked.
        """
        at = self._wall()
        common = self._common_of(record)
        common.tally.finished(record)
        if record.outcome is _CANCELLED:
            self._metrics.count(DISCONNECTS, state_of(record))
        self._log.request(record, at, common.said)
        self._recent.finished(record)
        self._history.finished(record, ended if ended > 0.0 else self._clock())
        if self._quota.owed:  # what it did not use goes back
            self._quota.settle(record.request_id, used_tokens(record), self._clock())
        self._learning.finished(record)
        if request is not None:
            self._traffic.finished(record, request, at, common.names)
        if self._trials.trial is not None:
            self._trials.finished(record)
        if self._stories is not None:
            self._stories.finished(record)
        if self._events.heard:
            self._tell(record)

    def _tell(self, record: RequestRecord) -> None:
        self._events.put("request", lambda: request_view(record))

    def _common_of(self, record: RequestRecord) -> _Common:
        # A worker's next request most often has the same: telling that takes a tenth of hashing all of it.
        common = self._latest.get(record.worker)
        if common is None or common.vocabulary != self._metrics.vocabulary or not alike(common.first, record):
            common = self._look_up(record)
            if len(self._latest) >= COMMON_MAX:
                self._latest.clear()
            self._latest[record.worker] = common
        return common

    def _look_up(self, record: RequestRecord) -> _Common:
        key = (
            record.tenant, record.key_id, record.class_name, record.pool, record.worker, record.endpoint, record.model,
            record.stream, record.status, record.outcome, record.reason, record.why, record.revision,
        )  # fmt: skip
        common = self._common.get(key)
        metrics = self._metrics
        if common is None or common.vocabulary != metrics.vocabulary:
            if len(self._common) >= COMMON_MAX:
                self._common.clear()
            common = _Common(record, metrics.tally(record), metrics.vocabulary, said_of(record), names_of(record))
            self._common[key] = common
        return common


def alike(one: RequestRecord, other: RequestRecord) -> bool:
    """Whether two requests differ in nothing but numbers and their ids."""
    return (
        one.status == other.status
        and one.outcome is other.outcome
        and one.revision == other.revision
        and one.stream == other.stream
        and one.tenant == other.tenant
        and one.key_id == other.key_id
        and one.class_name == other.class_name
        and one.pool == other.pool
        and one.worker == other.worker
        and one.endpoint == other.endpoint
        and one.model == other.model
        and one.reason == other.reason
        and one.why == other.why
    )


def state_of(record: RequestRecord) -> str:
    """What a request was doing when its client left: queued, prefill or stream."""
    if record.ttft_s is not None:
        return "stream"
    return "prefill" if record.attempts else "queued"
