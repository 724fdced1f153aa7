"""`headrace worker run`: check a `workers.yaml`, show what would be started, and supervise it."""

from __future__ import annotations

import asyncio
import logging
import secrets
import shlex
import signal
import sys
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from random import Random

import click
import orjson

from workers import settings
from workers.agent import connect
from workers.expand import parse_workers
from workers.instances import WorkersFile
from workers.launch import start_of
from workers.leftovers import Leftover, StateDir, StateInUse, clean
from workers.lifecycle import Event
from workers.plain_tables import print_table
from workers.portplan import claims_of
from workers.preflight import Preflight, preflight
from workers.report import REPORT_INTERVAL_S
from workers.runner import Runner, Surroundings
from workers.supervisor import Supervisor
from workers.tables import memory_tables, port_table
from workers.yamldoc import WorkersError

MAX_FILE_BYTES = 1024 * 1024
MAX_ADOPTING = 4  # one at a time; the others wait their turn


@click.command()
@click.option(
    "-c",
    "--config",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The workers.yaml. SIGHUP reads it again.",
)
@click.option("--set", "variables", multiple=True, metavar="NAME=VALUE", help="Set a variable of the file.")
@click.option("--dry-run", is_flag=True, help="Print both ledgers and the command lines; start nothing.")
@click.option("--clean", "clean_first", is_flag=True, help="End what an earlier run left behind, first.")
@click.option("--state-dir", help="Logs and the record of what runs.  [default: the file's, then ~/.local/state/…]")
@click.option(
    "--redis",
    help="Where to report; may be file:/path.  [default: the file's, then $HEADRACE_REDIS, then redis.url in "
    "$HEADRACE_STATE_DIR (else ~/.local/state/headrace), then redis://127.0.0.1:6379]",
)
@click.option("--fleet", help="Fleet to report to.  [default: the file's, then $HEADRACE_FLEET, then 'default']")
@click.option("--token", help="Bearer token of the engines; may be file:/path.  [default: $HEADRACE_ENGINE_TOKEN]")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.05, 5),
    default=REPORT_INTERVAL_S,
    show_default=True,
    help="Seconds between two reports of an instance.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the dry run as one value, else one event a line.")
