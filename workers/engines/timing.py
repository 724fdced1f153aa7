"""The simulated engine's core: continuous batching in virtual time, without a clock, a socket or a random number.

It schedules as vLLM does: running sequences first, one token for each that decodes and a chunk for the prompt that is
half way, then waiting ones while the token budget, the sequence limit and the KV blocks of the *whole* prompt allow;
the last in (or, by priority, the least important) is preempted when a running one needs a block and none is free, and
is computed anew later; a prompt that is finished yields its first token in the same step.

Two ways to drive it. `step(now)` does one step. `begin(now)` / `end(steps)` do a *run*: where only decodes run and
nothing can be admitted, many steps follow from one formula, and the driver may cut the run at any whole step, so that
a fleet costs work per event and not per token.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from policies.work import DEFAULT_PRESET, PRESETS
from workers.engines.batch import EngineConfig, Run, Sequence, State, StepResult
from workers.engines.paging import BlockPool

# The presets pass through here: of the worker side only this module knows the policies' step-time model.
__all__ = ["DEFAULT_PRESET", "PRESETS", "EngineConfig", "EngineCore", "Run", "Sequence", "State", "StepResult"]


class EngineCore:
    """One engine. Not re-entrant; `now` never goes back."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.pool = BlockPool(config.kv_tokens // config.block_size + 1, config.unit_tokens // config.block_size)
        self.slowdown = 1.0  # multiplies the time of every step begun from now on
        self.running: dict[Sequence, None] = {}  # in order of admission
        self.steps_done = 0
        self.preemptions = 0
        self.prompt_tokens = 0  # of prompts finished
        self.cached_prompt_tokens = 0
        self.generated_tokens = 0
        self.prefix_queries = 0  # tokens, as vLLM counts
        self.prefix_hits = 0
        self.busy_s = 0.0
        self._waiting: list[tuple[tuple[float, ...], Sequence]] = []  # a heap; aborted ones are skipped when met
        self._waiting_count = 0
        self._orders = 0
        self._fronts = 0
        self._partial: Sequence | None = None  # the one running prompt that is half way; always the last admitted
        self._decoding = 0
        self._context = 0  # sum of computed tokens over the decoding
        self._block_due = [0] * config.block_size  # decoding sequences by origin modulo block size: who needs a block
        self._ends: list[tuple[int, int, Sequence]] = []  # heap of decode ends; stale entries are skipped
        self._run: Run | None = None
        self._aborted: list[Sequence] = []  # running ones, until the run in flight ends

    def __repr__(self) -> str:
        return f"<EngineCore {len(self.running)} running, {self._waiting_count} waiting, kv {self.pool.usage:.0%}>"

    @property
    def waiting(self) -> int:
        """Sequences admitted to the engine without a place in the batch, preempted ones included."""
        return self._waiting_count

    @property
    def idle(self) -> bool:
        """Nothing to do."""
        return not self.running and not self._waiting_count

    @property
    def run(self) -> Run | None:
        """The run in flight."""
        return self._run

    def produced(self, seq: Sequence) -> int:
        """Output tokens of `seq` so far."""
        if seq.state is State.DECODE:
            return self.steps_done - seq.origin - seq.prompt_tokens + 1
        return seq.made

    def fits(self, prompt_tokens: int, output_tokens: int) -> bool:
        """Whether the KV cache can ever hold such a sequence."""
        return -(-(prompt_tokens + max(0, output_tokens - 1)) // self.config.block_size) <= self.pool.capacity

    def add(self, seq: Sequence, now: float) -> None:
        """Queue a sequence. Raises ValueError for one that no empty engine could hold."""
        if seq.prompt_tokens < 1 or seq.output_tokens < 0 or not self.fits(seq.prompt_tokens, seq.output_tokens):
            raise ValueError(f"sequence of {seq.prompt_tokens}+{seq.output_tokens} tokens does not fit the KV cache")
        seq.arrival = now
        self._orders += 1
        seq.order = self._orders
        self._enqueue(seq, seq.order)

    def abort(self, seq: Sequence) -> bool:
        """Drop a sequence; False if it had ended. A running one leaves when the step in flight ends."""
        if seq.state is State.WAITING:
            self._waiting_count -= 1
            if len(self._waiting) > 2 * self._waiting_count + 64:
                self._waiting = [
                    entry for entry in self._waiting if entry[1].state is State.WAITING and entry[1] is not seq
                ]
                heapify(self._waiting)
        elif seq.state not in (State.PREFILL, State.DECODE):
            return False
        elif self._run is not None:
            if seq not in self._aborted:
                self._aborted.append(seq)
            return True
        else:
            self._leave(seq)
        seq.state = State.ABORTED
        return True

    def step(self, now: float, max_steps: int = 1) -> StepResult | None:
        """One step, or up to `max_steps` alike ones; None when idle."""
        run = self.begin(now)
        return None if run is None else self.end(min(max_steps, run.max_steps))

    def begin(self, now: float) -> Run | None:
        """Schedule the next step and say how long it takes; None when there is nothing to run."""
        if self._run is not None:
            raise RuntimeError("a run is in flight")
        if self.idle:
            return None
        preempted: list[Sequence] = []
        due = self._block_due[self.steps_done % self.config.block_size]
        if due <= self.pool.free:
            self.pool.take(due)
        else:
            self._grow_or_preempt(preempted)
        prefills: list[tuple[Sequence, int]] = []
        budget = self.config.max_num_batched_tokens - self._decoding
        if self._partial is not None:
            budget = self._continue_partial(self._partial, budget, prefills, preempted)
        blocked = self._admit(budget, now, prefills) if not preempted else False
        decodes = self._decoding
        tokens = decodes + sum(chunk for _, chunk in prefills)
        pairs = sum([chunk * (seq.computed + chunk / 2) for seq, chunk in prefills])
        step = self.config.step
        first_s = step.step_s(tokens, decodes + len(prefills), self._context + decodes, pairs) * self.slowdown
        alike = not prefills and not preempted and (blocked or not self._waiting_count)
        run = Run(
            start=now,
            first_s=first_s,
            growth_s=step.c_kv * decodes * self.slowdown,
            max_steps=self._steps_alike() if alike else 1,
            tokens=tokens,
            decodes=decodes,
            prefills=prefills,
            preempted=preempted,
        )
        self._run = run
        return run

    def end(self, steps: int = 1) -> StepResult:
        """End the run in flight after `steps` of its steps and say what came of it."""
        run = self._run
        if run is None or not 1 <= steps <= run.max_steps:
            raise RuntimeError(f"cannot end {run} after {steps} steps")
        self._run = None
        duration = run.duration_s(steps)
        now = run.start + duration
        self.busy_s += duration
        size = self.config.block_size
        if steps > 1:
            whole, rest = divmod(steps - 1, size)
            first = self.steps_done + 1
            due = self._block_due
            self.pool.take(whole * run.decodes + sum([due[(first + i) % size] for i in range(rest)]))
        self.steps_done += steps
        self._context += run.decodes * steps
        self.generated_tokens += run.decodes * steps
        finished: list[Sequence] = []
        ends = self._ends
        while ends and ends[0][0] <= self.steps_done:
            at, _, seq = heappop(ends)
            if seq.state is State.DECODE and seq.end == at:
                self._finish(seq, now, finished)
        prefilled = self._end_prefills(run.prefills, now, finished) if run.prefills else []
        for seq in self._aborted:
            if seq.state is not State.FINISHED:
                self._leave(seq)
                seq.state = State.ABORTED
        self._aborted.clear()
        return StepResult(duration, steps, run.tokens, run.decodes, prefilled, finished, run.preempted)

    def running_sequences(self) -> Iterable[Sequence]:
        """The batch in order of admission; do not keep it over a step."""
        return self.running.keys()

    # --- scheduling

    def _enqueue(self, seq: Sequence, rank: int) -> None:
        seq.state = State.WAITING
        key = (seq.priority, seq.arrival, seq.order) if self.config.priority_scheduling else (rank, seq.order)
        heappush(self._waiting, (key, seq))
        self._waiting_count += 1

    def _grow_or_preempt(self, preempted: list[Sequence]) -> None:
        """Give a block to each decoding sequence that needs one, in order; who gets none costs someone their place."""
        size = self.config.block_size
        phase = self.steps_done % size
        grown: set[Sequence] = set()
        for seq in list(self.running):
            if seq.state is not State.DECODE or seq.origin % size != phase:
                continue
            while self.pool.free < 1 and seq.state is State.DECODE:
                victim = self._victim()
                self._preempt(victim, preempted, grown_blocks=1 if victim in grown else 0)
            if seq.state is State.DECODE:
                self.pool.take(1)
                grown.add(seq)

    def _continue_partial(
        self, seq: Sequence, budget: int, prefills: list[tuple[Sequence, int]], preempted: list[Sequence]
    ) -> int:
        """Schedule the next chunk of the prompt that is half way; returns the budget that is left."""
        size = self.config.block_size
        phase = self.steps_done % size
        chunk = min(seq.prompt_tokens + seq.made - seq.computed, budget)
        needed = -(-(seq.computed + chunk) // size) - -(-seq.computed // size)
        while self.pool.free < needed and seq.state is State.PREFILL:
            victim = self._victim()
            # Everyone who decodes and was due a block has it by now.
            due = victim.state is State.DECODE and victim.origin % size == phase
            self._preempt(victim, preempted, grown_blocks=1 if due else 0)
        if seq.state is State.PREFILL:
            self.pool.take(needed)
            self._publish(seq, chunk)
            prefills.append((seq, chunk))
        return budget - chunk

    def _admit(self, budget: int, now: float, prefills: list[tuple[Sequence, int]]) -> bool:
        """Start waiting sequences while they fit; True if the head can only start once a running one has left."""
        config, pool = self.config, self.pool
        size, unit_tokens = config.block_size, config.unit_tokens
        waiting = self._waiting
        while self._waiting_count:
            while waiting[0][1].state is not State.WAITING:
                heappop(waiting)
            if len(self.running) >= config.max_num_seqs:
                return True
            if budget < 1:
                return False
            seq = waiting[0][1]
            target = seq.prompt_tokens + seq.made
            units = idle = 0
            if seq.hashes and config.prefix_caching:
                # The last token is always computed: its logits are what the first output token is drawn from.
                units, idle = pool.match(seq.hashes, (target - 1) // unit_tokens)
            hit = units * unit_tokens
            chunk = min(target - hit, budget)
            reach = target if config.reserve_full_isl else hit + chunk
            if -(-reach // size) - (units - idle) * pool.unit_blocks > pool.free:
                return True
            heappop(waiting)
            self._waiting_count -= 1
            if units:
                seq.units = list(seq.hashes[:units])
                pool.adopt(seq.units)
            pool.take(-(-(hit + chunk) // size) - hit // size)
            if seq.scheduled_at is None:
                seq.scheduled_at = now
                seq.cached_tokens = hit
                self.prefix_queries += target
                self.prefix_hits += hit
            seq.state = State.PREFILL
            seq.computed = hit
            self._publish(seq, chunk)
            self.running[seq] = None
            prefills.append((seq, chunk))
            budget -= chunk
            if chunk < target - hit:
                self._partial = seq
        return False

    def _steps_alike(self) -> int:
        """How many decode steps in a row need no decision: until someone has all tokens, or blocks run short."""
        ends = self._ends
        while ends[0][2].state is not State.DECODE or ends[0][2].end != ends[0][0]:
            heappop(ends)
        steps = ends[0][0] - self.steps_done
        # The first step has its blocks. Of the others any `size` in a row need one block a sequence.
        size = self.config.block_size
        periods, free = divmod(self.pool.free, self._decoding)
        due = self._block_due
        for done in range(1 + periods * size, steps):
            free -= due[(self.steps_done + done) % size]
            if free < 0:
                return done
        return steps

    def _victim(self) -> Sequence:
        if self.config.priority_scheduling:
            return max(self.running, key=lambda seq: (seq.priority, seq.arrival, seq.order))
        return next(reversed(self.running))

    def _preempt(self, seq: Sequence, preempted: list[Sequence], grown_blocks: int) -> None:
        """Drop a running sequence's KV and put it back at the head of the queue; its output so far is kept."""
        made = self.produced(seq)
        self.pool.give(grown_blocks)
        self._leave(seq)
        seq.made = made
        seq.computed = 0
        seq.preemptions += 1
        self.preemptions += 1
        # fcfs: at the very front; of several preempted in one step the earliest comes first again.
        self._fronts -= 1
        self._enqueue(seq, self._fronts)
        preempted.append(seq)

    def _leave(self, seq: Sequence) -> None:
        """Take a running sequence out of the batch and give its blocks back."""
        size = self.config.block_size
        if seq.state is State.DECODE:
            computed = self.steps_done - seq.origin
            seq.made = self.produced(seq)
            self._decoding -= 1
            self._context -= computed
            self._block_due[seq.origin % size] -= 1
        else:
            computed = seq.computed
            if seq is self._partial:
                self._partial = None
        del self.running[seq]
        self.pool.give(-(-computed // size) - len(seq.units) * self.pool.unit_blocks)
        if seq.units:
            self.pool.release(seq.units)
            seq.units = []

    def _finish(self, seq: Sequence, now: float, finished: list[Sequence]) -> None:
        self._leave(seq)
        seq.state = State.FINISHED
        seq.finished_at = now
        finished.append(seq)

    def _end_prefills(
        self, prefills: list[tuple[Sequence, int]], now: float, finished: list[Sequence]
    ) -> list[Sequence]:
        """Book the chunks of a step; returns those whose prompt is done."""
        done: list[Sequence] = []
        size = self.config.block_size
        for seq, chunk in prefills:
            seq.computed += chunk
            if seq.computed < seq.prompt_tokens + seq.made:
                continue
            if seq is self._partial:
                self._partial = None
            if seq.first_token_at is None:
                seq.first_token_at = now
                self.prompt_tokens += seq.prompt_tokens
                self.cached_prompt_tokens += seq.cached_tokens
            done.append(seq)
            if seq.output_tokens:
                seq.made += 1
                self.generated_tokens += 1
            if seq.made >= seq.output_tokens:
                self._finish(seq, now, finished)
                continue
            seq.state = State.DECODE
            seq.origin = self.steps_done - seq.computed
            seq.end = self.steps_done + seq.output_tokens - seq.made
            self._decoding += 1
            self._context += seq.computed
            self._block_due[seq.origin % size] += 1
            heappush(self._ends, (seq.end, seq.order, seq))
        return done

    def _publish(self, seq: Sequence, chunk: int) -> None:
        """Make the whole units that this chunk completes known to the prefix cache, for the same step already."""
        if not seq.hashes or not self.config.prefix_caching:
            return
        whole = min(len(seq.hashes), (seq.computed + chunk) // self.config.unit_tokens)
        for index in range(len(seq.units), whole):
            if not self.pool.publish(seq.hashes[index]):
                break  # someone else's copy is in use: the rest of ours stays private
            seq.units.append(seq.hashes[index])
