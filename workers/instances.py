"""`workers.yaml`: the engine instances of one host and what they share. Every field, default and bound is here.

The file is written in layers (`shared.defaults`, `shared.templates`, `instances`), which `workers.expand` puts together
into what these models hold: instances with every value in its place.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from workers.units import parse_bytes

MAX_INSTANCES: Final = 256
MAX_PORT: Final = 65535
HOST_DEVICE: Final = "cpu"

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
Line = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,1024}$")]
Port = Annotated[int, Field(ge=1, le=MAX_PORT)]
Bytes = Annotated[int, BeforeValidator(parse_bytes, json_schema_input_type=int | str)]
Share = Annotated[float, Field(gt=0, le=1)]


def _as_texts(value: object) -> object:
    """`0`, `"0"` and `[0, 1]` are all lists of device ids."""
    listed = value if isinstance(value, list | tuple) else [value]
    return tuple(map(_as_text, listed))


def _as_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


DeviceId = Annotated[Line, BeforeValidator(_as_text, json_schema_input_type=int | str)]
DeviceIds = Annotated[
    tuple[Line, ...],
    BeforeValidator(_as_texts, json_schema_input_type=int | str | list[int | str]),
    Field(max_length=64),
]


class Engine(StrEnum):
    """Kinds of engines."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"
    LLAMACPP = "llamacpp"
    MINDIE = "mindie"
    SIMULATOR = "simulator"


class DeviceKind(StrEnum):
    """Kinds of devices; `cpu` is the host's own memory."""

    NVIDIA = "nvidia"
    ASCEND = "ascend"
    CPU = "cpu"


class Mode(StrEnum):
    """How instances share a device's memory: each its own part, or over-committed with a warning."""

    PARTITIONED = "partitioned"
    SHARED = "shared"


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class DeviceSpec(_Section):
    """A device of this host. One that is not listed is looked for with NVML or npu-smi."""

    id: DeviceId = Field(description="Index, UUID or MIG UUID, as `CUDA_VISIBLE_DEVICES` takes it; `cpu` for the host.")
    kind: DeviceKind = Field(DeviceKind.NVIDIA, description="Maker of the device.")
    memory: Bytes | None = Field(None, description="All of it, such as 24GiB. Left out: the device is asked.")
    name: str = Field("", max_length=128, description="What people call it; a card's name says its memory, too.")


class MemoryPool(_Section):
    """How the memory of each device is shared out."""

    mode: Mode = Field(Mode.PARTITIONED, description="partitioned: shares must fit; shared: more is allowed, warned.")
    reserve: float = Field(0.05, ge=0, lt=0.9, description="Share of each device that no instance may plan with.")


class PortPool(_Section):
    """Where ports come from that instances do not name."""

    first: Port = Field(9100, description="First port for the instances' own servers.")
    agent_first: Port = Field(9500, description="First port for the metrics of single instances.")
    internal_first: Port = Field(20000, description="First port of the ranges that engines open among their parts.")
    internal_stride: int = Field(64, ge=1, le=4096, description="Ports in the range of each instance.")


class PortRange(_Section):
    """Ports that an engine opens by itself, counting up from the first: `VLLM_PORT` and the ones after it."""

    first: Port = Field(description="The first, given to vLLM as VLLM_PORT.")
    count: int = Field(64, ge=1, le=4096, description="How many belong to the instance.")

    @property
    def last(self) -> int:
        """The last port of the range."""
        return self.first + self.count - 1


