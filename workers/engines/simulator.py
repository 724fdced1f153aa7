"""The simulated engine: an OpenAI-compatible server that behaves on the wire like one vLLM 0.32.

`EngineCore` decides what happens in which step, `EngineLoop` puts the steps on the clock, `Connection` speaks HTTP;
this module ties them together and answers the paths vLLM serves. Faults: `simulator_faults.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final

import orjson

from workers.engines.simulator_answers import Completions, Dialect
from workers.engines.simulator_dialects import (
    MessagesDialect,
    ResponsesDialect,
    anthropic_error,
    messages_as_chat,
    responses_as_chat,
)
from workers.engines.simulator_faults import Faults
from workers.engines.simulator_http import Connection, DateCache, Exchange
from workers.engines.simulator_jobs import Choice, Job
from workers.engines.simulator_loop import EngineLoop
from workers.engines.simulator_metrics import CONTENT_TYPE, Metrics
from workers.engines.simulator_pooling import Pooling
from workers.engines.simulator_requests import ApiError, Generation, RequestParser, busy, not_found, parse_object
from workers.engines.simulator_text import Vocabulary, pieces_of
from workers.engines.timing import DEFAULT_PRESET, PRESETS, EngineConfig, EngineCore, Sequence, StepResult

VERSION: Final = "0.32.0"
DEFAULT_KV_TOKENS: Final = 65_536  # where the preset does not say
_GUARDED: Final = ("/v1/", "/v2/")
_PERMISSION: Final[dict[str, Any]] = {
    "id": "modelperm-simulated",
    "object": "model_permission",
    "created": 0,
    "allow_create_engine": False,
    "allow_sampling": True,
    "allow_logprobs": True,
    "allow_search_indices": False,
    "allow_view": True,
    "allow_fine_tuning": False,
    "organization": "*",
    "group": None,
    "is_blocking": False,
}

Handler = Callable[[Exchange], None]


@dataclass(frozen=True, slots=True)
class SimulatorConfig:
    """What a simulated engine is started with; the names are vLLM's options where there is one."""

    host: str = "127.0.0.1"
    port: int = 0
    models: tuple[str, ...] = ("tiny",)
    preset: str = DEFAULT_PRESET
    max_model_len: int = 8192
    max_num_seqs: int | None = None  # None: the preset's
    max_num_batched_tokens: int | None = None
    kv_tokens: int | None = None
    block_size: int = 16
    speed: float = 1.0  # virtual seconds in a real one
    seed: int = 0
    mean_output: float = 128.0  # tokens until the model ends by itself; 0: it never does
    priority_scheduling: bool = False
    prefix_caching: bool = True
    pooling: bool = False  # an embedding model instead of a generating one
    max_num_queued_reqs: int | None = None
    api_keys: tuple[str, ...] = ()
    request_id_headers: bool = False
    load_tracking: bool = False
    keep_alive_s: float = 5.0

    def engine(self) -> EngineConfig:
        """The core's configuration. Raises ValueError for one that cannot work, as vLLM refuses to start."""
        if self.preset not in PRESETS:
            raise ValueError(f"no preset {self.preset!r}; there are {', '.join(PRESETS)}")
        preset = PRESETS[self.preset]
        seqs = self.max_num_seqs or preset.max_num_seqs
        kv_tokens = self.kv_tokens or preset.kv_tokens or DEFAULT_KV_TOKENS
        if kv_tokens < self.max_model_len:
            raise ValueError(f"max_model_len {self.max_model_len} needs more KV cache than kv_tokens {kv_tokens}")
        return EngineConfig(
            preset.step,
            kv_tokens,
            block_size=self.block_size,
            max_num_seqs=seqs,
            max_num_batched_tokens=max(seqs, self.max_num_batched_tokens or preset.max_num_batched_tokens),
            priority_scheduling=self.priority_scheduling,
            prefix_caching=self.prefix_caching,
        )


