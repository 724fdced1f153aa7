"""All adapters against recorded answers of their engines, and against answers that are not theirs."""

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from workers.engines.adapters import ADAPTERS
from workers.engines.base import Card, Launch, Reading, UnreadableAnswer, error_message, positive
from workers.engines.llamacpp import LLAMACPP
from workers.engines.vllm import SIMULATOR, VLLM

DATA = Path(__file__).parent / "data"
VLLM_TEXT = (DATA / "vllm_metrics.txt").read_bytes()
LLAMACPP_TEXT = (DATA / "llamacpp_metrics.txt").read_bytes()

VLLM_MODELS = orjson.dumps(
    {
        "object": "list",
        "data": [
            {"id": "tiny", "object": "model", "root": "/models/tiny", "parent": None, "max_model_len": 2048},
            {"id": "tiny-lora", "object": "model", "root": "/loras/1", "parent": "tiny", "max_model_len": None},
        ],
    }
)
LLAMACPP_DOCUMENTS = {
    "/v1/models": orjson.dumps(
        {"models": [{"name": "gemma"}], "object": "list", "data": [{"id": "gemma", "meta": {}}]}
    ),
    "/props": orjson.dumps(
        {"default_generation_settings": {"n_ctx": 4096}, "total_slots": 2, "build_info": "b11549-abc\n"}
    ),
    "/slots": orjson.dumps([{"id": 0, "n_ctx": 2048, "is_processing": True}, {"id": 1, "n_ctx": 2048}]),
}
MODELS = orjson.dumps({"data": [{"id": "tiny", "max_model_len": 2048}]})
SGLANG_INFO = (
    b'{"version": "0.5.3", "max_total_num_tokens": 471258, "max_running_requests": 48, "context_length": null}'
)
SGLANG_TEXT = (DATA / "sglang_metrics.txt").read_bytes()
TRTLLM_TEXT = (DATA / "trtllm_metrics.txt").read_bytes()
MINDIE_TEXT = (DATA / "mindie_metrics.txt").read_bytes()
# Those of SGLang, TensorRT-LLM and MindIE are written from documents that the files name; none of them was run here.
RECORDED = {
    "sglang": (SGLANG_TEXT, {"/v1/models": MODELS, "/get_server_info": SGLANG_INFO}),
    "trtllm": (TRTLLM_TEXT, {"/v1/models": MODELS, "/version": b'{"version": "1.1.0"}'}),
    "mindie": (MINDIE_TEXT, {"/v1/models": MODELS}),
    "vllm": (VLLM_TEXT, {"/v1/models": VLLM_MODELS, "/version": b'{"version":"0.32.0"}'}),
    "simulator": (VLLM_TEXT, {"/v1/models": VLLM_MODELS}),
    "llamacpp": (LLAMACPP_TEXT, LLAMACPP_DOCUMENTS),
}
LAUNCH = Launch(model="/models/tiny", served_name="tiny", host="127.0.0.1", port=9001, directory="/run/w1")


@pytest.fixture(params=sorted(ADAPTERS))
def adapter(request):
    return ADAPTERS[request.param]


def test_every_adapter_has_recorded_answers():
    assert set(RECORDED) == set(ADAPTERS)
    assert all(name == each.name for name, each in ADAPTERS.items())


def test_recorded_answers_are_read(adapter):
    text, documents = RECORDED[adapter.name]
    reading = adapter.read_metrics(text, {})
    assert reading.prompt_tokens > 0
    assert reading.generation_tokens > 0
    assert set(documents) <= {*adapter.card_paths, *adapter.hint_paths}
    card = adapter.read_card(documents)
    assert card.models
    assert card.max_model_len == 2048
    assert reading.kv_usage is None or 0 <= reading.kv_usage <= 1
    if adapter is not LLAMACPP:  # which has no histograms
        assert reading.ttft.quantile(0.5) > 0
        assert reading.itl.quantile(0.5) > 0


def test_what_was_never_run_says_so(adapter):
    """By hand written texts must not pass for recorded ones."""
    marked = b"Not run live" in RECORDED[adapter.name][0]
    assert marked == (not adapter.live)


def test_hints_may_be_missing(adapter):
    documents = RECORDED[adapter.name][1]
    assert adapter.read_card({path: documents[path] for path in adapter.card_paths}).models