class Instance(_Section):
    """One engine process (group): what it serves, where, and with what share of which devices."""

    name: Name = Field(description="Name of the instance and, as a worker, its id at the gateways.")
    engine: Engine = Field(Engine.VLLM, description="Kind of engine.")
    model_path: Line = Field(description="Directory or hub name of the weights, as the engine takes it.")
    served_name: Line = Field(description="Name that requests use.")
    pool: Name = Field(description="The policy's pool it belongs to.")
    device: DeviceIds = Field((), description="Device ids; as many as tensor_parallel × pipeline_parallel.")
    host: Line = Field("127.0.0.1", description="Address the engine listens on.")
    port: Port = Field(description="Port of its API. Left out: the next free one of shared.ports.")
    metrics_port: Port | None = Field(None, description="Port of its metrics, where the engine has one of its own.")
    debug_port: Port | None = Field(None, description="Port of a debugger or profiler.")
    agent_port: Port | None = Field(
        None, description="Port of `/metrics` of this instance alone. Left out: given; null: none."
    )
    dist_init_port: Port | None = Field(None, description="Port where ranks of one instance meet.")
    internal_ports: PortRange | None = Field(None, description="Range it opens by itself (VLLM_PORT). Left out: given.")
    other_ports: dict[Name, Port] = Field({}, max_length=32, description="Any further port that it binds, by purpose.")
    max_model_len: int | None = Field(None, ge=1, le=10**8, description="Longest request in tokens.")
    max_num_seqs: int | None = Field(None, ge=1, le=65536, description="Sequences in one batch.")
    max_num_batched_tokens: int | None = Field(None, ge=1, le=10**7, description="Tokens in one step.")
    memory_share: Share | None = Field(None, description="Share of each device's memory for weights, KV and all else.")
    kv_bytes: Bytes | None = Field(None, description="KV cache on each device, such as 4GiB, in place of a share.")
    weights_bytes: Bytes | None = Field(None, description="Weights on each device, where they cannot be read.")
    compute_share: Share | None = Field(None, description="Share of the device's compute (MPS).")
    prefix_caching: bool | None = Field(None, description="Reuse the KV of common prefixes.")
    chunked_prefill: bool | None = Field(None, description="Cut long prompts into chunks between decodes.")
    priority_scheduling: bool = Field(False, description="The engine orders its own queue by priority.")
    quantization: Name | None = Field(None, description="How weights are quantised: fp8, awq, gptq, bitsandbytes …")
    dtype: Name | None = Field(None, description="Type of weights and activations, such as bfloat16.")
    kv_cache_dtype: Name | None = Field(None, description="Type of the KV cache, such as fp8.")
    block_size: int | None = Field(None, ge=1, le=4096, description="Tokens of a KV block.")
    tensor_parallel: int = Field(1, ge=1, le=64, description="Devices that each layer is spread over.")
    pipeline_parallel: int = Field(1, ge=1, le=64, description="Groups of devices that layers are dealt out to.")
    env: dict[Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")], str] = Field(
        {}, max_length=256, description="Environment variables added for the engine."
    )
    warmup_prompts: tuple[Annotated[str, StringConstraints(min_length=1, max_length=200_000)], ...] = Field(
        (), max_length=64, description="Prompts that run before the first request: the pool's system prompts."
    )
    program: tuple[Line, ...] = Field(
        (), max_length=64, description="Words in place of the engine's own program: a path, a container, a wrapper."
    )
    extra_flags: tuple[Line, ...] = Field((), max_length=256, description="Further words of the command line.")
    start_timeout_s: float = Field(600, ge=1, le=86400, description="From start to ready; then it has failed.")
    canary_pool: Name | None = Field(None, description="Pool that a changed instance serves first, for a share.")
    canary_s: float = Field(60, ge=0, le=86400, description="How long it must do well there before it replaces.")
    hang_timeout_s: float = Field(
        120, ge=0, le=86400, description="Silent, or busy without progress, for so long: it is started anew. 0: never."
    )
    drain_timeout_s: float = Field(300, ge=0, le=86400, description="What running requests get before it is stopped.")
    stop_grace_s: float = Field(20, ge=0, le=3600, description="From SIGTERM to SIGKILL of its process group.")

    @property
    def ranks(self) -> int:
        """Devices that it needs."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def url(self) -> str:
        """Where it answers, as seen from this host."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


class Shared(_Section):
    """What all instances share. `defaults` and `templates` are gone here: `workers.expand` has applied them."""

    fleet: Name | None = Field(None, description="Fleet to report to. Left out: HEADRACE_FLEET, then default.")
    redis: str | None = Field(None, max_length=1024, description="Where agents report; may be file:/path.")
    advertise: Line | None = Field(None, description="Name or address under which gateways reach this host.")
    state_dir: Line | None = Field(None, description="Where logs and the record of running processes are kept.")
    devices: tuple[DeviceSpec, ...] = Field((), max_length=64, description="Devices with a stated size or name.")
    memory: MemoryPool = Field(MemoryPool(), description="How device memory is shared out.")  # type: ignore[call-arg]
    ports: PortPool = Field(PortPool(), description="Where unnamed ports come from.")  # type: ignore[call-arg]


class WorkersFile(_Section):
    """The whole file, expanded."""

    shared: Shared = Field(Shared(), description="What all instances share.")  # type: ignore[call-arg]
    instances: tuple[Instance, ...] = Field(max_length=MAX_INSTANCES, description="The engine processes.")

    def instance(self, name: str) -> Instance:
        """The instance called `name`. Raises KeyError."""
        for one in self.instances:
            if one.name == name:
                return one
        raise KeyError(name)
