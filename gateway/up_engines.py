"""Which engines `headrace up --engine vllm|llamacpp` starts, and the `workers.yaml` that says so to the supervisor.

Everything that can be wrong with what was asked for is found here, before anything starts, and told in one line with
the cure. What only the supervisor knows (memory, ports, flags of an engine) it checks itself, from the same file.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

SHORT_TOKENS: Final = 4096  # the shipped policy's `max_budget_tokens` of short-chat: longer requests go elsewhere
LONG_TOKENS: Final = 32768
READY_S: Final = 900.0  # all engines, one after the other on a device, each reading its weights
CPU_KV: Final = "1GiB"
CPU_DTYPE: Final = "float32"  # vLLM's 16-bit kernels end with an illegal instruction on many processors
RESERVE: Final = 0.05  # share of a device that no instance plans with; the supervisor's own default
MAX_CONFIG_BYTES: Final = 16 * 1024 * 1024
LLAMA_SEQUENCES: Final = {"short-chat": 4, "long-context": 1}  # slots have their whole context from the start
CPU_DEVICE: Final = "cpu"
GPU_NODE: Final = Path("/dev/nvidiactl")

PROGRAMS: Final[Mapping[str, str]] = {"vllm": "vllm", "llamacpp": "llama-server"}
INSTALL: Final[Mapping[str, str]] = {
    "vllm": "pip install vllm",
    "llamacpp": "see https://github.com/ggml-org/llama.cpp/releases",
}
LABELS: Final[Mapping[str, str]] = {"vllm": "vLLM", "llamacpp": "llama.cpp"}


class ChoiceError(ValueError):
    """What was asked for cannot be started. The message is one line: the option, what is wrong, the cure."""


@dataclass(frozen=True, slots=True)
class Engines:
    """Real engines to start, all of one kind and one model."""

    kind: str  # vllm | llamacpp
    model: Path
    served_name: str
    program: tuple[str, ...]  # its words, before the engine's own
    arguments: tuple[str, ...]  # after the engine's own
    devices: tuple[str, ...]  # dealt out to the instances in turn
    short_tokens: int
    long_tokens: int
    kv_memory: str | None  # of each instance; None: an even share of its device
    dtype: str | None  # of weights and activations; None: the model's own
    ready_s: float

    @property
    def label(self) -> str:
        """What people call it."""
        return LABELS[self.kind]


@dataclass(frozen=True, slots=True)
class Place:
    """One instance: its name, its pool, and whether it is there for long requests."""

    name: str
    pool: str
    max_num_seqs: int
    long: bool


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of `headrace up` that are about engines; None or empty: not given."""

    speed: float | None = None
    model: str | None = None
    served_name: str | None = None
    engine_command: str | None = None
    engine_arg: tuple[str, ...] = ()
    device: tuple[str, ...] = ()
    short_tokens: int | None = None
    long_tokens: int | None = None
    kv_memory: str | None = None
    dtype: str | None = None
    ready_timeout: float | None = None


def choose(kind: str, asked: Asked) -> Engines | None:
    """Hold what was asked for against this host; None: simulated ones. Reads the model's files. Raises ChoiceError."""
    if kind == "sim":
        for name in (field.name for field in fields(asked) if field.name != "speed"):
            if getattr(asked, name) not in (None, ()):
                option = "--" + name.replace("_", "-")
                raise ChoiceError(f"{option} is for real engines: add --engine vllm or llamacpp, or leave it out")
        return None
    if asked.speed is not None:
        raise ChoiceError(f"--speed is for simulated engines; leave it out, or use --engine sim in place of {kind}")
    if asked.model is None:
        what = "a directory with config.json" if kind == "vllm" else "a .gguf file"
        raise ChoiceError(f"--engine {kind} needs --model PATH, {what}")
    path = Path(asked.model).expanduser().absolute()
    limit = None
    if kind == "vllm":
        limit = _vllm_model(path)
    else:
        _check_gguf(path)  # its length llama-server says when it runs
    if kind == "llamacpp" and asked.dtype is not None:
        raise ChoiceError("--dtype: a .gguf file has its types in it; leave it out, or take another file")
    if kind == "llamacpp" and asked.kv_memory is not None:
        cure = "it follows from --short-tokens and --long-tokens"
        raise ChoiceError(f"--kv-memory: llama.cpp takes KV memory for its whole context; leave it out, {cure}")
    short, long = _lengths(asked, limit, path)
    devices = _devices(asked.device)
    on_cpu = kind == "vllm" and CPU_DEVICE in devices
    return Engines(
        kind,
        path,
        asked.served_name or (path.stem if kind == "llamacpp" else path.name),
        find_program(kind, asked.engine_command),
        asked.engine_arg,
        devices,
        short,
        long,
        asked.kv_memory or (CPU_KV if on_cpu else None),
        asked.dtype or (CPU_DTYPE if on_cpu else None),
        asked.ready_timeout or READY_S,
    )


def _lengths(asked: Asked, limit: int | None, path: Path) -> tuple[int, int]:
    long = asked.long_tokens or max(asked.short_tokens or 0, min(LONG_TOKENS, limit or LONG_TOKENS))
    short = asked.short_tokens or min(SHORT_TOKENS, long)
    for option, tokens in (("--short-tokens", short), ("--long-tokens", long)):
        if limit is not None and tokens > limit:
            raise ChoiceError(f"{option} {tokens} is more than the {limit} tokens that {path} was made for; lower it")
    if short > long:
        raise ChoiceError(f"--short-tokens {short} is more than --long-tokens {long}; lower it, or raise the other")
    return short, long


