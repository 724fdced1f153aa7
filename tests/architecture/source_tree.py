"""What the architecture tests look at: the repository's files, and what each Python file imports."""

import ast
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("policies", "gateway", "workers", "loadtest")


@cache
def tracked_files() -> tuple[Path, ...]:
    """Files of the repository as git knows them, and those it would add; relative to the root."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    names = sorted(name for name in listed.decode().split("\0") if name)
    return tuple(Path(name) for name in names if (ROOT / name).is_file())


def python_files(*under: str) -> list[Path]:
    """The `.py` files below these top-level names; all of them without names."""
    return [path for path in tracked_files() if path.suffix == ".py" and (not under or path.parts[0] in under)]


def source_files() -> list[Path]:
    """The program itself: the command line's root and the four packages."""
    return [Path("headrace.py"), *python_files(*PACKAGES)]


def module_name(path: Path) -> str:
    """`gateway/http/server.py` -> `gateway.http.server`."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(), str(path))


@dataclass(frozen=True)
class Import:
    """One imported name: the module as written, with the name taken from it where that may be a module too."""

    path: Path
    line: int
    name: str
    top_level: bool

    def within(self, *modules: str) -> bool:
        """Whether it is one of these modules or something inside of one."""
        return any(self.name == module or self.name.startswith(f"{module}.") for module in modules)

    def __str__(self) -> str:
        return f"{self.path}:{self.line} imports {self.name}"


@cache
def imports_of(path: Path) -> tuple[Import, ...]:
    """Every import of a file, also those inside of functions and under TYPE_CHECKING."""
    tree = tree_of(path)
    outermost = {id(node) for node in tree.body}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = path.parent.parts[: len(path.parent.parts) - node.level + 1] if node.level else ()
            module = ".".join([*package, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        found += [Import(path, node.lineno, name, id(node) in outermost) for name in names]
    return tuple(found)