@pytest.mark.parametrize("text", [b"", b"<html>404</html>", b"up 1\n", b"\xff" * 100, b"vllm:num_requests_waiting 1\n"])
def test_other_peoples_metrics_are_refused(adapter, text):
    with pytest.raises(UnreadableAnswer, match=f"^{adapter.metrics_path}: "):
        adapter.read_metrics(text, {})


@pytest.mark.parametrize("value", ["-1", "1e300", "1000001"])
def test_impossible_counts_are_refused(adapter, value):
    names = {
        "llamacpp": "llamacpp:requests_processing",
        "sglang": "sglang:num_running_reqs",
        "trtllm": "trtllm_num_requests_running",
        "mindie": "npu_cache_usage_perc 0\nnum_requests_running",
    }
    name = names.get(adapter.name, "vllm:num_requests_running")
    with pytest.raises(UnreadableAnswer, match="a count of"):
        adapter.read_metrics(f"{name} {value}\n".encode(), {})


def test_too_much_text_is_refused(adapter):
    with pytest.raises(UnreadableAnswer, match="at most 4194304"):
        adapter.read_metrics(b"\n" * (4 * 1024 * 1024 + 1), {})


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"{}", b'{"data": 3}', b'{"data": []}', b'{"data": [3, {"id": 4}]}']
)
def test_a_model_list_that_is_none_is_refused(adapter, body):
    with pytest.raises(UnreadableAnswer, match=r"^/v1/models: "):
        adapter.read_card({"/v1/models": body})


def said_to(adapter, launch):
    """Everything that an engine is started with, as one text."""
    files = {name: body.decode() for name, body in adapter.files(launch).items()}
    return " ".join([*adapter.command(launch), *adapter.environment(launch).values(), *files.values()])


def test_commands_leave_to_the_engine_what_nobody_decided(adapter):
    argv = adapter.command(LAUNCH)
    assert "None" not in said_to(adapter, LAUNCH)
    assert all(isinstance(part, str) for part in argv)
    said = said_to(adapter, LAUNCH)
    assert all(word in said for word in ("tiny", "127.0.0.1", "9001"))
    assert "/models/tiny" in said or adapter is SIMULATOR


def test_every_choice_reaches_the_engine_or_is_refused(adapter):
    """A field that changes nothing of what is started is one that the adapter says it cannot take."""
    choices = {
        "max_model_len": 777,
        "max_num_seqs": 33,
        "max_num_batched_tokens": 16384,
        "kv_bytes": 3 * 2**30,
        "orders_by_priority": True,
        "memory_share": 0.37,
        "prefix_caching": True,
        "chunked_prefill": True,
        "quantization": "fp8",
        "dtype": "bfloat16",
        "kv_cache_dtype": "fp8",
        "block_size": 64,
        "tensor_parallel": 2,
        "extra": ("--more",),
        "program": ("/opt/engine",),
    }
    plain = said_to(adapter, LAUNCH)
    ignored = {name for name, value in choices.items() if said_to(adapter, replace(LAUNCH, **{name: value})) == plain}
    # Switched on by itself, so that asking for it changes nothing; asking for the other does.
    on_already = {name for name in ignored if said_to(adapter, replace(LAUNCH, **{name: False})) != plain}
    if adapter is SIMULATOR:  # it plays any engine and takes no device: what is only about memory and types is idle
        ignored -= {"kv_bytes", "memory_share", "chunked_prefill", "quantization", "dtype", "kv_cache_dtype"}
    if adapter.name == "llamacpp":  # its share is the memory ledger's: it takes what its context needs
        ignored -= {"memory_share"}
    assert ignored - on_already - {"tensor_parallel"} == set(adapter.cannot)


def test_the_program_may_be_another(adapter):
    argv = adapter.command(replace(LAUNCH, program=("docker", "run", "image"), extra=("--last",)))
    assert argv[:3] == ("docker", "run", "image")
    assert argv[-1] == "--last"


def test_an_engine_is_asked_for_one_token(adapter):
    first, *others = adapter.ask("tiny", "Hi", 1)
    assert orjson.loads(first.body)["max_tokens"] == 1
    assert all(orjson.loads(ask.body)["model"] == "tiny" for ask in (first, *others))


