"""`headrace doctor` and /admin/v1/advice against a whole gateway, a real Valkey, and reports as agents write them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis.asyncio as redis_client
from click.testing import CliRunner, Result
from running_gateway import Running, running, settings_for

from gateway import advice
from gateway.cli_doctor import doctor
from gateway.process import Child, start_valkey
from workers.report import WorkerReport, encode, report_key, workers_key

REPORT = WorkerReport(
    "w9", "i1", 1, "http://127.0.0.1:1", "vllm", "short-chat", ("tiny",), max_model_len=4096, max_num_seqs=8,
    kv_tokens=1000, kv_usage=0.5, running=3, preemptions=2,
)  # fmt: skip


@pytest.fixture
async def valkey() -> AsyncIterator[Child]:
    child = await start_valkey()
    yield child
    await child.stop(grace_s=1.0)


async def told(gateway: Running, url: str) -> list[dict[str, object]]:
    """Publish ever more preemptions until the gateway has something to say about them."""
    redis = redis_client.Redis.from_url(url)
    deadline = time.monotonic() + 20
    report = REPORT
    try:
        await redis.sadd(workers_key("default"), report.id)
        while True:
            report = replace(report, sequence=report.sequence + 1, preemptions=report.preemptions + 1)
            await redis.set(report_key("default", report.id), encode(report), ex=30)
            status, body = await gateway.get("/admin/v1/advice")
            assert status == 200
            found: list[dict[str, object]] = json.loads(body)["advice"]
            if found:
                return found
            assert time.monotonic() < deadline, "no advice"
            await asyncio.sleep(0.1)
    finally:
        await redis.aclose()


async def ask(admin: str, *words: str) -> Result:
    """Run the command in a thread: it asks the gateway on this loop."""
    return await asyncio.to_thread(CliRunner().invoke, doctor, ["--admin", admin, *words])


async def test_preemptions_are_told_with_what_to_change(
    valkey: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advice, "SAMPLE_S", 0.0)  # every report is a sample: the test need not wait for ten seconds
    async with running(settings_for(tmp_path, [], redis=valkey.url)) as gateway:
        nothing = await ask(gateway.admin)
        assert nothing.exit_code == 0
        assert nothing.output.startswith("Nothing stands out.")
        assert (await ask(gateway.admin, "--json")).output == ""
        (found,) = await told(gateway, valkey.url)
        assert (found["worker"], found["pool"], found["rule"]) == ("w9", "short-chat", "preemptions")
        assert found["threshold"] == {"preemptions": 0}
        people = await ask(gateway.admin)
        assert "w9 (short-chat): " in people.output
        assert "change    lower max_num_seqs" in people.output
        assert "measured  preemptions " in people.output
        (line,) = (await ask(gateway.admin, "--json")).output.splitlines()
        assert json.loads(line)["rule"] == "preemptions"


async def test_no_gateway_is_one_line_and_status_1() -> None:
    done = await ask("http://127.0.0.1:1")
    assert done.exit_code == 1
    assert done.output.startswith("headrace: ")
