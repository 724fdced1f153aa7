"""SGLang, TensorRT-LLM and MindIE as their documents describe them. None of them was run here."""

import json
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner

from workers.cli import worker
from workers.engines.base import Card, Launch, Planned
from workers.engines.mindie import MINDIE, config_of, read_config, write_config
from workers.engines.sglang import SGLANG
from workers.engines.trtllm import TRTLLM
from workers.engines.vllm import VLLM
from workers.expand import parse_workers
from workers.units import GIB

DATA = Path(__file__).parent / "data"
LAUNCH = Launch(
    model="/models/tiny",
    served_name="tiny",
    host="127.0.0.1",
    port=9001,
    max_model_len=4096,
    max_num_seqs=16,
    max_num_batched_tokens=2048,
    memory_share=0.4,
    tensor_parallel=2,
    directory="/run/w1",
)
MODELS = orjson.dumps({"data": [{"id": "tiny"}, {"id": "lora", "parent": "tiny"}]})


def read(name, adapter):
    return adapter.read_metrics((DATA / f"{name}_metrics.txt").read_bytes(), {})


# === SGLang ===


def test_sglang_metrics():
    reading = read("sglang", SGLANG)
    assert (reading.running, reading.waiting, reading.preemptions) == (5, 2, 2)
    assert (reading.kv_usage, reading.kv_tokens) == (0.28, 471258)
    assert (reading.prompt_tokens, reading.generation_tokens) == (8128, 7557)
    assert (reading.prefix_queries, reading.prefix_hits) == (8128, 64)
    assert reading.ttft.quantile(0.5) == pytest.approx(0.1 + 0.9 * 8 / 21)


def test_sglang_card():
    info = b'{"version": "0.5.3", "max_total_num_tokens": 9, "max_running_requests": 48, "context_length": 4096}'
    documents = {"/v1/models": MODELS, "/get_server_info": info}
    assert SGLANG.read_card(documents) == Card(("tiny", "lora"), 4096, 48, 9, "0.5.3", ("lora",))


def test_sglang_command():
    launch = replace(
        LAUNCH,
        dist_init_port=29500,
        ports={"nccl": 29600},
        prefix_caching=False,
        orders_by_priority=True,
        extra=("--x",),
    )
    assert " ".join(SGLANG.command(launch)) == (
        "python -m sglang.launch_server --model-path /models/tiny --served-model-name tiny --host 127.0.0.1 --port 9001"
        " --context-length 4096 --max-running-requests 16 --chunked-prefill-size 2048 --mem-fraction-static 0.4"
        " --tp-size 2 --dist-init-addr 127.0.0.1:29500 --nccl-port 29600 --disable-radix-cache"
        " --enable-priority-scheduling --schedule-low-priority-values-first --enable-metrics --x"
    )
    assert "--chunked-prefill-size -1" in " ".join(SGLANG.command(replace(LAUNCH, chunked_prefill=False)))


PLANNED = Planned(
    device=80 * GIB, free=50 * GIB, weights=15 * GIB, kv=20 * GIB, runtime=GIB, total=38 * GIB, kv_tokens=163_840
)


def test_sglangs_fraction_is_of_what_is_free():
    said = " ".join(SGLANG.command(replace(LAUNCH, planned=PLANNED)))
    # (15 + 20 + 1) / 50: not the share of the device, 38 / 80, which would leave (0.475 * 50 - 15 - 1) = 8 GiB of KV.
    assert "--mem-fraction-static 0.72 --max-total-tokens 163840" in said
    said = " ".join(SGLANG.command(replace(LAUNCH, planned=replace(PLANNED, kv_tokens=None))))
    assert "--max-total-tokens" not in said


# === TensorRT-LLM ===


def test_trtllm_metrics():
    reading = read("trtllm", TRTLLM)
    assert (reading.running, reading.waiting, reading.kv_usage, reading.kv_tokens) == (3, 1, 0.5, 32000)
    assert (reading.prompt_tokens, reading.generation_tokens, reading.prefix_hits) == (9000, 3000, 640)


def test_trtllm_that_served_nobody_yet_is_idle():
    reading = TRTLLM.read_metrics(b"# TYPE trtllm_num_requests_running gauge\n", {})
    assert (reading.running, reading.kv_usage, reading.kv_tokens) == (0, None, None)


def test_trtllm_command_and_file():
    launch = replace(LAUNCH, kv_bytes=2**30, prefix_caching=True, block_size=64, chunked_prefill=True, dtype="float16")
    assert " ".join(TRTLLM.command(launch)) == (
        "trtllm-serve /models/tiny --served_model_name tiny --host 127.0.0.1 --port 9001 --max_seq_len 4096"
        " --max_batch_size 16 --max_num_tokens 2048 --kv_cache_free_gpu_memory_fraction 0.4 --tp_size 2"
        " --config /run/w1/trtllm.yaml"
    )
    assert orjson.loads(TRTLLM.files(launch)["trtllm.yaml"]) == {
        "return_perf_metrics": True,
        "enable_iter_perf_stats": True,
        "enable_chunked_prefill": True,
        "dtype": "float16",
        "kv_cache_config": {"enable_block_reuse": True, "tokens_per_block": 64, "max_gpu_total_bytes": 2**30},
    }


