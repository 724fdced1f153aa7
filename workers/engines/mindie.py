"""MindIE on Ascend: `mindieservice_daemon` and its `config.json`. Not run live here: written from its documents.

Sources: the service parameters and the metrics interface of the MindIE documentation
(https://www.hiascend.com/document/detail/zh/mindie/, pages mindie_service0285 and mindie_service0103) and the
configuration files printed in Ascend/MindIE-LLM's guides. Metrics have a port of their own and need
`MIES_SERVICE_MONITOR_MODE=1`; names have no prefix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import orjson

from workers.engines.base import (
    Adapter,
    Card,
    Launch,
    Reading,
    UnreadableAnswer,
    histogram,
    mean,
    model_cards,
    positive,
    requests,
    share,
    tokens,
    total,
)
from workers.scrape import Scraper

METRICS = "/metrics"
MODELS = "/v1/models"
CONFIG = "config.json"
GIB = 1024**3
MAX_CONFIG_BYTES = 1024 * 1024
DEFAULT_BLOCK = 128

RUNNING = "num_requests_running"
WAITING = "num_requests_waiting"
KV_USAGE = "npu_cache_usage_perc"
PREEMPTIONS = "num_preemptions_total"
PROMPT_TOKENS = "prompt_tokens_total"
GENERATION_TOKENS = "generation_tokens_total"
HIT_RATE = "npu_prefix_cache_hit_rate"
TTFT = "time_to_first_token_seconds"
ITL = "time_per_output_token_seconds"

_ONCE = (
    *("model", "served_name", "host", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_bytes"),
    *("memory_share", "block_size", "prefix_caching", "tensor_parallel", "pipeline_parallel"),
)
"""Fields of a Launch that a daemon has once for all of its instances."""

_SCRAPER = Scraper(
    {
        *(RUNNING, WAITING, KV_USAGE, PREEMPTIONS, PROMPT_TOKENS, GENERATION_TOKENS, HIT_RATE),
        *(f"{TTFT}_bucket", f"{ITL}_bucket"),
    }
)


def read_metrics(text: bytes, headers: Mapping[str, str]) -> Reading:
    """What MindIE's /metrics says. Raises `UnreadableAnswer` when it is not MindIE's.

    It tells a hit rate and no counts, so hits are that share of the prompt tokens.
    """
    try:
        samples = _SCRAPER.read(text)
    except ValueError as error:
        raise UnreadableAnswer(METRICS, str(error)) from error
    if RUNNING not in samples or KV_USAGE not in samples:
        raise UnreadableAnswer(METRICS, f"has no {RUNNING} with {KV_USAGE}: not the metrics of MindIE")
    usage = mean(samples, KV_USAGE)
    prompt = tokens(total(samples, PROMPT_TOKENS), METRICS)
    return Reading(
        running=requests(total(samples, RUNNING), METRICS),
        waiting=requests(total(samples, WAITING), METRICS),
        # "1 means 100 percent", says its help text; examples in its guides show 30.
        kv_usage=share(usage / 100 if usage is not None and usage > 1 else usage),
        preemptions=tokens(total(samples, PREEMPTIONS), METRICS),
        prompt_tokens=prompt,
        generation_tokens=tokens(total(samples, GENERATION_TOKENS), METRICS),
        prefix_queries=prompt,
        prefix_hits=int(prompt * (share(mean(samples, HIT_RATE)) or 0.0)),
        ttft=histogram(samples, TTFT),
        itl=histogram(samples, ITL),
    )


def read_card(documents: Mapping[str, bytes]) -> Card:
    """Models; it says nothing else, so the operator must."""
    cards = model_cards(documents, MODELS)
    lengths = [length for card in cards if (length := positive(card.get("max_model_len"))) is not None]
    return Card(models=tuple(str(card["id"]) for card in cards), max_model_len=min(lengths, default=None))


def command(launch: Launch) -> tuple[str, ...]:
    """The daemon; everything else is in its configuration file."""
    return (*(launch.program or ("mindieservice_daemon",)), *launch.extra)


def environment(launch: Launch) -> Mapping[str, str]:
    """Where its file is, that it shows metrics, and its share of the device's memory."""
    changes = {"MIES_CONFIG_JSON_PATH": f"{launch.directory}/{CONFIG}", "MIES_SERVICE_MONITOR_MODE": "1"}
    share, planned = launch.memory_share, launch.planned
    if share is None and planned is not None:
        share = planned.of_device(planned.total)
    if share is not None:
        changes["NPU_MEMORY_FRACTION"] = f"{share:g}"
    return changes


