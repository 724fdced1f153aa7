"""An operator's day on the dashboard: two gateways, a browser, and everything that the page promises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from admin_support import ADMIN
from camera import Camera
from chromium import Page
from plain_worker import PlainWorker, plain_worker
from replica_support import Fleet, Gateway

from gateway.process import start_valkey

CHAT = {"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
TILE = 'article[aria-label="Worker w1"]'
EDITOR = ".editor textarea"
WRONG = "pools:\n  short-chat:\n    max_budget_tokens: 0\n  long-context: {}\ndefault_clas: batch\n"
RIGHT = "pools:\n  short-chat: {max_budget_tokens: 2048}\n  long-context: {}\n"


class Stage:
    """Two gateways of one fleet with one worker, and a client."""

    def __init__(self, fleet: Fleet, redis: str, worker: PlainWorker, session: aiohttp.ClientSession) -> None:
        self.fleet = fleet
        self.redis = redis
        self.worker = worker
        self.session = session
        self.streams: list[aiohttp.ClientResponse] = []

    async def start(self, name: str, **more: Any) -> Gateway:
        return await self.fleet.start(name, self.redis, admin_token=ADMIN, **more)

    async def stream(self, gateway: Gateway) -> None:
        """A stream that stands at the worker's gate."""
        self.worker.gate.clear()
        answer = await self.session.post(f"{gateway.data}/v1/chat/completions", json=CHAT)
        assert answer.status == 200
        self.streams.append(answer)

    async def end_streams(self) -> None:
        """Let them end, each whole."""
        self.worker.gate.set()
        for answer in self.streams:
            assert b"[DONE]" in await answer.read()
        self.streams.clear()

    async def put_policy(self, gateway: Gateway, text: str) -> None:
        """Somebody else's change."""
        url, headers = f"{gateway.admin}/admin/v1/policy", {"Authorization": f"Bearer {ADMIN}", "If-Match": "*"}
        async with self.session.put(url, data=text.encode(), headers=headers) as answer:
            assert answer.status == 200, await answer.text()


@asynccontextmanager
async def a_stage(directory: Path) -> AsyncIterator[Stage]:
    valkey = await start_valkey()
    try:
        async with plain_worker() as worker, aiohttp.ClientSession() as session:
            fleet = Fleet(directory, [worker], 4)  # type: ignore[list-item]
            try:
                yield Stage(fleet, valkey.url, worker, session)
            finally:
                worker.gate.set()
                await fleet.stop()
    finally:
        await valkey.stop(grace_s=1.0)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with a_stage(tmp_path) as found:
        yield found


async def log_in(page: Page) -> None:
    await page.click("#role")
    await page.fill("#token", ADMIN)
    await page.press("Enter")
    await page.until_text("#role", "Role: admin")
    await page.until("!document.querySelector('#login').open")


async def a_change_without_a_token(page: Page) -> None:
    """The page asks for a token, says when it is wrong, and keeps the right one for this tab only."""
    await page.click(f"{TILE} button", "Drain")
    await page.until("document.querySelector('#login').open")
    await page.until_text("#login-error", "needs a token")
    await page.fill("#token", "wrong")
    await page.press("Enter")
    await page.until_text("#login-error", "no token of this gateway")
    await page.fill("#token", ADMIN)
    await page.click("#login button", "Log in")
    await page.until_text("#role", "Role: admin")
    assert await page.run("sessionStorage.length") == 1
    assert ADMIN not in str(await page.run("JSON.stringify(localStorage) + document.cookie + location.href"))


