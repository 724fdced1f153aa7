"""Asks one engine real questions: is it ready, is it idle, and its warm-up prompts."""

from __future__ import annotations

import asyncio
from types import TracebackType

import aiohttp

from workers.engines.base import Adapter, Reading, UnreadableAnswer, error_message
from workers.report import http_base, socket_of
from workers.scrape import MAX_SCRAPE_BYTES

CONNECT_S = 2.0
ASK_S = 120.0  # the first request of an engine may compile for half a minute
MAX_ANSWER_BYTES = 1024 * 1024


class NotAnsweredError(RuntimeError):
    """A question was not answered as it should be; one line. `refused`: nothing listens yet."""

    def __init__(self, why: str, *, refused: bool = False) -> None:
        super().__init__(why)
        self.refused = refused


def connector_to(url: str, *, limit: int) -> aiohttp.BaseConnector:
    """Connections to an engine, a new one for each question, over TCP or its unix socket."""
    path = socket_of(url)
    if path is not None:
        return aiohttp.UnixConnector(path, force_close=True, limit=limit)
    return aiohttp.TCPConnector(force_close=True, limit=limit)


class Probe:
    """Questions to one engine, each on a connection of its own. A context manager."""

    def __init__(self, adapter: Adapter, url: str, model: str, metrics_url: str | None, token: str | None) -> None:
        self._adapter = adapter
        self._url = http_base(url)
        self._metrics_url = http_base(metrics_url or url)
        self._model = model
        self._session = aiohttp.ClientSession(
            connector=connector_to(url, limit=8),
            timeout=aiohttp.ClientTimeout(total=ASK_S, sock_connect=CONNECT_S),
            headers={"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {}),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )

    async def __aenter__(self) -> Probe:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def ask(self, prompt: str, max_tokens: int = 1) -> None:
        """A real inference. Raises `NotAnsweredError`."""
        said = "no question suits it"
        for question in self._adapter.ask(self._model, prompt, max_tokens):
            try:
                async with self._session.post(
                    self._url + question.path, data=question.body, allow_redirects=False
                ) as answer:
                    body = await _read(answer, MAX_ANSWER_BYTES)
            except aiohttp.ClientConnectorError as error:
                raise NotAnsweredError(str(error.os_error.strerror or error), refused=True) from error
            except (aiohttp.ClientError, TimeoutError) as error:
                raise NotAnsweredError(f"{type(error).__name__}: {error}") from error
            if answer.status == 200:
                return
            said = f"{question.path}: status {answer.status}: {error_message(body)}"
            if answer.status not in (404, 405):
                break
        raise NotAnsweredError(said)

    async def read(self) -> Reading:
        """What it does now. Raises `NotAnsweredError`."""
        path = self._adapter.metrics_path
        try:
            async with asyncio.timeout(CONNECT_S), self._session.get(self._metrics_url + path) as answer:
                text = await _read(answer, MAX_SCRAPE_BYTES)
            if answer.status != 200:
                raise NotAnsweredError(f"{path}: status {answer.status}")
            return self._adapter.read_metrics(text, {name.lower(): value for name, value in answer.headers.items()})
        except (aiohttp.ClientError, TimeoutError, UnreadableAnswer) as error:
            raise NotAnsweredError(f"{type(error).__name__}: {error}") from error


async def _read(answer: aiohttp.ClientResponse, most: int) -> bytes:
    body = bytearray()
    async for piece in answer.content.iter_any():
        body += piece
        if len(body) > most:
            raise NotAnsweredError(f"{answer.url.path}: more than {most} bytes")
    return bytes(body)
