"""The words of the scheduler: what goes in (requests, workers, signals, outcomes) and what comes out (effects).

Everything here is a plain value. `Ticket` and `Lease` are the two that change; only the scheduler changes them.
Times are seconds on one monotonic clock of the caller; token counts are tokens of the worker's own tokenizer
as far as they are known, and estimates before that.

What is made for each request is a named tuple: it is made in a third of the time that a frozen dataclass takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from gateway.scheduling.fairness import Flow
    from gateway.scheduling.queue import Place
    from gateway.scheduling.worker import Worker


class Reason(StrEnum):
    """Why a request was refused, evicted or not retried: closed, mapped to a status in `gateway/errors.py`."""

    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    DEADLINE = "deadline_exceeded"
    HOPELESS = "hopeless"
    SHED = "shed"
    QUEUE_NEVER = "queue_never"
    TENANT_IN_FLIGHT = "tenant_in_flight"
    TENANT_QUEUED = "tenant_queued"
    NO_WORKER = "no_healthy_worker"
    MODEL_NOT_FOUND = "model_not_found"
    CONTEXT_TOO_LONG = "context_length_exceeded"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    RETRY_BUDGET = "retry_budget"
    SHUTTING_DOWN = "shutting_down"


class OutcomeKind(StrEnum):
    """How a lease ended. Exactly one for each lease."""

    OK = "ok"
    CLIENT_ERROR = "client_error"  # the engine refused the request for what it says: 4xx but 404, 408, 429
    CLIENT_GONE = "client_gone"  # downstream left: teaches nothing about the worker
    BUSY = "busy"  # 429 or 503 of the engine: full, not broken
    CONNECT_FAILED = "connect_failed"
    RESET = "reset"  # the connection ended before the answer did
    PROTOCOL = "protocol"  # what came back is not HTTP as it should be
    SERVER_ERROR = "server_error"  # 5xx but 503, or an error event inside a stream
    MISROUTED = "misrouted"  # 404: the worker does not serve this model after all
    TTFT_TIMEOUT = "ttft_timeout"
    GAP_TIMEOUT = "gap_timeout"
    DEADLINE = "deadline"  # the request's own time ran out
    LOCAL = "local"  # our own fault (descriptors, shutdown): teaches nothing about the worker

    __hash__ = str.__hash__  # Enum's own is a Python call; these are looked up several times a request


class WorkerState(StrEnum):
    """Where a worker is in the gateway's eyes."""

    READY = "ready"
    DRAINING = "draining"
    EJECTED = "ejected"
    PROBING = "probing"  # ejection time is over: one request at a time until one succeeds
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What is fixed about a worker while one incarnation of it lives."""

    id: str
    pool: str
    models: frozenset[str]
    max_model_len: int | None = None  # tokens; None: unknown, never a reason to refuse
    max_num_seqs: int | None = None  # sequences the engine batches; None: unknown
    kv_tokens: int | None = None  # KV capacity in tokens; None: unknown, KV is then not gated
    max_num_batched_tokens: int = 2048
    incarnation: str = ""
    preset: str | None = None  # name in engine_presets of policies/work.py


@dataclass(frozen=True, slots=True)
class Order:
    """What an operator has said about one worker by hand; it holds over the worker's incarnations."""

    drain: bool = False  # nothing new for it
    eject: bool = False  # out of rotation until let back in
    cap: int | None = None  # places at most; None: as policy and engine say


NO_ORDER = Order()


@dataclass(frozen=True, slots=True)
class Signal:
    """What a worker's report says, at the time the gateway received it."""

    at: float
    running: int
    waiting: int
    kv_used_tokens: int
    preemptions: int = 0  # total since the engine started
    tokens_total: int | None = None  # prompt and output tokens since then; None: it doesn't say
    prefix_hits: int | None = None  # tokens found in the prefix cache since then; None: it doesn't say


@dataclass(frozen=True, slots=True)
class Others:
    """What other gateways have on a worker, all together, as they last said."""

    count: float = 0.0  # places taken
    prefill_s: float = 0.0  # not answered by a first token yet
    decode_s: float = 0.0
    kv_tokens: float = 0.0


NOTHING: Final = Others()


class Request(NamedTuple):
    """A classified request as the scheduler sees it."""

    id: str
    tenant: str
    klass: int  # index into policy.classes: 0 is the highest
    model: str  # name at the engine
    pools: tuple[str, ...]  # home first, then those it may borrow from
    prompt_tokens: int  # of the longest prompt
    max_output_tokens: int | None  # None: the client left it to the engine
    expected_output: int = 128
    p90_output: int = 512
    sequences: int = 1  # n
    generates: bool = True  # embeddings and their like prefill only
    body_bytes: int = 0
    queue_timeout_s: float = 30.0
    deadline: float | None = None  # absolute
    may_queue: bool = True
    fallback_pools: tuple[str, ...] = ()  # only where no worker of `pools` exists for the model
    prompt_exact: bool = False  # prompt_tokens was counted, not estimated
    prefix_hashes: tuple[int, ...] = ()  # of the prompt up to each of some places, the tenant's own
    prefix_ends: tuple[int, ...] = ()  # tokens up to each of them
    session: str = ""
    prefill_tokens: int | None = None  # of all prompts, where one body brings several; None: prompt_tokens is all
    budget_tokens: int = 0  # the token budget that chose its home pool; 0: something else did


