"""workers.yaml: layers, variables, and every fault at once with its place and a suggestion."""

from __future__ import annotations

import json

import pytest

from workers import schema
from workers.expand import parse_workers
from workers.instances import Engine, Instance, Mode, WorkersFile
from workers.units import parse_bytes, show_bytes
from workers.yamldoc import MAX_BYTES, MAX_PROBLEMS, WorkersError

WHOLE = """
shared:
  fleet: lab
  devices: [{id: 0, memory: 80GiB, name: H100}, {id: MIG-1, memory: 20 GiB}]
  memory: {mode: shared, reserve: 0.1}
  ports: {first: 9100, internal_first: 21000, internal_stride: 10}
  variables: {models: /srv/models, seqs: 64}
  defaults:
    device: 0
    pool: short-chat
    max_num_seqs: ${seqs}
    env: {HF_HUB_OFFLINE: "1", ROLE: "${name}-${index}"}
  templates:
    chat:
      variables: {size: 8b}
      model_path: ${models}/llama-${size}
      served_name: chat
      memory_share: 0.4
instances:
  - {name: a, template: chat, env: {ROLE: mine}}
  - {name: b, template: chat, variables: {size: 70b, seqs: 8}, port: 9100, metrics_port: 9101}
  - {name: c, engine: simulator, model_path: none, served_name: "$${x}${nothing:-y}", device: []}
"""

SMALL = "instances: [{name: a, model_path: m, served_name: s, pool: p, device: 0%s}]"


def problems(text: str | bytes, variables: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(WorkersError) as caught:
        parse_workers(text, variables)
    return [str(one) for one in caught.value.problems]


def one(fields: str) -> WorkersFile:
    return parse_workers(SMALL % f", {fields}")


def test_layers_and_variables_come_together() -> None:
    file = parse_workers(WHOLE)
    a, b, c = file.instances
    assert file.shared.memory.mode is Mode.SHARED
    assert file.shared.devices[0].memory == 80 * 2**30
    assert (a.model_path, a.max_num_seqs, a.device) == ("/srv/models/llama-8b", 64, ("0",))
    assert (b.model_path, b.max_num_seqs) == ("/srv/models/llama-70b", 8)
    assert dict(a.env) == {"HF_HUB_OFFLINE": "1", "ROLE": "mine"}
    assert b.env["ROLE"] == "b-1"
    assert (c.engine, c.served_name, c.device) == (Engine.SIMULATOR, "${x}y", ())
    assert file.instance("b") is b
    with pytest.raises(KeyError):
        file.instance("z")


def test_variables_of_the_command_line_win() -> None:
    assert parse_workers(WHOLE, {"size": "1b"}).instance("b").model_path == "/srv/models/llama-1b"


def test_ports_that_nobody_named_go_around_those_that_are() -> None:
    a, b, c = parse_workers(WHOLE).instances
    assert (a.port, b.port, c.port) == (9102, 9100, 9103)
    assert a.internal_ports is not None
    assert b.internal_ports is not None
    assert (a.internal_ports.first, a.internal_ports.last, b.internal_ports.first) == (21000, 21009, 21010)
    assert c.internal_ports is None  # only vLLM counts upwards from VLLM_PORT


def test_every_fault_is_told_at_once_where_it_was_written() -> None:
    text = """
shared:
  memory: {mode: partitionedd}
  defaults: {pool: p, device: 0, nam: x, name: y}
  templates:
    chat: {model_path: "${modls}/m", served_name: s, max_model_le: 4}
    unused: {portt: 1}
  variables: {models: /srv}
instance: []
instances:
  - {name: a, template: chat}
  - {name: b, template: chta, port: 90000}
  - {name: c, template: chat, kv_bytes: 4 GX, engine: vlm, priority_scheduling: maybe}
  - [1]
  - {name: "a b", template: chat, max_num_seqs: 0, env: {1bad: x}, internal_ports: {frist: 1}}
"""
    assert problems(text) == [
        (
            "line 3: shared.memory.mode: must be one of partitioned, shared, got 'partitionedd'"
            " (did you mean partitioned?)"
        ),
        "line 4: shared.defaults.nam: unknown key",
        "line 4: shared.defaults.name: every instance has a name of its own; leave it out here",
        "line 6: shared.templates.chat.model_path: ${modls} is not a variable here (did you mean models?)",
        "line 6: shared.templates.chat.max_model_le: unknown key (did you mean max_model_len?)",
        "line 7: shared.templates.unused.portt: unknown key (did you mean port?)",
        "line 9: instance: unknown key (did you mean instances?)",
        "line 12: instances[1].template: names no template of shared.templates, got 'chta' (did you mean chat?)",
        "line 12: instances[1].port: must be at most 65535, got 90000",
        (
            "line 13: instances[2].engine: must be one of vllm, sglang, trtllm, llamacpp, mindie, simulator, got 'vlm'"
            " (did you mean vllm?)"
        ),
        (
            "line 13: instances[2].kv_bytes: must be an amount of memory such as 24GiB, 512MiB or a number of bytes,"
            " got '4 GX'"
        ),
        "line 13: instances[2].priority_scheduling: must be true or false, got 'maybe'",
        "line 14: instances[3]: must be a mapping, got a list",
        "line 15: instances[4].name: has characters that are not allowed here, or is empty or too long, got 'a b'",
        "line 15: instances[4].internal_ports.first: is required",
        "line 15: instances[4].internal_ports.frist: unknown key (did you mean first?)",
        "line 15: instances[4].max_num_seqs: must be at least 1, got 0",
        "line 15: instances[4].env.1bad: has characters that are not allowed here, or is empty or too long, got '1bad'",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty"),
        ("[1]", "must be a mapping with shared and instances"),
        ("{a: [}", "line 1: is not YAML: "),
        (b"\xff\xfe\x00", "is not YAML: "),
        ("a: &x [*x]", "is nested too deeply"),
        ("instances: []", "line 1: instances: must be a list of 1 to 256 instances, got a list"),
        ("a: 1\na: 2\ninstances: 3", "line 2: a: key given twice, first in line 1"),
        ("a: !!timestamp 2024-99-99\n", "line 1: a: cannot be read as timestamp, got '2024-99-99'"),
        ("{? [1] : 2}", "line 1: keys must be text"),
        ("x: &a {b: 1}\ny: {<<: *a}", "line 2: y: keys must be text; templates take the place of merge keys"),
        ("[" * 5000, "is nested too deeply"),
        ("#" * (MAX_BYTES + 1), f"is larger than {MAX_BYTES} bytes"),
        ("shared: [1]\ninstances: [{}]", "line 1: shared: must be a mapping, got a list"),
    ],
)
def test_text_that_is_no_such_document(text: str | bytes, told: str) -> None:
    assert any(line.startswith(told) or told in line for line in problems(text))


