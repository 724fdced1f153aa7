"""The engine core: batching, chunked prefill, preemption, prefix cache, and runs of steps in closed form."""

from __future__ import annotations

from random import Random

import pytest
from engine_support import REAL, drain, engine

from workers.engines.timing import Sequence, State


class TestFit:
    @pytest.mark.parametrize(("prompt", "output"), [(0, 1), (1, -1), (1601, 0), (1600, 2)])
    def test_a_sequence_that_no_empty_engine_holds_is_refused(self, prompt: int, output: int) -> None:
        core = engine()
        with pytest.raises(ValueError, match="does not fit"):
            core.add(Sequence("a", prompt, output), 0.0)
        assert core.idle

    def test_the_largest_that_fits_runs_to_its_end(self) -> None:
        core = engine()
        core.add(Sequence("a", 1600, 1), 0.0)
        drain(core)
        core.add(Sequence("b", 1500, 101), 0.0)
        drain(core)
        assert core.preemptions == 0


class TestBatching:
    def test_a_finished_prefill_emits_a_token_in_the_same_step(self) -> None:
        core = engine()
        seq = Sequence("a", 10, 3)
        core.add(seq, 0.0)
        assert (seq.state, core.waiting) == (State.WAITING, 1)
        first = core.step(0.0)
        assert first is not None
        assert first.prefilled == [seq]
        assert (core.produced(seq), seq.first_token_at, seq.state) == (1, 1.0, State.DECODE)
        second = core.step(1.0)
        assert second is not None
        assert (second.prefilled, second.finished, core.produced(seq)) == ([], [], 2)
        third = core.step(2.0)
        assert third is not None
        assert third.finished == [seq]
        assert (core.produced(seq), seq.finished_at, seq.state, core.pool.used) == (3, 3.0, State.FINISHED, 0)
        assert core.step(3.0) is None
        assert (core.prompt_tokens, core.generated_tokens, core.busy_s) == (10, 3, 3.0)

    def test_one_token_wanted_ends_with_the_prefill_and_none_wanted_makes_none(self) -> None:
        core = engine()
        one, none = Sequence("a", 10, 1), Sequence("b", 10, 0)
        core.add(one, 0.0)
        core.add(none, 0.0)
        result = core.step(0.0)
        assert result is not None
        assert result.finished == [one, none]
        assert (core.produced(one), core.produced(none), core.generated_tokens) == (1, 0, 1)

    def test_a_long_prompt_is_cut_into_chunks_beside_the_decodes(self) -> None:
        core = engine()
        short, long = Sequence("a", 10, 50), Sequence("b", 150, 1)
        core.add(short, 0.0)
        core.step(0.0)
        core.add(long, 1.0)
        chunks = []
        while long.state is not State.FINISHED:
            run = core.begin(1.0)
            assert run is not None
            assert run.max_steps == 1
            chunks.append([chunk for _, chunk in run.prefills])
            core.end()
        assert chunks == [[63], [63], [24]]
        assert core.produced(short) == 4

    def test_the_rest_of_the_budget_goes_to_the_next_in_line(self) -> None:
        core = engine()
        for name in "abc":
            core.add(Sequence(name, 40, 1), 0.0)
        run = core.begin(0.0)
        assert run is not None
        assert [(seq.id, chunk) for seq, chunk in run.prefills] == [("a", 40), ("b", 24)]
        core.end()
        run = core.begin(1.0)
        assert run is not None
        assert [(seq.id, chunk) for seq, chunk in run.prefills] == [("b", 16), ("c", 40)]

    def test_no_more_than_max_num_seqs_run(self) -> None:
        core = engine(max_num_seqs=2)
        seqs = [Sequence(str(i), 4, 3) for i in range(3)]
        for seq in seqs:
            core.add(seq, 0.0)
        core.step(0.0)
        assert (len(core.running), core.waiting) == (2, 1)
        assert [seq.id for seq in core.running_sequences()] == ["0", "1"]
        drain(core, 1.0)
        assert [seq.finished_at for seq in seqs] == [3.0, 3.0, 6.0]

    def test_admission_waits_for_the_blocks_of_the_whole_prompt(self) -> None:
        whole, chunked = engine(kv_tokens=160), engine(kv_tokens=160, reserve_full_isl=False)
        for core in (whole, chunked):
            core.add(Sequence("a", 30, 40), 0.0)
            core.step(0.0)
            core.add(Sequence("b", 140, 2), 1.0)
            core.step(1.0)
        assert (len(whole.running), len(chunked.running)) == (1, 2)
        for core in (whole, chunked):
            drain(core, 2.0)
            assert core.pool.used == 0
        assert whole.preemptions == 0
        assert chunked.preemptions > 0

    def test_step_time_follows_the_formula_and_the_slowdown(self) -> None:
        core = engine(REAL)
        core.slowdown = 2.0
        core.add(Sequence("a", 40, 10), 0.0)
        first = core.step(0.0)
        assert first is not None
        assert first.duration_s == pytest.approx(2 * REAL.step_s(40, 1, 0, 40 * 20))
        second = core.step(1.0)
        assert second is not None
        assert second.duration_s == pytest.approx(2 * REAL.step_s(1, 1, 41))

    def test_begin_and_end_come_in_pairs(self) -> None:
        core = engine()
        core.add(Sequence("a", 4, 4), 0.0)
        with pytest.raises(RuntimeError, match="cannot end"):
            core.end()
        run = core.begin(0.0)
        assert core.run is run
        with pytest.raises(RuntimeError, match="in flight"):
            core.begin(0.0)
        with pytest.raises(RuntimeError, match="cannot end"):
            core.end(2)
        core.end()