async def a_wrong_policy(page: Page, camera: Camera) -> None:
    """Every fault is shown at its line while typing, and nothing can be applied."""
    await page.until(f"document.querySelector({EDITOR!r}).value.trim() === '{{}}'")
    await page.fill(EDITOR, WRONG)
    await page.until("document.querySelector('.mark[data-line=\"3\"]') !== null")
    lines = await page.run("[...document.querySelectorAll('.mark')].map((each) => each.innerText.trim())")
    assert lines == ["must be at least 1, got 0", "unknown key"]
    top, line = await page.run(
        "(() => { const mark = document.querySelector('.mark[data-line=\"3\"]').getBoundingClientRect(),"
        " area = document.querySelector('.editor textarea'), box = area.getBoundingClientRect();"
        " return [mark.top - box.top - parseFloat(getComputedStyle(area).paddingTop),"
        " parseFloat(getComputedStyle(area).lineHeight)]; })()"
    )
    assert abs(top - 2 * line) < 2, "the mark is behind the third line"
    assert "did you mean default_class?" in await page.text("#policy-problems")
    assert await page.run(f"document.querySelector({EDITOR!r}).getAttribute('aria-invalid')") == "true"
    assert await page.run("document.querySelector('.edit button.primary').disabled")
    await camera.shoot_all(page, "policy-wrong")
    await page.click("#policy-problems button", "line 5")
    caret = await page.run(f"document.querySelector({EDITOR!r}).selectionStart")
    assert caret == WRONG.index("default_clas")


async def a_right_policy(page: Page, camera: Camera) -> None:
    """Compared, simulated, applied, and followed to both replicas."""
    await page.fill(EDITOR, RIGHT)
    await page.until_text(".changes", "takes token budgets up to 2048 instead of 4096")
    assert await page.run("document.querySelectorAll('.mark').length") == 0
    await page.click("summary", "As text")
    await page.until("[...document.querySelectorAll('.diff-line.added')].some((one) => one.innerText.includes('2048'))")
    await page.click("button", "Simulate")
    await page.until_text("[aria-label=Simulation] .outcome", "3 requests over")
    await page.until_text("[aria-label=Simulation] .outcome", "class standard")
    await camera.shoot_all(page, "policy-right")
    await page.fill("#policy-note", "shorter")
    await page.click(".edit button.primary")
    await page.until_text(".converged", "Revision 2 on 2 of 2 replicas: converged")
    await page.until_text("[aria-label=History]", "shorter")
    await page.until_text("#policy-based", "As in revision 2")


async def back_again(page: Page) -> None:
    """A rollback shows what it changes before it is done."""
    await page.click('[aria-label="Roll back to revision 1"]')
    await page.until_text("dialog[open]", "takes token budgets up to 4096 instead of 2048")
    await page.click("dialog[open] button.primary")
    await page.until_text(".converged", "Revision 3 on 2 of 2 replicas: converged")
    await page.until(f"document.querySelector({EDITOR!r}).value.trim() === '{{}}'")


async def test_an_operators_day(page: Page, stage: Stage, camera: Camera) -> None:
    """Log in, watch a worker fill, edit wrongly and rightly, converge, roll back, drain, and come back."""
    first = await stage.start("a")
    await stage.start("b")
    await page.open(f"{first.admin}/dashboard")
    await page.until_text(TILE, "0 / ")
    await page.until_text("#link", "live")
    for _ in range(3):
        assert await first.chat(stage.session) == 200  # what will be replayed
    for number in (1, 2):
        await stage.stream(first)
        await page.until_text(TILE, f"{number} / ")
    await camera.shoot_all(page, "fleet")
    await a_change_without_a_token(page)

    await page.click("#tabs a", "Policy")
    await a_wrong_policy(page, camera)
    await a_right_policy(page, camera)
    await back_again(page)

    await page.click("#tabs a", "Fleet")
    await page.click(f"{TILE} button", "Drain")
    await page.until_text(TILE, "draining: 2 left")
    await page.until_text("#said", "gets nothing new; 2 requests still run there")
    await camera.shoot(page, "draining")
    await stage.end_streams()
    await page.until_text(TILE, "drained: empty")
    await page.click(f"{TILE} button", "Undrain")
    await page.until_text(f"{TILE} .state", "ready")

    assert len(page.failed) == 2, "no token, and a wrong one; nothing else was refused"
    assert all("401" in one for one in page.failed), page.failed
    assert not page.complaints
    await gone_and_back(page, stage, first, camera)
    assert not page.complaints
    assert all(url.startswith(first.admin) for url in page.asked), "nothing is asked of anybody else"