class Simulator:
    """One simulated engine in this process. `start`, then `close`; everything else happens by itself."""

    def __init__(self, config: SimulatorConfig) -> None:
        self.config = config
        self.core = EngineCore(config.engine())
        self.created = int(time.time())
        self.metrics = Metrics(self.core, config.models[0], config.max_model_len, time.time())
        self.faults = Faults(self)
        self.jobs: set[Job] = set()
        self.aborted = 0
        self.requests_total = 0
        self.generations_total = 0
        self.max_running = 0
        self.max_concurrent = 0  # sequences, running and waiting
        self.max_kv_blocks = 0
        self.draining = False
        self.connections: set[Connection] = set()
        self.vocabulary = Vocabulary()
        self.parser = RequestParser(config.models, config.max_model_len, self.vocabulary)
        self._ids = Random(config.seed)
        self._serial = 0
        self.date = DateCache(time.time)
        self._server: asyncio.Server | None = None
        self._engine: EngineLoop | None = None
        self._arrivals: dict[Sequence, float] = {}  # loop time
        self.port = config.port
        self.pooling = Pooling(self) if config.pooling else None
        self._routes = self._make_routes()

    @property
    def engine(self) -> EngineLoop:
        """The engine's clockwork, once started."""
        assert self._engine is not None, "not started"
        return self._engine

    @property
    def url(self) -> str:
        """Where it listens."""
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"http://{host}:{self.port}"

    async def start(self) -> None:
        """Listen. Raises OSError when the address is taken."""
        self._engine = EngineLoop(self.core, asyncio.get_running_loop(), self.config.speed, self._on_step)
        await self.listen()

    async def listen(self) -> None:
        """Open the listening socket, at the same port as before if there was one."""
        if self._server is None:
            factory = partial(Connection, self._handle, self.connections, self.date, self.config.keep_alive_s)
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(factory, self.config.host, self.port, backlog=2048)
            self.port = self._server.sockets[0].getsockname()[1]

    def stop_listening(self) -> None:
        """Close the listening socket; connections stay."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def close(self) -> None:
        """End as vLLM does on SIGTERM by default: what is in flight finishes with the reason `abort`."""
        self.draining = True
        self.stop_listening()
        self.engine.close()
        for job in list(self.jobs):
            job.abort()
        for connection in list(self.connections):
            connection.cut(reset=False)

    def submit(self, sequences: list[Sequence]) -> None:
        """Queue sequences. Raises ApiError when the queue is full."""
        limit = self.config.max_num_queued_reqs
        core = self.core
        if limit is not None and len(core.running) + core.waiting + len(sequences) > limit:
            self.metrics.admission_rejections["max_num_queued_reqs"] += 1
            raise busy()
        real = asyncio.get_running_loop().time()
        self._arrivals.update(dict.fromkeys(sequences, real))
        self.generations_total += 1
        self.engine.submit(sequences)
        self.max_concurrent = max(self.max_concurrent, len(core.running) + core.waiting)

    def withdraw(self, sequences: list[Sequence]) -> None:
        """Abort the sequences of a request whose client has left."""
        self.aborted += 1
        for seq in sequences:
            self._arrivals.pop(seq, None)
            self.core.abort(seq)

    def request_id(self, exchange: Exchange) -> str:
        """The client's id for a request, or a new one."""
        return exchange.header(b"x-request-id") or f"{self._ids.getrandbits(64):016x}"

    def response_headers(self, request_id: str) -> tuple[tuple[bytes, bytes], ...]:
        """Headers that vLLM adds only when told to."""
        return ((b"x-request-id", request_id.encode("latin-1", "replace")),) if self.config.request_id_headers else ()

    # --- requests

    def _make_routes(self) -> dict[str, dict[str, Handler]]:
        everywhere: dict[str, dict[str, Handler]] = {
            "/health": {"GET": lambda exchange: exchange.respond(200)},
            "/ping": dict.fromkeys(("GET", "POST"), lambda exchange: exchange.respond(200)),
            "/version": {"GET": lambda exchange: exchange.respond(200, orjson.dumps({"version": VERSION}))},
            "/load": {"GET": self._load},
            "/metrics": {"GET": self._metrics},
            "/v1/models": {"GET": self._models},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
        }
        if self.pooling is not None:
            return everywhere | {path: {"POST": handler} for path, handler in self.pooling.routes().items()}
        return everywhere | {
            "/v1/chat/completions": {"POST": partial(self._complete, chat=True)},
            "/v1/completions": {"POST": partial(self._complete, chat=False)},
            "/v1/responses": {"POST": self._respond},
            "/v1/messages": {"POST": self._converse},
            "/v1/messages/count_tokens": {"POST": partial(self._converse, counting=True)},
        }

    def _handle(self, exchange: Exchange) -> None:
        self.requests_total += 1
        if self.faults.intercept(exchange):
            return
        self.answer(exchange)

    def answer(self, exchange: Exchange) -> None:
        """Answer one request by its path."""
        methods = self._routes.get(exchange.path)
        route = "none"
        try:
            if not self._key_is_right(exchange):
                exchange.respond(401, b'{"error":"Unauthorized"}')
                return
            if methods is None:
                if exchange.path != "/" and exchange.path.rstrip("/") in self._routes:
                    self._redirect(exchange)
                    return
                raise not_found()
            handler = methods.get(exchange.method)
            if handler is None:
                allow = ((b"allow", ", ".join(methods).encode()),)
                exchange.respond(405, b'{"detail":"Method Not Allowed"}', headers=allow)
                return
            route = exchange.path
            handler(exchange)
        except ApiError as error:
            exchange.respond(error.status, error.body(), headers=self.response_headers(self.request_id(exchange)))
        finally:
            if exchange.status:
                self.metrics.count_http(route, exchange.method, exchange.status)

    def _key_is_right(self, exchange: Exchange) -> bool:
        if not self.config.api_keys or not exchange.path.startswith(_GUARDED):
            return True
        scheme, _, key = (exchange.header(b"authorization") or "").partition(" ")
        return scheme.lower() == "bearer" and key in self.config.api_keys

    def _redirect(self, exchange: Exchange) -> None:
        host = exchange.header(b"host") or f"{self.config.host}:{self.port}"
        target = f"http://{host}{exchange.path.rstrip('/')}".encode("latin-1")
        exchange.respond(307, headers=((b"location", target),))

    def _complete(self, exchange: Exchange, *, chat: bool) -> None:
        data = self._object(exchange)
        request = self._judge(exchange, data, chat=chat)
        request_id = (str(data.get("request_id") or "") if chat else "") or self.request_id(exchange)
        words = Completions(
            id=f"{'chatcmpl' if chat else 'cmpl'}-{request_id}",
            created=int(time.time()),
            model=request.model,
            chat=chat,
            continuous_usage=request.continuous_usage,
            include_usage=request.include_usage,
        )
        self._generate(exchange, request, words, request_id)

    def _respond(self, exchange: Exchange) -> None:
        data = self._object(exchange)
        request = self._judge(exchange, responses_as_chat(data), chat=True)
        request_id = self.request_id(exchange)
        words = ResponsesDialect(request_id, int(time.time()), data, request.model)
        self._generate(exchange, request, words, request_id)

    def _converse(self, exchange: Exchange, *, counting: bool = False) -> None:
        try:
            data = messages_as_chat(self._object(exchange), counting=counting)
            if counting:
                count = len(self.parser.chat_pieces(data))
                answer = {"input_tokens": count, "context_management": {"original_input_tokens": count}}
                exchange.respond(200, orjson.dumps(answer))
                return
            request = self._judge(exchange, data, chat=True)
            request_id = self.request_id(exchange)
            self._generate(exchange, request, MessagesDialect(request_id, request.model), request_id)
        except ApiError as error:
            exchange.respond(error.status, anthropic_error(error))

    def _object(self, exchange: Exchange) -> dict[str, Any]:
        return parse_object(exchange.body, exchange.header(b"content-type") or "")

    def _judge(self, exchange: Exchange, data: dict[str, Any], *, chat: bool) -> Generation:
        return self.parser.generation(data, chat=chat, priority_header=exchange.header(b"x-vllm-priority"))

    def _generate(self, exchange: Exchange, request: Generation, words: Dialect, request_id: str) -> None:
        job = Job(exchange, request, words, self.core, self._job_ended, self.response_headers(request_id))
        self.faults.arm(job)
        # A request that fixes its own randomness is answered alike every time; another, alike in every run.
        self._serial += 1
        seed = self.config.seed + (0 if request.greedy or request.seed is not None else self._serial)
        self.submit(job.add_choices(seed, self.config.mean_output, self.config.block_size))
        self.jobs.add(job)
        self.metrics.observe("request_params_n", request.n)
        job.begin()
        if job.cut_after == 0 or (job.error_after is not None and job.error_after[0] == 0):
            job.advance(job.choices[0])

    def _job_ended(self, job: Job) -> None:
        self.jobs.discard(job)
        unfinished = list(job.unfinished())
        if unfinished:
            self.withdraw(unfinished)
        elif not job.exchange.streaming and job.exchange.status:
            self.metrics.count_http(job.exchange.path, job.exchange.method, job.exchange.status)

    def _on_step(self, result: StepResult, real: float) -> None:
        """Put one step's tokens on the wire and its times into the metrics."""
        core, metrics = self.core, self.metrics
        self.max_kv_blocks = max(self.max_kv_blocks, core.pool.used)
        self.max_running = max(self.max_running, len(core.running) + len(result.finished))
        metrics.step(result, self.config.speed)
        for seq in result.prefilled:
            if core.produced(seq) == 1 and seq in self._arrivals:
                metrics.observe("time_to_first_token_seconds", real - self._arrivals[seq])
        # A copy: a client's next request, taken up on the way, joins the batch.
        for seq in [*result.finished, *core.running]:
            owner = seq.owner
            if isinstance(owner, Choice):
                owner.job.advance(owner)
        for seq in result.finished:
            metrics.sequence(seq, real - self._arrivals.pop(seq, real), self.config.speed)
            owner = seq.owner
            if isinstance(owner, Choice):
                metrics.choice(owner.finish, seq, owner.job.request.max_tokens[owner.index // owner.job.request.n])
            elif self.pooling is not None:
                metrics.finished["stop"] += 1
                self.pooling.finished(seq)

    def _load(self, exchange: Exchange) -> None:
        load = len(self.jobs) if self.config.load_tracking else 0
        exchange.respond(200, orjson.dumps({"server_load": load}))

    def _metrics(self, exchange: Exchange) -> None:
        exchange.respond(200, self.metrics.exposition().encode(), CONTENT_TYPE)

    def _models(self, exchange: Exchange) -> None:
        cards: list[dict[str, Any]] = [
            {
                "id": model,
                "object": "model",
                "created": self.created,
                "owned_by": "vllm",
                "root": model,
                "parent": None,
                "max_model_len": self.config.max_model_len,
                "permission": [_PERMISSION | {"created": self.created}],
            }
            for model in self.config.models
        ]
        exchange.respond(200, orjson.dumps({"object": "list", "data": cards}))

    def _tokenize(self, exchange: Exchange) -> None:
        data = self._object(exchange)
        self.parser.model_of(data)
        chat = data.get("messages") is not None
        pieces = self.parser.chat_pieces(data) if chat else tuple(pieces_of(str(data.get("prompt") or "")))
        ids = self.vocabulary.encode(pieces)
        strings = self.vocabulary.decode(ids) if data.get("return_token_strs") else None
        answer = {
            "count": len(ids),
            "max_model_len": self.config.max_model_len,
            "tokens": ids,
            "token_strs": strings,
        }
        exchange.respond(200, orjson.dumps(answer))

    def _detokenize(self, exchange: Exchange) -> None:
        data = self._object(exchange)
        self.parser.model_of(data)
        tokens = [token for token in data.get("tokens") or () if isinstance(token, int)]
        exchange.respond(200, orjson.dumps({"prompt": "".join(self.vocabulary.decode(tokens))}))
