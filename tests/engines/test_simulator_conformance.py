"""The conformance suite on the simulated engine, live."""

import asyncio

from live_conformance import check_engine

from workers.engines.simulator import Simulator, SimulatorConfig
from workers.engines.vllm import SIMULATOR


async def test_the_simulator_conforms():
    engine = Simulator(SimulatorConfig(max_model_len=4096, speed=50.0))
    await engine.start()
    try:
        await asyncio.to_thread(check_engine, SIMULATOR, engine.url, "tiny")
    finally:
        engine.close()
        await asyncio.sleep(0)