def test_trtllms_fraction_is_of_what_the_weights_leave_free():
    launch = replace(LAUNCH, planned=PLANNED)
    # 20 / (50 - 15 - 1), and no more than 20 GiB where more is free.
    assert "--kv_cache_free_gpu_memory_fraction 0.5883" in " ".join(TRTLLM.command(launch))
    config = orjson.loads(TRTLLM.files(launch)["trtllm.yaml"])
    assert config["kv_cache_config"]["max_gpu_total_bytes"] == 20 * GIB


# === MindIE ===


def test_mindie_metrics():
    reading = read("mindie", MINDIE)
    assert (reading.running, reading.waiting, reading.preemptions, reading.kv_usage) == (7, 4, 637, 0.3)
    assert (reading.prompt_tokens, reading.generation_tokens) == (9564, 84425)
    assert (reading.prefix_queries, reading.prefix_hits) == (9564, 4782)
    percent = b"num_requests_running 1\nnpu_cache_usage_perc 30\n"
    assert MINDIE.read_metrics(percent, {}).kv_usage == pytest.approx(0.3)


def test_mindie_is_started_with_a_file():
    launch = replace(LAUNCH, kv_bytes=8 * 2**30 + 5, prefix_caching=True, ports={"management": 9002, "metrics": 9003})
    assert MINDIE.command(launch) == ("mindieservice_daemon",)
    assert MINDIE.environment(launch) == {
        "MIES_CONFIG_JSON_PATH": "/run/w1/config.json",
        "MIES_SERVICE_MONITOR_MODE": "1",
        "NPU_MEMORY_FRACTION": "0.4",
    }
    config = orjson.loads(MINDIE.files(launch)["config.json"])
    assert config["BackendConfig"]["npuDeviceIds"] == [[0, 1]]
    assert config["ServerConfig"]["metricsPort"] == MINDIE.metrics_port(launch) == 9003
    assert config["BackendConfig"]["ModelDeployConfig"]["ModelConfig"][0]["npuMemSize"] == 8
    assert config["BackendConfig"]["ScheduleConfig"]["maxPrefillTokens"] == 4096


def test_mindie_config_of_two_instances_is_read():
    first, second = read_config((DATA / "mindie_config.json").read_bytes())
    assert (first.name, first.device_ids, first.devices) == ("llama3-8b-0", ("0", "1"), 2)
    assert (second.name, second.device_ids) == ("llama3-8b-1", ("2", "3"))
    assert (first.model, first.served_name, first.host, first.port) == (
        "/weights/llama3-8b",
        "llama3-8b",
        "127.0.0.1",
        1025,
    )
    assert (first.max_model_len, first.max_num_seqs, first.max_num_batched_tokens) == (2560, 200, 8192)
    assert (first.kv_bytes, first.block_size, first.tensor_parallel, first.prefix_caching) == (8 * 2**30, 128, 2, True)
    assert (first.metrics_port, first.ports) == (1027, {"management": 1026})


def test_what_is_written_is_read_again():
    launch = replace(LAUNCH, kv_bytes=4 * 2**30, max_num_batched_tokens=8192, prefix_caching=True, metrics_port=9003)
    (again,) = read_config(orjson.dumps(config_of(launch)))
    fields = ("model", "served_name", "host", "port", "max_model_len", "max_num_seqs", "max_num_batched_tokens")
    for name in (*fields, "kv_bytes", "tensor_parallel", "prefix_caching", "metrics_port"):
        assert getattr(again, name) == getattr(launch, name), name


def test_a_config_of_two_instances_is_written_and_read_again():
    both = read_config((DATA / "mindie_config.json").read_bytes())
    assert read_config(write_config(both)) == both
    server = orjson.loads(write_config(both))["BackendConfig"]
    assert (server["modelInstanceNumber"], server["npuDeviceIds"]) == (2, [[0, 1], [2, 3]])


def test_a_config_with_a_model_for_each_list_of_devices():
    config = orjson.loads((DATA / "mindie_config.json").read_bytes())
    models = config["BackendConfig"]["ModelDeployConfig"]["ModelConfig"]
    models.append({**models[0], "modelName": "other", "npuMemSize": -1})
    first, second = read_config(orjson.dumps(config))
    assert (first.name, second.name, second.served_name) == ("llama3-8b-0", "other-1", "other")
    assert (first.kv_bytes, second.kv_bytes) == (8 * GIB, None)
    models.append(models[0])
    with pytest.raises(ValueError, match="3 models for 2 lists of devices"):
        read_config(orjson.dumps(config))


