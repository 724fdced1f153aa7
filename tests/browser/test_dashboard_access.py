"""On the dashboard: a policy tried out, client keys, the audit log, advice; the same calls with the same checks."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from admin_support import ADMIN, settings
from camera import Camera
from chromium import Page
from plain_worker import plain_worker
from running_gateway import Running, running

EDITOR = ".editor textarea"
TRIAL = "[aria-label=Trial]"
KEYS = "[aria-label='Client keys']"
AUDIT = "[aria-label='Audit log']"

ADVICE = {
    "worker": "w0",
    "pool": "short-chat",
    "rule": "idle",
    "message": "runs 2 of its 4 places while requests wait in it <b>",
    "measured": {"waiting": 3},
    "threshold": {"waiting": 0},
    "change": "raise max_num_seqs to 8",
}
ADVISE = f"""
const ask = window.fetch;
const kind = {{headers: {{"Content-Type": "application/json"}}}};
window.fetch = async (url, options) => String(url).endsWith("/advice")
  ? new Response(JSON.stringify({{advice: [{json.dumps(ADVICE)}]}}), kind)
  : ask(url, options);
"""


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Running]:
    async with plain_worker() as worker, running(settings(tmp_path, [worker])) as found:
        yield found


async def log_in(page: Page, token: str = ADMIN, role: str = "admin") -> None:
    await page.click("#role")
    await page.fill("#token", token)
    await page.press("Enter")
    await page.until_text("#role", f"Role: {role}")
    await page.until("!document.querySelector('#login').open")


async def test_a_canary_from_the_editor_to_its_promotion(page: Page, gateway: Running, camera: Camera) -> None:
    await page.open(f"{gateway.admin}/dashboard#policy")
    await page.until(f"document.querySelector({EDITOR!r}).value.trim() === '{{}}'")
    await log_in(page)
    await page.until_text(TRIAL, "Nothing is being tried.")
    assert await page.run(f"document.querySelector('{TRIAL} button').disabled")
    await page.fill(EDITOR, "default_class: interactive\n")
    await page.until_text("#policy-verdict", "Valid")
    await page.fill("#trial-share", "100")
    await page.click(f"{TRIAL} button", "Try it")
    await page.until_text("#trial-words", "A canary decides for 100 % of the requests; by admin, against revision 1")
    async with gateway.post({}) as answer:
        assert answer.headers["X-Headrace-Class"] == "interactive"
    count = f"document.querySelector('{TRIAL} tbody .number').innerText"
    await page.until(f"{count} === '1'")
    await page.run(f"document.querySelector('{TRIAL}').scrollIntoView()")
    await camera.shoot_all(page, "trial")
    await page.click(f"{TRIAL} button", "Promote")
    await page.click("dialog[open] button.primary")
    await page.until_text("#said", "Revision 2 is applied")
    await page.until_text(TRIAL, "Nothing is being tried.")
    await page.until_text("[aria-label=History]", "promote")
    assert not page.complaints
    assert not page.failed


async def test_a_shadow_is_begun_in_place_of_a_canary_and_withdrawn(page: Page, gateway: Running) -> None:
    await page.open(f"{gateway.admin}/dashboard#policy")
    await page.until(f"document.querySelector({EDITOR!r}).value.trim() === '{{}}'")
    await log_in(page)
    await page.fill(EDITOR, "default_class: interactive\n")
    await page.until_text("#policy-verdict", "Valid")
    await page.click(f"{TRIAL} button", "Try it")
    await page.until_text("#trial-words", "A canary decides for 10 %")
    await page.run("document.querySelector('#trial-mode').value = 'shadow'")
    await page.run("document.querySelector('#trial-mode').dispatchEvent(new Event('change'))")
    await page.until("!document.querySelector('#trial-share').checkVisibility()")
    await page.click(f"{TRIAL} button", "Try it")
    await page.until_text("dialog[open]", "End the canary that runs?")
    await page.click("dialog[open] button.primary")
    await page.until_text("#trial-words", "A shadow was asked about 0 requests")
    async with gateway.post({}) as answer:
        assert answer.headers["X-Headrace-Class"] == "standard"
    await page.until_text(TRIAL, "would have done otherwise for 1")
    await page.click(f"{TRIAL} button", "Withdraw")
    await page.until_text("#said", "The shadow has ended.")
    await page.until_text(TRIAL, "Nothing is being tried.")
    assert not page.complaints


async def test_keys_and_the_audit_log(page: Page, gateway: Running, camera: Camera, tmp_path: Path) -> None:
    """Nothing is asked before the role is there; a secret is shown once and works; all is written down."""
    await page.open(f"{gateway.admin}/dashboard#access")
    await page.until_text("#view-access", "token of role admin")
    operator = (tmp_path / "state" / "operator.token").read_text().strip()
    await log_in(page, operator, "operator")
    assert not await page.run(f"document.querySelector({json.dumps(KEYS)}).checkVisibility()")
    await page.click("#view-access button", "Log in as admin")
    await page.fill("#token", ADMIN)
    await page.press("Enter")
    await page.until_text(KEYS, "There are no keys")
    await page.fill("#key-tenant", "acme")
    await page.fill("#key-note", "laptop <i>")
    await page.click(f"{KEYS} button", "Make a key")
    await page.until("document.querySelector('#key-secret') !== null")
    secret = await page.run("document.querySelector('#key-secret').value")
    await camera.shoot(page, "key")
    await page.press("Enter")
    # The dialog is taken out by its `close` event, which comes a task after it has closed.
    await page.until("document.querySelector('#key-secret') === null")
    assert secret not in str(await page.run("document.documentElement.outerHTML"))
    await page.until_text(KEYS, "laptop <i>")
    async with gateway.post({}, Authorization=f"Bearer {secret}") as answer:
        assert answer.status == 200
    await page.click(f"{KEYS} button", "Rotate")
    await page.click("dialog[open] button.primary")
    await page.until("document.querySelector('#key-secret') !== null")
    assert await page.run("document.querySelector('#key-secret').value") != secret
    await page.press("Enter")
    await page.until_text(KEYS, "good, 1 rotation")
    await page.click(f"{KEYS} button", "Revoke")
    await page.click("dialog[open] button.primary")
    await page.until_text(KEYS, "revoked")
    async with gateway.post({}, Authorization=f"Bearer {secret}") as answer:
        assert answer.status == 401
    await page.until_text(AUDIT, "key.revoke")
    await page.until_text(AUDIT, "The log is whole")
    await camera.shoot_all(page, "access", (360, 740), (1280, 900), (3840, 2160))
    file = tmp_path / "state" / "audit.jsonl"
    file.write_bytes(file.read_bytes().replace(b"key.create", b"key.CREATE"))
    await page.until_text(AUDIT, "The log is not as it was written: audit.jsonl, line 1")
    assert not page.complaints
    assert not page.failed


async def test_what_stands_out_is_said(page: Page, gateway: Running, camera: Camera) -> None:
    await page.call("Page.addScriptToEvaluateOnNewDocument", source=ADVISE)
    await page.open(f"{gateway.admin}/dashboard")
    await page.until_text(".advice-card", "1 thing to look at")
    await page.click(".advice-card summary")
    await page.until_text(".advice", "w0 (short-chat): runs 2 of its 4 places while requests wait in it <b> raise")
    await camera.shoot_all(page, "advice")
    assert not page.complaints
