"""Finds out about a model on disk: its `config.json`, and its weights from the headers of safetensors files.

Nothing of the model is run or unpickled. A header's length is checked before it is read, names in the index must be
plain file names beside it, and numbers must fit the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import orjson

from workers.model_config import MAX_CONFIG_BYTES, read_config, shape_of
from workers.model_shape import ModelError, ModelShape

MAX_HEADER_BYTES: Final = 64 << 20
MAX_INDEX_BYTES: Final = 64 << 20
MAX_FILES: Final = 4096

KNOWN: Final = Path(__file__).with_name("models.json")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.safetensors")
_LENGTH_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Stored:
    """Weights as stored: bytes of all tensors, and how many tensors there are."""

    bytes: int
    tensors: int


class UnknownModelError(ModelError):
    """A name that is neither a directory nor known. `short` leaves out the long list of what is, for who tells it once
    for many."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        short = f"{name}: is no directory with a config.json on this host and no known model"
        super().__init__(f"{short}; known are {', '.join(known)}")
        self.short = short


def known_models() -> dict[str, ModelShape]:
    """Shapes of well-known models by name."""
    return {name: shape_of(config, name) for name, config in orjson.loads(KNOWN.read_bytes()).items()}


def load_model(name: str) -> ModelShape:
    """The shape of a model: a directory with a `config.json`, that file itself, or a name that is known.

    Of a directory, weights count as their files have them. Raises ModelError.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        shape = read_config(_read(path / "config.json", MAX_CONFIG_BYTES), name)
        stored = stored_weights(path)
        return replace(shape, stored_bytes=stored.bytes) if stored is not None else shape
    if path.is_file() and path.suffix == ".json":
        return read_config(_read(path, MAX_CONFIG_BYTES), name)
    known = known_models()
    wanted = name.rpartition("/")[2].casefold()
    for suffix in ("", "-instruct"):
        for one, shape in known.items():
            if f"{one}{suffix}".casefold() == wanted:
                return shape
    raise UnknownModelError(name, known)


def stored_weights(directory: Path) -> Stored | None:
    """Bytes and number of all tensors in the directory's safetensors files; None: there are none. Raises ModelError."""
    names = _file_names(directory)
    if not names:
        return None
    if len(names) > MAX_FILES:
        raise ModelError(f"{directory}: has {len(names)} safetensors files, at most {MAX_FILES} are read")
    parts = [read_header(directory / name) for name in names]
    return Stored(sum(part.bytes for part in parts), sum(part.tensors for part in parts))


def _file_names(directory: Path) -> list[str]:
    index = directory / "model.safetensors.index.json"
    if not index.is_file():
        # Some repositories carry a second copy of everything in another layout.
        found = sorted(path.name for path in directory.glob("*.safetensors"))
        return [name for name in found if not name.startswith("consolidated")] or found
    try:
        names = sorted(set(orjson.loads(_read(index, MAX_INDEX_BYTES))["weight_map"].values()))
    except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError) as error:
        raise ModelError(f"{index}: is no safetensors index ({type(error).__name__})") from error
    for name in names:
        if not isinstance(name, str) or _PLAIN_NAME.fullmatch(name) is None:
            raise ModelError(f"{index}: {name!r:.80} is not the name of a file beside it")
    return names


def read_header(path: Path) -> Stored:
    """What a safetensors file says it holds; the tensors themselves are not read. Raises ModelError."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if not 2 <= length <= min(MAX_HEADER_BYTES, size - _LENGTH_BYTES):
                raise ModelError(f"{path}: is no safetensors file: a header of {length} bytes in one of {size}")
            header = orjson.loads(file.read(length))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise ModelError(f"{path}: its header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise ModelError(f"{path}: its header must be an object")
    total = tensors = 0
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
        if not (
            isinstance(offsets, list)
            and len(offsets) == 2
            and all(type(one) is int for one in offsets)
            and 0 <= offsets[0] <= offsets[1] <= size - _LENGTH_BYTES - length
        ):
            raise ModelError(f"{path}: {name[:80]} lies outside of the file")
        total += offsets[1] - offsets[0]
        tensors += 1
    if total > size:
        raise ModelError(f"{path}: its tensors overlap: {total} bytes in a file of {size}")
    return Stored(total, tensors)


def _read(path: Path, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            text = file.read(most + 1)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    if len(text) > most:
        raise ModelError(f"{path}: is larger than {most} bytes")
    return text