def run(
    *,
    path: Path,
    variables: tuple[str, ...],
    dry_run: bool,
    clean_first: bool,
    state_dir: str | None,
    redis: str | None,
    fleet: str | None,
    token: str | None,
    interval_s: float,
    as_json: bool,
) -> None:
    """Start, watch and stop the engine instances of a file.

    Both ledgers are checked first, ports and device memory: nothing starts while one has a fault. SIGHUP reads the
    file again and changes only what differs; SIGTERM or Ctrl-C drains and ends everything, a second one kills.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    given = _variables(variables)
    file, wrong = _read(path, given)
    shared = file.shared
    state = StateDir(settings.state_dir(state_dir or shared.state_dir))
    if dry_run or wrong:
        checked = _with_faults(preflight(file), wrong)
        if not dry_run:
            raise click.UsageError("\n".join([f"{path}: nothing was started:", *checked.faults]))
        _show_dry_run(checked, state, as_json=as_json)
        sys.exit(2 if checked.faults else 0)
    try:
        state.open()
    except (StateInUse, OSError) as error:
        raise click.ClickException(str(error)) from error
    try:
        _clear(state, clean_first=clean_first, as_json=as_json)
        checked = preflight(file)
        for warning in checked.warnings:
            click.echo(f"warning: {warning}", err=True)
        if checked.faults:
            raise click.UsageError("\n".join([f"{path}: nothing was started:", *checked.faults]))
        redis_url = settings.redis_url(redis or shared.redis)
        around = Surroundings(
            file,
            settings.fleet(fleet or shared.fleet),
            state,
            connect(redis_url),
            settings.engine_token(token),
            interval_s,
            memory=checked.memory,
        )
        sys.exit(asyncio.run(_Session(around, path, given, as_json=as_json).run()))
    except settings.SettingsError as error:
        raise click.UsageError(str(error)) from error
    finally:
        state.close()


def _variables(words: Iterable[str]) -> dict[str, str]:
    pairs = [word.partition("=") for word in words]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise click.BadParameter(f"{name!r} must be NAME=VALUE", param_hint="--set")
    return {name: value for name, _, value in pairs}


def _read(path: Path, variables: dict[str, str]) -> tuple[WorkersFile, list[str]]:
    """The file, and what is wrong with it though each value is right by itself: its ledgers can still be made."""
    try:
        with path.open("rb") as file:
            return parse_workers(file.read(MAX_FILE_BYTES + 1), variables), []
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror}") from error
    except WorkersError as error:
        told = [str(problem) for problem in error.problems]
        if error.file is None:
            raise click.UsageError("\n".join([f"{path}:", *told])) from error
        return error.file, told


def _with_faults(checked: Preflight, wrong: list[str]) -> Preflight:
    """What the ledgers say, below what the file itself says; ports that clash within it are told once."""
    known = "\n".join(wrong)
    return replace(
        checked, faults=(*wrong, *(one for one in checked.faults if one.removeprefix("ports: ") not in known))
    )


def _clear(state: StateDir, *, clean_first: bool, as_json: bool) -> None:
    """Show what an earlier run left, and end it where that was asked for."""
    left = state.leftovers()
    if not left:
        return
    for one in left:
        _show_leftover(one, as_json=as_json)
    if not clean_first:
        raise click.ClickException(
            f"{len(left)} instances of an earlier run are still there; `headrace worker run --clean` ends them first"
        )
    for one in left:
        if not asyncio.run(clean(one, state)):
            raise click.ClickException(f"{one.record.instance}: cannot be ended: {'; '.join(one.lines)}")


def _show_leftover(one: Leftover, *, as_json: bool) -> None:
    pids = [process.pid for process in one.found]
    if as_json:
        _event(event="leftover", instance=one.record.instance, pids=pids, ports=list(one.record.ports)[:16])
        return
    click.echo(f"left behind: {one.record.instance}, started as {' '.join(one.record.command)[:120]}", err=True)
    for line in one.lines:
        click.echo(f"  {line}", err=True)


def _show_dry_run(checked: Preflight, state: StateDir, *, as_json: bool) -> None:
    starts = {
        one.name: start_of(
            one, checked.file, str(state.path / "instances" / one.name), checked.memory.planned(one.name)
        )
        for one in checked.file.instances
    }
    if as_json:
        claims = chain.from_iterable(map(claims_of, checked.file.instances))
        value = {
            "ok": not checked.faults,
            "faults": checked.faults,
            "warnings": checked.warnings,
            "ports": [
                {"instance": claim.owner, "purpose": claim.purpose, "first": claim.first, "last": claim.last}
                for claim in sorted(claims, key=lambda claim: claim.first)
            ],
            "port_clashes": [str(clash) for clash in checked.clashes],
            "memory": {"rows": checked.memory.rows, "devices": checked.memory.totals},
            "instances": {
                name: {
                    "argv": start.argv,
                    "environment": dict(start.environment),
                    "files": {f"{start.directory}/{file}": body.decode() for file, body in start.files.items()},
                }
                for name, start in starts.items()
            },
        }
        click.echo(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode())
        return
    ports, _ = port_table(checked.file.instances, checked.taken)
    for table in (ports, *memory_tables(checked.memory)):
        if table.row_count:
            print_table(table)
            click.echo()
    for name, start in starts.items():
        variables = "".join(f"{key}={shlex.quote(value)} " for key, value in start.environment.items())
        click.echo(f"# {name}\n{variables}{shlex.join(start.argv)}")
        for file, body in start.files.items():
            click.echo(f"# {start.directory}/{file}\n{body.decode()}")
    for word, lines in (("warning", checked.warnings), ("fault", checked.faults)):
        for line in lines:
            click.echo(f"{word}: {line}", err=True)


class _Session:
    """One supervisor and the signals that it obeys."""

    def __init__(self, around: Surroundings, path: Path, variables: dict[str, str], *, as_json: bool) -> None:
        self._around = around
        self._path = path
        self._variables = variables
        self._as_json = as_json
        self._ready = False
        self._reload = asyncio.Event()
        self._supervisor = Supervisor(
            around,
            lambda file, ours: preflight(file, our_ports=ours),
            Random(secrets.randbits(64)),
            self._changed,
        )

    async def run(self) -> int:
        """Until a signal ends it. The exit status: 1 when an instance had been given up."""
        stop, hurry = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def ended() -> None:
            (hurry if stop.is_set() else stop).set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ended)
        loop.add_signal_handler(signal.SIGHUP, self._reload.set)
        self._supervisor.start()
        reloading = asyncio.create_task(self._reload_when_told())
        await stop.wait()
        reloading.cancel()
        await asyncio.wait({reloading})
        given_up = any(runner.life.given_up for runner in self._supervisor.runners)
        closing = asyncio.create_task(self._supervisor.close())
        hurried = asyncio.create_task(hurry.wait())
        await asyncio.wait({closing, hurried}, return_when=asyncio.FIRST_COMPLETED)
        if not closing.done():
            await self._supervisor.close(drain=False)
        hurried.cancel()
        await closing
        await self._around.redis.close()
        self._say("everything has ended", event="stopped")
        return 1 if given_up else 0

    async def _reload_when_told(self) -> None:
        # A file that comes while another is being adopted may take back what that one is about to do.
        adopting: set[asyncio.Task[None]] = set()
        try:
            while True:
                await self._reload.wait()
                self._reload.clear()
                if len(adopting) >= MAX_ADOPTING:
                    await asyncio.wait(adopting, return_when=asyncio.FIRST_COMPLETED)
                task = asyncio.create_task(self._adopt())
                adopting.add(task)
                task.add_done_callback(adopting.discard)
        finally:
            for task in adopting:
                task.cancel()
            if adopting:
                await asyncio.wait(adopting)

    async def _adopt(self) -> None:
        try:
            file, wrong = _read(self._path, self._variables)
        except click.UsageError as error:
            wrong = error.message.splitlines()
        else:
            wrong = wrong or await self._supervisor.adopt(file)
        for line in wrong:
            self._say(f"reload: {line}", event="reload_fault", why=line)
        self._say("reloaded", event="reloaded", faults=len(wrong))

    def _changed(self, runner: Runner, event: Event, why: str) -> None:
        life = runner.life
        pids = {} if runner.process is None else {"pid": runner.process.pid, "engine_pid": runner.process.engine_pid}
        text = f"{runner.id}: {life.state}" + (f" ({why})" if why else "")
        if life.given_up:
            text += f"; given up after {life.failures} failures"
        self._say(
            text,
            event="instance",
            id=runner.id,
            state=life.state,
            why=why,
            url=runner.spec.url,
            failures=life.failures,
            given_up=life.given_up,
            **pids,
        )
        if event is Event.WARM and not self._ready and self._supervisor.all_ready:
            self._ready = True
            ready = [{"id": one.id, "url": one.spec.url, "pool": one.spec.pool} for one in self._supervisor.runners]
            self._say("all instances are ready", event="ready", instances=ready)

    def _say(self, text: str, **fields: object) -> None:
        if self._as_json:
            _event(**fields)
        else:
            click.echo(text)


def _event(**fields: object) -> None:
    click.echo(orjson.dumps(fields).decode())
