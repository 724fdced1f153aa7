"""What a request costs in the gateway, beside its peers in the same run: `headrace loadtest compare`.

Processor seconds of the process in front are compared, not times: those of one run are told apart by the work done,
not by what else the machine does. Each round measures every contender once, one after the other; the least of the
rounds counts. Where there are two processors, contenders get the last one, engines and clients the others.
Engines, clients and contenders are processes of this run on 127.0.0.1, ended with it. Linux only.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, cast

import orjson

from loadtest.peers import PEERS, ROUTERS, Peer, find, free_port
from loadtest.raw_client import Load
from loadtest.raw_engine import INTERVAL_S

OURS = "headrace"
ENGINES = 4
START_S = 60.0

Show = Callable[[str, float, str, bool], None]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of load: how much of it costs what, and how much more than nginx it may cost here."""

    name: str
    connections: int
    body_bytes: int
    stream: bool
    per: int  # answers or chunks
    most: float  # times nginx
    below_routers: bool = False  # nor as much as any router


KINDS = (
    Kind("1,000 requests of 300 bytes", 64, 300, False, 1_000, 2.0, below_routers=True),
    Kind("1,000 requests of 512 KiB", 16, 524_288, False, 1_000, 1.5),
    Kind("100,000 relayed chunks, 200 streams", 200, 300, True, 100_000, 1.2),
)


class CompareError(RuntimeError):
    """The comparison cannot be made; says in one line why."""


def run_compare(
    show: Show, say: Callable[[str], None], *, seconds: float, rounds: int, commands: Mapping[str, str]
) -> bool:
    """Measure all there is; whether ours kept to its bounds. `commands`: of peers that are not on PATH, by name."""
    say(f"headrace runs as {_core()}")
    with ExitStack() as stack:
        home = Path(stack.enter_context(TemporaryDirectory(prefix="headrace-compare-")))
        bench = Bench(stack, home)
        contenders = {OURS: bench.headrace()}
        for peer in PEERS:
            command = find(peer, commands)
            if command is not None:
                contenders[peer.name] = bench.peer(peer, command)
            else:
                say(f"{peer.name} is not installed: not compared ({peer.install})")
        kept = True
        for kind in KINDS:
            costs: dict[str, list[float]] = {name: [] for name in contenders}
            for _ in range(rounds):
                for name, one in contenders.items():
                    costs[name].append(bench.cost(kind, one, seconds))
            for name, cost, target, ok in verdicts(kind, {name: min(found) for name, found in costs.items()}):
                kept = kept and ok
                show(f"{name}: {kind.name}", cost, target, ok)
        return kept


def verdicts(kind: Kind, least: Mapping[str, float]) -> list[tuple[str, float, str, bool]]:
    """(contender, cost, target, whether it is kept) of each: ours against `kind.most` times nginx and the routers."""
    bounds = [(kind.most * least["nginx"], f"{kind.most} x nginx")] if "nginx" in least else []
    if kind.below_routers:
        bounds += [(least[name], name) for name in ROUTERS if name in least]
    found = []
    for name, cost in least.items():
        if name != OURS or not bounds:
            found.append((name, cost, "s CPU", True))
            continue
        bound, what = min(bounds)
        found.append((name, cost, f"s CPU; at most {bound:.4f}, {what}", cost <= bound))
    return found


def _core() -> str:
    """What a gateway started from here is made of; asked of a process like it."""
    question = "from gateway.compiled import in_use; print(in_use())"
    done = subprocess.run([sys.executable, "-c", question], capture_output=True, text=True, check=True)
    return "compiled core" if done.stdout.strip() == "True" else "plain Python (make compile makes it cheaper)"


@dataclass(frozen=True, slots=True)
class Contender:
    """A proxy that runs."""

    pid: int
    port: int
    key: str = ""


