"""The port ledger and the flags that would go around it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.expand import parse_workers
from workers.flags import MANAGED_FLAGS, flag_faults
from workers.instances import Engine, Instance, PortPool
from workers.portplan import NEEDED, Claim, Listening, assign_ports, claims_of, clashes, free_port
from workers.yamldoc import WorkersError


def instance(name: str, port: int, **fields: object) -> Instance:
    return Instance.model_validate(
        {"name": name, "model_path": "m", "served_name": "s", "pool": "p", "device": "0", "port": port, **fields}
    )


def test_every_port_of_an_instance_is_a_claim() -> None:
    one = instance(
        "a",
        9000,
        metrics_port=9001,
        debug_port=9002,
        dist_init_port=9003,
        other_ports={"nccl": 9004},
        internal_ports={"first": 9100, "count": 8},
    )
    assert [str(claim) for claim in claims_of(one)] == [
        "9000 (a: port)",
        "9001 (a: metrics_port)",
        "9002 (a: debug_port)",
        "9003 (a: dist_init_port)",
        "9004 (a: other_ports.nccl)",
        "9100-9107 (a: internal_ports)",
    ]


def test_no_field_for_a_port_is_forgotten() -> None:
    fields = [name for name in Instance.model_fields if name.endswith("_port")]
    one = instance("a", 9000, **{name: 9001 + number for number, name in enumerate(fields)})
    assert {claim.purpose for claim in claims_of(one)} == {"port", *fields}


def test_a_clash_names_both_owners() -> None:
    one = instance("a", 9000, internal_ports={"first": 9100, "count": 10})
    two = instance("b", 9105, debug_port=9000)
    assert [str(clash) for clash in clashes([one, two])] == [
        "port 9000 is wanted by a (port) and by b (debug_port)",
        "port 9105 is wanted by a (internal_ports) and by b (port)",
    ]


def test_what_listens_now_is_named_too_but_not_against_itself() -> None:
    taken = [Listening(9003, "nginx (pid 7)"), Listening(9003, "nginx (pid 8)"), Listening(22, "sshd (pid 1)")]
    found = clashes([instance("a", 9000, internal_ports={"first": 9002, "count": 4})], taken)
    assert [str(clash) for clash in found] == [
        "port 9003 is wanted by a (internal_ports) and by nginx (pid 7) (listens now)",
        "port 9003 is wanted by a (internal_ports) and by nginx (pid 8) (listens now)",
    ]
    (found_one,) = clashes([instance("a", 9003)], taken[:1])
    assert (found_one.one.owner, found_one.two.owner, found_one.port) == ("a", "nginx (pid 7)", 9003)


def test_br_13_01_each_instance_gets_ports_and_a_range_of_its_own() -> None:
    rows = ", ".join(f"{{name: w{n}, model_path: m, served_name: s, pool: p, device: {n}}}" for n in range(4))
    file = parse_workers(f"instances: [{rows}]")
    assert [one.port for one in file.instances] == [9100, 9101, 9102, 9103]
    spans = [one.internal_ports for one in file.instances]
    assert [span.first for span in spans if span] == [20000, 20064, 20128, 20192]
    assert [one.agent_port for one in file.instances] == [9500, 9501, 9502, 9503]
    assert not clashes(file.instances)


def test_br_13_01_a_port_inside_the_stride_of_another_is_refused() -> None:
    fields = "model_path: m, served_name: s, pool: p"
    text = f"""instances:
  - {{name: a, {fields}, device: 0, internal_ports: {{first: 20000, count: 100}}}}
  - {{name: b, {fields}, device: 1, port: 20050, internal_ports: {{first: 20090}}}}"""
    with pytest.raises(WorkersError) as caught:
        parse_workers(text)
    assert [str(one) for one in caught.value.problems] == [
        "line 3: instances[1].port: port 20050 is wanted by a (internal_ports) and by b (port)",
        "line 3: instances[1].internal_ports: port 20090 is wanted by a (internal_ports) and by b (internal_ports)",
    ]


@pytest.mark.parametrize("engine", sorted(NEEDED))
def test_engines_that_would_choose_a_port_get_one(engine: str) -> None:
    drafts: list[dict[str, object]] = [{"engine": engine}, {"engine": engine}]
    assign_ports(PortPool.model_validate({}), drafts)
    ports = [{draft["port"], *draft["other_ports"].values()} for draft in drafts]  # type: ignore[attr-defined]
    assert len(ports[0] | ports[1]) == 2 * (1 + len(NEEDED[engine]))


def test_ports_of_drafts_that_are_wrong_are_left_for_the_check() -> None:
    drafts: list[dict[str, object]] = [
        {"engine": "sglang", "port": "9100", "other_ports": 3, "metrics_port": "x"},
        {"engine": "mindie", "metrics_port": 9101, "internal_ports": {"first": 9102, "count": "2"}},
    ]
    assign_ports(PortPool.model_validate({}), drafts)
    assert drafts[0]["other_ports"] == 3
    assert (drafts[1]["port"], drafts[1]["other_ports"]) == (9104, {"management": 9105})


def test_metrics_of_its_own_can_be_left_out() -> None:
    drafts: list[dict[str, object]] = [{"agent_port": None}, {"agent_port": 9500}, {}]
    assign_ports(PortPool.model_validate({}), drafts)
    assert [draft["agent_port"] for draft in drafts] == [None, 9500, 9501]


def test_a_pool_that_is_used_up_leaves_the_field_out() -> None:
    pool = PortPool(first=65535, internal_first=65500, internal_stride=64)
    drafts: list[dict[str, object]] = [{}, {"engine": "sglang"}]
    assign_ports(pool, drafts)
    assert (drafts[0].get("port"), drafts[0].get("internal_ports")) == (65535, None)
    assert (drafts[1].get("port"), drafts[1]["other_ports"]) == (None, {})


RANGES = st.lists(st.tuples(st.integers(1, 300), st.integers(0, 20)).map(lambda p: (p[0], p[0] + p[1])), max_size=12)


@given(taken=RANGES, first=st.integers(1, 300), count=st.integers(1, 30))
def test_a_free_port_is_the_lowest_one(taken: list[tuple[int, int]], first: int, count: int) -> None:
    def is_free(port: int) -> bool:
        return all(end < port or start >= port + count for start, end in taken)

    assert free_port(first, taken, count) == next(port for port in range(first, 1000) if is_free(port))


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 60), st.integers(1, 8)),
        max_size=6,
    )
)
def test_clashes_are_exactly_the_pairs_that_overlap(spans: list[tuple[str, int, int]]) -> None:
    instances = [
        instance(f"{name}{n}", 1000 + n, internal_ports={"first": first, "count": count})
        for n, (name, first, count) in enumerate(spans)
    ]
    expected = {
        frozenset((left.name, right.name))
        for n, left in enumerate(instances)
        for right in instances[n + 1 :]
        if left.internal_ports
        and right.internal_ports
        and left.internal_ports.first <= right.internal_ports.last
        and right.internal_ports.first <= left.internal_ports.last
    }
    found = [frozenset((clash.one.owner, clash.two.owner)) for clash in clashes(instances)]
    assert len(found) == len(set(found))
    assert set(found) == expected


def told(engine: Engine, *words: str) -> list[tuple[int, str]]:
    return [
        (fault.index, fault.message.split("; write ")[1].removesuffix(" instead"))
        for fault in flag_faults(engine, words)
    ]


def test_br_13_07_flags_that_contradict_fields_are_refused_in_every_spelling() -> None:
    assert told(Engine.VLLM, "--port", "8080") == [(0, "port: 8080")]
    assert told(Engine.VLLM, "--port=8080") == [(0, "port: 8080")]
    assert told(Engine.VLLM, "--seed", "1", "-tp", "2") == [(2, "tensor_parallel: 2")]
    assert told(Engine.VLLM, "-tp=2", "-tp2") == [(0, "tensor_parallel: 2"), (1, "tensor_parallel: 2")]
    assert told(Engine.VLLM, "--max-model-len", "3", "--max_model_len=5") == [
        (0, "max_model_len: 3"),
        (2, "max_model_len: 5"),
    ]
    assert told(Engine.VLLM, "--gpu-memory-util", ".5", "--enable-prefix-caching", "--x") == [
        (0, "memory_share: .5"),
        (2, "prefix_caching"),
    ]
    assert told(Engine.LLAMACPP, "-c", "4096", "--alias") == [(0, "max_model_len: 4096"), (2, "served_name")]


@pytest.mark.parametrize(
    ("engine", "words", "says"),
    [
        (Engine.VLLM, ("--data_parallel_size=2",), "list an instance for each of them"),
        (Engine.VLLM, ("-dp2",), "list an instance for each of them"),
        (Engine.VLLM, ("--uds", "/run/x"), "answers on a socket"),
        (Engine.VLLM, ("--por", "8080"), "write port: 8080 instead"),
        (Engine.VLLM, ("--ho=0.0.0.0",), "write host: 0.0.0.0 instead"),
        (Engine.VLLM, ("--port 8080",), "is one word"),
        (Engine.SGLANG, ("--dp-size", "2"), "list an instance for each of them"),
        (Engine.SGLANG, ("--max-total-tokens", "9"), "write memory_share: 9 instead"),
        (Engine.TRTLLM, ("--free_gpu_memory_fraction=0.5",), "write memory_share: 0.5 instead"),
        (Engine.TRTLLM, ("--extra_llm_api_options", "x.yaml"), "takes the place of the file"),
    ],
)
def test_flags_that_break_what_fields_say_are_refused(engine: Engine, words: tuple[str, ...], says: str) -> None:
    (fault,) = flag_faults(engine, words)
    assert fault.index == 0
    assert says in fault.message


def test_other_flags_pass() -> None:
    assert not told(
        Engine.VLLM, "--seed", "-1", "--model-impl", "auto", "--trust-remote-code", "-O3", "-1.5", "--x=--port"
    )
    assert not told(Engine.MINDIE, "--port", "1")


def test_every_engine_has_a_table_and_names_fields_that_exist() -> None:
    assert set(MANAGED_FLAGS) == set(Engine)
    fields = {field for table in MANAGED_FLAGS.values() for field in table.values()}
    assert {field for field in fields if not field.startswith("shared.")} <= set(Instance.model_fields)


def test_claims_of_one_port_are_shown_as_one() -> None:
    assert str(Claim("a", "port", 1, 1)) == "1 (a: port)"
