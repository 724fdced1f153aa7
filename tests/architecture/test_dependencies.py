"""Who may import whom, read from the source: the core stays pure, the parts stay apart."""

import ast
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from source_tree import PACKAGES, ROOT, Import, imports_of, python_files, source_files, tree_of

# Modules that reach the world outside of a calculation: time, processes, sockets, threads, the environment.
IMPURE = ("asyncio", "time", "logging", "os", "socket", "threading", "subprocess", "signal", "selectors", "concurrent")

# Generators that are run by hand and write documentation: in their package, but not a part of the core.
TOOLS = {Path("policies/reference.py"), Path("policies/schema.py")}

PURE_WORKERS = {
    Path("workers/report.py"),
    Path("workers/observation.py"),
    Path("workers/engines/timing.py"),
    Path("workers/engines/paging.py"),
    Path("workers/engines/batch.py"),
    Path("workers/expand.py"),
    Path("workers/flags.py"),
    Path("workers/instance_checks.py"),
    Path("workers/instances.py"),
    Path("workers/portplan.py"),
    Path("workers/capacity.py"),
    Path("workers/model_shape.py"),
    Path("workers/model_config.py"),
    Path("workers/model_layers.py"),
    Path("workers/ledger.py"),
    Path("workers/hardware.py"),
    Path("workers/plan.py"),
    Path("workers/units.py"),
    Path("workers/yamldoc.py"),
}


def pure_files() -> list[Path]:
    """The pure core."""
    scheduling = [path for path in python_files("gateway") if path.parts[1] == "scheduling"]
    policies = [path for path in python_files("policies") if path not in TOOLS]
    return [*policies, *scheduling, *sorted(PURE_WORKERS)]


def imports(paths: Iterable[Path]) -> list[Import]:
    return [each for path in paths for each in imports_of(path)]


def standard(each: Import) -> bool:
    return each.name.split(".")[0] in sys.stdlib_module_names


def breaches(found: Iterable[Import]) -> list[str]:
    return [str(each) for each in found]


def test_policies_import_the_standard_library_pydantic_and_yaml_only() -> None:
    assert not breaches(
        each
        for each in imports(python_files("policies"))
        if not standard(each) and not each.within("pydantic", "pydantic_core", "yaml", "policies")
    )


def test_scheduling_imports_the_standard_library_and_policies_only() -> None:
    files = [path for path in python_files("gateway") if path.parts[1] == "scheduling"]
    assert files
    assert not breaches(
        each for each in imports(files) if not standard(each) and not each.within("gateway.scheduling", "policies")
    )


def test_the_pure_core_imports_nothing_that_does_something() -> None:
    assert not breaches(each for each in imports(pure_files()) if each.within(*IMPURE))


def test_the_gateway_knows_of_workers_only_the_report_and_where_it_is_put() -> None:
    """Both sides meet in Redis: how a client is made of one setting has one home, with the report that goes there.

    The command lines of both sides draw their tables in one way, which knows nothing of either.
    """
    drawing = Path("gateway/cli_tables.py")
    assert not breaches(
        each
        for each in imports(python_files("gateway"))
        if each.within("workers")
        and not each.within("workers.report", "workers.redis_client")
        and not (each.path == drawing and each.within("workers.plain_tables"))
    )


def test_workers_know_neither_gateway_nor_policies() -> None:
    allowed = Path("workers/engines/timing.py")  # the simulator's step times are the policies' own model
    assert not breaches(
        each
        for each in imports(python_files("workers"))
        if each.within("gateway", "policies") and not (each.path == allowed and each.within("policies.work"))
    )


def test_nothing_imports_loadtest() -> None:
    outside = [path for path in source_files() if path.parts[0] != "loadtest"]
    assert not breaches(each for each in imports(outside) if each.within("loadtest"))


def test_loadtest_takes_only_the_core_of_the_gateway() -> None:
    assert not breaches(
        each
        for each in imports(python_files("loadtest"))
        if each.within("gateway") and not each.within("gateway.scheduling")
    )


def test_the_root_imports_its_commands_by_their_table_only() -> None:
    assert not breaches(each for each in imports([Path("headrace.py")]) if each.within(*PACKAGES))
    others = [path for path in source_files() if path != Path("headrace.py")]
    assert not breaches(each for each in imports(others) if each.within("headrace", "importlib.import_module"))


def test_engines_are_command_lines_and_never_imported() -> None:
    found = [each for each in imports(source_files()) if each.within("vllm", "sglang", "tensorrt_llm", "llama_cpp")]
    assert not breaches(found)


def test_torch_is_imported_in_one_place_and_late() -> None:
    found = [each for each in imports(source_files()) if each.within("torch")]
    assert not breaches(each for each in found if each.path != Path("workers/devices.py") or each.top_level)


def test_only_declared_packages_are_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    declared = {one.split(">")[0].split("[")[0].split(";")[0].strip().lower() for one in wanted}
    distributions = packages_distributions()
    undeclared = []
    for each in imports(source_files()):
        top = each.name.split(".")[0]
        if not standard(each) and top not in PACKAGES and each.path != Path("headrace.py"):
            owners = {owner.lower().replace("_", "-") for owner in distributions.get(top, [top])}
            # Other halves: pydantic_core is released together with pydantic, mypy_extensions is only for mypy's eyes.
            if not owners & declared and top not in ("pydantic_core", "mypy_extensions"):
                undeclared.append(str(each))
    assert not undeclared


def attributes(path: Path, base: str) -> list[tuple[int, str]]:
    """(line, name) of every `base.name` in a file."""
    return [
        (node.lineno, node.attr)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == base
    ]


def test_the_environment_is_read_in_settings_only() -> None:
    readers = {"environ", "environb", "getenv", "putenv"}
    found = [
        f"{path}:{line} os.{name}"
        for path in source_files()
        if path.name != "settings.py"
        for line, name in attributes(path, "os")
        if name in readers
    ]
    assert not found
    late = [each for each in imports(source_files()) if each.within("os.environ", "os.getenv")]
    assert not breaches(late)


def test_the_core_takes_randomness_as_an_argument() -> None:
    found = [
        f"{path}:{line} random.{name}"
        for path in pure_files()
        for line, name in attributes(path, "random")
        if name != "Random"
    ]
    assert not found
    assert not breaches(
        each for each in imports(pure_files()) if each.within("random") and each.name not in {"random", "random.Random"}
    )


def test_the_core_takes_the_time_as_an_argument() -> None:
    clocks = {"now", "utcnow", "today"}
    found = [
        f"{path}:{line} datetime.{name}"
        for path in pure_files()
        for base in ("datetime", "date")
        for line, name in attributes(path, base)
        if name in clocks
    ]
    assert not found


@pytest.mark.parametrize("path", sorted(PURE_WORKERS), ids=str)
def test_the_list_of_pure_worker_files_is_up_to_date(path: Path) -> None:
    assert (ROOT / path).is_file()