class Bench:
    """The processes of one comparison. `pinned`: what is measured gets one processor for itself."""

    def __init__(self, stack: ExitStack, home: Path, *, pinned: bool = True, interval_s: float = INTERVAL_S) -> None:
        self._stack = stack
        self._home = home
        processors = sorted(os.sched_getaffinity(0))
        self._front = {processors[-1]} if pinned else set(processors)
        self._back = set(processors[:-1]) or self._front if pinned else set(processors)
        engine = self._start(
            [sys.executable, "-m", "loadtest.raw_engine", str(ENGINES), str(interval_s)],
            self._back, stdin=subprocess.PIPE, piped=True,
        )  # fmt: skip
        self._engines = [int(port) for port in cast(IO[bytes], engine.stdout).readline().split()]
        if len(self._engines) != ENGINES:
            raise CompareError("the engine did not start")

    def headrace(self, redis: str = "none", processes: int = 1) -> Contender:
        """Ours with everything on: a key, a policy, the access log in a file."""
        state, settings = self._home / "state", self._home / "settings.yaml"
        command = [sys.executable, "-m", "headrace"]
        made = subprocess.run(
            [*command, "key", "create", "--tenant", "bench", "--state-dir", str(state), "--json"],
            capture_output=True, check=True,
        )  # fmt: skip
        port, admin = free_port(), free_port()
        workers = [
            {"id": f"w{at}", "url": f"http://127.0.0.1:{engine}", "pool": pool, "models": ["raw"], "kv_tokens": 10**8,
             "max_model_len": 1_000_000, "max_num_seqs": 16_384}
            for at, (engine, pool) in enumerate(zip(self._engines, ("short-chat", "long-context") * 2, strict=True))
        ]  # fmt: skip
        settings.write_bytes(
            orjson.dumps(
                {"listen": f"127.0.0.1:{port}", "admin": f"127.0.0.1:{admin}", "redis": redis, "processes": processes,
                 "workers": workers, "state_dir": str(state), "access_log": str(self._home / "access"),
                 "event_log": str(self._home / "events"),
                 "max_connections": 12_000}
            )
        )  # fmt: skip
        process = self._start([*command, "serve", "-c", str(settings)], self._front)
        self._wait(process, port)
        return Contender(process.pid, port, orjson.loads(made.stdout)["key"])

    def peer(self, peer: Peer, command: str) -> Contender:
        """Another proxy before the same engines."""
        port, home = free_port(), self._home / peer.name
        home.mkdir(exist_ok=True)
        process = self._start([command, *peer.arguments(home, port, self._engines)], self._front)
        self._wait(process, port)
        return Contender(process.pid, port)

    def cost(self, kind: Kind, contender: Contender, seconds: float) -> float:
        """Processor seconds for `kind.per` answers or chunks."""
        load = Load(
            contender.port, contender.pid, kind.connections, kind.body_bytes, kind.stream, min(1.0, seconds), seconds,
            contender.key,
        )  # fmt: skip
        client = self.client("loadtest.raw_client", orjson.dumps(asdict(load)).decode())
        said, _ = client.communicate(timeout=START_S + 3 * seconds)
        found = orjson.loads(said) if client.returncode == 0 else {}
        done = found.get("chunks" if kind.stream else "answers", 0)
        if not done or found["refused"] or found["lost"]:
            raise CompareError(f"{kind.name} at port {contender.port}: {found or 'the client failed'}")
        return float(found["cpu_s"]) / float(done) * kind.per

    @property
    def engine(self) -> int:
        """The port of one of the engines."""
        return self._engines[0]

    def client(self, module: str, order: str) -> subprocess.Popen[bytes]:
        """A client on the engines' processors; what it prints can be read."""
        return self._start([sys.executable, "-m", module, order], self._back, piped=True)

    def _start(
        self, command: list[str], processors: set[int], *, stdin: int = subprocess.DEVNULL, piped: bool = False
    ) -> subprocess.Popen[bytes]:
        out = subprocess.PIPE if piped else self._stack.enter_context((self._home / "output").open("ab"))
        process = self._stack.enter_context(
            ended(subprocess.Popen(command, stdin=stdin, stdout=out, stderr=subprocess.STDOUT if not piped else None))
        )
        os.sched_setaffinity(process.pid, processors)
        return process

    def _wait(self, process: subprocess.Popen[bytes], port: int) -> None:
        until = time.monotonic() + START_S
        while time.monotonic() < until and process.poll() is None:
            try:
                with socket.create_connection(("127.0.0.1", port), 1.0) as connection:
                    connection.sendall(b"GET /v1/models HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
                    if connection.recv(12)[9:10] in (b"2", b"4"):
                        return
            except OSError:
                pass
            time.sleep(0.1)  # peers say in no common way that they are ready: asked until START_S is over
        said = (self._home / "output").read_text("utf-8", "replace").strip().rpartition("\n")[2]
        raise CompareError(f"{process.args!r} did not start: {said}")


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Ends the process with the block, whatever happened in it."""
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
