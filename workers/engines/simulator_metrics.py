"""The simulated engine's /metrics: vLLM 0.32's names, labels and buckets. Pure; times are handed in."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

from workers.engines.timing import EngineCore, Sequence, StepResult

CONTENT_TYPE: Final = "text/plain; version=1.0.0; charset=utf-8"
FINISH_REASONS: Final = ("stop", "length", "abort", "error", "repetition")

_TTFT_S: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_ITL_S: Final = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_E2E_S: Final = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0),
    *(40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_TOKENS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0)
_ITERATION: Final = (*(1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0), *(1024.0, 2048.0, 4096.0, 8192.0, 16384.0))
_SMALL: Final = (1.0, 2.0, 5.0, 10.0, 20.0)
_PREEMPTIONS: Final = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)

_HISTOGRAMS: Final[dict[str, tuple[tuple[float, ...], str]]] = {
    "request_prompt_tokens": (_TOKENS, "Number of prefill tokens processed."),
    "request_generation_tokens": (_TOKENS, "Number of generation tokens processed."),
    "iteration_tokens_total": (_ITERATION, "Histogram of number of tokens per engine_step."),
    "request_max_num_generation_tokens": (_TOKENS, "Histogram of maximum number of requested generation tokens."),
    "request_params_n": (_SMALL, "Histogram of the n request parameter."),
    "request_params_max_tokens": (_TOKENS, "Histogram of the max_tokens request parameter."),
    "time_to_first_token_seconds": (_TTFT_S, "Histogram of time to first token in seconds."),
    "inter_token_latency_seconds": (_ITL_S, "Histogram of inter-token latency in seconds."),
    "request_time_per_output_token_seconds": (_ITL_S, "Histogram of time_per_output_token_seconds per request."),
    "e2e_request_latency_seconds": (_E2E_S, "Histogram of e2e request latency in seconds."),
    "request_queue_time_seconds": (_E2E_S, "Histogram of time spent in WAITING phase for request."),
    "request_inference_time_seconds": (_E2E_S, "Histogram of time spent in RUNNING phase for request."),
    "request_prefill_time_seconds": (_E2E_S, "Histogram of time spent in PREFILL phase for request."),
    "request_decode_time_seconds": (_E2E_S, "Histogram of time spent in DECODE phase for request."),
    "request_num_preemptions": (_PREEMPTIONS, "Histogram of the number of times a request was preempted."),
    "request_prefill_kv_computed_tokens": (
        _TOKENS,
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
    ),
}


class Histogram:
    """Counts of values by upper bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, `times` over."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(labels[name])}"' for name in sorted(labels)) + "}"


