"""The shape of the tree: short files, modules that stand alone, nothing of a machine in it."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from source_tree import ROOT, module_name, python_files, source_files, tracked_files

MAX_LINES = 400

# Imports each module in a fork of a process that has none of ours, so that only a module's own imports can save it.
IMPORT_EACH_ALONE = """
import os, sys
import aiohttp.web, click, httptools, orjson, prometheus_client, pydantic, redis.asyncio, yaml
ours = {"headrace", "policies", "gateway", "workers", "loadtest"}
assert not [name for name in sys.modules if name.partition(".")[0] in ours]
failed = []
for name in sys.argv[1:]:
    pid = os.fork()
    if pid == 0:
        try:
            __import__(name)
        except BaseException:  # whatever it is, the fork must not go on as its parent
            import traceback
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        failed.append(name)
sys.exit(" ".join(failed) or 0)
"""


def test_no_python_file_is_too_long() -> None:
    lengths = {str(path): (ROOT / path).read_text().count("\n") for path in python_files()}
    assert not {path: lines for path, lines in lengths.items() if lines > MAX_LINES}


def test_every_module_can_be_imported_alone() -> None:
    modules = [module_name(path) for path in source_files() if path.stem != "__main__"]
    done = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", IMPORT_EACH_ALONE, *modules],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_test_modules_have_distinct_names() -> None:
    names = [path.name for path in python_files("tests") if path.name not in {"conftest.py", "__init__.py"}]
    assert not sorted({name for name in names if names.count(name) > 1})


def text_files() -> list[Path]:
    """Files that people wrote: not pictures, not recorded data."""
    binary = {".png", ".gz", ".ico", ".woff2", ".zst", ".npz"}
    return [path for path in tracked_files() if path.suffix not in binary]


def test_nothing_names_a_place_of_one_machine_or_a_registry() -> None:
    # Written so that this file does not match itself.
    homes = r"(?<![A-Za-z0-9_.<-])/(?:[w]ork|[h]ome|[r]oot|[U]sers|[f]arm)/"
    registries = r"--(?:extra-)?[i]ndex-url|--[f]ind-links|[f]iles\.pythonhosted|\"resolved\": *\"https?:"
    pattern = re.compile(f"{homes}|{registries}")
    found = [
        f"{path}:{number}: {line.strip()[:100]}"
        for path in text_files()
        for number, line in enumerate((ROOT / path).read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found


def test_the_licence_is_named_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0"
    licence = (ROOT / "LICENSE").read_text()
    assert len(licence.splitlines()) == 1
    assert "SPDX-License-Identifier: Apache-2.0" in licence