def files(launch: Launch) -> Mapping[str, bytes]:
    """Its `config.json`."""
    return {CONFIG: orjson.dumps(config_of(launch), option=orjson.OPT_INDENT_2)}


def write_config(launches: Sequence[Launch]) -> bytes:
    """One daemon's `config.json` for several instances of a model, each on devices of its own: `read_config` backwards.

    The first one's ports are the daemon's. Raises ValueError where instances differ in what a daemon has but once.
    """
    if not launches:
        raise ValueError("there is no instance to write")
    first, *others = launches
    for other in others:
        apart = [field for field in _ONCE if getattr(other, field) != getattr(first, field)]
        if apart:
            raise ValueError(
                f"{other.name} differs from {first.name} in {', '.join(apart)}: one daemon has one of each"
            )
    groups = [[int(device) for device in one.device_ids if device.isdecimal()] for one in launches]
    for one, group in zip(launches, groups, strict=True):
        if len(group) != first.tensor_parallel * first.pipeline_parallel:
            raise ValueError(f"{one.name} must name its devices by number, got {', '.join(one.device_ids) or 'none'}")
    return orjson.dumps(config_of(first, groups), option=orjson.OPT_INDENT_2)


def config_of(launch: Launch, groups: Sequence[Sequence[int]] | None = None) -> dict[str, object]:
    """The configuration of one instance, or with `groups` of devices of as many that are alike.

    Without, its devices are numbered from 0 among those that its environment shows it.
    """
    ranks = launch.tensor_parallel * launch.pipeline_parallel
    groups = groups or [list(range(ranks))]
    length = launch.max_model_len or 8192
    step = launch.max_num_batched_tokens or length
    kv_bytes = launch.kv_bytes if launch.planned is None else launch.planned.kv
    model = {
        "modelInstanceType": "Standard",
        "modelName": launch.served_name,
        "modelWeightPath": launch.model,
        "worldSize": ranks,
        "cpuMemSize": 0,
        # Whole GiB for the KV cache; -1 takes its fraction of all that is free, also what others are to have.
        "npuMemSize": -1 if kv_bytes is None else max(1, kv_bytes // GIB),
        "backendType": "atb",
        "trustRemoteCode": False,
    }
    if launch.prefix_caching:
        model["plugin_params"] = '{"plugin_type":"prefix_cache"}'
    return {
        "Version": "1.0.0",
        "ServerConfig": {
            "ipAddress": launch.host,
            "managementIpAddress": launch.host,
            "port": launch.port,
            "managementPort": launch.ports.get("management", launch.port + 1),
            "metricsPort": metrics_port(launch),
            "allowAllZeroIpListening": launch.host == "0.0.0.0",
            "maxLinkNum": 1000,
            "httpsEnabled": False,
            "inferMode": "standard",
            "openAiSupport": "vllm",
        },
        "BackendConfig": {
            "backendName": "mindieservice_llm_engine",
            "modelInstanceNumber": len(groups),
            "npuDeviceIds": groups,
            "tokenizerProcessNumber": 8,
            "multiNodesInferEnabled": False,
            "interNodeTLSEnabled": False,
            "ModelDeployConfig": {
                "maxSeqLen": length,
                "maxInputTokenLen": length,
                "truncation": False,
                "ModelConfig": [model],
            },
            "ScheduleConfig": {
                "templateType": "Standard",
                "templateName": "Standard_LLM",
                "cacheBlockSize": launch.block_size or DEFAULT_BLOCK,
                "maxPrefillBatchSize": min(50, launch.max_num_seqs or 50),
                "maxPrefillTokens": max(step, length),  # a whole prompt must fit into one
                "maxBatchSize": launch.max_num_seqs or 200,
                "maxIterTimes": length,
                "maxPreemptCount": 0,
                "supportSelectBatch": False,
            },
        },
    }


def metrics_port(launch: Launch) -> int:
    """Where its metrics are."""
    return launch.metrics_port or launch.ports.get("metrics", launch.port + 2)


def read_config(text: bytes) -> tuple[Launch, ...]:
    """What a `config.json` runs, one for each list in `npuDeviceIds`; raises ValueError that names the key.

    Several instances in one daemon share its ports; told apart here by their devices and by `name`.
    """
    if len(text) > MAX_CONFIG_BYTES:
        raise ValueError(f"{CONFIG}: {len(text)} bytes, at most {MAX_CONFIG_BYTES} are read")
    try:
        config = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{CONFIG}: not JSON ({error})") from error
    server, backend = _section(config, "ServerConfig"), _section(config, "BackendConfig")
    deploy, schedule = _section(backend, "ModelDeployConfig"), _section(backend, "ScheduleConfig")
    models = deploy.get("ModelConfig")
    if not isinstance(models, list) or not models or not all(isinstance(model, dict) for model in models):
        raise ValueError("BackendConfig.ModelDeployConfig.ModelConfig: must be a list with a mapping")
    groups = list(_devices(backend))
    if len(models) not in {1, len(groups)}:
        told = f"{len(models)} models for {len(groups)} lists of devices; one for all of them, or one for each"
        raise ValueError(f"BackendConfig.ModelDeployConfig.ModelConfig: {told}")
    shared = Launch(
        model="",
        served_name="",
        host=str(server.get("ipAddress", "127.0.0.1")),
        port=_port(server, "port"),
        max_model_len=positive(deploy.get("maxSeqLen")),
        max_num_seqs=positive(schedule.get("maxBatchSize")),
        max_num_batched_tokens=positive(schedule.get("maxPrefillTokens")),
        block_size=positive(schedule.get("cacheBlockSize")),
        metrics_port=_port(server, "metricsPort") if "metricsPort" in server else None,
        ports={"management": _port(server, "managementPort")} if "managementPort" in server else {},
    )
    return tuple(
        _as_launch(shared, models[index if len(models) > 1 else 0], index, ids) for index, ids in enumerate(groups)
    )


def _as_launch(shared: Launch, model: dict[str, object], index: int, devices: tuple[str, ...]) -> Launch:
    memory, name = model.get("npuMemSize"), str(model.get("modelName", ""))
    return replace(
        shared,
        name=f"{name}-{index}",
        model=str(model.get("modelWeightPath", "")),
        served_name=name,
        kv_bytes=memory * GIB if isinstance(memory, int) and memory > 0 else None,
        prefix_caching=True if "prefix_cache" in str(model.get("plugin_params", "")) else None,
        tensor_parallel=positive(model.get("worldSize")) or 1,
        device_ids=devices,
        devices=len(devices),
    )


def _devices(backend: dict[str, object]) -> Iterator[tuple[str, ...]]:
    groups = backend.get("npuDeviceIds")
    if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
        raise ValueError("BackendConfig.npuDeviceIds: must be a list of lists of device numbers")
    for group in groups:
        yield tuple(str(device) for device in group)


def _section(parent: object, name: str) -> dict[str, object]:
    section = parent.get(name) if isinstance(parent, dict) else None
    if not isinstance(section, dict):
        raise ValueError(f"{name}: must be a mapping")
    return section


def _port(server: dict[str, object], name: str) -> int:
    port = server.get(name)
    if not isinstance(port, int) or not 0 < port < 65536:
        raise ValueError(f"ServerConfig.{name}: must be a port, got {port!r}")
    return port


MINDIE = Adapter(
    name="mindie",
    health_path=MODELS,  # its health paths are on the management port
    metrics_path=METRICS,
    card_paths=(MODELS,),
    hint_paths=(),
    read_metrics=read_metrics,
    read_card=read_card,
    command=command,
    environment=environment,
    files=files,
    metrics_port=metrics_port,
    supports_continuation=False,
    cannot=frozenset({"orders_by_priority", "chunked_prefill", "quantization", "dtype", "kv_cache_dtype"}),
    live=False,
)