def test_instances_that_one_daemon_cannot_run():
    one, two = read_config((DATA / "mindie_config.json").read_bytes())
    with pytest.raises(ValueError, match="llama3-8b-1 differs from llama3-8b-0 in max_num_seqs, kv_bytes"):
        write_config([one, replace(two, max_num_seqs=3, kv_bytes=None)])
    with pytest.raises(ValueError, match="llama3-8b-1 must name its devices by number, got uuid"):
        write_config([one, replace(two, device_ids=("uuid",))])
    with pytest.raises(ValueError, match="no instance"):
        write_config([])


def test_a_workers_file_becomes_a_mindie_config(tmp_path):
    source = DATA / "mindie_config.json"
    path = tmp_path / "workers.yaml"
    path.write_text(CliRunner().invoke(worker, ["import", str(source), "--pool", "chat"]).stdout)
    done = CliRunner().invoke(worker, ["export", "-c", str(path)])
    assert done.exit_code == 0, done.output
    assert read_config(done.stdout.encode()) == read_config(source.read_bytes())
    line = CliRunner().invoke(worker, ["export", "-c", str(path), "--json"]).output
    assert (line.count("\n"), json.loads(line)) == (1, json.loads(done.output))
    one = CliRunner().invoke(worker, ["export", "-c", str(path), "--instance", "llama3-8b-1"])
    assert [launch.device_ids for launch in read_config(one.stdout.encode())] == [("2", "3")]
    path.write_text(path.read_text() + "- {name: v, model_path: m, served_name: s, pool: p, device: 0}\n")
    for words, says in (
        (["--instance", "nobody"], "there is no instance nobody"),
        (["--instance", "v"], "not an instance of MindIE: v"),
        (["--set", "x=1", "-c", "/nowhere"], "/nowhere: No such file"),
    ):
        done = CliRunner().invoke(worker, ["export", "-c", str(path), *words])
        assert done.exit_code == 2
        assert says in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"{", "not JSON"),
        (b"[]", "ServerConfig: must be a mapping"),
        (b'{"ServerConfig": {}}', "BackendConfig: must be a mapping"),
        (b" " * (1024 * 1024 + 1), "at most 1048576 are read"),
    ],
)
def test_a_config_that_is_none(text, why):
    with pytest.raises(ValueError, match=why):
        read_config(text)


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (("ServerConfig", "port"), "1025", "ServerConfig.port: must be a port, got '1025'"),
        (("BackendConfig", "npuDeviceIds"), [0], "npuDeviceIds: must be a list of lists"),
        (("BackendConfig", "ModelDeployConfig", "ModelConfig"), [], "ModelConfig: must be a list with a mapping"),
    ],
)
def test_a_fault_in_a_config_is_named(path, value, why):
    config = orjson.loads((DATA / "mindie_config.json").read_bytes())
    section = config
    for key in path[:-1]:
        section = section[key]
    section[path[-1]] = value
    with pytest.raises(ValueError, match=why):
        read_config(orjson.dumps(config))


def test_a_mindie_config_becomes_a_workers_file():
    done = CliRunner().invoke(worker, ["import", str(DATA / "mindie_config.json"), "--pool", "chat"])
    assert done.exit_code == 0, done.output
    file = parse_workers(done.stdout)
    first, second = file.instances
    assert (first.name, first.device, first.tensor_parallel) == ("llama3-8b-0", ("0", "1"), 2)
    assert (first.port, first.metrics_port, first.other_ports["management"]) == (1025, 1027, 1026)
    assert (second.device, second.kv_bytes, second.pool) == (("2", "3"), 8 * 2**30, "chat")
    assert second.port != first.port
    as_json = CliRunner().invoke(worker, ["import", str(DATA / "mindie_config.json"), "--pool", "chat", "--json"])
    assert parse_workers(as_json.stdout) == file


def test_a_file_that_cannot_be_imported(tmp_path):
    (tmp_path / "x").write_text("[]")
    for path, says in (("/nowhere", "No such file"), (str(tmp_path / "x"), "ServerConfig: must be a mapping")):
        done = CliRunner().invoke(worker, ["import", path, "--pool", "chat"])
        assert done.exit_code == 2
        assert says in " ".join(done.output.split())


def test_mindies_kv_is_the_ledgers():
    launch = replace(LAUNCH, memory_share=None, planned=replace(PLANNED, kv=20 * GIB + 5))
    config = orjson.loads(MINDIE.files(launch)["config.json"])
    (model,) = config["BackendConfig"]["ModelDeployConfig"]["ModelConfig"]
    assert model["npuMemSize"] == 20
    assert MINDIE.environment(launch)["NPU_MEMORY_FRACTION"] == "0.475"


def test_vllms_share_is_the_ledgers_where_the_file_leaves_it_open():
    """vLLM 0.32 compares its utilisation with what is free also when the KV's size is given (`request_memory`)."""
    said = " ".join(VLLM.command(replace(LAUNCH, memory_share=None, kv_bytes=20 * GIB, planned=PLANNED)))
    assert "--gpu-memory-utilization 0.475 --kv-cache-memory-bytes 21474836480" in said
    assert "--gpu-memory-utilization 0.4 " in " ".join(VLLM.command(replace(LAUNCH, planned=PLANNED)))
