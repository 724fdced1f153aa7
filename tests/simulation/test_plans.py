"""`headrace plan`: what it answers, and that its answers hold together."""

from __future__ import annotations

import json
import sys
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from loadtest.cli_plan import plan
from workers.expand import parse_workers
from workers.ledger import device_memory, memory_ledger
from workers.model_files import load_model

CHAT = ("--trace", "azure2023_conv", "--seconds", "30")


def run(*words: str) -> Result:
    return CliRunner().invoke(plan, list(words))


@cache
def same(*words: str) -> Result:
    """Runs that several tests look at."""
    return run(*words)


def answer(*words: str, status: int = 0) -> dict[str, Any]:
    done = same(*words, "--json")
    assert done.exit_code == status, done.output
    found = json.loads(done.output)
    assert isinstance(found, dict)
    return found


def test_as_many_instances_as_it_takes() -> None:
    found = answer("--model", "Llama-3.1-8B", "--device", "a100-80", *CHAT, "--rate", "14")
    assert found["fits"]
    assert found["meets_goal"]
    assert found["basis"].startswith("preset llama3-8b/a100-80")
    assert found["expected"]["goodput"] >= 0.99
    assert found["headroom"] >= 1
    assert found["instances"] >= 2
    # One less would not do: that is why there are so many.
    assert found["one_less"]["expected"]["goodput"] < 0.99
    assert found["one_more"]["devices"] == found["devices"] + 1
    (one, *_) = found["layouts"]
    assert one["kv_bytes_per_token"] == 131_072
    assert one["kv_fixed_bytes_per_request"] == 0
    assert found["flags"]["max_num_seqs"] <= one["concurrency"]["true"]


def test_the_same_question_has_the_same_answer() -> None:
    words = ("--model", "Qwen2.5-7B", "--device", "l4", "--prompt", "500,2000,4000", "--output", "50,200,400")
    first = answer(*words, "--concurrency", "8", "--seconds", "30")
    assert first == json.loads(run(*words, "--concurrency", "8", "--seconds", "30", "--json").output)


def test_given_cards_are_spent_in_the_best_way_and_a_split_is_tried() -> None:
    words = ("--model", "Llama-3.1-8B", "--device", "h100", "--trace", "mooncake_conversation", "--seconds", "30")
    found = answer(*words, "--rate", "2", "--devices", "4", "--tensor-parallel", "1", "--goodput", "0.5")
    assert found["devices"] == 4
    split = found["split"]
    assert split is None or split["short"] + split["long"] == 4


def test_too_little_is_an_answer_with_status_1() -> None:
    found = answer("--model", "Llama-3.1-70B", "--device", "rtx4090", "--devices", "1", *CHAT, status=1)
    assert not found["fits"]
    assert "weights and overhead are" in found["why_not"][0]
    slow = answer("--model", "Llama-3.1-8B", "--device", "l4", "--devices", "1", *CHAT, "--rate", "9", status=1)
    assert slow["fits"]
    assert not slow["meets_goal"]
    assert slow["headroom"] == 0
    shown = run("--model", "Llama-3.1-70B", "--device", "rtx4090", "--devices", "1", *CHAT)
    assert "Llama-3.1-70B does not fit on rtx4090" in shown.output


def checked(text: str) -> None:
    """What a plan writes is a file that passes both ledgers."""
    file = parse_workers(text)
    models = {one.name: load_model(one.model_path) for one in file.instances}
    ledger = memory_ledger(file, device_memory(file, []), models)
    assert not ledger.faults
    assert not ledger.warnings
    assert len(ledger.rows) == len(file.instances)


def test_the_file_of_a_plan_passes_the_ledgers() -> None:
    done = run("--model", "Llama-3.1-8B", "--device", "h100", *CHAT, "--rate", "8", "--kv-dtype", "fp8", "--yaml")
    assert done.exit_code == 0, done.output
    assert "kv_cache_dtype: fp8" in done.output
    checked(done.output)


THREE = ("--model", "Qwen2.5-7B=1", "--model", "Llama-3.2-3B=2:servegen_m-mid_sampled", "--model", "Qwen2.5-0.5B=3")


