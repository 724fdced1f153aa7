"""`headrace worker`: commands that run beside engines."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import re
import signal
from typing import cast
from urllib.parse import urlsplit

import click
import orjson

from workers import settings
from workers.agent import FAREWELL_S, AgentTarget, connect, run_agent
from workers.engines.adapters import ADAPTERS
from workers.engines.base import Adapter
from workers.report import (
    REPORT_INTERVAL_S,
    WORKER_URL,
    BadReport,
    WorkerReport,
    is_worker_id,
    is_worker_url,
    socket_of,
)
from workers.weights import fingerprint

LAZY: dict[str, tuple[str, str, str]] = {
    "run": ("workers.run_cli", "run", "Start, watch and stop the engine instances of a file."),
    "import": ("workers.import_cli", "import_config", "Turn a MindIE config.json into a workers.yaml."),
    "export": ("workers.import_cli", "export_config", "Print the MindIE config.json of a workers.yaml."),
    "sim": ("workers.engines.simulator_cli", "sim", "Run a simulated engine with its agent."),
}
"""Name -> (module, attribute, one line of help) of commands that are imported only to run."""


class _WorkerGroup(click.Group):
    """A group that lists the commands of `LAZY` without importing them."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        helps = {name: command.get_short_help_str(100) for name, command in self.commands.items()}
        helps |= {name: text for name, (_, _, text) in LAZY.items()}
        with formatter.section("Commands"):
            formatter.write_dl(sorted(helps.items()))

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *LAZY})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in LAZY:
            module, attribute, _ = LAZY[cmd_name]
            return cast(click.Command, getattr(importlib.import_module(module), attribute))
        return super().get_command(ctx, cmd_name)


@click.group(cls=_WorkerGroup)
def worker() -> None:
    """Run or attach a worker."""


