"""The device-memory ledger: what fits, what does not, and what is told about it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from workers.expand import parse_workers
from workers.instances import WorkersFile
from workers.ledger import DeviceMemory, MemoryLedger, Model, as_served, default_batch, device_memory, memory_ledger
from workers.model_files import known_models
from workers.model_shape import ModelError
from workers.portplan import Listening
from workers.tables import memory_tables, port_table
from workers.units import GIB

KNOWN = known_models()
CARD = DeviceMemory(80 * GIB, "H100")


def file_of(*instances: str, mode: str = "partitioned", reserve: float = 0.05) -> WorkersFile:
    rows = "\n".join(f"  - {{name: {'abcdef'[n]}, served_name: s, pool: p, {one}}}" for n, one in enumerate(instances))
    return parse_workers(f"shared: {{memory: {{mode: {mode}, reserve: {reserve}}}}}\ninstances:\n{rows}\n")


def ledger(file: WorkersFile, devices: dict[str, DeviceMemory] | None = None) -> MemoryLedger:
    models: dict[str, Model] = {
        one.name: KNOWN.get(one.model_path, ModelError("no config.json here")) for one in file.instances
    }
    return memory_ledger(file, {"0": CARD} if devices is None else devices, models)


def told(found: MemoryLedger) -> list[str]:
    return [f"{fault.index}.{fault.path[0]}: {fault.message}" for fault in found.faults]


LLAMA = "model_path: Llama-3.1-8B, device: 0, max_model_len: 8192"
QWEN = "model_path: Qwen2.5-7B, device: 0, max_model_len: 8192"


def test_two_models_on_one_card() -> None:
    found = ledger(file_of(f"{LLAMA}, memory_share: 0.5", f"{QWEN}, kv_bytes: 4GiB"))
    assert not told(found)
    a, b = found.rows
    assert a.total == 40 * GIB
    assert a.kv == a.total - a.weights - a.overhead.total
    assert (b.kv, b.total) == (4 * GIB, b.weights + b.overhead.total + 4 * GIB)
    assert a.room is not None
    assert a.room.kv_tokens == a.kv // (16 * 131_072) * 16
    (total,) = found.totals
    assert (total.memory, total.reserve, total.planned) == (80 * GIB, 4 * GIB, a.total + b.total)
    assert total.left == 76 * GIB - a.total - b.total
    assert found.row("a") is a
    assert found.row("z") is None


def test_who_says_nothing_gets_what_the_others_leave() -> None:
    (alone,) = ledger(file_of(LLAMA)).rows
    assert alone.share == pytest.approx(0.95)
    a, b = ledger(file_of(f"{LLAMA}, memory_share: 0.35", QWEN)).rows
    assert (a.share, b.share) == (pytest.approx(0.35), pytest.approx(0.6))
    assert told(ledger(file_of(LLAMA, QWEN))) == [
        "0.memory_share: is needed beside b on device 0: memory_share or kv_bytes",
        "1.memory_share: is needed beside a on device 0: memory_share or kv_bytes",
    ]


def test_br_13_05_a_length_that_does_not_fit_is_an_error_with_the_largest_that_does() -> None:
    found = ledger(file_of("model_path: Llama-3.1-8B, device: 0, max_model_len: 32768, kv_bytes: 2500MiB"))
    (message,) = told(found)
    assert message == (
        "0.max_model_len: a request of 32768 tokens needs 4.00 GiB of KV, 2.44 GiB are there;"
        " the largest that fits is 19984"
    )
    # The model's own length counts where none is given: that is what the engine would take.
    (message,) = told(ledger(file_of("model_path: Llama-3.1-8B, device: 0, kv_bytes: 2500MiB")))
    assert "a request of 131072 tokens" in message


def test_sizes_that_add_up_to_more_than_there_is_are_refused_and_shared_ones_are_told() -> None:
    rows = (f"{LLAMA}, kv_bytes: 40GiB", f"{QWEN}, kv_bytes: 20GiB")
    (message,) = told(ledger(file_of(*rows)))
    assert message.startswith("1.kv_bytes: device 0 is over-committed by 17.22")
    assert "a 56." in message
    assert "76.00 GiB of 80.00 GiB can be planned with" in message
    shared = ledger(file_of(*rows, mode="shared"))
    assert not shared.faults
    (warning,) = shared.warnings
    assert (warning.index, warning.path) == (1, ("device",))
    assert "is over-committed: 93." in warning.message
    assert not ledger(file_of(LLAMA, mode="shared")).warnings


def test_weights_that_do_not_fit() -> None:
    found = ledger(file_of("model_path: Llama-3.1-70B, device: 0, memory_share: 0.9"))
    assert told(found) == [
        "0.memory_share: leaves nothing for KV: weights and overhead take 133.85 GiB, 72.00 GiB are granted"
    ]
    quantised = ledger(file_of("model_path: Llama-3.1-70B, device: 0, quantization: awq, max_model_len: 8192"))
    assert not told(quantised)
    assert told(ledger(file_of(f"{LLAMA}, kv_bytes: 0"))) == [
        "0.kv_bytes: leaves nothing for KV: weights and overhead take 16.93 GiB, 0 B are granted"
    ]


def test_tensor_parallel_takes_its_part_on_each_device() -> None:
    devices = {"0": CARD, "1": DeviceMemory(40 * GIB)}
    fields = "model_path: Llama-3.1-8B, device: [0, 1], tensor_parallel: 2, max_model_len: 8192"
    found = ledger(file_of(fields), devices)
    assert not told(found)
    assert [total.planned for total in found.totals] == [38 * GIB, 38 * GIB]  # as much as the smaller one has
    fields = "model_path: Phi-4-14B, device: [0, 1, 2, 3], tensor_parallel: 4"
    (message,) = told(ledger(file_of(fields), {str(n): CARD for n in range(4)}))
    assert message == "0.model_path: 10 KV heads cannot be spread over tensor_parallel 4: neither divides"


def test_models_that_nobody_knows() -> None:
    unknown = "model_path: /models/x, device: 0"
    assert told(ledger(file_of(unknown))) == ["0.model_path: no config.json here; or state weights_bytes"]
    found = ledger(file_of(f"{unknown}, weights_bytes: 8GiB, kv_bytes: 4GiB"))
    assert not found.faults
    assert found.rows[0].total == 13 * GIB
    assert found.rows[0].room is None
    (warning,) = found.warnings
    assert warning.message == "KV cannot be checked against max_model_len: no config.json here"


def test_models_that_do_not_say_how_long_requests_may_be() -> None:
    file = file_of("model_path: m, device: 0")
    shape = as_served(file.instances[0], KNOWN["Llama-3.1-8B"])
    from dataclasses import replace

    found = memory_ledger(file, {"0": CARD}, {"a": replace(shape, max_model_len=None)})
    assert found.warnings[0].message.endswith("the model does not say how long requests may be")


def test_devices_whose_memory_nobody_knows() -> None:
    (fault,) = told(ledger(file_of(LLAMA), {}))
    assert fault == "0.device: memory of device 0 is not known; state it, or its card's name, in shared.devices"


def test_simulators_take_no_device() -> None:
    found = ledger(file_of("model_path: none, engine: simulator"))
    assert (found.rows, found.faults) == ((), ())


@pytest.mark.parametrize(
    ("fields", "told_"),
    [("kv_cache_dtype: fp3", "kv_cache_dtype: 'fp3'"), ("dtype: int3", "dtype: 'int3'"), ("quantization: x1", "'x1'")],
)
def test_types_that_nobody_knows(fields: str, told_: str) -> None:
    (message,) = told(ledger(file_of(f"{LLAMA}, {fields}")))
    assert told_ in message


def test_types_change_what_is_taken() -> None:
    plain, wide, narrow = (
        ledger(file_of(f"{LLAMA}, kv_bytes: 1GiB{more}")).rows[0]
        for more in ("", ", dtype: float32", ", kv_cache_dtype: fp8, dtype: auto, extra_flags: [--enforce-eager]")
    )
    assert wide.weights == 2 * plain.weights
    assert plain.room is not None
    assert narrow.room is not None
    assert narrow.room.layout.bytes_per_token * 2 == plain.room.layout.bytes_per_token
    assert (plain.overhead.graphs, narrow.overhead.graphs) == (GIB // 2, 0)


@pytest.mark.parametrize(
    ("size", "name", "expected"),
    [
        (192, "", (16384, 1024)),
        (80, "H100", (8192, 1024)),
        (80, "NVIDIA A100-SXM4", (2048, 256)),
        (24, "", (2048, 256)),
    ],
)
def test_defaults_are_the_engine_s(size: int, name: str, expected: tuple[int, int]) -> None:
    assert default_batch(size * GIB, name) == expected


def test_stated_memory_comes_before_what_was_found() -> None:
    text = """
