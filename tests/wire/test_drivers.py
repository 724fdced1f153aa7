"""Devices as drivers tell of them, through whole commands: their libraries and tools are stand-ins put in the way.

No device is at hand where this runs. What stands in has the names and shapes of the real ones: `pynvml` as a package on
the path, `npu-smi` as a program.
"""

import json
import os
import sys

import pytest
import yaml
from click.testing import CliRunner

from workers.cli import worker

PYNVML = """
from types import SimpleNamespace
class NVMLError(Exception): pass
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlSystemGetDriverVersion(): return "550.54.15"
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetMemoryInfo(handle):
    return SimpleNamespace(total=(10 if handle == "part" else 80) << 30, used=3 << 30 if handle == 0 else 0)
def nvmlDeviceGetUtilizationRates(handle):
    if handle: raise NVMLError("Not Supported")
    return SimpleNamespace(gpu=37)
def nvmlDeviceGetName(handle): return "NVIDIA A100-SXM4-80GB"
def nvmlDeviceGetUUID(handle): return {0: "GPU-aa", 1: "GPU-bb", "part": "MIG-1"}[handle]
def nvmlDeviceGetMaxMigDeviceCount(handle): return 2
def nvmlDeviceGetMigDeviceHandleByIndex(handle, index):
    if (handle, index) == (1, 0): return "part"
    raise NVMLError("Not Found")
"""
NPU_SMI = """#!/bin/sh
cat <<'END'
| npu-smi 23.0.rc2                 Version: 23.0.rc2                                              |
| 0     910B3               | OK            | 92.1        37                0    / 0             |
| 0                         | 0000:C1:00.0  | 40          0    / 0          3350 / 65536         |
END
"""
SHAPE = """
{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
 "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 128256, "torch_dtype": "bfloat16",
 "max_position_embeddings": 131072}
"""


@pytest.fixture
def dry_run(tmp_path, monkeypatch):
    (tmp_path / "npu-smi").write_text(NPU_SMI)
    (tmp_path / "npu-smi").chmod(0o755)
    (tmp_path / "config.json").write_text(SHAPE)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def run(*instances, library=PYNVML):
        (tmp_path / "pynvml.py").write_text(library)
        monkeypatch.delitem(sys.modules, "pynvml", raising=False)
        defaults = {"model_path": str(tmp_path), "served_name": "m", "pool": "p", "max_model_len": 8192}
        document = {"shared": {"defaults": defaults}, "instances": list(instances)}
        path = tmp_path / "workers.yaml"
        path.write_text(yaml.safe_dump(document))
        done = CliRunner().invoke(worker, ["run", "--dry-run", "--json", "-c", str(path)])
        monkeypatch.delitem(sys.modules, "pynvml", raising=False)
        return json.loads(done.stdout)

    return run


def test_ledgers_of_cards_parts_of_cards_and_npus(dry_run):
    told = dry_run(
        {"name": "a", "device": 0, "memory_share": 0.5},
        {"name": "b", "device": "MIG-1", "memory_share": 0.4, "model_path": "Qwen2.5-0.5B"},
        {"name": "c", "device": "GPU-bb"},
        {"name": "d", "device": 0, "kv_bytes": "9GiB"},
    )
    assert told["faults"] == []
    memory = {one["device"]: (one["name"], one["memory"] >> 30) for one in told["memory"]["devices"]}
    card = "NVIDIA A100-SXM4-80GB"
    assert memory == {"0": (card, 80), "MIG-1": (f"{card} MIG", 10), "GPU-bb": (card, 80)}
    argv = told["instances"]["d"]["argv"]
    share = float(argv[argv.index("--gpu-memory-utilization") + 1])
    assert 0.25 < share < 0.45  # weights, 9 GiB and what comes with them, of 80 GiB


def test_an_npu_is_found_by_its_tool(dry_run):
    told = dry_run({"name": "a", "engine": "mindie", "device": "0", "memory_share": 0.9})
    # Both makers count from 0; the engine decides whose device is meant.
    assert told["memory"]["devices"][0]["memory"] >> 30 == 64
    assert told["instances"]["a"]["environment"]["ASCEND_RT_VISIBLE_DEVICES"] == "0"


def test_a_device_of_two_names_one_name_of_two_devices_and_a_device_in_use(dry_run):
    told = dry_run({"name": "a", "device": 0, "memory_share": 0.5}, {"name": "b", "device": "GPU-aa"})
    assert "device 0 is GPU-aa, too; call it by one of the two everywhere" in told["faults"]
    told = dry_run({"name": "a", "device": 0}, {"name": "b", "engine": "mindie", "device": 0, "memory_share": 0.4})
    assert "device 0 is meant of two makers; call the NVIDIA device by its UUID" in told["faults"]
    told = dry_run({"name": "a", "device": 0, "memory_share": 0.95}, {"name": "b", "device": 1, "memory_share": 0.95})
    assert told["faults"] == told["warnings"] == []
    told = dry_run({"name": "a", "device": 0, "memory_share": 0.95}, library=PYNVML.replace("3 << 30", "5 << 30"))
    (warning,) = told["warnings"]
    assert warning.startswith("device 0: 5.00 GiB of 80.00 GiB are in use now, and 76.00 GiB are planned; end what")
