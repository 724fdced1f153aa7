"""One incarnation of a worker as the scheduler knows it: its ledger, what its reports add, and the numbers ready
for the balancers.

The ledger is always the truth about our own work. A report adds what others do, fading with its age (see
`Worker.observe`); it never takes away from the ledger, so that a stale report is neither "idle" nor "full".
"""

from __future__ import annotations

from math import exp, inf
from typing import TYPE_CHECKING, Final

from gateway.scheduling.adaptive import Adaptive
from gateway.scheduling.health import FAILURE_PENALTY_S
from gateway.scheduling.model import NO_ORDER, NOTHING, Cost, Lease, Others, Signal, WorkerSpec, WorkerState
from gateway.scheduling.progress import Watch
from gateway.scheduling.slack import LEAST_S, Slack
from policies.balance import Candidate
from policies.kinds import UNBOUNDED
from policies.work import preset_for

if TYPE_CHECKING:
    from gateway.scheduling.health import Health
    from gateway.scheduling.holds import Hold
    from gateway.scheduling.lanes import Lane
    from gateway.scheduling.waiting import PoolNotes

QUANTUM_S: Final = 2.0**-20  # about a microsecond: sums of its multiples are exact below 2^33 seconds
SHIFT_S: Final = 1.5 * 2.0**52 * QUANTUM_S
FADE_S: Final = 2.0  # what a report adds fades by e in this time
STALE_S: Final = 3.0  # an older report adds nothing; the load is inflated instead
STALE_FACTOR: Final = 1.2
GROWTH: Final = 1.3  # a stream longer than expected is expected to get this many times as long as it is
MISS_S: Final = 40.0  # a broken promise weighs as much as this much delay: about what breaks one (simulated 20 … 60)
REFRESH_S: Final = 0.1  # how long numbers that depend on time stay good
PENALTY_FADE_S: Final = 5.0
FOREIGN_PREFILL_TOKENS: Final = 1000  # assumed prompt of a waiting request that is not ours
_NEVER: Final[float] = inf


def quantise(seconds: float) -> float:
    """`seconds` rounded to a multiple of QUANTUM_S, halves to the even one."""
    # Beside SHIFT_S a float has no digits below the quantum: adding it rounds, as `round` would.
    if 0.0 <= seconds < SHIFT_S / 4:
        return (seconds + SHIFT_S) - SHIFT_S
    return round(seconds / QUANTUM_S) * QUANTUM_S