def test_one_card_three_models() -> None:
    found = answer(*THREE, "--device", "h100", *CHAT)
    assert found["fits"]
    assert found["meets_goal"]
    assert [one["workload"] for one in found["models"]] == [
        "azure2023_conv",
        "servegen_m-mid_sampled",
        "azure2023_conv",
    ]
    assert sum(one["flags"]["memory_share"] for one in found["models"]) <= 0.95
    assert all(one["expected"]["goodput"] >= 0.99 for one in found["models"])
    written = run(*THREE, "--device", "h100", *CHAT, "--yaml")
    checked(written.output)
    tight = answer(*THREE, "--device", "h100", "--device-memory", "20GiB", *CHAT, status=1)
    assert not tight["fits"]


def test_tables_for_people() -> None:
    done = run(*THREE, "--device", "h100", *CHAT)
    assert done.exit_code == 0
    assert "KV fixed a request" in done.output
    one = run("--model", "Llama-3.1-8B", "--device", "h100", *CHAT, "--rate", "4")
    assert "headroom: " in one.output
    assert max(map(len, one.output.splitlines())) <= 100
    short = run("--model", "Llama-3.1-8B", "--device", "l4", "--devices", "1", *CHAT, "--rate", "9")
    assert "falls short of 99.0% goodput; one more instance costs 1 cards" in short.output
    none = run(*THREE, "--device", "h100", "--device-memory", "20GiB", *CHAT)
    assert "more than its share of the device" in none.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--model", "x", "--device", "h100", *CHAT), "no known model"),
        (("--model", "Llama-3.1-8B", "--device", "abacus", *CHAT), "no card 'abacus'"),
        (("--model", "Llama-3.1-8B", *CHAT), "no card found"),
        (("--model", "Llama-3.1-8B", "--device", "h100"), "give --trace, or --prompt and --output"),
        (("--model", "Llama-3.1-8B", "--device", "h100", "--prompt", "1,2,3", "--output", "1,2,3"), "give --rate"),
        (("--model", "Llama-3.1-8B", "--device", "h100", *CHAT, "--rate", "1", "--concurrency", "2"), "give one"),
        (("--model", "Llama-3.1-8B", "--device", "h100", *CHAT, "--kv-dtype", "fp3"), "kv_cache_dtype: 'fp3'"),
        (("--model", "Llama-3.1-8B", "--device", "h100", *CHAT, "--quantization", "x"), "quantization: 'x'"),
        (("--model", "Llama-3.1-8B", "--device", "h100", *CHAT, "--device-memory", "x"), "must be an amount of memory"),
        (("--model", "Llama-3.1-8B=1", "--model", "Qwen2.5-7B", "--device", "h100", *CHAT), "needs its rate"),
        ((*THREE, "--device", "h100", "--devices", "2", *CHAT), "several models share one card"),
    ],
)
def test_questions_that_cannot_be_answered(words: tuple[str, ...], told: str) -> None:
    done = run(*words)
    assert done.exit_code == 2
    assert told in done.output


def test_ways_that_are_not_possible_are_told_beside_those_that_are() -> None:
    words = ("--model", "Phi-4-14B", "--device", "a100-80", "--devices", "4", *CHAT, "--rate", "2")
    found = answer(*words)
    assert [one["tensor_parallel"] for one in found["layouts"]] == [1, 2]
    assert found["why_not"] == [
        "tensor_parallel 4: 10 KV heads cannot be spread over tensor_parallel 4: neither divides"
    ]


def test_a_lower_goal_takes_fewer_instances() -> None:
    words = ("--model", "Llama-3.1-8B", "--device", "a100-80", *CHAT, "--rate", "14")
    assert answer(*words, "--goodput", "0.2")["instances"] < answer(*words)["instances"]


def test_the_card_of_this_host_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: object) -> int:
        return 0

    library = SimpleNamespace(
        NVMLError=LookupError,
        nvmlInit=nothing,
        nvmlShutdown=nothing,
        nvmlSystemGetDriverVersion=lambda: "550",
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=nothing,
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(total=90 * 2**30, used=0),
        nvmlDeviceGetUtilizationRates=lambda _: SimpleNamespace(gpu=0),
        nvmlDeviceGetName=lambda _: "NVIDIA H100 80GB HBM3",
        nvmlDeviceGetUUID=lambda _: "GPU-1",
        nvmlDeviceGetMaxMigDeviceCount=nothing,
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    found = answer("--model", "Qwen2.5-0.5B", *CHAT, "--rate", "1", "--devices", "1", "--quantization", "fp8")
    assert found["device"] == "h100"
    (layout,) = found["layouts"]
    # All that this one has, not what its kind usually has.
    taken = layout["weights_bytes"] + layout["overhead_bytes"] + layout["kv_bytes"]
    assert taken == pytest.approx(0.95 * 90 * 2**30, abs=2)
