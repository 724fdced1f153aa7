"""Commands of the gateway: run it, look at it, make its keys.

Everything heavy is imported where it is used: a command should answer before one wonders.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.cli_base import admin_url_option, ask, json_option, read_settings, state_dir_option
from gateway.cli_output import Failure, Output

if TYPE_CHECKING:
    pass

Command = Callable[..., Any]

insecure_option = click.option(
    "--insecure", is_flag=True, default=None, help="Allow a listener beyond this host without keys."
)
listen_option = click.option("--listen", metavar="HOST:PORT", help="Data listener; default 127.0.0.1:8080.")
admin_option = click.option("--admin", metavar="HOST:PORT", help="Admin listener; default 127.0.0.1:8081.")
policy_option = click.option("--policy", metavar="FILE", help="Policy file; default: the shipped one.")


@click.command()
@click.option(
    "-c", "--config", type=click.Path(path_type=Path), help="Settings file (YAML); docs/settings.md has its fields."
)
@listen_option
@admin_option
@policy_option
@click.option("--redis", metavar="URL", help="embedded, none, or redis://…; default embedded.")
@click.option("--fleet", help="Name of the fleet in Redis; default `default`.")
@click.option("--processes", type=click.IntRange(1, 256), help="Gateway processes behind the port; default 1.")
@state_dir_option
@insecure_option
@json_option
def serve(config: Path | None, as_json: bool, **overrides: object) -> None:
    """Run the gateway."""
    from gateway.serve import run_serve, run_supervised

    out = Output(as_json)
    settings = read_settings(out, config, overrides)
    run = run_serve if settings.processes == 1 else run_supervised
    raise SystemExit(run_loop(run(settings, out)))


@click.command()
@click.option(
    "--engine",
    type=click.Choice(["sim", "vllm", "llamacpp"]),
    default="sim",
    show_default=True,
    help="What the workers run.",
)
@click.option("--short", type=click.IntRange(0, 64), default=2, show_default=True, help="Short-chat workers.")
@click.option("--long", type=click.IntRange(0, 64), default=1, show_default=True, help="Long-context workers.")
@click.option(
    "--speed",
    type=click.FloatRange(0, min_open=True),
    help="Simulated engines only: how many times faster than the cards they imitate; default 1.",
)
@click.option("--model", metavar="PATH", help="Directory with config.json (vllm) or .gguf file (llamacpp).")
@click.option("--served-name", metavar="NAME", help="Name that requests use; default: that of the directory or file.")
@click.option("--engine-command", metavar="WORDS", help="Program of the engine; default vllm, llama-server on PATH.")
@click.option("--engine-arg", multiple=True, metavar="WORD", help="One more word of the engine's command line.")
@click.option("--device", multiple=True, metavar="ID", help="Devices, dealt out in turn, or cpu; default 0 or cpu.")
@click.option("--short-tokens", type=click.IntRange(1), help="Longest request of a short-chat worker; default 4096.")
@click.option("--long-tokens", type=click.IntRange(1), help="Longest request of a long-context worker; default 32768.")
@click.option("--kv-memory", metavar="SIZE", help="KV cache of each vLLM; default: its share of the device, cpu: 1GiB.")
@click.option("--dtype", help="Type of vLLM's weights and activations; default: the model's, cpu: float32.")
@click.option("--ready-timeout", type=click.FloatRange(1, 86400), help="Seconds until all engines serve; default 900.")
@listen_option
@admin_option
@policy_option
@click.option("--state-dir", metavar="DIR", help="Keep keys, policy and all else there; default: only admin tokens.")
@insecure_option
@json_option
def up(
    engine: str,
    short: int,
    long: int,
    speed: float | None,
    model: str | None,
    served_name: str | None,
    engine_command: str | None,
    engine_arg: tuple[str, ...],
    device: tuple[str, ...],
    short_tokens: int | None,
    long_tokens: int | None,
    kv_memory: str | None,
    dtype: str | None,
    ready_timeout: float | None,
    state_dir: str | None,
    as_json: bool,
    **overrides: object,
) -> None:
    """Start a whole fleet on this machine: Valkey, workers, gateway.

    Ctrl-C ends all of it. What stays, unless --state-dir names another place, are the admin tokens in
    ~/.local/state/headrace: commands that change something find them there, and the next start uses them again.
    """
    from gateway.up import Plan, run_up
    from gateway.up_engines import Asked, ChoiceError, choose

    if short + long == 0:
        raise click.UsageError("at least one worker: --short and --long are both 0.")
    out = Output(as_json)
    asked = Asked(
        *(speed, model, served_name, engine_command, engine_arg, device),
        *(short_tokens, long_tokens, kv_memory, dtype, ready_timeout),
    )
    try:
        engines = choose(engine, asked)
    except ChoiceError as error:
        out.trouble(str(error))
        raise SystemExit(2) from None
    overrides |= {"redis": "none", "drain_s": 1, "state_dir": state_dir, "ephemeral": state_dir is None}
    settings = read_settings(out, None, overrides)
    if not (settings.admin.is_loopback or state_dir or settings.admin_token):
        out.trouble(f"admin: {settings.admin} is reachable from other hosts: give --state-dir or HEADRACE_ADMIN_TOKEN")
        raise SystemExit(2)
    if "event_log" not in settings.model_fields_set:
        settings = settings.model_copy(update={"event_log": "none"})  # of a start that the table tells better
    raise SystemExit(run_loop(run_up(Plan(short, long, speed or 1.0, engines), settings, out)))


@click.command()
@admin_url_option
@json_option
def pools(admin_url: str, as_json: bool) -> None:
    """Show the pools: workers, load, queue."""
    from gateway.cli_tables import pool_table

    out = Output(as_json)
    out.table(ask(out, admin_url, "/admin/v1/pools")["pools"], pool_table)


@click.command()
@admin_url_option
@json_option
def workers(admin_url: str, as_json: bool) -> None:
    """Show the workers: state, load, KV usage."""
    from gateway.cli_tables import worker_table

    out = Output(as_json)
    out.table(ask(out, admin_url, "/admin/v1/workers")["workers"], worker_table)


@click.command()
@click.argument("request_id")
@admin_url_option
@json_option
def explain(request_id: str, admin_url: str, as_json: bool) -> None:
    """Show why a request went where it went."""
    from urllib.parse import quote

    out = Output(as_json)
    out.story(ask(out, admin_url, f"/admin/v1/requests/{quote(request_id, safe='')}"))


@click.group()
def key() -> None:
    """Create, list, rotate and revoke client keys."""


@key.command("create")
@click.option("--tenant", required=True, help="Whose requests these are.")
@click.option("--trusted", is_flag=True, help="May speak for any tenant (X-Headrace-Tenant).")
@click.option("--note", default="", help="What it is for.")
@state_dir_option
@json_option
def key_create(tenant: str, trusted: bool, note: str, state_dir: str | None, as_json: bool) -> None:
    """Make a key for a tenant and print it, once."""
    from gateway.cli_keys import create

    out = Output(as_json)
    create(keys_file(out, state_dir), tenant, trusted, note, out)


@key.command("list")
@state_dir_option
@json_option
def key_list(state_dir: str | None, as_json: bool) -> None:
    """Show the keys, without their secrets."""
    from gateway.cli_keys import list_keys

    out = Output(as_json)
    list_keys(keys_file(out, state_dir), out)


@key.command("rotate")
@click.argument("key_id")
@state_dir_option
@json_option
def key_rotate(key_id: str, state_dir: str | None, as_json: bool) -> None:
    """Give a key a new secret; the old one ends at once."""
    from gateway.cli_keys import rotate

    out = Output(as_json)
    rotate(keys_file(out, state_dir), key_id, out)


@key.command("revoke")
@click.argument("key_id")
@state_dir_option
@json_option
def key_revoke(key_id: str, state_dir: str | None, as_json: bool) -> None:
    """End a key."""
    from gateway.cli_keys import revoke

    out = Output(as_json)
    revoke(keys_file(out, state_dir), key_id, out)


def keys_file(out: Output, state_dir: str | None) -> Path:
    """Where the gateway of the same settings looks for keys."""
    file = read_settings(out, None, {"state_dir": state_dir}).keys_file
    if file is None:
        raise Failure("HEADRACE_EPHEMERAL is set: nothing is kept, and so are no keys")
    return file


def run_loop(main: Coroutine[Any, Any, int]) -> int:
    """Run the program's coroutine on the fast event loop."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