def _devices(given: Sequence[str]) -> tuple[str, ...]:
    words = dict.fromkeys(word.strip() for each in given for word in each.split(",") if word.strip())
    if CPU_DEVICE in words and len(words) > 1:
        raise ChoiceError(f"--device {','.join(words)}: either cpu or devices; leave one of them out")
    return tuple(words) or (("0",) if GPU_NODE.exists() else (CPU_DEVICE,))


def find_program(kind: str, command: str | None) -> tuple[str, ...]:
    """The words that start the engine, the first one an absolute path. Raises ChoiceError."""
    try:
        words = shlex.split(command) if command is not None else [PROGRAMS[kind]]
    except ValueError as error:
        raise ChoiceError(f"--engine-command {command!r}: {error}; quote it as a shell would want it") from None
    found = shutil.which(words[0]) if words else None
    if found is None:
        if command is None:
            cure = f"install it ({INSTALL[kind]}) or say where it is with --engine-command"
            raise ChoiceError(f"{PROGRAMS[kind]} is not on PATH: {cure}")
        raise ChoiceError(f"--engine-command {command!r}: there is no such program; give its path")
    return (str(Path(found).absolute()), *words[1:])


def _vllm_model(path: Path) -> int | None:
    """The longest request that the model was made for; None: it does not say."""
    if path.is_file():
        cure = "with a .gguf use --engine llamacpp" if path.suffix == ".gguf" else "give the directory it is in"
        raise ChoiceError(f"--model {path} is a file, and vLLM takes a directory with config.json; {cure}")
    config = path / "config.json"
    try:
        with config.open("rb") as file:
            known = json.loads(file.read(MAX_CONFIG_BYTES))
    except OSError as error:
        cure = "give a directory with config.json, as `hf download NAME --local-dir DIR` makes one"
        raise ChoiceError(f"--model {path}: {config.name}: {error.strerror}; {cure}") from None
    except ValueError as error:
        raise ChoiceError(f"--model {path}: {config.name} is not JSON ({error}); download the model again") from None
    for part in (known, known.get("text_config")) if isinstance(known, dict) else ():
        limit = part.get("max_position_embeddings") if isinstance(part, dict) else None
        if isinstance(limit, int) and limit > 0:
            return limit
    return None


def _check_gguf(path: Path) -> None:
    if path.is_dir():
        cure = "with a directory use --engine vllm" if (path / "config.json").exists() else "name the file in it"
        raise ChoiceError(f"--model {path} is a directory, and llama.cpp takes a .gguf file; {cure}")
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ChoiceError(f"--model {path}: {error.strerror}; give a .gguf file") from None
    if magic != b"GGUF":
        raise ChoiceError(f"--model {path} is no GGUF file (it begins with {magic!r}); give a .gguf file")


def workers_document(
    engines: Engines,
    places: Sequence[Place],
    *,
    port: Callable[[], int],
    internal_first: int,
    temporary: Path | None = None,
) -> dict[str, Any]:
    """The content of `workers.yaml`. `port` gives free ports; `internal_first`: see `shared.ports`.

    `temporary`: for the engines' own temporary files, if not where everybody's are.
    """
    beside = {device: places[at :: len(engines.devices)] for at, device in enumerate(engines.devices)}
    defaults: dict[str, Any] = {
        "engine": engines.kind,
        "model_path": _plain(str(engines.model)),
        "served_name": _plain(engines.served_name),
        "program": [_plain(word) for word in engines.program],
        "extra_flags": [_plain(word) for word in engines.arguments],
        "agent_port": None,
        "start_timeout_s": max(1.0, engines.ready_s),
        "drain_timeout_s": 1,  # as the gateway of `up`: who tries things out does not want to wait
        "stop_grace_s": 10,
    }
    environment = {} if temporary is None else {"TMPDIR": _plain(str(temporary))}
    if engines.kind == "llamacpp":
        defaults["weights_bytes"] = engines.model.stat().st_size
    elif CPU_DEVICE in engines.devices:
        if "--enforce-eager" not in engines.arguments:
            defaults["extra_flags"] += ["--enforce-eager"]  # compiling takes minutes there
        if len(places) > 1:
            environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # else all instances take the same cores
    defaults["env"] = environment
    if engines.dtype is not None:
        defaults["dtype"] = engines.dtype
    instances = []
    for at, place in enumerate(places):
        device = engines.devices[at % len(engines.devices)]
        tokens = engines.long_tokens if place.long else engines.short_tokens
        llama = engines.kind == "llamacpp"
        one: dict[str, Any] = {
            "name": place.name,
            "pool": place.pool,
            "device": device,
            "port": port(),
            "max_model_len": tokens,
            "max_num_seqs": LLAMA_SEQUENCES[place.pool] if llama else place.max_num_seqs,
        }
        if engines.kv_memory is not None:
            one["kv_bytes"] = _plain(engines.kv_memory)
        else:
            # Rounded down: the sum must not pass what may be planned with.
            one["memory_share"] = int((1 - RESERVE) / len(beside[device]) * 10_000) / 10_000
        instances.append(one)
    shared = {
        "memory": {"reserve": RESERVE},
        "ports": {"internal_first": internal_first},
        "defaults": defaults,
    }
    return {"shared": shared, "instances": instances}


def _plain(text: str) -> str:
    """Text that the file takes as it is: `${` would be a variable."""
    return text.replace("${", "$${")
