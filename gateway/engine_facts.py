"""What a static worker's engine says about itself where the settings are silent: `/v1/models` and `/metrics`."""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp
import orjson

from workers.report import http_base, socket_of

if TYPE_CHECKING:
    from gateway.settings import StaticWorker

MAX_ANSWER_BYTES = 4 << 20
MAX_MODELS = 256
MAX_MODEL_CHARS = 256

_CACHE_INFO = re.compile(rb"^vllm:cache_config_info\{([^\n]*)\} ", re.MULTILINE)
_LABEL = re.compile(rb'(num_gpu_blocks|block_size|kv_cache_size_tokens)="([0-9]{1,12})"')
_STARTED = re.compile(rb"^process_start_time_seconds ([0-9.e+]{1,32})", re.MULTILINE)


class NoAnswer(Exception):  # noqa: N818 - it is no error of ours
    """The engine did not say it; the message is one line why. `reachable`: it answered, but not this."""

    def __init__(self, why: str, *, reachable: bool = True) -> None:
        super().__init__(why)
        self.reachable = reachable


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What was found; None and empty: the engine does not say."""

    models: tuple[str, ...] = ()
    max_model_len: int | None = None
    kv_tokens: int | None = None
    started: str = ""  # when the engine's process started, in its own words: tells one start from the next


async def ask(session: aiohttp.ClientSession, worker: StaticWorker) -> EngineFacts:
    """Ask the engine for what `worker` leaves out.

    Raises `NoAnswer` when it cannot be reached, or when nobody says which models it has. Anything else it may leave
    unsaid: not every engine has metrics.
    """
    models, max_model_len = worker.models, worker.max_model_len
    if not models or max_model_len is None:
        try:
            found, length = models_of(await _get(session, worker, "/v1/models"))
        except NoAnswer as error:
            if not models or not error.reachable:
                raise
        else:
            models, max_model_len = models or found, max_model_len or length
    try:
        kv_tokens, started = cache_of(await _get(session, worker, "/metrics"))
    except NoAnswer as error:
        if not error.reachable:
            raise
        kv_tokens, started = None, ""
    return EngineFacts(models, max_model_len, worker.kv_tokens or kv_tokens, started)


def models_of(body: bytes) -> tuple[tuple[str, ...], int | None]:
    """Model names and the shortest context length in a `/v1/models` answer. Raises `NoAnswer`."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise NoAnswer("/v1/models is not JSON") from error
    cards = document.get("data") if isinstance(document, dict) else None
    if not isinstance(cards, list):
        raise NoAnswer("/v1/models has no list of models")
    cards = [card for card in cards[:MAX_MODELS] if isinstance(card, dict) and _is_name(card.get("id"))]
    if not cards:
        raise NoAnswer("/v1/models names no model")
    lengths = [length for card in cards if isinstance(length := card.get("max_model_len"), int) and length > 0]
    return tuple(card["id"] for card in cards), min(lengths, default=None)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_MODEL_CHARS and value.isprintable()


def cache_of(text: bytes) -> tuple[int | None, str]:
    """KV capacity in tokens over all engines behind one `/metrics`, and when the process started.

    (num_gpu_blocks - 1) x block_size: one block is vLLM's null block. Its own `kv_cache_size_tokens` where smaller.
    """
    total = 0
    for info in _CACHE_INFO.findall(text):
        labels = {name: int(value) for name, value in _LABEL.findall(info)}
        sizes = [labels.get(b"kv_cache_size_tokens", 0)]
        if b"num_gpu_blocks" in labels and b"block_size" in labels:
            sizes.append((labels[b"num_gpu_blocks"] - 1) * labels[b"block_size"])
        total += min((size for size in sizes if size > 0), default=0)
    started = _STARTED.search(text)
    return total or None, started[1].decode() if started else ""


async def _get(session: aiohttp.ClientSession, worker: StaticWorker, path: str) -> bytes:
    headers = {"Connection": "close"}
    if worker.token is not None:
        headers["Authorization"] = f"Bearer {worker.token.get_secret_value()}"
    try:
        async with session.get(http_base(worker.url) + path, headers=headers, allow_redirects=False) as answer:
            if answer.status != 200:
                raise NoAnswer(f"{path} answers {answer.status}")
            body = await answer.content.read(MAX_ANSWER_BYTES + 1)
            while chunk := await answer.content.read(MAX_ANSWER_BYTES + 1 - len(body)):
                body += chunk
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise NoAnswer(f"{path}: {_told(error, worker.url)}", reachable=False) from error
    if len(body) > MAX_ANSWER_BYTES:
        raise NoAnswer(f"{path} answers more than {MAX_ANSWER_BYTES} bytes")
    return body


def _told(error: Exception, url: str) -> str:
    """Why nothing came, without what aiohttp adds: it names the session's TLS, used or not."""
    if not isinstance(error, aiohttp.ClientConnectorError) or isinstance(
        error, aiohttp.ClientConnectorCertificateError
    ):
        # A certificate's error has no `os_error`.
        return str(error) or type(error).__name__
    where = url if socket_of(url) is not None else f"{error.host}:{error.port}"
    if error.os_error.errno == errno.ECONNREFUSED:
        return f"connection refused by {where}"
    return f"cannot connect to {where}: {error.os_error.strerror or error.os_error}"
