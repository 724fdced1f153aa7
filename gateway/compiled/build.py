"""`python -m gateway.compiled.build`: compile the core for the environment that this Python runs in.

One to two minutes of processor time, once for each state of the source. Needs mypy and setuptools
(`make install-dev`) and a C compiler. What went wrong is said in one line; the environment is then as it was, and pure
Python runs.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import Progress

from gateway.compiled.hook import MANIFEST, PACKAGES, digest_of
from gateway.compiled.native import with_constructors
from gateway.compiled.side_by_side import side_by_side

GROUP = "headrace_core"
"""Name of the one library that holds the code of all modules."""

NAME = "headrace_compiled"
"""Name of the hook and of the directory that it lies in."""

COMPILERS = ("cc", "gcc", "clang")

WHOLE = ("gateway/scheduling", "gateway/http")
"""Packages that are compiled whole."""

SINGLE = (
    "gateway/leasing/lows.py",
    *(
        f"policies/{name}.py"
        for name in ("balance", "canaries", "classify", "kinds", "outputs", "tokens", "tuning", "work")
    ),
    *(
        f"gateway/{name}.py"
        for name in (
            "admission", "body_fields", "body_guard", "decimals", "dispatcher", "engine_body", "errors", "events",
            "facts", "forms", "guarded_gate", "history", "hollow", "keys", "learning", "local_answers", "log",
            "metrics", "modes", "openai", "poison", "policy_store", "prefix_chain", "prompts", "quarantine", "quota",
            "quota_gate", "recent", "records", "request_fields", "series", "splice", "tally", "telemetry", "tenants",
            "traffic", "trials", "tuning", "usage",
        )
    ),
)  # fmt: skip

IN_C = ("gateway/long_bytes.c", "policies/joint_bits.c")
"""Written in C; each beside the module that says the same in Python, in whose place it is used."""

Told = Callable[[int, int], None]
CHECK = "import gateway.app, gateway.compiled as c, sys; sys.exit(0 if c.in_use() else 3)"


class CannotCompileError(RuntimeError):
    """Why there is no compiled core, in one line."""


def core(root: Path) -> list[str]:
    """The modules that mypyc compiles, as paths in the checkout."""
    found = {f"{package}/{path.name}" for package in WHOLE for path in (root / package).glob("*.py")}
    found = {path for path in found if not path.endswith("__init__.py")} | set(SINGLE)
    return sorted(path for path in found if (root / path).exists())


def build(root: Path, files: Sequence[str], place: Path, told: Told = lambda done, whole: None) -> None:
    """Compile `files` of the checkout at `root` into the directory `place`, which must not exist yet.

    `told(done, whole)` hears of each C file that is compiled. Raises `CannotCompileError`.
    """
    if not any(map(shutil.which, COMPILERS)):
        raise CannotCompileError(f"there is no C compiler ({', '.join(COMPILERS)}) on PATH")
    try:
        from mypyc.build import mypycify
        from setuptools import Distribution, Extension
    except ImportError as error:
        raise CannotCompileError(f"{error.name} is missing (make install-dev)") from None
    digest = digest_of(root)
    with TemporaryDirectory(prefix="headrace-compile-") as scratch:
        here = Path(scratch)
        for package in (*PACKAGES, "workers"):  # whose reports the gateway reads
            shutil.copytree(root / package, here / package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        shutil.copy(root / "pyproject.toml", here)
        modules = [file for file in files if file.endswith(".py")]
        for file in modules:
            (here / file).write_text(with_constructors((here / file).read_text("utf-8")), "utf-8")
        before = Path.cwd()
        os.chdir(here)
        try:
            with (here / "said").open("w") as said, redirect_stdout(said):
                extensions = mypycify(
                    modules, opt_level="2", debug_level="0", multi_file=True, group_name=GROUP, target_dir="c"
                )
                extensions += [
                    Extension(file.removesuffix(".c").replace("/", "."), [file], extra_compile_args=["-O3"])
                    for file in files
                    if file.endswith(".c")
                ]
                if sys.platform == "linux":  # calls inside the library need no table: a twentieth of the processor time
                    for extension in extensions:
                        extension.extra_link_args.append("-Wl,-Bsymbolic")
                distribution = Distribution({"name": GROUP, "ext_modules": extensions})
                command = distribution.get_command_obj("build_ext")
                one_library = command.build_extensions

                def build_extensions() -> None:
                    command.compiler.compile = side_by_side(command.compiler.compile, told)
                    one_library()

                command.build_extensions = build_extensions
                command.build_lib, command.build_temp = str(here / "out"), str(here / "objects")
                distribution.run_command("build_ext")
        except SystemExit as error:
            said_lines = (here / "said").read_text("utf-8", "replace").splitlines()
            why = next((line for line in said_lines if ": error: " in line), f"exit {error}")
            raise CannotCompileError(f"mypyc refused the source: {why}") from None
        except Exception as error:  # setuptools has many of its own
            raise CannotCompileError(f"{type(error).__name__}: {error}") from None
        finally:
            os.chdir(before)
        out = here / "out"
        ending = sysconfig.get_config_var("EXT_SUFFIX")
        libraries = {
            str(path.relative_to(out)).removesuffix(ending).replace(os.sep, "."): str(path.relative_to(out))
            for path in out.rglob(f"*{ending}")
        }
        shutil.copy(Path(__file__).with_name("hook.py"), out / "__init__.py")
        (out / MANIFEST).write_text(json.dumps({"digest": digest, "libraries": libraries}, indent=1))
        shutil.copytree(out, place)


def put(place: Path, site: Path) -> None:
    """Make `place` the compiled core of the environment whose packages are at `site`."""
    take_away(site)
    place.rename(site / NAME)
    (site / f"{NAME}.pth").write_text(f"import {NAME}\n")


def take_away(site: Path) -> None:
    """Run from source again."""
    (site / f"{NAME}.pth").unlink(missing_ok=True)
    shutil.rmtree(site / NAME, ignore_errors=True)


def check(root: Path) -> str | None:
    """None where the compiled core runs; else why it does not, empty where there is none of this source."""
    done = subprocess.run([sys.executable, "-c", CHECK], cwd=root, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else done.stderr.strip().rpartition("\n")[2]


def compile_into(root: Path, files: Sequence[str], site: Path) -> None:
    """Compile, put it in place, and see that it runs. Raises `CannotCompileError`; plain Python runs then."""
    with (
        TemporaryDirectory(prefix="headrace-compiled-", dir=site) as beside,
        Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar,
    ):
        task = bar.add_task(f"mypyc reads {len(files)} modules", total=None)

        def told(done: int, whole: int) -> None:
            bar.update(task, description="C files", completed=done, total=whole)

        build(root, files, Path(beside) / NAME, told)
        put(Path(beside) / NAME, site)
    said = check(root)
    if said is not None:
        take_away(site)
        raise CannotCompileError(f"what was compiled does not run: {said or 'the source has changed meanwhile'}")


def main() -> int:
    """Compile the core for the environment that this Python runs in, unless that has been done."""
    root = Path(__file__).resolve().parents[2]
    site = Path(sysconfig.get_paths()["purelib"])
    if check(root) is None:
        sys.stdout.write("The core is compiled already, from this source.\n")
        return 0
    began = time.monotonic()
    files = [*core(root), *IN_C]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what was begun is cleaned up
    try:
        compile_into(root, files, site)
    except KeyboardInterrupt:
        sys.stderr.write("Stopped by a signal. What was compiled before, if anything was, is still used.\n")
        return 130
    except CannotCompileError as error:
        sys.stderr.write(f"Not compiled: {error}. Everything runs as plain Python, as before.\n")
        return 1
    took = time.monotonic() - began
    sys.stdout.write(
        f"Compiled {len(files)} modules in {took:.0f} s. They are used as long as the source stays as it is.\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
