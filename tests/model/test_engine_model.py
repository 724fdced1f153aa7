"""The engine core under any order of arrivals, aborts and cut runs: its books balance after every event."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.work import StepTime
from workers.engines.timing import EngineConfig, EngineCore, Sequence, State

STEP = StepTime(t0=0.0015, c_seq=2.5e-5, W=0.0106, c_tok=6.65e-5, c_kv=7.6e-8, c_pair=3.1e-9)

arrivals = st.tuples(st.integers(1, 120), st.integers(0, 60), st.integers(-2, 2), st.integers(0, 3))
events = st.lists(
    st.one_of(
        st.tuples(st.just("add"), arrivals),
        st.tuples(st.just("begin"), st.none()),
        st.tuples(st.just("end"), st.integers(1, 200)),
        st.tuples(st.just("abort"), st.integers(0, 50)),
    ),
    max_size=120,
)
engines = st.builds(
    EngineConfig,
    step=st.just(STEP),
    kv_tokens=st.sampled_from([192, 400, 4000]),
    block_size=st.sampled_from([4, 16]),
    max_num_seqs=st.integers(1, 8),
    max_num_batched_tokens=st.sampled_from([8, 32, 256]),
    reserve_full_isl=st.booleans(),
    priority_scheduling=st.booleans(),
    prefix_caching=st.booleans(),
    prefix_unit_tokens=st.sampled_from([16, 32]),
)


def check(core: EngineCore) -> None:
    """What holds between any two events."""
    size, pool = core.config.block_size, core.pool
    held = shared = 0
    referenced: set[int] = set()
    for seq in core.running_sequences():
        assert seq.state in (State.PREFILL, State.DECODE)
        computed = core.steps_done - seq.origin if seq.state is State.DECODE else seq.computed
        assert 0 <= core.produced(seq) <= seq.output_tokens
        held += -(-computed // size) - len(seq.units) * pool.unit_blocks
        referenced |= set(seq.units)
    shared = len(referenced) * pool.unit_blocks
    assert 0 <= pool.used <= pool.capacity
    if core.run is None:
        assert pool.used == held + shared
    assert len(core.running) <= core.config.max_num_seqs


@settings(max_examples=150, deadline=None)
@given(engines, events)
def test_books_balance(config: EngineConfig, script: list[tuple[str, object]]) -> None:
    core = EngineCore(config)
    seqs: list[Sequence] = []
    now = 0.0
    for kind, value in script:
        if kind == "add":
            prompt, output, priority, family = value  # type: ignore[misc]
            seq = Sequence(
                str(len(seqs)), prompt, output, priority, hashes=[family * 100 + i for i in range(prompt // 32)]
            )
            core.add(seq, now)
            seqs.append(seq)
        elif kind == "begin" and core.run is None:
            core.begin(now)
        elif kind == "end" and core.run is not None:
            assert isinstance(value, int)
            now += core.end(min(value, core.run.max_steps)).duration_s
        elif kind == "abort" and seqs:
            assert isinstance(value, int)
            core.abort(seqs[value % len(seqs)])
        check(core)
    if core.run is not None:
        now += core.end().duration_s
    for _ in range(100_000):
        result = core.step(now, max_steps=1 << 30)
        if result is None:
            break
        now += result.duration_s
        check(core)
    assert core.idle
    assert core.pool.used == 0
    for seq in seqs:
        assert seq.state in (State.FINISHED, State.ABORTED)
        if seq.state is State.FINISHED:
            assert core.produced(seq) == seq.output_tokens
