"""A fleet of `headrace verify`'s own: simulated engines and a gateway on loopback, each a process under a guardian.

Every port is a free one, every file is in a temporary directory, and nothing of the environment's `HEADRACE_…` reaches
them. Guardians (`workers/guardian.py`) end what they stand over whatever ends this process, SIGKILL included.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import aiohttp
import orjson

import workers.guardian
from loadtest.settings import environment_of_children
from loadtest.verify_client import MODEL, Caller

START_S: Final = 60.0  # of each process: a machine that is busy with other things takes its time
STOP_S: Final = 10.0
REST_S: Final = 15.0  # until nothing runs any more
CALL_S: Final = 10.0
POLL_S: Final = 0.02
LOG_BYTES: Final = 4 << 20
BOOKED: Final = ("leases", "in_flight", "booked_prefill_s", "booked_decode_s", "booked_kv_tokens")


class VerifyError(RuntimeError):
    """A check cannot be made; says in one line why."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What an engine is started as."""

    pool: str
    max_model_len: int
    max_num_seqs: int
    kv_tokens: int


SHORT: Final = Shape("short-chat", 4096, 8, 8192)
LONG: Final = Shape("long-context", 32768, 4, 65536)


@dataclass(frozen=True, slots=True)
class Layout:
    """A fleet to start."""

    short: int = 2
    long: int = 1
    redis: bool = True  # an embedded Valkey, and engines that register themselves there; else static workers
    processes: int = 1
    speed: float = 3.0  # times as fast as the card that engines imitate
    drain_s: float = 10.0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def engines(self) -> Iterator[tuple[str, Shape]]:
        """Id and shape of each."""
        for prefix, shape, count in (("short", SHORT, self.short), ("long", LONG, self.long)):
            yield from ((f"{prefix}-{number}", shape) for number in range(1, count + 1))


class Guarded:
    """A process under a guardian. `pid`: its own, not the guardian's."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path, pid: int) -> None:
        self.name = name
        self.process = process
        self.pid = pid
        self._log = log

    @classmethod
    async def start(cls, name: str, words: list[str], home: Path) -> Guarded:
        """Start `python -P -m WORDS`: a directory that we happen to be in must not hide a package."""
        log = home / f"{name}.log"
        guardian = [sys.executable, "-I", "-S", workers.guardian.__file__, str(log), str(LOG_BYTES), "0"]
        process = await asyncio.create_subprocess_exec(
            *guardian, sys.executable, "-P", "-m", *words,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            env=environment_of_children(), start_new_session=True,
        )  # fmt: skip
        try:
            async with asyncio.timeout(START_S):
                said = await cast(asyncio.StreamReader, process.stdout).readline()
            if not said.strip().isdigit():
                raise VerifyError(f"{name} did not start")
        except BaseException:  # a cancelled start, too: it would be known to nobody
            process.kill()
            raise
        return cls(name, process, log, int(said))

    async def ready(self) -> dict[str, Any]:
        """What it says once it is ready. Raises VerifyError with its last words where it ends before."""
        until = time.monotonic() + START_S
        over = False
        while not over:
            over = self.process.returncode is not None or time.monotonic() > until  # and then one more look
            for line in self._lines():
                if b'"ready"' in line:
                    with suppress(orjson.JSONDecodeError):
                        told: dict[str, Any] = orjson.loads(line)
                        return told
            await asyncio.sleep(POLL_S)  # what it prints passes by a file, which nobody can wait for
        last = self._lines()[-1:] or [b"it said nothing"]
        raise VerifyError(f"{self.name} did not start: {last[0].decode('utf-8', 'replace')[:300]}")

    def _lines(self) -> list[bytes]:
        try:
            return self._log.read_bytes().splitlines()
        except OSError:
            return []

    def signal(self, number: int) -> None:
        """A signal to the process itself."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    async def wait(self, seconds: float) -> int | None:
        """Its exit status as its guardian passes it on; None when it has not ended in time."""
        try:
            async with asyncio.timeout(seconds):
                return await self.process.wait()
        except TimeoutError:
            return None

    async def stop(self) -> None:
        """Kill it and all of its family, and wait for that."""
        stdin = self.process.stdin
        if stdin is not None:
            stdin.close()
        if await self.wait(STOP_S) is None:
            self.process.kill()
            await self.process.wait()


@dataclass(slots=True)
class Engine:
    """A simulated engine that runs."""

    name: str
    shape: Shape
    process: Guarded
    url: str
    admin: str