@worker.command()
@click.option(
    "--engine", "engine_name", type=click.Choice(sorted(ADAPTERS)), required=True, help="What answers at the URL."
)
@click.option(
    "--url", required=True, help="http://host[:port] of the engine, as the gateways reach it too, or unix:///path."
)
@click.option("--pool", required=True, help="The policy's pool it belongs to.")
@click.option("--id", "worker_id", help="Name in headers, logs and metrics.  [default: ENGINE-HOST-PORT]")
@click.option(
    "--redis",
    help="Where to report; may be file:/path.  [default: $HEADRACE_REDIS, then redis.url in $HEADRACE_STATE_DIR (else "
    "~/.local/state/headrace), which a gateway of this host leaves there, then redis://127.0.0.1:6379]",
)
@click.option("--fleet", help="Fleet to report to.  [default: $HEADRACE_FLEET, then 'default']")
@click.option("--token", help="Bearer token the engine wants; may be file:/path.  [default: $HEADRACE_ENGINE_TOKEN]")
@click.option("--max-model-len", type=click.IntRange(1), help="Longest request in tokens.  [default: what it says]")
@click.option("--max-num-seqs", type=click.IntRange(1), help="Sequences it batches; vLLM does not say it.")
@click.option("--max-num-batched-tokens", type=click.IntRange(1), help="Tokens it takes into one step.")
@click.option("--kv-tokens", type=click.IntRange(1), help="KV capacity in tokens.  [default: what it says]")
@click.option("--preset", help="Step-time preset to start from.")
@click.option("--priority/--no-priority", default=False, help="The engine orders its own queue by priority.")
@click.option("--metrics-url", help="http://host[:port] of its metrics, where they are not at --url (MindIE).")
@click.option("--device", "devices", multiple=True, help="Index or UUID of a device it runs on; may be repeated.")
@click.option("--model-path", help="Directory of its weights on this host, for their fingerprint.")
@click.option("--listen", help="host:port where this agent shows metrics of the instance alone.")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.05, 5),
    default=REPORT_INTERVAL_S,
    show_default=True,
    help="Seconds between two reports.",
)
@click.option("--json", "as_json", is_flag=True, help="Print events as JSON lines.")
def attach(
    *,
    engine_name: str,
    url: str,
    pool: str,
    worker_id: str | None,
    redis: str | None,
    fleet: str | None,
    token: str | None,
    max_model_len: int | None,
    max_num_seqs: int | None,
    max_num_batched_tokens: int | None,
    kv_tokens: int | None,
    preset: str | None,
    priority: bool,
    metrics_url: str | None,
    devices: tuple[str, ...],
    model_path: str | None,
    listen: str | None,
    interval_s: float,
    as_json: bool,
) -> None:
    """Report on an engine that somebody else started, until told to stop.

    The engine may start later, hang or be replaced, and Redis may be away: the agent says so and carries on.
    """
    url = url.removesuffix("/")
    metrics_url = None if metrics_url is None else metrics_url.removesuffix("/")
    for option, value in (("--url", url), ("--metrics-url", metrics_url or url)):
        if not is_worker_url(value):
            raise click.BadParameter(f"must be {WORKER_URL}", param_hint=option)
    if metrics_url is not None and (socket_of(url) or socket_of(metrics_url)):
        raise click.BadParameter("a unix socket has the metrics, too; leave it out", param_hint="--metrics-url")
    address = _address(listen)
    if not is_worker_id(settings.fleet(fleet)):
        raise click.BadParameter("must be 1 to 128 letters, digits, '.', '_', ':' or '-'", param_hint="--fleet")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        target = AgentTarget(
            id=worker_id or default_id(engine_name, url),
            url=url,
            pool=pool,
            fleet=settings.fleet(fleet),
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            kv_tokens=kv_tokens,
            preset=preset,
            supports_priority=priority,
            token=settings.engine_token(token),
            metrics_url=metrics_url,
            devices=devices,
            weights="" if model_path is None else fingerprint(model_path),
        )
        redis_at = settings.redis_url(redis)
        asyncio.run(_attach(ADAPTERS[engine_name], target, redis_at, interval_s, address, as_json=as_json))
    except (settings.SettingsError, BadReport) as error:
        raise click.UsageError(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"--listen {listen}: {error.strerror or error}") from error


def _address(listen: str | None) -> tuple[str, int] | None:
    if listen is None:
        return None
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise click.BadParameter("must be host:port", param_hint="--listen")
    return host.strip("[]"), int(port)


def default_id(engine_name: str, url: str) -> str:
    """An id made of what tells two engines apart on the command line."""
    path = socket_of(url)
    if path is not None:
        return f"{engine_name}-{re.sub(r'[^A-Za-z0-9._-]+', '-', path).strip('-')}"
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{engine_name}-{parts.hostname}-{port}"


async def _attach(
    adapter: Adapter,
    target: AgentTarget,
    redis_url: str,
    interval_s: float,
    address: tuple[str, int] | None,
    *,
    as_json: bool,
) -> None:
    latest = WorkerReport(target.id, "none", 0, target.url, adapter.name, target.pool, (), "starting")

    def reported(report: WorkerReport, _: bool) -> None:
        nonlocal latest
        latest = report

    def published(report: WorkerReport) -> None:
        if as_json:
            _print_event(event="ready", id=report.id, url=report.url)
        else:
            click.echo(f"reporting {report.id} at {report.url} ({report.pool}) to fleet {target.fleet}; Ctrl-C stops")

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        if address is not None:
            from workers.listener import listen  # brings a web server, which only this needs

            stack.push_async_callback((await listen(*address, lambda: (latest, None))).cleanup)
        client = connect(redis_url)
        stack.push_async_callback(client.close)
        await run_agent(
            *(adapter, target, client, stop, interval_s),
            on_published=published,
            on_report=reported,
            farewell_s=FAREWELL_S,
        )
    if as_json:
        _print_event(event="stopped", id=target.id)


def _print_event(**fields: str) -> None:
    click.echo(orjson.dumps(fields).decode())
