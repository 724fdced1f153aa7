"""The policy file of a running gateway: found changed without being told, and never half applied."""

import asyncio
import gc
import json
import threading
from typing import Any

from admin_support import POOLS, Api, settings
from plain_worker import plain_worker
from running_gateway import running, until

PATIENCE_S = 15.0  # of which the gateway needs about one


async def until_class(api: Api, name: str) -> dict[str, Any]:
    """Wait until requests get this class by default; what holds then."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while (found := await api.get("policy"))["policy"]["default_class"] != name:
        assert asyncio.get_running_loop().time() < deadline, found["state"]
        await asyncio.sleep(0.02)
    return found


async def until_refused(api: Api, count: int) -> dict[str, Any]:
    """Wait until so many contents of the file were refused; the file's state then."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while (found := (await api.get("policy/state"))["file"])["rejections"] < count:
        assert asyncio.get_running_loop().time() < deadline, found
        await asyncio.sleep(0.02)
    return found


def text(name: str) -> str:
    return f"{POOLS}default_class: {name}\n"


async def test_a_changed_file_is_found_and_a_bad_one_is_said(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text(POOLS)
    async with plain_worker() as worker, running(settings(tmp_path, [worker], policy=str(path))) as gateway:
        api = Api(gateway)
        path.write_text(text("batch"))
        found = await until_class(api, "batch")
        assert (found["revision"]["number"], found["revision"]["source"]) == (2, "file")
        assert not found["state"]["file"]["drift"]
        path.write_text("default_class: nobody\n")
        file = await until_refused(api, 1)
        assert "no class is called 'nobody'" in file["rejected"]
        assert (await api.get("policy"))["revision"]["number"] == 2
        path.unlink()
        path.write_text(text("interactive"))
        found = await until_class(api, "interactive")
        assert found["state"]["file"]["rejected"] is None
        assert await gateway.sample("headrace_policy_rejected_total") == 1


async def test_br_08_03_a_file_written_in_two_halves(tmp_path):
    """Both halves are valid documents; only the whole is ever in use."""
    path = tmp_path / "policy.yaml"
    path.write_text(POOLS)
    async with plain_worker() as worker, running(settings(tmp_path, [worker], policy=str(path))) as gateway:
        api = Api(gateway)
        with path.open("w") as file:
            file.write(text("batch"))
            file.flush()
            await asyncio.sleep(0.3)  # the case's own: a slow writer
            file.write("timeouts: {connect_s: 2}\n")
        found = await until_class(api, "batch")
        assert (found["revision"]["number"], found["policy"]["timeouts"]["connect_s"]) == (2, 2.0)


async def test_br_08_07_bad_file_good_change_good_file(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text(POOLS)
    async with plain_worker() as worker, running(settings(tmp_path, [worker], policy=str(path))) as gateway:
        api = Api(gateway)
        path.write_text("nonsense: 1\n")
        await until_refused(api, 1)
        assert (await api.put(text("batch")))[0] == 200
        for number in range(20):  # in about a second
            path.write_text(text("interactive") + f"admission: {{max_queued: {number}}}\n")
            await asyncio.sleep(0.05)
        found = await until_class(api, "interactive")
        assert found["policy"]["admission"]["max_queued"] == 19
        assert found["state"]["file"]["rejections"] == 1


async def test_a_file_that_breaks_guard_rails_waits_for_force(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text(POOLS)
    async with plain_worker() as worker, running(settings(tmp_path, [worker], policy=str(path))) as gateway:
        api = Api(gateway)
        path.write_text("pools: {elsewhere: {}}\n")
        file = await until_refused(api, 1)
        assert (file["guarded"], file["drift"]) == (True, True)
        assert "pool short-chat has 1 worker" in file["rejected"]
        await until(lambda: gateway.lines("policy_guard"))


def own_tasks() -> list[str]:
    """The gateway's background tasks; not those of connections, the test's own worker among them."""
    return sorted(task.get_name() for task in asyncio.all_tasks() if not task.get_name().startswith("Task-"))


async def test_br_08_01_reloads_leave_nothing_behind(tmp_path):
    """A pool comes and goes twenty times: tasks and threads stay as they were."""
    path = tmp_path / "policy.yaml"
    path.write_text(POOLS)
    async with plain_worker() as worker, running(settings(tmp_path, [worker], policy=str(path))) as gateway:
        api = Api(gateway)
        for number in range(3):  # what is made once is there after these
            await api.put(f"{POOLS}admission: {{max_queued: {number}}}")
        gc.collect()
        tasks, threads = own_tasks(), threading.active_count()
        for number in range(20):
            body = "pools: {short-chat: {}, b: {}}" if number % 2 else POOLS
            status, answer = await api.put(body, query="?force=1")
            assert status == 200, json.dumps(answer)
            async with gateway.post({}) as served:
                assert served.status == 200
        gc.collect()
        assert own_tasks() == tasks
        assert threading.active_count() <= threads + 2
