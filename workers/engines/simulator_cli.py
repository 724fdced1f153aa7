"""`headrace worker sim`: one simulated engine in a process of its own, with its agent when there is a Redis."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import click
import orjson
import uvloop

from workers import settings
from workers.engines.simulator import Simulator, SimulatorConfig
from workers.engines.simulator_faults import AdminServer
from workers.engines.timing import DEFAULT_PRESET, PRESETS


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port; 0 takes a free one.")
@click.option("--model", "models", multiple=True, help="Name it serves; may be repeated.  [default: tiny]")
@click.option("--pool", default="short-chat", show_default=True, help="The policy's pool it belongs to.")
@click.option("--id", "worker_id", help="Name in headers, logs and metrics.  [default: sim-PORT]")
@click.option(
    "--preset",
    type=click.Choice(list(PRESETS)),
    default=DEFAULT_PRESET,
    show_default=True,
    metavar="NAME",
    help=f"Model and card whose step times it has: {', '.join(PRESETS)}.",
)
@click.option(
    "--max-model-len",
    type=click.IntRange(16),
    default=8192,
    show_default=True,
    help="Longest prompt and output together, in tokens.",
)
@click.option("--max-num-seqs", type=click.IntRange(1), help="Sequences in a batch.  [default: the preset's]")
@click.option("--max-num-batched-tokens", type=click.IntRange(1), help="Tokens a step.  [default: the preset's]")
@click.option("--kv-tokens", type=click.IntRange(16), help="KV capacity.  [default: the preset's]")
@click.option("--block-size", type=click.IntRange(1), default=16, show_default=True, help="Tokens a KV block.")
@click.option(
    "--speed",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Times faster than the card.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of texts, output lengths and ids.")
@click.option(
    "--mean-output",
    type=click.FloatRange(0),
    default=128.0,
    show_default=True,
    help="Mean length of answers in tokens, max_tokens ends them too; 0: only that does.",
)
@click.option(
    "--scheduling-policy", type=click.Choice(["fcfs", "priority"]), default="fcfs", show_default=True, help="As vLLM's."
)
@click.option(
    "--runner", type=click.Choice(["generate", "pooling"]), default="generate", show_default=True, help="Kind of model."
)
@click.option("--prefix-caching/--no-prefix-caching", default=True, show_default=True, help="Reuse KV of prefixes.")
@click.option("--max-num-queued-reqs", type=click.IntRange(0), help="Refuse with 503 beyond.  [default: no limit]")
@click.option("--api-key", "api_keys", multiple=True, help="Key that clients must send; may be repeated.")
@click.option("--enable-request-id-headers", is_flag=True, help="Echo X-Request-Id.")
@click.option("--enable-server-load-tracking", is_flag=True, help="Count in /load.")
@click.option("--redis", help="Report to this Redis; may be file:/path. Without it there is no agent.")
@click.option("--fleet", default="default", show_default=True, help="Fleet to report to.")
@click.option("--admin-port", type=click.IntRange(0, 65535), help="Port for faults and state; 0 takes a free one.")
@click.option("--json", "as_json", is_flag=True, help="Print events as JSON lines.")
def sim(
    *,
    host: str,
    port: int,
    models: tuple[str, ...],
    pool: str,
    worker_id: str | None,
    preset: str,
    max_model_len: int,
    max_num_seqs: int | None,
    max_num_batched_tokens: int | None,
    kv_tokens: int | None,
    block_size: int,
    speed: float,
    seed: int,
    mean_output: float,
    scheduling_policy: str,
    runner: str,
    prefix_caching: bool,
    max_num_queued_reqs: int | None,
    api_keys: tuple[str, ...],
    enable_request_id_headers: bool,
    enable_server_load_tracking: bool,
    redis: str | None,
    fleet: str,
    admin_port: int | None,
    as_json: bool,
) -> None:
    """Run a simulated vLLM: an OpenAI-compatible server with the timing of a real card."""
    config = SimulatorConfig(
        host=host,
        port=port,
        models=models or ("tiny",),
        preset=preset,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_tokens=kv_tokens,
        block_size=block_size,
        speed=speed,
        seed=seed,
        mean_output=mean_output,
        priority_scheduling=scheduling_policy == "priority",
        prefix_caching=prefix_caching,
        pooling=runner == "pooling",
        max_num_queued_reqs=max_num_queued_reqs,
        api_keys=api_keys,
        request_id_headers=enable_request_id_headers,
        load_tracking=enable_server_load_tracking,
    )
    try:
        simulator = Simulator(config)
        redis_at = None if redis is None else settings.redis_url(redis)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as own_loop:
            own_loop.run(_serve(simulator, pool, worker_id, redis_at, fleet, admin_port, as_json=as_json))
    except OSError as error:
        raise click.ClickException(f"cannot listen on {host}:{port}: {error.strerror or error}") from error


async def _serve(
    simulator: Simulator,
    pool: str,
    worker_id: str | None,
    redis: str | None,
    fleet: str,
    admin_port: int | None,
    *,
    as_json: bool,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await simulator.start()
    admin = AdminServer(simulator)
    if admin_port is not None:
        await admin.start(simulator.config.host, admin_port)
    name = worker_id or f"sim-{simulator.port}"
    admin_url = None if admin_port is None else f"http://{simulator.config.host}:{admin.port}"
    if as_json:
        _print_event({"event": "ready", "url": simulator.url, "id": name, "admin": admin_url, "pid": os.getpid()})
    else:
        click.echo(f"{name} serves {', '.join(simulator.config.models)} at {simulator.url}; Ctrl-C stops")
        if admin_url is not None:
            click.echo(f"faults and state at {admin_url}")
    try:
        if redis is None:
            await stop.wait()
        else:
            await _report(simulator, name, pool, redis, fleet, stop)
    finally:
        simulator.close()
        admin.close()
        # One turn of the loop: what has just been written reaches the sockets.
        await asyncio.sleep(0.02)
    if as_json:
        _print_event({"event": "stopped", "id": name})


async def _report(simulator: Simulator, name: str, pool: str, redis: str, fleet: str, stop: asyncio.Event) -> None:
    # Late: the agent brings an HTTP client, which costs more start-up time than the engine.
    from workers.agent import FAREWELL_S, AgentTarget, connect, run_agent
    from workers.engines.adapters import ADAPTERS

    config, core = simulator.config, simulator.core.config
    target = AgentTarget(
        id=name,
        url=simulator.url,
        pool=pool,
        fleet=fleet,
        max_model_len=config.max_model_len,
        max_num_seqs=core.max_num_seqs,
        max_num_batched_tokens=core.max_num_batched_tokens,
        preset=config.preset,
        supports_priority=config.priority_scheduling,
        token=config.api_keys[0] if config.api_keys else None,
    )
    client = connect(redis)
    try:
        await run_agent(ADAPTERS["simulator"], target, client, stop, farewell_s=FAREWELL_S)
    finally:
        await client.close()


def _print_event(fields: dict[str, object]) -> None:
    click.echo(orjson.dumps(fields).decode())
    sys.stdout.flush()


if __name__ == "__main__":
    sim()