class TestPreemption:
    def test_fcfs_the_last_in_gives_way_and_is_computed_anew(self) -> None:
        core = engine(kv_tokens=96)
        first, last = Sequence("a", 32, 30), Sequence("b", 32, 30)
        core.add(first, 0.0)
        core.add(last, 0.0)
        now = 0.0
        while not core.preemptions:
            now += core.step(now).duration_s  # type: ignore[union-attr]
        made = core.produced(last)
        assert (last.state, core.waiting, made) == (State.WAITING, 1, 17)
        drain(core, now)
        assert first.finished_at is not None
        assert last.finished_at is not None
        assert first.finished_at < last.finished_at
        assert (last.preemptions, first.preemptions, core.produced(last)) == (1, 0, 30)
        assert (core.generated_tokens, core.pool.used, core.prompt_tokens) == (60, 0, 64)

    def test_fcfs_the_preempted_come_back_before_those_that_never_ran(self) -> None:
        core = engine(kv_tokens=96)
        seqs = [Sequence(name, 30, 40) for name in "abc"]
        for seq in seqs:
            core.add(seq, 0.0)
        fresh = Sequence("d", 30, 40)
        core.add(fresh, 0.0)
        drain(core)
        ends = [seq.finished_at for seq in (*seqs, fresh)]
        assert ends == sorted(ends, key=lambda end: end or 0)
        assert core.preemptions > 0

    def test_priority_the_least_important_gives_way_wherever_it_runs(self) -> None:
        core = engine(kv_tokens=96, priority_scheduling=True)
        batch, urgent = Sequence("batch", 31, 30, priority=5), Sequence("urgent", 32, 30, priority=-5)
        core.add(batch, 0.0)
        core.add(urgent, 0.0)
        drain(core)
        assert (batch.preemptions, urgent.preemptions) == (1, 0)
        assert core.pool.used == 0

    def test_priority_a_victim_that_has_its_block_already_gives_it_back(self) -> None:
        core = engine(kv_tokens=96, priority_scheduling=True)
        batch, urgent = Sequence("batch", 32, 30, priority=5), Sequence("urgent", 32, 30, priority=-5)
        core.add(batch, 0.0)
        core.add(urgent, 0.0)
        core.add(Sequence("more", 10, 30, priority=-4), 0.0)
        drain(core)
        assert batch.preemptions > 0
        assert core.pool.used == 0

    def test_priority_orders_the_queue_and_takes_nobodys_slot(self) -> None:
        core = engine(max_num_seqs=1, priority_scheduling=True)
        running = Sequence("running", 4, 5, priority=9)
        core.add(running, 0.0)
        core.step(0.0)
        seqs = {priority: Sequence(str(priority), 4, 1, priority) for priority in (5, 0, -5, 3)}
        for seq in seqs.values():
            core.add(seq, 1.0)
        drain(core, 1.0)
        assert running.preemptions == 0
        assert sorted(seqs, key=lambda priority: seqs[priority].finished_at or 0) == [-5, 0, 3, 5]

    def test_a_prompt_half_way_can_be_preempted_by_its_own_chunk(self) -> None:
        core = engine(kv_tokens=160, reserve_full_isl=False, max_num_batched_tokens=32, priority_scheduling=True)
        decoding, partial = Sequence("a", 30, 90), Sequence("b", 150, 1, priority=1)
        core.add(decoding, 0.0)
        core.step(0.0)
        core.add(partial, 0.0)
        drain(core)
        assert partial.preemptions > 0
        assert (core.pool.used, partial.state) == (0, State.FINISHED)

    def test_a_prompt_half_way_can_push_out_one_less_important(self) -> None:
        core = engine(kv_tokens=160, reserve_full_isl=False, max_num_batched_tokens=32, priority_scheduling=True)
        decoding, partial = Sequence("a", 30, 90, priority=7), Sequence("b", 150, 1)
        core.add(decoding, 0.0)
        core.step(0.0)
        core.add(partial, 0.0)
        drain(core)
        assert (partial.preemptions, decoding.preemptions) == (0, 1)
        assert core.pool.used == 0


