"""Headless Chromium driven through its DevTools protocol: real clicks and keys, and whatever it complains about."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

PATIENCE_S = 60.0  # for a machine that is busy with other things
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",  # root, as in CI, may not have one
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
POLL_S = 0.05
CLOSE_S = 5.0
KEYS = {
    "Enter": (13, "\r"),
    "Tab": (9, ""),
    "Escape": (27, ""),
    "End": (35, ""),
    "ArrowLeft": (37, ""),
    "Space": (32, " "),
}


def find_chromium() -> str | None:
    """The program, where there is one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class PageError(AssertionError):
    """A script in the page failed, or what was waited for did not come."""


class Browser:
    """One Chromium and the connection to it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._pages: dict[str, Page] = {}
        self._reader = asyncio.ensure_future(self._read())

    async def call(self, method: str, session: str | None = None, **params: Any) -> Any:
        """One command and its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        answer = self._waiting[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json(message)
        return await asyncio.wait_for(answer, PATIENCE_S)

    async def _read(self) -> None:
        async for message in self._socket:
            found = json.loads(message.data)
            if "id" in found:
                waiting = self._waiting.pop(found["id"])
                if waiting.done():
                    continue
                if "error" in found:
                    waiting.set_exception(PageError(str(found["error"])))
                else:
                    waiting.set_result(found["result"])
            elif found.get("sessionId") in self._pages:
                self._pages[found["sessionId"]].observe(found["method"], found["params"])

    async def page(self, width: int = 1280, height: int = 900) -> Page:
        """A new tab with storage of its own."""
        context = await self.call("Target.createBrowserContext")
        target = await self.call("Target.createTarget", url="about:blank", browserContextId=context["browserContextId"])
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = Page(self, attached["sessionId"])
        self._pages[attached["sessionId"]] = page
        for domain in ("Page", "Runtime", "Log", "Network"):
            await page.call(f"{domain}.enable")
        await page.size(width, height)
        return page

    async def close(self) -> None:
        """End it: asked, it ends its own children first."""
        with suppress(TimeoutError, PageError, ConnectionError):
            await asyncio.wait_for(self.call("Browser.close"), CLOSE_S)
        self._reader.cancel()
        await self._socket.close()


class Page:
    """One tab. `complaints`: exceptions, console errors and breaches of the content security policy; `failed`: what
    the network log has of requests that did not work."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.complaints: list[str] = []
        self.failed: list[str] = []
        self.asked: list[str] = []

    def observe(self, method: str, params: dict[str, Any]) -> None:
        """An event of the protocol."""
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in {"error", "assert", "warning"}:
            self.complaints.append(str([each.get("value", each.get("description")) for each in params["args"]]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in {"error", "warning"}:
            entry = params["entry"]
            where = self.failed if entry["source"] == "network" else self.complaints
            where.append(f"{entry['text']} {entry.get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"])

    async def call(self, method: str, **params: Any) -> Any:
        """One command for this tab."""
        return await self._browser.call(method, self._session, **params)

    async def size(self, width: int, height: int, scale: float = 1.0) -> None:
        """The window's size in CSS pixels."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    async def prefer(self, scheme: str) -> None:
        """The system's colours: light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def open(self, url: str) -> None:
        """Go there."""
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    async def run(self, script: str) -> Any:
        """The value of an expression; promises are awaited."""
        found = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            details = found["exceptionDetails"]
            raise PageError(f"{script}: {details.get('exception', {}).get('description', details['text'])}")
        return found["result"].get("value")

    async def until(self, script: str, within_s: float = PATIENCE_S) -> Any:
        """Wait for an expression to be true, and return its value."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while not (found := await self.run(script)):
            if loop.time() > deadline:
                shown = await self.run("document.body.innerText")
                raise PageError(f"never true: {script}\ncomplaints: {self.complaints}\nshown:\n{shown[:3000]}")
            await asyncio.sleep(POLL_S)
        return found

    async def text(self, selector: str) -> str:
        """The text of an element that is there."""
        return str(await self.run(f"document.querySelector({selector!r}).innerText"))

    async def until_text(self, selector: str, part: str) -> str:
        """Wait until an element shows this; its whole text."""
        found = f"document.querySelector({json.dumps(selector)})"
        return str(await self.until(f"{found}?.innerText.includes({json.dumps(part)}) && {found}.innerText"))

    async def click(self, selector: str, text: str = "") -> None:
        """A real click in the middle of the first element that fits and has this text; it must be what is hit there."""
        find = f"""(() => {{
            const fits = [...document.querySelectorAll({json.dumps(selector)})].filter((each) =>
                each.checkVisibility() && !each.disabled && each.innerText.includes({json.dumps(text)}));
            if (!fits.length) return null;
            fits[0].scrollIntoView({{block: "center", inline: "nearest"}});
            const box = fits[0].getBoundingClientRect();
            const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
            const hit = document.elementFromPoint(x, y);
            return fits[0].contains(hit) ? [x, y] : null;
        }})()"""
        x, y = await self.until(find)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            button = "none" if kind == "mouseMoved" else "left"
            await self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=1)

    async def type(self, text: str) -> None:
        """Put text where the focus is, as a paste does."""
        await self.call("Input.insertText", text=text)

    async def press(self, key: str, *, shift: bool = False, control: bool = False) -> None:
        """One key, down and up."""
        code, text = KEYS[key] if key in KEYS else (ord(key.upper()), key)
        common = {"key": " " if key == "Space" else key, "windowsVirtualKeyCode": code}
        common["modifiers"] = (8 if shift else 0) | (2 if control else 0)
        await self.call("Input.dispatchKeyEvent", type="keyDown", text="" if control else text, **common)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    async def fill(self, selector: str, text: str) -> None:
        """Replace what a field holds."""
        await self.click(selector)
        await self.run("document.activeElement.select()")
        await self.type(text)

    async def screenshot(self, path: Path) -> None:
        """What is seen now, as PNG."""
        shot = await self.call("Page.captureScreenshot", format="png")
        await asyncio.to_thread(_write, path, base64.b64decode(shot["data"]))


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A running browser with an empty profile; its processes and the profile are gone afterwards."""
    program = find_chromium()
    assert program is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            program,
            *FLAGS,
            f"--user-data-dir={profile}",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            port = Path(profile) / "DevToolsActivePort"
            async with asyncio.timeout(PATIENCE_S):
                while not (port.exists() and port.read_text().count("\n") >= 1):
                    assert process.returncode is None, f"{program} ended with {process.returncode}"
                    await asyncio.sleep(POLL_S)
            number, path = port.read_text().split("\n")[:2]
            async with aiohttp.ClientSession() as session:
                socket = await session.ws_connect(f"ws://127.0.0.1:{number}{path}", max_msg_size=0)
                browser = Browser(socket)
                try:
                    yield browser
                finally:
                    await browser.close()
        finally:
            try:
                await asyncio.wait_for(process.wait(), CLOSE_S)
            except TimeoutError:
                # Its own session, so that the group is the browser and its children and nothing else.
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