class Fleet:
    """Engines and a gateway. `stop` must be called, also where `start` failed."""

    def __init__(self, layout: Layout, home: Path, session: aiohttp.ClientSession) -> None:
        self.layout = layout
        self.session = session
        self.home = home
        self.engines: dict[str, Engine] = {}
        self.gateway: Guarded | None = None
        self.url = ""
        self.admin = ""
        self._started: list[Guarded] = []
        self._token = ""

    async def start(self, fronts: Mapping[str, str] | None = None) -> None:
        """Start it, and wait until the gateway sees all engines ready."""
        if self.layout.redis:
            await self._start_gateway([])
            await self._start_engines((self.home / "state" / "redis.url").read_text().strip())
        else:
            await self._start_engines(None)
            await self._start_gateway(self.workers(fronts or {}))
        await self.until_ready(len(self.engines))

    async def start_engines(self) -> None:
        """The engines alone: for those who put something between them and the gateway."""
        await self._start_engines(None)

    async def start_gateway(self, workers: list[dict[str, Any]]) -> None:
        """A gateway for these workers."""
        await self._start_gateway(workers)
        await self.until_ready(len(workers))

    def workers(self, fronts: Mapping[str, str]) -> list[dict[str, Any]]:
        """The engines as static workers; `fronts`: URLs to reach some of them by."""
        return [
            {"id": one.name, "url": fronts.get(one.name, one.url), "pool": one.shape.pool, "models": [MODEL],
             "max_model_len": one.shape.max_model_len, "max_num_seqs": one.shape.max_num_seqs,
             "kv_tokens": one.shape.kv_tokens}
            for one in self.engines.values()
        ]  # fmt: skip

    async def _start_engines(self, redis: str | None) -> None:
        async def one(name: str, shape: Shape) -> Engine:
            words = ["workers.engines.simulator_cli", "--json", "--id", name, "--pool", shape.pool, "--model", MODEL,
                     "--max-model-len", str(shape.max_model_len), "--max-num-seqs", str(shape.max_num_seqs),
                     "--kv-tokens", str(shape.kv_tokens), "--speed", f"{self.layout.speed:g}", "--mean-output", "0",
                     "--admin-port", "0"]  # fmt: skip
            process = await Guarded.start(name, [*words, *(() if redis is None else ("--redis", redis))], self.home)
            self._started.append(process)
            told = await process.ready()
            return Engine(name, shape, process, told["url"], told["admin"])

        async with asyncio.TaskGroup() as group:  # which leaves none starting when one of them fails
            made = [group.create_task(one(name, shape)) for name, shape in self.layout.engines()]
        self.engines = {task.result().name: task.result() for task in made}

    async def _start_gateway(self, workers: list[dict[str, Any]]) -> None:
        state = self.home / "state"
        path = self.home / "settings.yaml"
        path.write_bytes(
            orjson.dumps(
                {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "redis": "embedded" if self.layout.redis else "none",
                 "workers": workers, "processes": self.layout.processes, "state_dir": str(state),
                 "drain_s": self.layout.drain_s, "access_log": "none", "event_log": str(self.home / "events"),
                 **self.layout.settings}
            )
        )  # fmt: skip
        self.gateway = await Guarded.start("gateway", ["headrace", "serve", "-c", str(path), "--json"], self.home)
        self._started.append(self.gateway)
        told = await self.gateway.ready()
        self.url, self.admin = told["data"], told["admin"]
        self._token = (state / "admin.token").read_text().strip()

    async def stop(self) -> None:
        """End all of it."""
        await asyncio.gather(*(one.stop() for one in self._started), return_exceptions=True)

    def caller(self, key: str = "") -> Caller:
        """A client of the gateway."""
        return Caller(self.session, self.url, key)

    # -- asking the gateway and the engines ------------------------------------------------------------------------

    async def call(
        self, method: str, path: str, body: bytes | Mapping[str, Any] | None = None, *, token: bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any, Mapping[str, str]]:  # fmt: skip
        """Status, JSON value and headers of an admin call below `/admin/v1/`, or of a path that begins with `/`."""
        fields = {**({"Authorization": f"Bearer {self._token}"} if token else {}), **(headers or {})}
        raw = orjson.dumps(body) if isinstance(body, Mapping) else body
        if isinstance(body, Mapping):
            fields["Content-Type"] = "application/json"
        url = self.admin + (path if path.startswith("/") else f"/admin/v1/{path}")
        async with asyncio.timeout(CALL_S), self.session.request(method, url, data=raw, headers=fields) as answer:
            text = await answer.read()
            return answer.status, orjson.loads(text) if text[:1] in (b"{", b"[") else text, answer.headers

    async def set_policy(self, document: Mapping[str, Any]) -> int:
        """Make a document current, whatever is; the number of its revision. Raises VerifyError where it is refused."""
        status, value, _ = await self.call("PUT", "policy?force=1", orjson.dumps(document), headers={"If-Match": "*"})
        if status != 200:
            raise VerifyError(f"the policy was refused with {status}: {value}"[:300])
        revision = value["revision"]
        return int(revision["number"] if isinstance(revision, Mapping) else revision)

    async def order(self, name: str, word: str) -> None:
        """`drain` or `undrain` a worker. Raises VerifyError."""
        status, value, _ = await self.call("POST", f"workers/{name}:{word}", b"")
        if status != 200:
            raise VerifyError(f"{word} {name}: {status} {value}"[:200])

    async def fleet(self) -> dict[str, Any]:
        """The gateway's snapshot of everything."""
        status, value, _ = await self.call("GET", "fleet")
        if status != 200:
            raise VerifyError(f"GET fleet: {status}")
        return cast(dict[str, Any], value)

    async def worker(self, name: str) -> dict[str, Any]:
        """One worker as the gateway sees it."""
        return next((one for one in (await self.fleet())["workers"] if one["id"] == name), {})

    async def held(self) -> float:
        """Requests running and waiting, and the work booked for them; 0 when nothing goes on."""
        fleet = await self.fleet()
        booked = sum(float(worker[name]) for worker in fleet["workers"] for name in BOOKED)
        return booked + float(fleet["in_flight"]) + float(fleet["queue"]["queued"])

    async def rest(self, within_s: float = REST_S) -> float:
        """Wait until nothing goes on; what is held then, more than 0 when that did not come in time."""
        until = time.monotonic() + within_s
        while True:
            held = await self.held()
            if not held or time.monotonic() > until:
                return held
            await asyncio.sleep(POLL_S)

    async def until(self, what: str, seconds: float, **wanted: Any) -> None:
        """Wait until the snapshot's `queued` or `in_flight` are as wanted. Raises VerifyError."""
        until = time.monotonic() + seconds
        while True:
            fleet = await self.fleet()
            seen = {"queued": fleet["queue"]["queued"], "in_flight": sum(one["leases"] for one in fleet["workers"])}
            if all(seen[name] == value for name, value in wanted.items()):
                return
            if time.monotonic() > until:
                raise VerifyError(f"{what} within {seconds:g} s: {seen}, wanted {wanted}")
            await asyncio.sleep(POLL_S)

    async def until_ready(self, count: int) -> None:
        """Wait until so many workers are ready."""
        until = time.monotonic() + START_S
        while True:
            states = [one["state"] for one in (await self.fleet())["workers"]]
            if states.count("ready") >= count:
                return
            if time.monotonic() > until:
                raise VerifyError(f"the gateway does not see its {count} workers: {', '.join(states) or 'none'}")
            await asyncio.sleep(POLL_S)

    async def counted(self, name: str) -> dict[str, float]:
        """A counter of /metrics: the sum of all its series, and each with its labels."""
        _, text, _ = await self.call("GET", "/metrics")
        found: dict[str, float] = {}
        for line in bytes(text).decode().splitlines():
            if line.startswith((name + "{", name + " ")):
                series, _, value = line.rpartition(" ")
                found[series[len(name) :]] = float(value)
        return found

    async def state(self, name: str) -> dict[str, Any]:
        """What an engine says that it does and has seen."""
        async with asyncio.timeout(CALL_S), self.session.get(self.engines[name].admin + "/state") as answer:
            return cast(dict[str, Any], orjson.loads(await answer.read()))

    async def states(self) -> dict[str, dict[str, Any]]:
        """The same of all engines that run."""
        names = [name for name, one in self.engines.items() if one.process.process.returncode is None]
        return dict(zip(names, await asyncio.gather(*map(self.state, names)), strict=True))

    async def generations(self) -> int:
        """Requests that engines have taken up so far."""
        return sum(int(one["generations_total"]) for one in (await self.states()).values())

    async def fault(self, name: str, mode: str, **more: Any) -> None:
        """Switch a fault of an engine on; `none` ends it."""
        body = orjson.dumps({"mode": mode, **more})
        async with asyncio.timeout(CALL_S), self.session.post(self.engines[name].admin + "/fault", data=body) as answer:
            if answer.status != 200:
                raise VerifyError(f"{name}: fault {mode}: {answer.status}")

    async def fault_all(self, mode: str, **more: Any) -> None:
        """The same fault for all of them."""
        await asyncio.gather(*(self.fault(name, mode, **more) for name in self.engines))

    def kill(self, name: str) -> None:
        """End an engine as a crash does."""
        self.engines[name].process.signal(signal.SIGKILL)