async def gone_and_back(page: Page, stage: Stage, gateway: Gateway, camera: Camera) -> None:
    """What is shown looks old as soon as the gateway is gone, and comes back with it, token and all."""
    await gateway.child.stop(grace_s=10)
    await page.until_text("#lost", "The gateway does not answer")
    await page.until("document.body.hasAttribute('data-stale')")
    await page.until_text("#link", "gateway lost, data")
    await camera.shoot(page, "lost")
    await page.click(f"{TILE} button", "Drain")
    await page.until_text("#said", "the gateway does not answer")
    await stage.start("a", admin=gateway.admin.removeprefix("http://"))
    await page.until_text("#link", "live")
    await page.until("document.querySelector('#lost').hidden && !document.body.hasAttribute('data-stale')")
    await page.until_text("#said", "The gateway answers again")
    assert await page.text("#role") == "Role: admin"
    await page.until_text(TILE, "0 / ")


async def test_two_editors_do_not_overwrite_each_other(page: Page, stage: Stage) -> None:
    """A change by somebody else is said; the text that was typed stays, and is held against the new revision."""
    gateway = await stage.start("a")
    await page.open(f"{gateway.admin}/dashboard#policy")
    await page.until(f"document.querySelector({EDITOR!r}).value.trim() === '{{}}'")
    await log_in(page)
    await page.fill(EDITOR, RIGHT)
    await page.until_text("#policy-verdict", "Valid")
    await stage.put_policy(gateway, "default_class: batch\n")
    await page.until_text(".edit [role=alert]", "Revision 2 was made meanwhile")
    await page.click(".edit button.primary")
    await page.until_text(".edit [role=alert]", "Not applied: revision 2 was made meanwhile")
    assert await page.run(f"document.querySelector({EDITOR!r}).value") == RIGHT
    await page.click("button", "Compare with the new one")
    await page.until_text(".changes", "instead of batch")
    await page.click(".edit button.primary")
    await page.until_text("#said", "Revision 3 is applied")
    # What would empty a pool is refused until it is meant.
    await page.until_text("#policy-based", "As in revision 3")
    await page.fill(EDITOR, "pools: {elsewhere: {}}\n")
    await page.until_text(".guards", "short-chat")
    await page.click(".edit button.primary")
    await page.until_text("#policy-verdict", "Not applied")
    await page.click(".check")
    await page.click(".edit button.primary")
    await page.until_text("#said", "Revision 4 is applied")
    assert not page.complaints


async def test_requests_are_followed_and_explained(page: Page, stage: Stage, camera: Camera) -> None:
    """The live tail, a request's story, the drawn latencies, what waits: all from traffic that really runs."""
    gateway = await stage.start("a")
    await page.open(f"{gateway.admin}/dashboard#requests")
    await page.until_text("#view-requests .tools-row [role=status]", "Following")
    # The page listens once the gateway has sent its first line; until then requests end unseen.
    while not await page.run("document.querySelectorAll('#view-requests tbody tr').length"):
        assert await gateway.chat(stage.session) == 200
        await asyncio.sleep(0.1)
    hostile = {**CHAT, "model": "<img src=x onerror=document.title='hurt'>"}
    async with stage.session.post(f"{gateway.data}/v1/chat/completions", json=hostile) as answer:
        assert answer.status == 404
        await answer.read()
    await page.click("#view-requests tbody button")
    await page.until_text("#story-title", "Why req-")
    while "chosen" not in await page.text(".story"):
        await page.click("#view-requests tr:last-child button")
        await page.until_text(".story", "class by default")
    await camera.shoot_all(page, "requests")

    for _ in range(4):
        await stage.stream(gateway)
    waits = asyncio.create_task(gateway.chat(stage.session))
    await page.click("#tabs a", "Queues")
    await page.until_text("[aria-label=Waiting]", "short-chat")
    await page.until_text("[aria-label=Tenants]", "default")
    await camera.shoot_all(page, "queues")
    await stage.end_streams()
    assert await waits == 200
    await page.until_text("[aria-label=Waiting]", "Nobody waits")

    await page.click("#tabs a", "Latency")
    await page.until("document.querySelectorAll('.chart .line, .chart .dot').length > 2")
    await page.until_text('[aria-label="Last minute"]', "standard")
    await page.run("document.querySelector('.chart').focus()")
    await page.press("ArrowLeft")
    await page.until_text(".tip", "standard p50")
    await camera.shoot_all(page, "latency")
    assert await page.run("document.querySelector('main img') === null && document.title") == "Latency – Headrace"
    assert not page.complaints