shared: {devices: [{id: 0, memory: 20GiB, name: half}, {id: 1, name: mine}, {id: GPU-2}]}
instances: [{name: a, served_name: s, pool: p, model_path: m, device: 0}]"""
    found = [("0", 24 * GIB, "card"), ("1", 24 * GIB, "card"), ("7", GIB, "other")]
    assert device_memory(parse_workers(text), found) == {
        "0": DeviceMemory(20 * GIB, "half"),
        "1": DeviceMemory(24 * GIB, "mine"),
    }


def shown(*tables: object) -> str:
    console = Console(file=io.StringIO(), width=200)
    for table in tables:
        console.print(table)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


def test_tables_show_both_ledgers() -> None:
    file = file_of(f"{LLAMA}, memory_share: 0.5", "model_path: x, device: 0, weights_bytes: 1G, kv_bytes: 1G")
    text = shown(*memory_tables(ledger(file)))
    assert "40.00 GiB" in text
    assert "H100" in text
    table, clashes = port_table(file.instances, [Listening(9101, "nginx (pid 7)")])
    assert [clash.port for clash in clashes] == [9101]
    text = shown(table)
    assert "also nginx (pid 7): listens now" in text
    assert "20000-20063" in text


def test_what_an_engine_is_told_of_the_plan() -> None:
    found = ledger(file_of(f"{LLAMA}, memory_share: 0.5", f"{QWEN}, kv_bytes: 4GiB"))
    a, b = found.rows
    planned = found.planned("a")
    assert planned is not None
    assert (planned.weights, planned.kv, planned.total) == (a.weights, a.kv, a.total)
    assert (planned.device, planned.free) == (80 * GIB, 80 * GIB - b.total)
    assert a.room is not None
    assert planned.kv_tokens == a.room.kv_tokens
    assert planned.of_device(planned.total) == 0.5
    assert planned.of_free(planned.total) == -(-planned.total * 10_000 // planned.free) / 10_000
    assert planned.of_free(planned.total, taken=planned.free) == 0.99  # there is no more than all of it
    assert found.planned("z") is None
    host = ledger(file_of("model_path: Llama-3.1-8B, device: cpu, kv_bytes: 1GiB"), {"cpu": CARD})
    assert host.planned("a") is None


def test_over_committed_plans_count_on_their_own_part_at_least() -> None:
    found = ledger(file_of(f"{LLAMA}, memory_share: 0.7", f"{LLAMA}, memory_share: 0.7", mode="shared"))
    planned = found.planned("a")
    assert planned is not None
    assert planned.free == planned.total


def test_layers_that_do_not_grow_have_no_token_count() -> None:
    found = ledger(file_of("model_path: Gemma-3-27B, device: 0, max_model_len: 8192, memory_share: 0.9"))
    planned = found.planned("a")
    assert planned is not None
    assert planned.kv_tokens is None


def test_a_cards_name_says_its_memory() -> None:
    named = parse_workers(
        "shared: {devices: [{id: 0, name: NVIDIA L4}, {id: 1, name: the old one}, {id: 2, name: L4}]}\n"
        "instances: [{name: a, model_path: m, served_name: s, pool: p, device: 0}]\n"
    )
    assert device_memory(named, [("2", GIB, "its own")]) == {
        "0": DeviceMemory(22 * GIB, "NVIDIA L4"),
        "2": DeviceMemory(GIB, "L4"),
    }


def test_lengths_that_the_model_was_not_made_for_are_told() -> None:
    found = ledger(file_of("model_path: Llama-3.1-8B, device: 0, max_model_len: 131073, memory_share: 0.9"))
    assert not found.faults
    assert [one.message for one in found.warnings] == [
        "131073 tokens are more than the 131072 that the model was made for; engines refuse that"
    ]
