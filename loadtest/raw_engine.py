"""An engine that costs next to nothing, for measuring what stands in front of it: `python -m loadtest.raw_engine 4`.

It listens on so many free ports of 127.0.0.1, prints them in one line, and serves until its standard input ends.
A request without `"stream":true` gets a small chat completion; one with it a stream of the events that vLLM writes,
one each 20 ms (a second argument says another interval, in seconds), until the client leaves. One with
`"max_tokens":3` before that gets a stream that ends, at once; one with `"max_tokens":9` a stream without an end, of
long events, as fast as they are taken.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import cast

INTERVAL_S = 0.02

ANSWER = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"raw","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"An answer of a usual length for a short question."},"logprobs":null,'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":60,"completion_tokens":16,"total_tokens":76}}'
)
MODELS = b'{"object":"list","data":[{"id":"raw","object":"model","max_model_len":1000000}]}'
EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"raw",'
    b'"choices":[{"index":0,"delta":{"content":" a token of text"},"logprobs":null,"finish_reason":null}]}\n\n'
)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
STREAM = b'"stream":true'
SHORT = b'"max_tokens":3,"stream":true'
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
LAST = EVENT.replace(b'"finish_reason":null', b'"finish_reason":"stop"') + b"data: [DONE]\n\n"
ENDLESS = b'"max_tokens":9,"stream":true'
LONG_EVENT = EVENT.replace(b" a token of text", b" a token of text" * 44)
MANY_CHUNKS = 64 * (b"%x\r\n%b\r\n" % (len(LONG_EVENT), LONG_EVENT))
SHORT_STREAM = STREAM_HEAD + 2 * CHUNK + b"%x\r\n%b\r\n0\r\n\r\n" % (len(LAST), LAST)


def _whole(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


class Connection(asyncio.Protocol):
    """Reads requests with a Content-Length, or none, and answers them one after the other."""

    def __init__(self, streams: set[Connection]) -> None:
        self._streams = streams
        self._missing = 0  # of the body being read
        self._head = b""
        self._stream = self._short = self._endless = self._full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client."""
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has left."""
        self._streams.discard(self)

    def pause_writing(self) -> None:
        """Nobody takes what was written."""
        self._full = True

    def resume_writing(self) -> None:
        """There is room again."""
        self._full = False
        if self._endless:
            asyncio.get_running_loop().call_soon(self._more)

    def _more(self) -> None:
        while not self._full and not self.transport.is_closing():
            self.transport.write(MANY_CHUNKS)

    def data_received(self, data: bytes) -> None:
        """Requests come one at a time: whoever is measured does not pipeline."""
        if self._missing:
            self._missing -= len(data)
            self._seen(data)
        else:
            self._head += data
            end = self._head.find(b"\r\n\r\n") + 4
            if end < 4:
                return
            head, self._head = self._head, b""
            at = head[:end].lower().find(b"content-length:")
            length = int(head[at + 15 : head.find(b"\r", at)]) if at > 0 else 0
            self._seen(head)
            self._answer = MODELS if head.startswith(b"GET") else ANSWER
            self._missing = length - (len(head) - end)
        if self._missing <= 0:
            self._missing = 0
            if self._short:
                self.transport.write(SHORT_STREAM)
            elif self._endless:
                self.transport.write(STREAM_HEAD)
                self._more()
            elif self._stream:
                self.transport.write(STREAM_HEAD + CHUNK)
                self._streams.add(self)
            else:
                self.transport.write(_whole(self._answer))

    def _seen(self, data: bytes) -> None:
        self._stream = STREAM in data
        self._short = self._stream and SHORT in data
        self._endless = self._stream and ENDLESS in data


async def serve(count: int, interval_s: float) -> None:
    """Listen on `count` ports and beat until the standard input ends."""
    loop = asyncio.get_running_loop()
    # Streams in as many groups as there are ticks, so that they do not all speak at once.
    groups: list[set[Connection]] = [set() for _ in range(20)]
    made = 0

    def connection() -> Connection:
        nonlocal made
        made += 1
        return Connection(groups[made % len(groups)])

    servers = [await loop.create_server(connection, "127.0.0.1", 0, backlog=1024) for _ in range(count)]
    sys.stdout.write(" ".join(str(server.sockets[0].getsockname()[1]) for server in servers) + "\n")
    sys.stdout.flush()
    over = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), lambda: over.set() if not os.read(sys.stdin.fileno(), 1) else None)
    step_s = interval_s / len(groups)
    due, turn = loop.time(), 0
    while not over.is_set():
        for stream in groups[turn % len(groups)]:
            stream.transport.write(CHUNK)
        turn += 1
        due = max(due + step_s, loop.time() - interval_s)
        await asyncio.sleep(max(due - loop.time(), 0.0))


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else INTERVAL_S))