# Shapes: vLLM 0.32 and llama.cpp as seen on the wire; SGLang and TensorRT-LLM from their serving code's ErrorResponse.
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "The model `x` does not exist.", "type": "NotFoundError", "code": 404}}', "The model"),
        (b'{"error": "Unauthorized"}', "Unauthorized"),
        (b'{"error": {"code": 400, "message": "request (9024 tokens) exceeds", "n_ctx": 2048}}', "request (9024"),
        (b'{"object": "error", "message": "too long", "type": "BadRequest", "param": null, "code": 400}', "too long"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b"Internal\n Server Error", "Internal Server Error"),
        (b'{"else": 1}', '{"else": 1}'),
        (b"\xff" * 5000, "\ufffd"),
        (b'{"error": {"code": 3}}', '{"error"'),
    ],
)
def test_error_messages_of_all_shapes(body, message):
    said = error_message(body)
    assert said.startswith(message)
    assert len(said) <= 300
    assert "\n" not in said


# === vLLM ===


def test_vllm_metrics():
    busy = (
        VLLM_TEXT.replace(
            b'vllm:num_requests_running{engine="0",model_name="tiny"} 0.0', b"vllm:num_requests_running 5.0"
        )
        .replace(b'vllm:num_requests_waiting{engine="0",model_name="tiny"} 0.0', b"vllm:num_requests_waiting 2.0")
        .replace(b'vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.0', b"vllm:kv_cache_usage_perc 0.25")
        .replace(b'vllm:num_preemptions_total{engine="0",model_name="tiny"} 0.0', b"vllm:num_preemptions_total 3.0")
        .replace(
            b'vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 0.0', b"vllm:prefix_cache_hits_total 64.0"
        )
    )
    reading = VLLM.read_metrics(busy, {})
    assert reading.ttft.counts[-1] == 269
    assert replace(reading, ttft=None, itl=None) == Reading(
        running=5,
        waiting=2,
        kv_usage=0.25,
        kv_tokens=1023 * 128,
        preemptions=3,
        prompt_tokens=8150,
        generation_tokens=4498,
        prefix_queries=8146,
        prefix_hits=64,
        started="1795966212.19",
    )


def test_vllm_old_names():
    text = b"vllm:num_requests_running 1\nvllm:gpu_cache_usage_perc 0.5\nvllm:gpu_prefix_cache_queries_total 9\n"
    reading = VLLM.read_metrics(text, {})
    assert (reading.kv_usage, reading.prefix_queries, reading.kv_tokens, reading.started) == (0.5, 9, None, "")


def test_vllm_data_parallel_engines_add_up():
    text = (
        'vllm:num_requests_running{engine="0"} 1\nvllm:num_requests_running{engine="1"} 2\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.6\n'
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="101",engine="0"} 1.0\n'
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="201",engine="1"} 1.0\n'
    )
    reading = VLLM.read_metrics(text.encode(), {})
    assert (reading.running, reading.kv_tokens) == (3, 4800)
    assert reading.kv_usage == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("labels", "capacity"),
    [
        ('block_size="32",num_gpu_blocks="65",kv_cache_size_tokens="2080"', 2048),
        ('block_size="32",num_gpu_blocks="65",kv_cache_size_tokens="1000"', 1000),
        ('block_size="32",num_gpu_blocks="65",kv_cache_size_tokens="None"', 2048),
        ('block_size="32",num_gpu_blocks="None",kv_cache_size_tokens="1000"', 1000),
        ('block_size="32",num_gpu_blocks="None"', None),
        ('block_size="-1",num_gpu_blocks="65"', None),
        ('block_size="32",num_gpu_blocks="1"', None),
    ],
)
def test_vllm_kv_capacity(labels, capacity):
    text = f"vllm:num_requests_running 0\nvllm:cache_config_info{{{labels}}} 1.0\n"
    assert VLLM.read_metrics(text.encode(), {}).kv_tokens == capacity


def test_vllm_card():
    card = VLLM.read_card({"/v1/models": VLLM_MODELS, "/version": b'{"version":"0.32.0"}'})
    assert card == Card(models=("tiny", "tiny-lora"), max_model_len=2048, version="0.32.0", adapters=("tiny-lora",))
    assert VLLM.supports_continuation