@dataclass(slots=True)
class Cost:
    """What a lease books on its worker. Stored on the lease; exactly this is given back.

    Seconds are whole multiples of `worker.QUANTUM_S`, so that sums and differences of them are exact. It never changes,
    and is not frozen because a frozen one takes twice as long to make.
    """

    count: int  # places of the worker's limit: its sequences, at most the whole limit
    prefill_s: float
    decode_s: float
    kv_tokens: int


class TicketState(StrEnum):
    """A ticket waits, runs, or has ended."""

    QUEUED = "queued"
    LEASED = "leased"
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Ticket:
    """A request from submission to its end, over all its attempts."""

    request: Request
    owner: Any  # the shell's own; the scheduler never looks at it
    submitted: float
    queue_until: float  # absolute: leaves the queue at the latest then
    state: TicketState = TicketState.QUEUED
    attempts: int = 0
    excluded: frozenset[str] = frozenset()  # workers that failed it
    not_before: float = 0.0  # backoff: not dispatched earlier
    sequence: int = 0  # order of admission; ties break by it
    lease: Lease | None = None
    since: float = 0.0  # start of the present wait
    waited_s: float = 0.0  # earlier waits
    place: Place | None = None  # where it waits; None while it backs off
    cause: str = ""  # why it had to wait, a `WaitCause`; empty where it did not


@dataclass(slots=True, eq=False)
class Choice:
    """Whom a dispatch chose among: kept as it was found, and put in order for whoever asks why."""

    chosen: int  # place in the lists
    workers: list[str]  # this list and `signals` are shared with other choices
    scores: list[float]
    signals: list[float | None]  # when the last report of each had come

    def told(self) -> list[tuple[str, float, float | None]]:
        """Worker, score and time of its last report: the chosen one first, the others by their scores."""
        others = sorted((score, at) for at, score in enumerate(self.scores) if at != self.chosen)
        return [
            (self.workers[at], self.scores[at], self.signals[at]) for at in (self.chosen, *[at for _, at in others])
        ]


@dataclass(slots=True, eq=False)
class Lease:
    """A slot on a worker, held to the last byte, with the cost booked for it."""

    ticket: Ticket
    worker: str
    pool: str
    cost: Cost
    dispatched: float
    queued_s: float
    score: float = 0.0
    first_token_at: float | None = None
    tokens: int = 0  # output seen so far
    prefill_left_s: float = 0.0  # of cost.prefill_s: what is still booked
    decode_left_s: float = 0.0
    tpot_slo_s: float | None = None  # time per output token it was promised
    breaks_at_s: float | None = None  # reading of its worker's `Slack` at which that promise is broken
    held: int = 0  # prompt tokens that its worker was expected to hold already
    claim: int = 0  # the same if its worker were trusted in full
    guest: bool = False  # on a worker of a pool for shorter requests than it is at home with
    settled: bool = False
    canary: bool = False
    choice: Choice | None = None  # whom it was chosen among: for explain
    charged: float = 0.0  # tokens charged to the tenant at dispatch, corrected at settle
    predicted_ttft_s: float = 0.0  # from dispatch; 0 where other prefills were before it
    number: int = 0  # of the dispatch
    booked_on: Worker | None = None  # the incarnation that holds the cost
    flow: Flow | None = None  # that it is charged to
    note: Any = None  # the shell's own; the scheduler never looks at it


def booked(lease: Lease) -> Worker:
    """The worker that holds the cost of a lease."""
    worker = lease.booked_on
    if worker is None:
        raise RuntimeError(f"lease of request {lease.ticket.request.id} was not made by the scheduler")
    return worker


class Outcome(NamedTuple):
    """How a lease ended and what it really used."""

    kind: OutcomeKind
    status: int | None = None
    retry_after_s: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None


class Reached(NamedTuple):
    """A limit of the policy that a request ran into: where it is set, what it is, what it came to with this one."""

    place: str
    limit: float
    value: float


@dataclass(frozen=True, slots=True)
class Refuse:
    """The ticket ends here. `evicted`: it had been queued before; `reached`: for which limit, if for one."""

    ticket: Ticket
    reason: Reason
    retry_after_s: float
    evicted: bool
    reached: Reached | None = None


@dataclass(frozen=True, slots=True)
class Requeue:
    """A failed attempt waits for its next one; nothing for the shell to do but know it."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class WorkerChange:
    """A worker's state changed: for logs and gauges."""

    worker: str
    state: WorkerState
    why: str


Effect = Lease | Refuse | Requeue | WorkerChange
"""A lease: send its request to its worker, whose slot it holds from now on."""
