"""A small part of the core, really compiled: it is used, and no longer once the source is another."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.compiled.build import COMPILERS, NAME, CannotCompileError, build

ROOT = Path(__file__).resolve().parents[2]

LOOK = f"""
import {NAME}
import gateway.compiled, gateway.long_bytes, policies.joint_bits, policies.work
assert [gateway.long_bytes.plain_end(b'a%c"' % byte, 0, 2) for byte in range(256)] == [
    2 if 32 <= byte < 128 and byte not in b'"\\\\' else -1 for byte in range(256)
]
assert policies.joint_bits.joint_bits(bytes(range(256))) == 1279
step = policies.work.preset_for(None).step
assert step == policies.work.StepTime(step.t0, step.c_seq, step.W, step.c_tok, step.c_kv, step.c_pair, step.c_comm)
in_c = gateway.long_bytes.__file__.endswith(".so") and policies.joint_bits.__file__.endswith(".so")
print(gateway.compiled.in_use(), in_c, f"{{step.prefill_s(1000):.6f}}")
"""


def look(root: Path, site: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", LOOK], cwd=root, env={"PYTHONPATH": f"{root}:{site}"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="no C compiler here")
def test_what_was_compiled_is_used_for_its_own_source_only(tmp_path: Path) -> None:
    root = tmp_path / "checkout"
    for package in ("policies", "gateway", "workers"):
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copy(ROOT / "pyproject.toml", root)
    site = tmp_path / "site"
    site.mkdir()
    build(root, ["gateway/long_bytes.c", "policies/joint_bits.c", "policies/work.py"], site / NAME)
    compiled, in_c, seconds = look(root, site)
    assert compiled == in_c == "True"
    with (root / "gateway/long_bytes.c").open("a") as file:
        file.write("/* another state */\n")
    assert look(root, site) == ["False", "False", seconds]


def test_without_a_compiler_it_says_so_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotCompileError, match="no C compiler"):
        build(ROOT, ["policies/work.py"], tmp_path / NAME)
    assert not (tmp_path / NAME).exists()
