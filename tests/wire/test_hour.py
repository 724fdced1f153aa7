"""A stream that lasts an hour, on a loop whose clock jumps while nothing happens: every timer of the data plane runs.

Sockets are real. What one end of a loopback connection has sent is there for the other end at once, so that the loop
finds nothing ready only when all of them wait for the clock.
"""

import asyncio
import contextlib
import gc
import sys
from pathlib import Path

from data_plane import Plane, plane, request

sys.path.append(str(Path(__file__).parents[1] / "virtual"))
from virtual_loop import run_virtual

from gateway.records import Terminal
from gateway.scheduling.model import OutcomeKind

GAP_S = 20.0
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"%d"}}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


@contextlib.asynccontextmanager
async def slow_engine(events):
    """An engine that sends so many events, one each `GAP_S`, and then ends well."""

    async def answer(reader, writer):
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                )
                for number in range(events):
                    writer.write(chunk(EVENT % number))
                    await asyncio.sleep(GAP_S)
                writer.write(chunk(LAST) + b"0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the gateway has hung up
        except asyncio.CancelledError:
            pass  # the test is over; the stream's callback must not meet that
        finally:
            writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


async def streamed(arranged: Plane):
    """(the stream's body, how long it took)."""
    loop = asyncio.get_running_loop()
    async with arranged.client() as client:
        began = loop.time()
        await client.send(request(b'{"stream":true}'))
        answer = await client.answer(timeout=2 * 3600)
        return answer, loop.time() - began


def test_an_hour_of_stream_is_whole_and_holds_no_more_at_its_end_than_at_its_beginning():
    async def main():
        async with slow_engine(179) as url, plane(url, token_gap_s=30.0, total_s=3600.0) as arranged:
            grown = []

            async def watch():
                for _ in range(11):
                    await asyncio.sleep(300.0)
                    gc.collect()
                    grown.append(len(gc.get_objects()))

            watching = asyncio.ensure_future(watch())
            answer, took_s = await streamed(arranged)
            await watching
            assert answer.complete
            assert answer.body == b"".join(EVENT % number for number in range(179)) + LAST
            assert 179 * GAP_S - 1 < took_s < 3600.0
            assert max(grown[2:]) - min(grown[2:]) < 200, grown
            (record,) = await arranged.notes.until(1)
            assert record.outcome is Terminal.OK
            assert arranged.dispatcher.tokens == 180  # events with data, the last of them only ends it
            assert arranged.outcomes == [("w0", OutcomeKind.OK)]

    run_virtual(main())


def test_the_time_for_all_of_it_ends_with_an_error_event():
    async def main():
        async with slow_engine(10_000) as url, plane(url, token_gap_s=30.0, total_s=3600.0) as arranged:
            answer, took_s = await streamed(arranged)
            assert 3599.0 <= took_s < 3630.0
            assert answer.body.startswith(EVENT % 0)
            assert b'"code":"deadline_exceeded"' in answer.body.rpartition(b"data: ")[2]
            assert b"[DONE]" not in answer.body
            (record,) = await arranged.notes.until(1)
            assert record.outcome is Terminal.TIMEOUT

    run_virtual(main())