class Metrics:
    """Everything counted about one engine. `core` supplies what it counts itself, at the time of a scrape."""

    def __init__(self, core: EngineCore, model: str, max_model_len: int, created: float) -> None:
        self._core = core
        self._model = model
        self._max_model_len = max_model_len
        self._created = created
        self._engine = {"engine": "0", "model_name": model}
        self.finished = dict.fromkeys(FINISH_REASONS, 0)
        self.admission_rejections = {"max_num_queued_reqs": 0, "max_num_queued_tokens": 0}
        self.http: dict[tuple[str, str, str], int] = {}  # (route, method, status class) -> requests
        self._histograms = {name: Histogram(bounds) for name, (bounds, _) in _HISTOGRAMS.items()}

    def observe(self, histogram: str, value: float, times: int = 1) -> None:
        """Count a value in the histogram called `vllm:<histogram>`."""
        self._histograms[histogram].observe(value, times)

    def count_http(self, route: str, method: str, status: int) -> None:
        """Count an answered request. `route` is one of ours or `none`: labels do not grow with what clients send."""
        key = (route, method, f"{status // 100}xx")
        self.http[key] = self.http.get(key, 0) + 1

    def step(self, result: StepResult, speed: float) -> None:
        """Count a step, or several alike; times are those of clients, `speed` times shorter than the core's."""
        self.observe("iteration_tokens_total", result.scheduled_tokens, result.steps)
        if result.decodes:
            gap = result.duration_s / result.steps / speed
            self.observe("inter_token_latency_seconds", gap, result.decodes * result.steps)

    def sequence(self, seq: Sequence, e2e_s: float, speed: float) -> None:
        """Count a finished sequence, `e2e_s` after its arrival."""
        scheduled = seq.scheduled_at if seq.scheduled_at is not None else seq.arrival
        first = seq.first_token_at if seq.first_token_at is not None else scheduled
        end = seq.finished_at if seq.finished_at is not None else first
        self.observe("request_prompt_tokens", seq.prompt_tokens)
        self.observe("request_generation_tokens", seq.output_tokens)
        self.observe("e2e_request_latency_seconds", e2e_s)
        self.observe("request_queue_time_seconds", (scheduled - seq.arrival) / speed)
        self.observe("request_prefill_time_seconds", (first - scheduled) / speed)
        self.observe("request_decode_time_seconds", (end - first) / speed)
        self.observe("request_inference_time_seconds", (end - scheduled) / speed)
        self.observe("request_time_per_output_token_seconds", (end - first) / speed / max(1, seq.output_tokens - 1))
        self.observe("request_num_preemptions", seq.preemptions)
        self.observe("request_prefill_kv_computed_tokens", seq.prompt_tokens - seq.cached_tokens)

    def choice(self, finish: str, seq: Sequence, max_tokens: int) -> None:
        """Count why a sequence ended and what it was allowed."""
        self.finished[finish] += 1
        self.observe("request_max_num_generation_tokens", seq.output_tokens)
        self.observe("request_params_max_tokens", max_tokens)

    def exposition(self) -> str:
        """The text of /metrics."""
        lines: list[str] = []
        core = self._core
        queries, hits = float(core.prefix_queries), float(core.prefix_hits)
        cached = float(core.cached_prompt_tokens)
        self._gauge(lines, "num_requests_running", "Number of requests in model execution batches.", len(core.running))
        self._gauge(lines, "num_requests_waiting", "Number of requests waiting to be processed.", core.waiting)
        self._family(
            lines,
            "num_requests_waiting_by_reason",
            "gauge",
            "Number of waiting requests by reason.",
            {("reason", "capacity"): float(core.waiting), ("reason", "deferred"): 0.0},
        )
        sleep: dict[tuple[str, str] | None, float] = {
            ("sleep_state", state): float(state == "awake") for state in ("awake", "weights_offloaded", "discard_all")
        }
        self._family(lines, "engine_sleep_state", "gauge", "Engine sleep state.", sleep)
        self._gauge(lines, "kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", core.pool.usage)
        self._counter(lines, "prefix_cache_queries", "Prefix cache queries, in number of queried tokens.", queries)
        self._counter(lines, "prefix_cache_hits", "Prefix cache hits, in number of cached tokens.", hits)
        self._counter(lines, "num_preemptions", "Cumulative number of preemption from the engine.", core.preemptions)
        self._counter(lines, "prompt_tokens", "Number of prefill tokens processed.", core.prompt_tokens)
        self._counters(
            lines,
            "prompt_tokens_by_source",
            "Number of prompt tokens by source.",
            {
                ("source", "local_compute"): core.prompt_tokens - cached,
                ("source", "local_cache_hit"): cached,
                ("source", "external_kv_transfer"): 0.0,
            },
        )
        self._counter(lines, "prompt_tokens_cached", "Number of cached prompt tokens (local + external).", cached)
        self._counter(lines, "generation_tokens", "Number of generation tokens processed.", core.generated_tokens)
        self._counters(
            lines,
            "request_success",
            "Count of successfully processed requests.",
            {("finished_reason", reason): float(count) for reason, count in self.finished.items()},
        )
        self._counters(
            lines,
            "admission_rejections",
            "Number of admission attempts rejected by a queue limit, by reason.",
            {("reason", reason): float(count) for reason, count in self.admission_rejections.items()},
            base={"model_name": self._model},
        )
        for name, (_, text) in _HISTOGRAMS.items():
            self._histogram(lines, name, text)
        self._cache_config(lines)
        self._http(lines)
        return "\n".join(lines) + "\n"

    def _gauge(self, lines: list[str], name: str, text: str, value: float) -> None:
        self._family(lines, name, "gauge", text, {None: float(value)})

    def _counter(self, lines: list[str], name: str, text: str, value: float) -> None:
        self._counters(lines, name, text, {None: float(value)})

    def _counters(
        self,
        lines: list[str],
        name: str,
        text: str,
        values: Mapping[tuple[str, str] | None, float],
        base: Mapping[str, str] | None = None,
    ) -> None:
        self._family(lines, f"{name}_total", "counter", text, values, base)
        self._family(lines, f"{name}_created", "gauge", text, dict.fromkeys(values, self._created), base)

    def _family(
        self,
        lines: list[str],
        name: str,
        kind: str,
        text: str,
        values: Mapping[tuple[str, str] | None, float],
        base: Mapping[str, str] | None = None,
    ) -> None:
        lines += (f"# HELP vllm:{name} {text}", f"# TYPE vllm:{name} {kind}")
        for label, value in values.items():
            labels = dict(self._engine if base is None else base)
            if label is not None:
                labels[label[0]] = label[1]
            lines.append(f"vllm:{name}{_labels(labels)} {value!r}")

    def _histogram(self, lines: list[str], name: str, text: str) -> None:
        histogram = self._histograms[name]
        lines += (f"# HELP vllm:{name} {text}", f"# TYPE vllm:{name} histogram")
        seen = 0
        for bound, count in zip((*map(repr, histogram.bounds), "+Inf"), histogram.counts, strict=True):
            seen += count
            lines.append(f"vllm:{name}_bucket{_labels({**self._engine, 'le': bound})} {float(seen)!r}")
        labels = _labels(self._engine)
        lines += (f"vllm:{name}_count{labels} {float(seen)!r}", f"vllm:{name}_sum{labels} {histogram.total!r}")
        self._family(lines, f"{name}_created", "gauge", text, {None: self._created})

    def _cache_config(self, lines: list[str]) -> None:
        config = self._core.config
        blocks = self._core.pool.capacity + 1
        concurrency = blocks / -(-self._max_model_len // config.block_size)
        labels = {
            "engine": "0",
            "block_size": str(config.block_size),
            "cache_dtype": "auto",
            "enable_prefix_caching": str(config.prefix_caching),
            "gpu_memory_utilization": "0.92",
            "kv_cache_max_concurrency": repr(concurrency),
            "kv_cache_size_tokens": str(int(concurrency * self._max_model_len)),
            "num_cpu_blocks": "None",
            "num_gpu_blocks": str(blocks),
            "num_gpu_blocks_override": "None",
            "prefix_caching_hash_algo": "sha256",
            "sliding_window": "None",
        }
        lines += (
            "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig",
            "# TYPE vllm:cache_config_info gauge",
            f"vllm:cache_config_info{_labels(labels)} 1.0",
        )

    def _http(self, lines: list[str]) -> None:
        lines += (
            "# HELP http_requests_total Total number of requests by method, status and handler.",
            "# TYPE http_requests_total counter",
        )
        for (handler, method, status), count in self.http.items():
            labels = _labels({"handler": handler, "method": method, "status": status})
            lines.append(f"http_requests_total{labels} {float(count)!r}")
