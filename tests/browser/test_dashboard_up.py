"""The dashboard of `headrace up`, as somebody sees it who has just started it: real processes, a real browser."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import aiohttp
from camera import Camera
from chromium import Page

PATIENCE_S = 60.0
CHAT = {"model": "tiny", "stream": True, "max_tokens": 20, "messages": [{"role": "user", "content": "hello"}]}


async def test_a_fleet_that_was_just_started(page: Page, camera: Camera, tmp_path: Path) -> None:
    state = tmp_path / "state"
    up = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace", "up", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--json"),
        *("--short", "2", "--long", "1", "--speed", "20", "--state-dir", str(state)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert up.stdout is not None
    try:
        ready = json.loads(await asyncio.wait_for(up.stdout.readline(), PATIENCE_S))
        assert ready["event"] == "ready"
        await page.open(f"{ready['admin']}/dashboard")
        await page.until("document.querySelectorAll('.tile[data-state=ready]').length === 3")
        async with aiohttp.ClientSession() as session:
            for _ in range(5):
                async with session.post(f"{ready['data']}/v1/chat/completions", json=CHAT) as answer:
                    assert b"[DONE]" in await answer.read()
        await camera.shoot_all(page, "fleet")
        await page.click("#tabs a", "Latency")
        await page.until_text('[aria-label="Last minute"]', "standard")
        await page.click("#tabs a", "Policy")
        await page.click("#role")
        await page.fill("#token", (state / "admin.token").read_text().strip())
        await page.press("Enter")
        await page.until_text("#role", "Role: admin")
        await page.until("document.querySelector('.editor textarea').value.length > 0")
        await page.fill(".editor textarea", "default_class: interactive\n")
        await page.until_text("#policy-verdict", "Valid")
        await page.click("button", "Simulate")
        await page.until_text("[aria-label=Simulation] .outcome", "5 requests over")
        await page.click(".edit button.primary")
        await page.until_text(".converged", "Revision 2 on 1 of 1 replica: converged")
        await camera.shoot_all(page, "policy")
        await page.click('[aria-label="Roll back to revision 1"]')
        await page.click("dialog[open] button.primary")
        await page.until_text(".converged", "Revision 3 on 1 of 1 replica: converged")
        assert not page.complaints
        assert not page.failed
    finally:
        if up.returncode is None:
            up.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(up.wait(), PATIENCE_S) == 0
