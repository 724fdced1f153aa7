"""How well several gateways share a fleet: goodput with four of them against one, over real sockets.

The same arrivals, simulated engines, a share of long prompts, about four fifths of what the fleet can do. An answer is
good if its first token comes in time and the others follow fast enough. On a machine that is busy with other things
both figures suffer; their difference is what counts.
"""

import asyncio
import random
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
from replica_support import Fleet, Gateway

from gateway.process import Child, start_valkey

WORKERS = 4
SPEED = 0.5  # of the real engines: so much that this machine's own speed matters little
PER_S = 14.0
SECONDS = 45.0
ROUNDS = 2
LONG_SHARE = 0.2
TTFT_S, TPOT_S = 2.0 / SPEED, 0.1 / SPEED
WORD = "alpha "  # about a token and a half


async def simulated(stack: AsyncExitStack, name: str, redis: str) -> None:
    options = {
        "id": name, "pool": "short-chat", "model": "tiny", "preset": "llama3-8b/a100-80", "max-model-len": "16384",
        "max-num-seqs": "64", "kv-tokens": "200000", "speed": str(SPEED), "redis": redis, "fleet": "default",
    }  # fmt: skip
    argv = [sys.executable, "-P", "-m", "workers.engines.simulator_cli", "--json"]
    child = await Child.start(name, [*argv, *(word for key, value in options.items() for word in (f"--{key}", value))])
    stack.push_async_callback(child.stop)
    await child.wait_ready(30)


async def ask(gateway: Gateway, session: aiohttp.ClientSession, prompt: str, tokens: int) -> bool:
    """Whether the answer was good."""
    body = {
        "model": "tiny", "stream": True, "max_tokens": tokens, "messages": [{"role": "user", "content": prompt}],
    }  # fmt: skip
    began = time.monotonic()
    first = last = 0.0
    events = 0
    async with session.post(f"{gateway.data}/v1/chat/completions", json=body) as answer:
        if answer.status != 200:
            return False
        async for line in answer.content:
            if line.startswith(b"data: {"):
                last = time.monotonic()
                first = first or last
                events += 1
    return first - began <= TTFT_S and events > 1 and (last - first) / (events - 1) <= TPOT_S


async def goodput(gateways: list[Gateway], session: aiohttp.ClientSession, seed: int) -> float:
    """The part of good answers; arrivals and prompts are the seed's."""
    rng = random.Random(seed)
    tasks = []
    until = time.monotonic() + SECONDS
    due = time.monotonic()
    while due < until:
        await asyncio.sleep(max(due - time.monotonic(), 0.0))
        is_long = rng.random() < LONG_SHARE
        prompt = f"{rng.random()} " + WORD * (3000 if is_long else 120)
        tasks.append(asyncio.ensure_future(ask(rng.choice(gateways), session, prompt, rng.randrange(40, 160))))
        due += rng.expovariate(PER_S)
    good = await asyncio.gather(*tasks)
    return sum(good) / len(good)


@pytest.mark.soak
async def test_four_gateways_serve_as_well_as_one(tmp_path: Path) -> None:
    found: dict[int, list[float]] = {1: [], 4: []}
    for seed in range(ROUNDS):
        for count, figures in found.items():
            async with AsyncExitStack() as stack:
                valkey = await start_valkey()
                stack.push_async_callback(valkey.stop)
                await asyncio.gather(*(simulated(stack, f"s{number}", valkey.url) for number in range(WORKERS)))
                directory = tmp_path / f"{seed}-{count}"
                directory.mkdir()
                fleet = Fleet(directory, [], 64)
                stack.push_async_callback(fleet.stop)
                gateways = [await fleet.start(f"g{number}", valkey.url) for number in range(count)]
                connector = aiohttp.TCPConnector(limit=0)
                session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
                for gateway in gateways:
                    deadline = time.monotonic() + 30
                    while len(await gateway.workers(session)) < WORKERS or (await gateway.ready(session))[0] != 200:
                        assert time.monotonic() < deadline, "the gateways do not see the workers"
                        await asyncio.sleep(0.1)
                figures.append(await goodput(gateways, session, seed))
    one, four = (100 * sum(figures) / len(figures) for figures in found.values())
    print(f"goodput {one:.2f} % with one gateway, {four:.2f} % with four: {found}")
    assert four >= one - 0.5