class TestPrefixCache:
    def test_a_repeated_prompt_computes_only_what_is_new(self) -> None:
        core = engine()
        hashes = [11, 12, 13]
        for name in "ab":
            core.add(Sequence(name, 48, 2, hashes=hashes), 0.0)
            drain(core)
        again = Sequence("c", 60, 2, hashes=[*hashes, 14][:3])
        core.add(again, 0.0)
        run = core.begin(0.0)
        assert run is not None
        assert run.prefills == [(again, 12)]
        core.end()
        assert again.cached_tokens == 48
        drain(core)
        # Of an identical prompt the last block is computed again: the logits of its last token are needed.
        assert (core.prefix_queries, core.prefix_hits) == (48 + 48 + 60, 0 + 32 + 48)
        assert (core.cached_prompt_tokens, core.pool.used) == (80, 0)

    def test_identical_prompts_of_one_step_share(self) -> None:
        core = engine()
        for name in "ab":
            core.add(Sequence(name, 40, 8, hashes=[1, 2]), 0.0)
        core.step(0.0)
        assert core.prefix_hits == 32
        assert core.pool.used == 2 + 1 + 1
        drain(core)
        assert core.pool.used == 0

    def test_coarse_hashes_stand_for_several_blocks(self) -> None:
        core = engine(prefix_unit_tokens=32)
        for name in "ab":
            core.add(Sequence(name, 70, 1, hashes=[1, 2]), 0.0)
            drain(core)
        assert core.prefix_hits == 64

    def test_switched_off_nothing_is_cached(self) -> None:
        core = engine(prefix_caching=False)
        for name in "ab":
            core.add(Sequence(name, 40, 1, hashes=[1, 2]), 0.0)
            drain(core)
        assert (core.prefix_hits, core.pool.cached_units) == (0, 0)

    def test_two_copies_computed_at_once_stay_two(self) -> None:
        core = engine(max_num_batched_tokens=40)
        core.add(Sequence("a", 32, 40, hashes=[1, 2]), 0.0)
        core.step(0.0)
        # Its first block differs, so the second is no hit though its content is known.
        core.add(Sequence("b", 33, 40, hashes=[9, 2]), 0.0)
        core.step(0.0)
        assert core.pool.used == 3 + 3
        drain(core)
        assert (core.pool.used, core.pool.cached_units) == (0, 3)