def test_vllm_command():
    launch = Launch(
        "m", "tiny", "127.0.0.1", 9001, 2048, 4, 512, 1 << 20, orders_by_priority=True, extra=("--enforce-eager",)
    )
    assert " ".join(VLLM.command(launch)) == (
        "vllm serve m --served-model-name tiny --host 127.0.0.1 --port 9001 --max-model-len 2048 --max-num-seqs 4"
        " --max-num-batched-tokens 512 --kv-cache-memory-bytes 1048576 --scheduling-policy priority --enforce-eager"
    )


def test_vllm_command_with_everything():
    launch = replace(
        LAUNCH,
        program=("/venv/bin/vllm",),
        memory_share=0.4,
        prefix_caching=False,
        chunked_prefill=True,
        quantization="fp8",
        dtype="bfloat16",
        kv_cache_dtype="fp8",
        block_size=32,
        tensor_parallel=2,
        pipeline_parallel=2,
        dist_init_port=29500,
        first_internal_port=20000,
    )
    assert " ".join(VLLM.command(launch)).endswith(
        "--port 9001 --gpu-memory-utilization 0.4 --quantization fp8 --dtype bfloat16 --kv-cache-dtype fp8"
        " --block-size 32 --tensor-parallel-size 2 --pipeline-parallel-size 2 --master-port 29500"
        " --no-enable-prefix-caching --enable-chunked-prefill"
    )
    assert VLLM.environment(launch) == {"VLLM_PORT": "20000"}


def test_the_simulator_speaks_as_vllm_does():
    assert SIMULATOR.read_metrics is VLLM.read_metrics
    assert SIMULATOR.metrics_path == VLLM.metrics_path


def test_simulator_command():
    launch = replace(LAUNCH, name="w1", pool="p", max_model_len=100, prefix_caching=False, debug_port=9002)
    assert " ".join(SIMULATOR.command(launch)[1:]) == (
        "-m workers.engines.simulator_cli --id w1 --pool p --host 127.0.0.1 --port 9001 --model tiny"
        " --max-model-len 100 --admin-port 9002 --no-prefix-caching"
    )


# === llama.cpp ===


def test_llamacpp_metrics():
    assert LLAMACPP.read_metrics(LLAMACPP_TEXT, {"process-start-time-unix": "915383146"}) == Reading(
        running=2,
        waiting=5,
        prompt_tokens=1500,
        generation_tokens=512,
        prefix_queries=1500,
        prefix_hits=300,
        started="915383146",
    )


def test_llamacpp_card_by_slots_by_props_and_by_neither():
    assert LLAMACPP.read_card(LLAMACPP_DOCUMENTS) == Card(("gemma",), 2048, 2, 4096, "b11549-abc")
    by_props = {path: body for path, body in LLAMACPP_DOCUMENTS.items() if path != "/slots"}
    assert LLAMACPP.read_card(by_props) == Card(("gemma",), 4096, 2, 8192, "b11549-abc")
    assert LLAMACPP.read_card({"/v1/models": LLAMACPP_DOCUMENTS["/v1/models"]}) == Card(("gemma",))
    odd = LLAMACPP_DOCUMENTS | {"/props": b'{"default_generation_settings": 3, "build_info": 4}', "/slots": b"[3]"}
    assert LLAMACPP.read_card(odd) == Card(("gemma",))
    with pytest.raises(UnreadableAnswer, match=r"^/slots: a list was expected, not a dict"):
        LLAMACPP.read_card(LLAMACPP_DOCUMENTS | {"/slots": b"{}"})


def test_llamacpp_command_multiplies_the_context_by_the_slots():
    launch = Launch("m.gguf", "gemma", "127.0.0.1", 9001, max_model_len=2048, max_num_seqs=4)
    assert " ".join(LLAMACPP.command(launch)) == (
        "llama-server --model m.gguf --alias gemma --host 127.0.0.1 --port 9001 --parallel 4 --ctx-size 8192"
        " --metrics --slots"
    )


@pytest.mark.parametrize(
    ("value", "number"),
    [
        *[(5, 5), ("5", 5), (0, None), ("0", None), (-5, None), (True, None), ("None", None), (None, None)],
        *[(2.5, None), ("9" * 400, None), ("٣", None), (2**60, None)],
    ],
)
def test_positive(value, number):
    assert positive(value) == number
