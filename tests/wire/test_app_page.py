"""The dashboard as it is served: whole, harmless, the same for everybody; and the history that it draws."""

import re
from pathlib import Path
from urllib.parse import urljoin

import pytest
from admin_support import Api, settings
from plain_worker import plain_worker
from running_gateway import running

from gateway.admin.page import DIRECTORY, TYPES

PARTS = sorted(path.name for path in DIRECTORY.iterdir())
SVG_NAMESPACE = "http://www.w3.org/2000/svg"


@pytest.fixture
async def worker():
    async with plain_worker() as found:
        yield found


@pytest.fixture
async def api(tmp_path, worker):
    async with running(settings(tmp_path, [worker])) as gateway:
        yield Api(gateway, None)


async def test_the_page_and_all_its_parts(api):
    for path in ("/dashboard", *(f"/dashboard/{name}" for name in PARTS)):
        async with api.gateway.session.get(api.gateway.admin + path) as answer:
            body = await answer.read()
            assert answer.status == 200, path
            assert body == (DIRECTORY / (Path(path).name if path != "/dashboard" else "index.html")).read_bytes()
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["X-Frame-Options"] == "DENY"
            assert answer.content_type == TYPES[Path(path).suffix or ".html"]
            tag = answer.headers["ETag"]
        async with api.gateway.session.get(api.gateway.admin + path, headers={"If-None-Match": tag}) as answer:
            assert (answer.status, await answer.read()) == (304, b"")


async def test_who_looks_for_the_page_is_sent_there(api):
    for path in ("/", "/dashboard/"):
        for method in ("GET", "HEAD"):
            async with api.gateway.session.request(method, api.gateway.admin + path, allow_redirects=False) as answer:
                assert answer.status == 302
                assert urljoin(path, answer.headers["Location"]) == "/dashboard"
        async with api.gateway.session.post(api.gateway.admin + path) as answer:
            assert answer.status == 405
        async with api.gateway.session.get(api.gateway.admin + path, headers={"Host": "evil.example"}) as answer:
            assert answer.status == 403


async def test_nothing_else_is_served(api):
    for name in ("none.js", "..%2Fpage.py", "%2e%2e%2fserver.py", "a%2fb", ".", ""):
        url = f"{api.gateway.admin}/dashboard/{name}"
        async with api.gateway.session.get(url) as answer:
            assert answer.status in (200, 404)
            assert b"import" not in await answer.read() or str(answer.url).endswith("/dashboard")
        async with api.gateway.session.post(url) as answer:
            assert answer.status in (404, 405)


def test_every_part_that_is_named_is_there_and_nothing_comes_from_elsewhere():
    for name in PARTS:
        text = (DIRECTORY / name).read_text()
        assert Path(name).suffix in TYPES
        named = re.findall(r'(?:src|href)="dashboard/([^"]+)"', text) + re.findall(r'from "\./([^"]+)"', text)
        assert set(named) <= set(PARTS), name
        assert not re.findall(r"(?:https?:)?//[\w.-]+\.\w+", text.replace(SVG_NAMESPACE, "")), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text), (
            name
        )
        assert not re.search(r'\bon\w+="|style="', text), f"{name}: the content security policy forbids it"


async def test_history(api, worker):
    assert (await api.get("history"))["steps"] == []
    for _ in range(3):
        async with api.gateway.post({"stream": True}) as answer:
            assert answer.status == 200
            await answer.read()
    await api.gateway.idle()
    # The three may fall into two steps.
    steps = (await api.get("history"))["steps"]
    assert sum(step["classes"]["standard"]["requests"] for step in steps) == 3
    last = steps[-1]["classes"]["standard"]
    assert 0 < last["ttft_p50_s"] <= last["ttft_p95_s"] < 60
    lately = (await api.gateway.fleet())["latency"]["standard"]
    assert (lately["requests"], lately["rejected"], lately["failed"]) == (3, 0, 0)


async def test_why_is_told_of_a_request(api):
    async with api.gateway.post({}) as answer:
        why = answer.headers["X-Headrace-Reason"]
        request_id = answer.headers["X-Request-Id"]
    await api.gateway.idle()
    assert (await api.get(f"requests/{request_id}"))["request"]["why"] == why