def test_aliases_are_counted_at_their_full_size() -> None:
    bomb = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
        f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefg", "bcdefgh", strict=True)
    )
    assert any("has more than 100000 values, aliases expanded" in line for line in problems(bomb))


def test_dates_are_text() -> None:
    assert one("env: {D: 2024-01-02}").instances[0].env["D"] == ("2024-01-02")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ("memory_share: 0.5, kv_bytes: 1G", "kv_bytes: contradicts memory_share"),
        ("max_num_seqs: 64, max_num_batched_tokens: 32", "max_num_batched_tokens: must be at least max_num_seqs (64)"),
        (
            "max_model_len: 4096, max_num_batched_tokens: 2048, chunked_prefill: false",
            "max_num_batched_tokens: must be at least max_model_len (4096) without chunked_prefill, got 2048",
        ),
        ("tensor_parallel: 2", "device: tensor_parallel 2 × pipeline_parallel 1 needs 2 devices, got 1"),
        ("env: {VLLM_PORT: '1'}", "env.VLLM_PORT: is set from the field internal_ports.first; write it there instead"),
        ("env: {VLLM_PORT: '1'}, port: x", "env.VLLM_PORT: is set from the field internal_ports.first"),
        ("memory_share: 0.96", "memory_share: shares of device 0 add up to 0.96 (a 0.96); at most 0.95"),
        ("memory_share: 0", "memory_share: must be more than 0, got 0"),
        ("warmup_prompts: ['']", "warmup_prompts[0]: "),
        ("port: 9100, other_ports: {debug: 9100}", "other_ports.debug: port 9100 is wanted by a (port) and by a"),
    ],
)
def test_values_that_do_not_go_together(fields: str, told: str) -> None:
    with pytest.raises(WorkersError, match="instances") as caught:
        one(fields)
    assert f"instances[0].{told}" in str(caught.value)


def test_devices_are_those_that_are_listed() -> None:
    text = "shared: {devices: [{id: GPU-1234}]}\n" + (SMALL % ", tensor_parallel: 2").replace(
        "device: 0", "device: [GPU-1235, GPU-1235]"
    )
    assert problems(text) == [
        "line 2: instances[0].device[0]: names no device of shared.devices, got 'GPU-1235' (did you mean GPU-1234?)",
        "line 2: instances[0].device[1]: names no device of shared.devices, got 'GPU-1235' (did you mean GPU-1234?)",
        "line 2: instances[0].device: names a device twice: GPU-1235, GPU-1235",
    ]


