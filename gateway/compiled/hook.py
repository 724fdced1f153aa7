"""Finds the compiled core. Copied beside the environment's packages by `build.py`; a `.pth` file there imports it.

So it runs at the start of every Python of the environment: it does nothing until a module of the core is looked for,
and then compares the source with what was compiled, once. Standard library only, and no import of ours.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

PACKAGES = ("policies", "gateway")
MANIFEST = "manifest.json"


def digest_of(root: Path) -> str:
    """Names what was compiled: all source of the packages, because types of one module are built into others."""
    told = hashlib.sha256(sys.implementation.cache_tag.encode() if sys.implementation.cache_tag else b"")
    for package in PACKAGES:
        for path in sorted(path for ending in ("*.py", "*.c") for path in (root / package).rglob(ending)):
            text = path.read_bytes()
            told.update(b"%b\0%d\0%b" % (str(path.relative_to(root)).encode(), len(text), text))
    return told.hexdigest()


class CoreLoader(Loader):
    """Loads a compiled module and still knows its source, for `python -m`."""

    def __init__(self, name: str, path: str, source: Path) -> None:
        self._library = ExtensionFileLoader(name, path)
        self._source = source

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """From the library."""
        return self._library.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run it."""
        self._library.exec_module(module)

    def get_source(self, fullname: str) -> str:
        """The text it was made from."""
        return self._source.read_text("utf-8")

    def get_code(self, fullname: str) -> CodeType:
        """That text as Python compiles it: what runs as `__main__` runs from source."""
        code: CodeType = compile(self.get_source(fullname), str(self._source), "exec", dont_inherit=True)
        return code


class Finder:
    """On `sys.meta_path`, before the finder of files. `place`: where the libraries and the manifest are."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._libraries: dict[str, str] | None = None  # None: nobody has asked yet
        self._root = place

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The compiled module, if there is one of exactly this source."""
        if self._libraries is None:
            package = fullname.partition(".")[0]
            if package not in PACKAGES or not path:
                return None
            self._root = Path(path[0]).resolve().parents[fullname.count(".") - 1]
            self._libraries = self._current()
        library = self._libraries.get(fullname)
        if library is None:
            return None
        file = str(self._place / library)
        source = self._root.joinpath(*fullname.split(".")).with_suffix(".py")
        return spec_from_file_location(fullname, file, loader=CoreLoader(fullname, file, source))

    def _current(self) -> dict[str, str]:
        try:
            manifest = json.loads((self._place / MANIFEST).read_bytes())
            same = manifest["digest"] == digest_of(self._root)
            return dict(manifest["libraries"]) if same else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}  # taken away or half written: the source is there


def install(place: Path) -> None:
    """Look there from now on."""
    sys.meta_path.insert(0, Finder(place))


if __name__ == "headrace_compiled":
    install(Path(__file__).parent)
