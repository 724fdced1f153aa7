"""The dashboard with 500 workers, at every width, by keyboard, for screen readers, and with hostile names."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from admin_support import settings
from camera import Camera
from chromium import Page
from plain_worker import plain_worker
from running_gateway import Running, running

WORKERS = 500
HURT = "<img src=x onerror=\"document.title='hurt'\">"

# Stands in for the fleet that a gateway tells of: the real answer, with its one worker many times over. What one of
# them has in flight is `window.load`.
MANY = f"""(() => {{
  const real = window.fetch;
  window.load = 1;
  window.answers = 0;
  window.fetch = async (...args) => {{
    const answer = await real(...args);
    if (!String(args[0]).endsWith("/fleet") || !answer.ok) return answer;
    const fleet = await answer.json();
    const [one] = fleet.workers;
    fleet.workers = Array.from({{length: {WORKERS}}}, (_, number) => ({{
      ...one, id: `w${{number}}`, incarnation: `i${{number}}`, in_flight: number === 7 ? window.load : 1,
      state: number % 50 === 3 ? "ejected" : "ready", kv_used_tokens: number * 150, kv_usage: number * 150 / 100000,
    }}));
    fleet.workers[1].models = [{json.dumps(HURT)}];
    fleet.workers[2].id = {json.dumps(HURT)};
    window.answers += 1;
    return new Response(JSON.stringify(fleet), {{headers: {{"Content-Type": "application/json"}}}});
  }};
}})()"""

# Counts what changes below an element from now on, as places in the page.
WATCH = """(() => {
  window.changed = new Set();
  new MutationObserver((list) => {
    for (const one of list) {
      const node = one.target.nodeType === 1 ? one.target : one.target.parentElement;
      window.changed.add(node.closest(".tile")?.getAttribute("aria-label") ?? node.className);
    }
  }).observe(document.querySelector("main"), {subtree: true, childList: true, characterData: true, attributes: true});
})()"""


ONLY = "{ const o = document.querySelector('#fleet-only'); o.value = '%s'; o.dispatchEvent(new Event('change')); }"


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Running]:
    async with plain_worker() as worker, running(settings(tmp_path, [worker])) as found:
        yield found


async def beats(page: Page, count: int) -> None:
    """Wait for so many more answers to have been drawn."""
    seen = await page.run("window.answers")
    await page.until(f"window.answers >= {seen + count + 1}")


async def test_five_hundred_workers(page: Page, gateway: Running, camera: Camera) -> None:
    """A beat in which one worker changed touches that worker's tile and no other; names stay names."""
    await page.call("Page.addScriptToEvaluateOnNewDocument", source=MANY)
    await page.open(f"{gateway.admin}/dashboard")
    await page.until(f"document.querySelectorAll('.tile').length === {WORKERS}")
    await beats(page, 1)
    await page.run(WATCH)
    await beats(page, 2)
    assert await page.run("[...window.changed]") == [], "nothing changed, nothing is touched"
    await page.run("window.load = 3")
    await page.until_text('[aria-label="Worker w7"]', "3 / 4")
    assert await page.run("[...window.changed]") == ["Worker w7"]

    await page.fill("#fleet-search", "w49")
    await page.until_text(".tools-row [role=status]", f"11 of {WORKERS} workers")
    await page.fill("#fleet-search", "img src")
    await page.until_text(".tiles", HURT)
    assert await page.run("document.querySelector('main img') === null && document.title") == "Fleet – Headrace"
    await page.fill("#fleet-search", "")
    await page.run("document.querySelector('#fleet-search').dispatchEvent(new Event('input'))")
    await page.run(ONLY % "odd")
    await page.until_text(".tools-row [role=status]", f"10 of {WORKERS} workers")
    await page.run(ONLY % "")
    await camera.shoot_all(page, "fleet", (360, 740), (1280, 900), (3840, 2160))
    assert not page.complaints


async def test_nothing_is_cut_off_and_everything_has_a_name(page: Page, gateway: Running) -> None:
    """No view is wider than the screen, from 360 pixels to 4K; every control and every landmark has a name."""
    async with gateway.post({"stream": True}) as answer:
        await answer.read()
    await page.open(f"{gateway.admin}/dashboard")
    await page.until_text("#link", "live")
    for name in ("Fleet", "Queues", "Latency", "Policy", "Requests", "Access"):
        await page.click("#tabs a", name)
        await page.until(f"document.title === '{name} – Headrace'")
        for width in (360, 768, 1280, 3840):
            await page.size(width, 900)
            wide = await page.run("document.documentElement.scrollWidth")
            assert wide <= width, f"{name} is {wide} wide at {width}"
        await page.size(1280, 900)
        await every_control_has_a_name(page, name)
    assert not page.complaints


async def every_control_has_a_name(page: Page, view: str) -> None:
    nodes: list[dict[str, Any]] = (await page.call("Accessibility.getFullAXTree"))["nodes"]
    roles = {
        "button", "textbox", "searchbox", "combobox", "checkbox", "link", "spinbutton", "meter", "table", "region",
        "navigation", "dialog", "image",
    }  # fmt: skip
    seen = [node for node in nodes if not node["ignored"] and node["role"]["value"] in roles]
    nameless = [node["role"]["value"] for node in seen if not node.get("name", {}).get("value")]
    assert nameless == [], view
    found = {node["role"]["value"] for node in nodes if not node["ignored"]}
    assert {"banner", "navigation", "main"} <= found, view


async def test_by_keyboard_alone(page: Page, gateway: Running) -> None:
    """Skip the header, see the focus, open a worker, close it again and be where one was; change the theme."""
    await page.open(f"{gateway.admin}/dashboard")
    await page.until_text('[aria-label="Worker w1"]', "ready")
    await page.press("Tab")
    assert await page.run("document.activeElement.innerText") == "Skip to the view"
    await page.press("Enter")
    await page.until("document.activeElement.id === 'main'")
    for _ in range(10):
        await page.press("Tab")
        if await page.run("document.activeElement.innerText") == "Details":
            break
    style = await page.run("getComputedStyle(document.activeElement).outlineStyle")
    assert style != "none", "the focus is seen"
    await page.press("Enter")
    await page.until_text("dialog[open] .facts-list", "State")
    assert "short-chat" in await page.text("dialog[open]")
    await page.press("Escape")
    await page.until("document.querySelector('dialog[open]') === null")
    assert await page.run("document.activeElement.innerText") == "Details"
    light = await page.run("getComputedStyle(document.body).backgroundColor")
    await page.run("document.querySelector('#theme').focus()")
    await page.press("Enter")
    await page.press("Enter")
    await page.until_text("#theme", "Theme: dark")
    assert await page.run("getComputedStyle(document.body).backgroundColor") != light
    await page.open(f"{gateway.admin}/dashboard#policy")
    await page.until_text("#theme", "Theme: dark")
    assert not page.complaints