class TestAbort:
    def test_waiting_running_and_ended(self) -> None:
        core = engine(max_num_seqs=1)
        running, waiting, last = (Sequence(name, 20, 5) for name in "abc")
        for seq in (running, waiting, last):
            core.add(seq, 0.0)
        core.step(0.0)
        assert core.abort(waiting)
        assert (waiting.state, core.waiting) == (State.ABORTED, 1)
        assert core.abort(running)
        assert (running.state, running.made, core.pool.used) == (State.ABORTED, 1, 0)
        assert not core.abort(running)
        drain(core)
        assert last.state is State.FINISHED
        assert not core.abort(last)

    def test_one_in_the_step_leaves_at_its_end(self) -> None:
        core = engine()
        decoding, partial, ending = Sequence("a", 10, 9), Sequence("b", 100, 5), Sequence("c", 10, 2)
        core.add(decoding, 0.0)
        core.add(ending, 0.0)
        core.step(0.0)
        core.add(partial, 0.0)
        core.begin(1.0)
        for seq in (decoding, decoding, partial, ending):
            assert core.abort(seq)
        core.end()
        assert (decoding.state, partial.state, ending.state) == (State.ABORTED, State.ABORTED, State.FINISHED)
        assert (core.produced(decoding), core.idle, core.pool.used) == (2, True, 0)

    def test_many_aborted_while_waiting_leave_no_memory(self) -> None:
        core = engine(max_num_seqs=1)
        core.add(Sequence("a", 10, 50), 0.0)
        core.step(0.0)
        for number in range(5_000):
            seq = Sequence(str(number), 10, 1)
            core.add(seq, 1.0)
            core.abort(seq)
        assert core.waiting == 0
        assert len(core._waiting) < 200
        drain(core, 1.0)


class TestRuns:
    def test_a_run_ends_where_someone_finishes_or_blocks_run_out(self) -> None:
        core = engine(kv_tokens=160)
        core.add(Sequence("a", 10, 20), 0.0)
        core.add(Sequence("b", 10, 100), 0.0)
        core.step(0.0)
        run = core.begin(1.0)
        assert run is not None
        assert run.max_steps == 19
        core.end(19)
        core.add(Sequence("c", 60, 90), 20.0)
        core.step(20.0)
        run = core.begin(21.0)
        assert run is not None
        # Four blocks are free; 30 and 60 tokens cross multiples of 16 at steps 2, 4, 18, 20, and a fifth time at 34.
        assert run.max_steps == 34

    @pytest.mark.parametrize("seed", range(12))
    def test_runs_and_single_steps_tell_the_same_story(self, seed: int) -> None:
        """Random traffic, driven step by step and run by run: every time stamp and counter agrees."""
        stories = []
        for by_runs in (False, True):
            rng = Random(seed)
            core = engine(REAL, kv_tokens=rng.choice([480, 800, 6400]), priority_scheduling=seed % 2 == 0)
            arrivals = sorted((rng.uniform(0, 3), rng.randint(1, 250), rng.randint(0, 120)) for _ in range(60))
            seqs = [
                (at, Sequence(str(i), prompt, output, rng.randint(-1, 1), hashes=range(rng.choice([0, 3]))))
                for i, (at, prompt, output) in enumerate(arrivals)
            ]
            pending = list(reversed(seqs))
            now = 0.0
            while pending or not core.idle:
                while pending and pending[-1][0] <= now:
                    at, seq = pending.pop()
                    core.add(seq, at)
                run = core.begin(now)
                if run is None:
                    now = pending[-1][0]
                    continue
                steps = 1
                if by_runs:
                    steps = run.steps_until(pending[-1][0] - now) if pending else run.max_steps
                now += core.end(steps).duration_s
            assert core.pool.used == 0
            assert sum(core._block_due) == core._context == core._decoding == 0
            stories.append(
                [core.preemptions, core.generated_tokens, core.prefix_hits]
                + [stamp for _, seq in seqs for stamp in (seq.first_token_at, seq.finished_at)]
            )
            assert core.generated_tokens == sum(seq.output_tokens for _, seq in seqs)
        assert stories[0] == pytest.approx(stories[1])

    def test_many_steps_at_once_by_step(self) -> None:
        core = engine()
        seq = Sequence("a", 4, 10)
        core.add(seq, 0.0)
        core.step(0.0)
        result = core.step(1.0, max_steps=5)
        assert result is not None
        assert (result.steps, result.duration_s, core.produced(seq)) == (5, 5.0, 6)
        assert repr(core) == "<EngineCore 1 running, 0 waiting, kv 1%>"
