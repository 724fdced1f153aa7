"""`headrace worker attach` as a process: from its first report to its last."""

import asyncio
import signal
import sys

import orjson
import pytest
from aiohttp import ClientSession, web
from click.testing import CliRunner
from running_gateway import running, settings_for

from gateway.ports import free_port
from gateway.process import start_valkey
from workers.cli import LAZY, default_id, worker
from workers.redis_client import make_client
from workers.report import decode, report_key, workers_key
from workers.weights import fingerprint

METRICS = "llamacpp:requests_processing 1\nllamacpp:tokens_predicted_total 5\n"


async def engine_runner():
    async def answer(request):
        if request.path == "/health":
            return web.json_response({"status": "ok"})
        if request.path == "/metrics":
            return web.Response(text=METRICS)
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "gemma"}]})
        return web.Response(status=404)

    app = web.Application()
    app.router.add_get("/{tail:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_attach_reports_until_it_is_told_to_stop(number, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    port = free_port()
    valkey = await start_valkey()
    engine = await engine_runner()
    url = f"http://127.0.0.1:{engine.addresses[0][1]}"
    redis = make_client(valkey.url)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace", "worker", "attach", "--engine", "llamacpp", "--url", url + "/"),
        *("--pool", "short-chat", "--id", "w1", "--redis", valkey.url, "--fleet", "test", "--json"),
        *("--kv-tokens", "512", "--interval", "0.05", "--listen", f"127.0.0.1:{port}", "--model-path", str(tmp_path)),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(20):
            assert orjson.loads(await process.stdout.readline()) == {"event": "ready", "id": "w1", "url": url}
            report = decode(await redis.get(report_key("test", "w1")), "w1")
            assert (report.state, report.engine, report.models, report.kv_tokens) == (
                "ready",
                "llamacpp",
                ("gemma",),
                512,
            )
            assert report.weights == fingerprint(str(tmp_path)) != ""
            async with ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                assert 'headrace_worker_running{worker="w1"' in await answer.text()
            process.send_signal(number)
            assert orjson.loads(await process.stdout.readline()) == {"event": "stopped", "id": "w1"}
            assert await process.wait() == 0
        assert await redis.exists(report_key("test", "w1"), workers_key("test")) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await redis.aclose()
        await engine.cleanup()
        await valkey.stop(grace_s=0.0)


async def test_a_worker_whose_agent_was_stopped_gets_nothing_new_at_once(tmp_path):
    """Not after the seconds that a silent one is waited for: its last report says that it leaves."""
    valkey = await start_valkey()
    engine = await engine_runner()
    url = f"http://127.0.0.1:{engine.addresses[0][1]}"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace", "worker", "attach", "--engine", "llamacpp", "--url", url),
        *("--pool", "short-chat", "--id", "w1", "--redis", valkey.url, "--fleet", "test", "--max-model-len", "512"),
    )

    async def states(gateway):
        return [worker["state"] for worker in (await gateway.fleet())["workers"]]

    try:
        async with running(settings_for(tmp_path, [], redis=valkey.url, fleet="test"), fresh=True) as gateway:
            async with asyncio.timeout(30):
                while await states(gateway) != ["ready"]:  # noqa: ASYNC110 - nothing to subscribe to
                    await asyncio.sleep(0.02)
                process.send_signal(signal.SIGINT)
                assert await process.wait() == 0
                assert await states(gateway) == ["draining"], "told before the agent ended"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await engine.cleanup()
        await valkey.stop(grace_s=0.0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--url", "127.0.0.1:1"], "--url: must be http://host"),
        (["--url", "http://h/path"], "--url: must be http://host"),
        (["--url", "http://h", "--redis", "none"], "redis: must be a URL that begins with redis://"),
        (["--url", "http://h", "--id", "a b"], "id: must be 1 to 128"),
        (["--url", "http://h", "--fleet", "a}b"], "--fleet: must be 1 to 128"),
        (["--url", "http://h", "--engine", "none"], "'none' is not one of"),
        (["--url", "http://h", "--token", "file:/nowhere"], "token: cannot read /nowhere"),
        (["--url", "http://h", "--kv-tokens", "0"], "0 is not in the range"),
        (["--url", "http://h", "--metrics-url", "h:1"], "--metrics-url: must be http://host"),
        (["--url", "unix:///s", "--metrics-url", "http://h"], "--metrics-url: a unix socket has the metrics, too"),
        (["--url", "http://h", "--listen", "h"], "--listen: must be host:port"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(arguments, says):
    result = CliRunner().invoke(worker, ["attach", "--engine", "vllm", "--pool", "p", *arguments])
    assert result.exit_code == 2, result.output
    assert says in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://127.0.0.1:9001", "vllm-127.0.0.1-9001"),
        ("https://engine", "vllm-engine-443"),
        ("http://[::1]", "vllm-::1-80"),
        ("unix:///run/vllm/a.sock", "vllm-run-vllm-a.sock"),
    ],
)
def test_default_id(url, name):
    assert default_id("vllm", url) == name


def test_help_lists_every_command():
    result = CliRunner().invoke(worker, ["--help"])
    assert "Run or attach a worker." in result.output
    assert all(name in result.output for name in ("attach", *LAZY))