class Worker(Candidate):
    """A worker in one incarnation. `Scheduler` and `Fleet` change it; balancers read it."""

    __slots__ = (
        "adaptive",
        "cached_until",
        "canaries",
        "chunk_s",
        "decode_s",
        "decode_scale",
        "dirty",
        "draining",
        "foreign_count",
        "foreign_kv",
        "foreign_waiting",
        "gone",
        "guests",
        "health",
        "hold",
        "in_flight",
        "is_open",
        "joined",
        "kv_free",
        "kv_tokens",
        "lanes",
        "leases",
        "limit",
        "max_len",
        "misrouted",
        "notes",
        "off_models",
        "order",
        "others",
        "prefill_s",
        "preset",
        "promised",
        "ready",
        "signal",
        "slack",
        "slots",
        "spec",
        "wakes_at",
        "watch",
    )

    def __init__(self, spec: WorkerSpec, health: Health, now: float) -> None:
        super().__init__(spec.id, preset_for(spec.preset).step)
        self.health = health
        self.joined = now
        # Ledger: what our leases have booked here. Only `book`, `answered`, `produced` and `give_back` change it.
        self.leases = 0
        self.in_flight = 0
        self.canaries = 0  # places of in_flight that probes hold
        self.prefill_s = 0.0
        self.decode_s = 0.0
        self.kv_tokens = 0
        self.slack = Slack()
        self.guests = 0  # prefills of requests that are at home in a pool for longer ones
        self.promised = 0  # places of in_flight whose time per token was promised
        # Reports: what others have here, as of `signal.at`.
        self.signal: Signal | None = None
        self.foreign_count = 0
        self.foreign_waiting = 0
        self.foreign_kv = 0
        # Gossip: what other gateways have here.
        self.others: Others = NOTHING
        # State beside health.
        self.draining = False
        self.order = NO_ORDER
        self.gone = False
        self.slots: int | None = None  # leased to this replica; None: not governed by leases
        self.adaptive = Adaptive(now)
        self.misrouted: dict[str, int] = {}
        self.off_models: dict[str, float] = {}
        # Kept by `Fleet`.
        self.ready = False
        self.limit = 0
        self.is_open = False
        self.lanes: list[Lane] = []
        self.wakes_at: float | None = None  # when its state or its limit changes by itself
        self.hold: Hold | None = None  # of a ticket that waits for room here
        self.notes: PoolNotes | None = None  # kept by `Waiting`: of the pool that its leases were of last
        # Beside what balancers read, and kept with it.
        self.decode_scale = 1.0
        self.stretch = 0.0
        self.kv_free = 0.0
        self.dirty = True
        self.cached_until = 0.0
        # What is fixed: `describe` sets it. Compiled, what has a value before anything is called is not asked for one.
        self.spec = spec
        self.preset = preset_for(spec.preset)
        self.chunk_s = QUANTUM_S
        self.max_len = UNBOUNDED
        self.describe(spec)
        self.watch = Watch(self, now)

    def describe(self, spec: WorkerSpec) -> None:
        """Take over what is fixed about the worker."""
        self.spec = spec
        self.preset = preset_for(spec.preset)
        self.step = self.preset.step
        self.chunk_s = max(self.step.chunk_s(spec.max_num_batched_tokens), QUANTUM_S)
        self.max_len = spec.max_model_len if spec.max_model_len is not None else UNBOUNDED
        self.kv_capacity = spec.kv_tokens or 0
        self.dirty = True

    @property
    def in_rotation(self) -> bool:
        """Whether it gets work now or as soon as it has room."""
        return not (self.gone or self.draining or self.order.drain or self.order.eject or self.health.ejected)

    @property
    def state(self) -> WorkerState:
        """The one state that says most about why it does or doesn't get work."""
        if self.gone:
            return WorkerState.GONE
        if self.order.eject:
            return WorkerState.EJECTED
        if (self.draining or self.order.drain) and not self.health.ejected:
            return WorkerState.DRAINING
        return self.health.state

    # -- the ledger ----------------------------------------------------------------------------------------------

    def book(self, lease: Lease) -> None:
        """Add the cost of a new lease."""
        cost = lease.cost
        self.watch.sent(lease)
        self.leases += 1
        self.in_flight += cost.count
        self.prefill_s += cost.prefill_s
        self.decode_s += cost.decode_s
        self.kv_tokens += cost.kv_tokens
        lease.prefill_left_s = cost.prefill_s
        lease.decode_left_s = cost.decode_s
        self.slack.delay(cost.prefill_s * self.stretch)
        if lease.tpot_slo_s is not None:
            self.promised += cost.count
        if lease.guest:
            self.guests += 1
        if lease.canary:
            self.canaries += cost.count
        self.dirty = True

    def answered(self, lease: Lease) -> None:
        """The lease's prefill is done: it streams from now on."""
        self.prefill_s -= lease.prefill_left_s
        lease.prefill_left_s = 0.0
        self.dirty = True
        if lease.guest:
            self.guests -= 1
            lease.guest = False
        if lease.tpot_slo_s is not None:
            spare_s = (lease.tpot_slo_s - self.step_s) * lease.ticket.request.expected_output
            # The clock has gone on by prefills that were sent after this one and still delay it.
            start_s = self.slack.clock_s - self.prefill_s * self.stretch
            lease.breaks_at_s = self.slack.enter(start_s + max(spare_s, LEAST_S))

    def produced(self, lease: Lease, tokens: int, now: float) -> None:
        """`tokens` more have come: that much of the lease's decode is done."""
        expected = lease.ticket.request.expected_output
        done = quantise(lease.cost.decode_s * tokens / (expected if expected > 1 else 1))
        if done > lease.decode_left_s:
            done = lease.decode_left_s
        lease.decode_left_s -= done
        self.decode_s -= done
        self.dirty = True
        if lease.tpot_slo_s is not None and lease.tokens * GROWTH > expected:
            self._outgrown(lease, lease.tpot_slo_s, now)

    def _outgrown(self, lease: Lease, promise_s: float, now: float) -> None:
        """A stream gets longer than expected, and what it can bear grows with it: from what it has really lost."""
        if lease.first_token_at is None:
            return
        if lease.breaks_at_s is not None:
            self.slack.leave(lease.breaks_at_s)
        to_come = lease.tokens * (GROWTH - 1.0)
        spare_s = (
            promise_s * (lease.tokens + to_come)
            - (now - lease.first_token_at)
            - to_come * self.step_s
            - self.prefill_s * self.stretch
        )
        lease.breaks_at_s = self.slack.enter(self.slack.clock_s + spare_s)

    def give_back(self, lease: Lease) -> None:
        """Return all that the lease still has booked."""
        cost = lease.cost
        self.leases -= 1
        self.in_flight -= cost.count
        self.prefill_s -= lease.prefill_left_s
        self.decode_s -= lease.decode_left_s
        self.kv_tokens -= cost.kv_tokens
        if lease.tpot_slo_s is not None:
            self.promised -= cost.count
            if lease.breaks_at_s is not None:
                self.slack.leave(lease.breaks_at_s)
                lease.breaks_at_s = None
        lease.prefill_left_s = lease.decode_left_s = 0.0
        if lease.guest:
            self.guests -= 1
        if lease.canary:
            self.canaries -= cost.count
        self.dirty = True

    # -- reports -------------------------------------------------------------------------------------------------

    def observe(self, signal: Signal) -> None:
        """Take in a report: what it counts beyond the ledger as it stands now belongs to others."""
        self.signal = signal
        for lane in self.lanes:
            lane.reported()
        self.watch.reported(signal)
        self.foreign_count = max(signal.running + signal.waiting - self.in_flight - int(self.others.count), 0)
        self.foreign_waiting = min(max(signal.waiting, 0), self.foreign_count)
        self.foreign_kv = max(signal.kv_used_tokens - self.kv_tokens - int(self.others.kv_tokens), 0)
        self.dirty = True

    # -- what balancers and the KV gate read ---------------------------------------------------------------------

    def price(self, prefill_tokens: int, prompt: int, output: int, sequences: int, held: int = 0) -> Cost:
        """What a request would book here now.

        `prefill_tokens`: of all its prompts; `prompt`: of the longest; `held`: what its prefix cache has of them.
        """
        return self.price_of(self.step.prefill_s(prefill_tokens - held, held), prompt, output, sequences)

    def price_of(self, prefill_s: float, prompt: int, output: int, sequences: int) -> Cost:
        """The same, where its prefill takes so many seconds by the preset."""
        decode = self.step.decode_seconds(output, self.step_s)
        kv_each = prompt + output
        if kv_each > self.max_len:
            kv_each = self.max_len
        count = sequences if sequences < self.limit else self.limit
        return Cost(count, quantise(prefill_s * self.prefill_scale), quantise(decode), kv_each * sequences)

    def ttft_s(self, prefill_tokens: int) -> float:
        """Expected time to first token of a request that is sent now and finds nothing cached; after `refresh`."""
        return self.base_s + self.step.prefill_s(prefill_tokens) * self.prefill_scale * self.stretch + self.step_s

    def broken_by(self, delay_s: float) -> float:
        """How many promises a delay of so many seconds to each stream here is expected to break."""
        return self.slack.broken_by(delay_s)

    def refresh(self, now: float, beta: float, watermark: float) -> None:
        """Recompute the numbers that balancers read, good until `cached_until` or the next change of the ledger."""
        count = float(self.in_flight)
        kv = float(self.kv_tokens)
        queue_s = self.prefill_s
        until = _NEVER
        signal = self.signal
        if signal is not None:
            age = now - signal.at if now > signal.at else 0.0
            if age > STALE_S:
                count *= STALE_FACTOR
                kv *= STALE_FACTOR
            else:
                until = signal.at + STALE_S + 1e-6
                if self.foreign_count or self.foreign_kv:
                    weight = exp(-age / FADE_S)
                    count += self.foreign_count * weight
                    kv += self.foreign_kv * weight
                    queue_s += self.foreign_waiting * weight * self.step.prefill_s(FOREIGN_PREFILL_TOKENS)
                    until = min(until, now + REFRESH_S)
        others = self.others
        if others is not NOTHING:
            count += others.count
            kv += others.kv_tokens
            queue_s += others.prefill_s
        step = self.step.decode_step_s(int(count), int(kv)) * self.decode_scale
        strain = 1.0 + step / self.chunk_s
        penalty = self.health.penalty_s(now, PENALTY_FADE_S)
        if penalty:
            until = min(until, now + REFRESH_S)
        # Where requests are counted, any difference decides alone: a single failure would keep an idle worker idle.
        self.load = count + (penalty - FAILURE_PENALTY_S if penalty > FAILURE_PENALTY_S else 0.0)
        self.crowd = beta * (count - self.promised) if count > self.promised else 0.0
        self.miss_s = 0.0 if self.slack.empty else beta * MISS_S
        self.step_s = step
        self.stretch = strain
        self.base_s = queue_s * strain + penalty
        self.kv_used = kv
        self.kv_free = watermark * self.kv_capacity - kv if self.kv_capacity else _NEVER
        self.dirty = False
        self.cached_until = until

    def __repr__(self) -> str:
        return f"<Worker {self.spec.id} {self.state} {self.in_flight}/{self.limit}, {self.prefill_s:.2f} s prefill>"
