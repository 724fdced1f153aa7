"""One instance's own metrics in Prometheus' text format: what its agent reports and where its life stands. Pure."""

from __future__ import annotations

from workers.lifecycle import Life, State
from workers.report import STATES, WorkerReport

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(report: WorkerReport, life: Life | None = None) -> str:
    """The page. What is not known has no sample."""
    page = _Page({"worker": report.id, "pool": report.pool, "engine": report.engine})
    page.states("headrace_worker_state", "What the gateways are told.", STATES, report.state)
    page.gauge("headrace_worker_running", "Requests in the engine's batch.", report.running)
    page.gauge("headrace_worker_waiting", "Requests in the engine's own queue.", report.waiting)
    page.gauge("headrace_worker_kv_usage", "Share of the KV cache in use, 0 to 1.", report.kv_usage)
    page.gauge("headrace_worker_kv_tokens", "Capacity of the KV cache in tokens.", report.kv_tokens)
    for name, pairs in (
        ("ttft", (("0.5", report.ttft_p50_s), ("0.95", report.ttft_p95_s))),
        ("itl", (("0.5", report.itl_p50_s), ("0.95", report.itl_p95_s))),
    ):
        text = {"ttft": "Time to the first token", "itl": "Time between tokens"}[name]
        page.family(f"headrace_worker_{name}_seconds", f"{text} over the last minute.", "gauge")
        for share, value in pairs:
            page.sample(f"headrace_worker_{name}_seconds", value, quantile=share)
    page.gauge(
        "headrace_worker_device_utilization", "Of the busiest of its devices, 0 to 1.", report.device_utilization
    )
    page.gauge(
        "headrace_worker_device_used_bytes", "Memory used by everybody on its devices.", report.device_used_bytes
    )
    page.gauge("headrace_worker_device_bytes", "Memory of its devices.", report.device_bytes)
    page.counter("headrace_worker_preemptions_total", "Requests thrown out of the batch.", report.preemptions)
    page.counter("headrace_worker_prompt_tokens_total", "Prompt tokens taken.", report.prompt_tokens)
    page.counter("headrace_worker_generation_tokens_total", "Tokens made.", report.generation_tokens)
    page.counter("headrace_worker_prefix_queries_total", "Tokens looked up in the prefix cache.", report.prefix_queries)
    page.counter("headrace_worker_prefix_hits_total", "Tokens found there.", report.prefix_hits)
    page.family("headrace_worker_info", "Versions of engine, driver and weights.", "gauge")
    page.sample(
        "headrace_worker_info",
        1,
        version=report.version,
        driver=report.driver,
        weights=report.weights,
        incarnation=report.incarnation,
    )
    if life is not None:
        page.states("headrace_instance_state", "Where the supervisor has it.", tuple(State), life.state)
        page.counter("headrace_instance_starts_total", "Starts by this supervisor.", life.starts)
        page.gauge("headrace_instance_failures", "Failures in a row.", life.failures)
    return page.text()


class _Page:
    def __init__(self, labels: dict[str, str]) -> None:
        self._labels = labels
        self._lines: list[str] = []

    def family(self, name: str, text: str, kind: str) -> None:
        self._lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]

    def sample(self, name: str, value: float | None, **labels: str) -> None:
        if value is not None:
            pairs = ",".join(f'{key}="{_escaped(each)}"' for key, each in {**self._labels, **labels}.items())
            self._lines.append(f"{name}{{{pairs}}} {value}")

    def gauge(self, name: str, text: str, value: float | None) -> None:
        self.family(name, text, "gauge")
        self.sample(name, value)

    def counter(self, name: str, text: str, value: float) -> None:
        self.family(name, text, "counter")
        self.sample(name, value)

    def states(self, name: str, text: str, states: tuple[str, ...], now: str) -> None:
        self.family(name, text, "gauge")
        for state in states:
            self.sample(name, int(state == now), state=str(state))

    def text(self) -> str:
        return "\n".join([*self._lines, ""])


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
