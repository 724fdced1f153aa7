"""The installer with a recipe that downloads nothing, and the generated model."""

import fcntl
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from workers.engines.cpu import install as installer
from workers.engines.cpu import tiny_model
from workers.engines.cpu.install import InstallError, Recipe, ensure_installed, python_of


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pins = tmp_path / "requirements.txt"
    pins.write_text("# nothing\n")

    def use(check="json"):
        recipe = Recipe("nothing-1.0", str(pins), check, names=(("pretended", "1.0"),))
        monkeypatch.setitem(installer.RECIPES, "nothing", recipe)
        return pins

    return use


def home():
    return python_of("nothing").parents[1]


def test_installs_once_and_anew_when_it_was_interrupted_or_the_pins_changed(recipe):
    pins = recipe()
    said = []
    python = ensure_installed("nothing", said.append)
    code = "import importlib.metadata as m; print(m.version('pretended'))"
    assert subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout == "1.0\n"
    assert said[0] == f"nothing: installing into {home()}"

    said.clear()
    assert ensure_installed("nothing", said.append) == python
    assert said == []

    (home() / "complete").unlink()
    ensure_installed("nothing", said.append)
    assert said[0] == "nothing: removing an incomplete or outdated installation"

    said.clear()
    pins.write_text("# still nothing\n")
    ensure_installed("nothing", said.append)
    assert said[0] == "nothing: removing an incomplete or outdated installation"


def test_a_failure_leaves_no_marker_and_shows_what_was_printed(recipe):
    recipe("no_such_module")
    with pytest.raises(InstallError, match="No module named 'no_such_module'"):
        ensure_installed("nothing", lambda _: None)
    assert home().exists()
    assert not (home() / "complete").exists()


def test_two_installers_do_not_meet(recipe):
    recipe()
    lock = home().parent / ".nothing-1.0.lock"
    lock.parent.mkdir(parents=True)
    waits = threading.Event()
    said = []

    def say(line):
        said.append(line)
        waits.set()

    with lock.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        other = threading.Thread(target=ensure_installed, args=("nothing", say))
        other.start()
        assert waits.wait(30)
        assert said == ["nothing: another process installs it; waiting"]
        assert not home().exists()
    other.join(60)
    assert said[1] == f"nothing: installing into {home()}"
    assert (home() / "complete").exists()


def test_progress_is_a_line_now_and_then(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(installer.time, "monotonic", lambda: now[0])
    said = []
    progress = installer._Progress("e", 3, said.append)
    for name in ("a==1", "b==1", "c==1"):
        progress.line(f"Collecting {name} (from -r file)")
        progress.line("  Downloading it")
        now[0] += 4
    progress.line("Installing collected packages: a, b, c")
    assert said == ["e: 3 of 3 packages, now c==1", "e: unpacking 3 packages"]


def test_the_pins_are_exact():
    here = Path(installer.__file__).parent
    for recipe in installer.RECIPES.values():
        lines = [line for line in (here / recipe.requirements).read_text().splitlines() if not line.startswith("#")]
        assert all(line.count("==") == 1 for line in lines)


def test_weights_are_the_same_on_every_machine_and_safetensors():
    raw = tiny_model.safetensors(tiny_model.tensors(seed=1))
    assert raw == tiny_model.safetensors(tiny_model.tensors(seed=1))
    assert raw != tiny_model.safetensors(tiny_model.tensors(seed=2))
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    assert length % 8 == 0
    end = 0
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        begin, until = tensor["data_offsets"]
        assert begin == end
        size = 2
        for side in tensor["shape"]:
            size *= side
        assert until - begin == size
        end = until
    assert len(raw) == 8 + length + end
    assert header["model.layers.1.self_attn.k_proj.weight"]["shape"] == [64, 128]


def test_bfloat16_rounds_to_nearest_even():
    assert tiny_model._bfloat16(1.0) == 0x3F80
    assert tiny_model._bfloat16(-2.0) == 0xC000
    assert tiny_model._bfloat16(1.0 + 2**-8) == 0x3F80
    assert tiny_model._bfloat16(1.0 + 3 * 2**-8) == 0x3F82


def test_the_training_text_is_reproducible_and_enough():
    text = tiny_model.training_text(1)
    assert text == tiny_model.training_text(1)
    assert len({word for line in text for word in line.split()}) > 3000


def test_the_scripts_for_the_engines_python_need_nothing_of_ours():
    here = Path(installer.__file__).parent
    for name in ("tiny_model.py", "vllm_forks.py", "llama_server.py"):
        code = f"import runpy; runpy.run_path({str(here / name)!r}, run_name='seen')"
        subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, timeout=60)
