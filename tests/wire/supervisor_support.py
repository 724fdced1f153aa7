"""A supervisor as a process or as an object, with simulated engines."""

import asyncio
import contextlib
import json
import signal
import sys
import time
from random import Random

import yaml

from gateway.ports import free_port
from workers.agent import connect
from workers.expand import parse_workers
from workers.leftovers import StateDir
from workers.lifecycle import RestartPolicy
from workers.preflight import preflight
from workers.processes import read_process
from workers.report import decode, report_key
from workers.runner import Surroundings
from workers.supervisor import Supervisor

FLEET = "sup"
INTERVAL_S = 0.1


def simulated(name, **fields):
    """An instance that is ready in half a second and fast after that."""
    words = ("--speed", str(fields.pop("speed", 50)), "--mean-output", "0")
    return {
        "name": name,
        "engine": "simulator",
        "model_path": "tiny",
        "served_name": "tiny",
        "pool": "short-chat",
        "max_model_len": 4096,
        "port": free_port(),
        "agent_port": None,
        "extra_flags": [*words, *fields.pop("flags", ())],
        **fields,
    }


def on_card(name, gib, **fields):
    """An instance that plans with so many GiB of a device called `card`."""
    return simulated(name, device="card", weights_bytes="1MiB", kv_bytes=f"{gib}GiB", **fields)


CARD = [{"id": "card", "kind": "cpu", "memory": "24GiB"}]


def document(instances, **shared):
    return {"shared": {"fleet": FLEET, "memory": {"reserve": 0}, **shared}, "instances": list(instances)}


def alive(pid):
    process = read_process(pid)
    return process is not None and not process.zombie


async def until(condition, what, within_s=30.0):
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.01)
    return value


class Running:
    """`headrace worker run` as a process, and the events it prints."""

    def __init__(self, process):
        self.process = process
        self.events = []
        self._news = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    async def _read(self):
        async for line in self.process.stdout:
            if line.startswith(b"{"):
                self.events.append(json.loads(line))
                self._news.set()
        self._news.set()

    async def event(self, kind, after=0, within_s=40.0, **fields):
        """The first event of this kind with these values, among those after the first `after`."""
        async with asyncio.timeout(within_s):
            while True:
                self._news.clear()
                for event in self.events[after:]:
                    if event["event"] == kind and all(event.get(key) == value for key, value in fields.items()):
                        return event
                assert self.process.returncode is None or not self._reader.done(), (kind, fields, self.events)
                await self._news.wait()

    def pids(self):
        """Guardians and engines that were told of."""
        return {event[key] for event in self.events for key in ("pid", "engine_pid") if key in event}

    async def end(self, number=signal.SIGTERM, within_s=40.0):
        self.process.send_signal(number)
        async with asyncio.timeout(within_s):
            await self._reader
            return await self.process.wait()


@contextlib.asynccontextmanager
async def running(tmp_path, redis_url, instances, *options, **shared):
    """A supervisor process; whatever happens, it and its engines are gone afterwards."""
    path = tmp_path / "workers.yaml"
    path.write_text(yaml.safe_dump(document(instances, **shared)))
    with (tmp_path / "stderr").open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headrace", "worker", "run", "-c", str(path), "--json"),
            *("--state-dir", str(tmp_path / "state"), "--redis", redis_url, "--interval", str(INTERVAL_S), *options),
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )
    run = Running(process)
    try:
        yield run
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await run._reader
        await until(lambda: not any(alive(pid) for pid in run.pids()), "the engines are gone")


@contextlib.asynccontextmanager
async def supervising(tmp_path, redis_url, instances, restarts=None, farewell_s=0.1, **shared):
    """A supervisor in this process: the object, and the list of (id, state, why) that grows."""
    file = parse_workers(yaml.safe_dump(document(instances, **shared)))
    state = StateDir(tmp_path / "state")
    state.open()
    redis = connect(redis_url)
    seen = []
    supervisor = Supervisor(
        Surroundings(file, FLEET, state, redis, None, INTERVAL_S, settle_s=0.1, farewell_s=farewell_s),
        lambda wanted, ours: preflight(wanted, our_ports=ours),
        Random(1),
        lambda runner, _event, why: seen.append((runner.id, str(runner.life.state), why)),
        restarts or RestartPolicy(base_s=0.05, cap_s=0.2, give_up_after=3),
    )
    supervisor.start()
    try:
        yield supervisor, seen
    finally:
        async with asyncio.timeout(60):
            await supervisor.close(drain=False)
        await redis.close()
        state.close()


def adopted(instances, **shared):
    return parse_workers(yaml.safe_dump(document(instances, **shared)))


async def report(redis, worker):
    raw = await redis.get(report_key(FLEET, worker))
    return None if raw is None else decode(raw, worker)


async def reported(redis, worker, state):
    """The first report of this worker with this state."""
    async with asyncio.timeout(30):
        while True:
            seen = await report(redis, worker)
            if seen is not None and seen.state == state:
                return seen
            await asyncio.sleep(0.02)


async def stream(url, tokens, session, started=None):
    """Ask for so many tokens as a stream; the text of all events. `started` is set at the first one."""
    body = {"model": "tiny", "prompt": "x", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    pieces = []
    async with session.post(f"{url}/v1/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        async for piece in answer.content.iter_any():
            pieces.append(piece)
            if started is not None:
                started.set()
    return b"".join(pieces)


def finished(text):
    return b"[DONE]" in text and b'"finish_reason":"length"' in text and b"error" not in text


def environment_of(pid):
    with open(f"/proc/{pid}/environ", "rb") as file:
        return dict(pair.split(b"=", 1) for pair in file.read().split(b"\0") if b"=" in pair)
