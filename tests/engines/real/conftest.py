"""Two real vLLM servers in two pools, an agent beside each, Valkey, and the gateway in front: once for all tests."""

import contextlib
import sys
from pathlib import Path

import openai
import pytest
from real_support import (
    FLEET,
    LONG_LENGTH,
    POLICY,
    REPORT_INTERVAL_S,
    SEQUENCES,
    SHORT_LENGTH,
    Command,
    Engines,
    Fleet,
    running_valkey,
    vllm_launch,
)
from redis import Redis

from workers.engines.cpu.forks import Forks
from workers.engines.cpu.install import RECIPES, ensure_installed
from workers.engines.cpu.models import tiny_model

sys.path.append(str(Path(__file__).parents[1]))  # the conformance suite is shared with the simulator's test


def pytest_collection_finish(session):
    """Install before the first test: it takes minutes, and no test's time limit should see them."""
    if session.config.option.collectonly or not session.items:
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    for engine in RECIPES:
        ensure_installed(engine, lambda line: reporter.write_line(line, flush=True))


@pytest.fixture(scope="session")
def logs(tmp_path_factory):
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model") / "tiny"
    tiny_model(directory, print)
    return directory


@pytest.fixture(scope="session")
def redis_url(logs):
    with running_valkey(logs) as url:
        yield url


@pytest.fixture(scope="session")
def gateway(logs, redis_url, tmp_path_factory):
    directory = tmp_path_factory.mktemp("gateway")
    (directory / "policy.yaml").write_text(POLICY)
    (directory / "headrace.yaml").write_text(
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n"
        f"fleet: {FLEET}\nredis: {redis_url}\n"
        f"policy: {directory / 'policy.yaml'}\nstate_dir: {directory / 'state'}\ndrain_s: 5\n"
    )
    command = Command.headrace(logs / "gateway.log", "serve", "-c", str(directory / "headrace.yaml"))
    try:
        yield command.ready()
    finally:
        command.stop()


@pytest.fixture(scope="session")
def engines(logs, model_dir, redis_url):
    pools = {"short": "short-chat", "long": "long-context"}
    with contextlib.ExitStack() as stack:
        forks = stack.enter_context(Forks(logs, print))
        redis = stack.enter_context(contextlib.closing(Redis.from_url(redis_url)))
        servers = {
            "short": forks.serve("short", vllm_launch(model_dir, SHORT_LENGTH)),
            "long": forks.serve("long", vllm_launch(model_dir, LONG_LENGTH)),
        }
        for name, server in servers.items():
            server.wait_ready()
            agent = attach(logs, redis_url, name, server.url, pools[name])
            stack.callback(agent.stop)
            agent.ready()
        yield Engines(redis, forks, servers, model_dir)


@pytest.fixture(scope="session")
def fleet(engines, gateway):
    running = Fleet(gateway["data"], gateway["admin"], engines)
    for name in engines.servers:
        running.wait_ready(name)
    return running


def attach(logs, redis_url, worker_id, url, pool, engine="vllm"):
    """An agent beside a running engine."""
    return Command.headrace(
        logs / f"agent-{worker_id}.log",
        *("worker", "attach", "--engine", engine, "--url", url, "--pool", pool, "--id", worker_id),
        *("--redis", redis_url, "--fleet", FLEET, "--interval", str(REPORT_INTERVAL_S)),
        *(("--max-num-seqs", str(SEQUENCES)) if engine == "vllm" else ()),
    )


@pytest.fixture
def start_agent(logs, redis_url):
    """Attach further agents for the length of a test."""
    with contextlib.ExitStack() as stack:

        def start(worker_id, url, pool, engine):
            agent = attach(logs, redis_url, worker_id, url, pool, engine)
            stack.callback(agent.stop)
            agent.ready()

        yield start


@pytest.fixture
def client(gateway):
    """The official client, which must not hide failures by retrying."""
    with openai.OpenAI(base_url=gateway["data"] + "/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client