def test_br_13_03_shares_of_one_device_above_the_reserve_are_refused() -> None:
    def two(first: float, second: float, mode: str = "partitioned") -> str:
        fields = "model_path: m, served_name: s, pool: p, device: 0"
        return (
            f"shared: {{memory: {{mode: {mode}}}}}\n"
            f"instances: [{{name: a, {fields}, memory_share: {first}}}, {{name: b, {fields}, memory_share: {second}}}]"
        )

    assert len(parse_workers(two(0.35, 0.2)).instances) == 2
    assert len(parse_workers(two(0.35, 0.6)).instances) == 2  # exactly all of it
    assert "add up to 0.96 (a 0.36, b 0.6); at most 0.95" in problems(two(0.36, 0.6))[0]
    assert len(parse_workers(two(0.6, 0.6, "shared")).instances) == 2  # over-committed on purpose


def test_urls_lead_to_where_it_can_be_reached() -> None:
    assert one("port: 9000").instances[0].url == "http://127.0.0.1:9000"
    assert one("port: 9000, host: 0.0.0.0").instances[0].url == "http://127.0.0.1:9000"
    assert one("port: 9000, host: '::'").instances[0].url == "http://[::1]:9000"


def test_the_schema_file_is_current() -> None:
    assert schema.SCHEMA.read_text() == schema.schema_text(), "run python -m workers.schema"


def test_the_reference_is_current_and_its_example_is_good() -> None:
    text = schema.REFERENCE.read_text()
    assert text == schema.reference(), "run python -m workers.schema"
    example = text.split("```yaml\n")[1].split("```")[0]
    assert [one.model_path for one in parse_workers(example).instances] == ["/srv/models/chat"] * 2
    assert all(f"| `{name}` |" in text for name in Instance.model_fields)


def test_the_schema_knows_every_key_of_the_file_as_it_is_written() -> None:
    found = json.loads(schema.schema_text())["$defs"]
    assert {"template", "variables", "name"} == set(found["Instance"]["properties"])
    assert {"model_path", "port", "device", "internal_ports"} <= set(found["Fields"]["properties"])
    assert {"defaults", "templates", "variables", "devices"} <= set(found["Shared"]["properties"])
    assert {"type": "string", "pattern": r"\$\{"} in found["Fields"]["properties"]["port"]["anyOf"]


@pytest.mark.parametrize(
    ("written", "amount"), [("24GiB", 24 * 2**30), ("1.5 G", 3 * 2**29), ("2kB", 2000), (7, 7), ("7", 7), ("8 B", 8)]
)
def test_amounts(written: object, amount: int) -> None:
    assert parse_bytes(written) == amount


@pytest.mark.parametrize("written", ["", "G", "4 gib", "-1", True, None, 1.5, -1, "2000TiB", 2**60])
def test_amounts_that_are_none(written: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_bytes(written)


def test_amounts_are_shown_for_people() -> None:
    assert [show_bytes(one) for one in (3.81 * 2**30, 5 * 2**20, 131072)] == ["3.81 GiB", "5.00 MiB", "131,072 B"]


def test_names_are_unique_and_other_variables_pass() -> None:
    fields = "model_path: m, served_name: s, pool: p, engine: simulator"
    assert problems(f"instances: [{{name: a, {fields}}}, {{name: a, {fields}}}]") == [
        "line 1: instances[1].name: a is the name of instances[0] too"
    ]
    assert one("env: {PYTHONHASHSEED: '0'}").instances[0].env["PYTHONHASHSEED"] == "0"


def test_empty_sections_are_no_sections() -> None:
    text = "shared: {defaults: null, templates: , variables: }\n" + SMALL % ""
    assert len(parse_workers(text).instances) == 1


def test_problems_are_bounded() -> None:
    instances = "".join(f"  - {{name: i{n}, port: x{n}}}\n" for n in range(200))
    assert len(problems(f"instances:\n{instances}")) == MAX_PROBLEMS
    assert len(
        problems("instances: [{}]\n" + "a: !!int x\n" * 3 + "".join(f"b{n}: !!int x\n" for n in range(200)))
    ) == (MAX_PROBLEMS)


def test_odd_keys_and_values_are_shown_so_that_they_can_be_found() -> None:
    text = 'shared: {templates: {"a b": {x: 1}}}\ninstances: [{name: [1], port: {a: 1}, host: null}]'
    found = "\n".join(problems(text))
    assert 'shared.templates["a b"].x: unknown key' in found
    assert "instances[0].name: must be text, got a list" in found
    assert "instances[0].port: must be a whole number, got a mapping" in found
    assert "instances[0].host: must be text, got null" in found
