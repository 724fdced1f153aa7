"""From `workers.yaml` to command line, environment and files."""

import pytest
import yaml

from workers.engines.adapters import ADAPTERS
from workers.expand import parse_workers
from workers.launch import device_environment, launch_of, refusals, start_of


def instance(**fields):
    fields.setdefault("device", "0")
    file = {
        "shared": {"devices": fields.pop("devices", [])},
        "instances": [{"name": "a", "model_path": "/m", "served_name": "tiny", "pool": "p", "port": 9001, **fields}],
    }
    parsed = parse_workers(yaml.safe_dump(file))
    return parsed.instances[0], parsed


@pytest.mark.parametrize("engine", sorted(ADAPTERS))
def test_every_engine_can_be_started(engine):
    one, file = instance(engine=engine)
    start = start_of(one, file, "/run/a")
    assert start.argv[0]
    said = " ".join([*start.argv, *map(str, start.files.values())])
    assert "9001" in said
    assert start.directory == "/run/a"


def test_every_field_is_passed_on():
    one, _ = instance(
        device=[0, 1],
        tensor_parallel=2,
        max_model_len=100,
        max_num_seqs=3,
        max_num_batched_tokens=200,
        memory_share=0.5,
        prefix_caching=True,
        chunked_prefill=False,
        priority_scheduling=True,
        quantization="fp8",
        dtype="bfloat16",
        kv_cache_dtype="fp8",
        block_size=32,
        dist_init_port=9100,
        debug_port=9101,
        metrics_port=9102,
        other_ports={"x": 9103},
        internal_ports={"first": 20000, "count": 8},
        program=["/vllm"],
        extra_flags=["--enforce-eager"],
    )
    launch = launch_of(one, "/run/a")
    assert (launch.model, launch.served_name, launch.host, launch.port) == ("/m", "tiny", "127.0.0.1", 9001)
    assert (launch.max_model_len, launch.max_num_seqs, launch.max_num_batched_tokens) == (100, 3, 200)
    assert (launch.memory_share, launch.prefix_caching, launch.chunked_prefill) == (0.5, True, False)
    assert (launch.orders_by_priority, launch.quantization, launch.dtype) == (True, "fp8", "bfloat16")
    assert (launch.kv_cache_dtype, launch.block_size, launch.tensor_parallel) == ("fp8", 32, 2)
    assert (launch.dist_init_port, launch.debug_port, launch.metrics_port) == (9100, 9101, 9102)
    assert (launch.first_internal_port, launch.ports) == (20000, {"x": 9103})
    assert (launch.program, launch.extra, launch.device_ids) == (("/vllm",), ("--enforce-eager",), ("0", "1"))
    assert refusals(one) == []


@pytest.mark.parametrize(
    ("fields", "environment"),
    [
        ({"device": [], "engine": "simulator"}, {}),
        ({"device": "cpu"}, {"CUDA_VISIBLE_DEVICES": ""}),
        ({"device": 3}, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "3"}),
        (
            {"device": "MIG-8c5c5d1e-0000-0000-0000-000000000000"},
            {
                "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                "CUDA_VISIBLE_DEVICES": "MIG-8c5c5d1e-0000-0000-0000-000000000000",
            },
        ),
        (
            {"device": 0, "compute_share": 0.35},
            {
                "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                "CUDA_VISIBLE_DEVICES": "0",
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "35",
            },
        ),
        ({"device": [2, 3], "tensor_parallel": 2, "engine": "mindie"}, {"ASCEND_RT_VISIBLE_DEVICES": "2,3"}),
        (
            {"device": 1, "devices": [{"id": "1", "kind": "ascend", "memory": "64GiB"}]},
            {"ASCEND_RT_VISIBLE_DEVICES": "1"},
        ),
    ],
)
def test_devices_are_shown_by_the_environment(fields, environment):
    assert device_environment(*instance(**fields)) == environment


def test_the_environment_of_the_file_comes_last():
    one, file = instance(env={"HF_HUB_OFFLINE": "1"})
    environment = start_of(one, file, "").environment
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["VLLM_PORT"] == "20000"


def test_metrics_of_another_port():
    one, file = instance(engine="mindie", host="0.0.0.0")
    assert start_of(one, file, "").metrics_url == f"http://127.0.0.1:{one.other_ports['metrics']}"
    one, file = instance()
    assert start_of(one, file, "").metrics_url is None


def test_what_an_engine_cannot_take_is_told():
    one, _ = instance(engine="sglang", kv_bytes="1GiB")
    assert refusals(one) == [("kv_bytes", "sglang has no way to take this; leave it out")]
    one, _ = instance(engine="trtllm", priority_scheduling=True)
    assert [field for field, _ in refusals(one)] == ["priority_scheduling"]
