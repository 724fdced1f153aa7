"""A real browser in front of real gateways; skipped only where there is no Chromium."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from camera import Camera
from chromium import Browser, Page, chromium, find_chromium

ROOT = Path(__file__).parents[2]
HOW = "no Chromium on this machine; on Debian: apt-get install chromium"

# The gateways and workers that the wire tests start are the ones that are looked at here.
sys.path.insert(0, str(ROOT / "tests" / "wire"))


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    if find_chromium() is None:
        pytest.skip(HOW)
    async with chromium() as found:
        yield found


@pytest.fixture
async def page(browser: Browser) -> Page:
    return await browser.page()


@pytest.fixture
def camera(request: pytest.FixtureRequest) -> Camera:
    return Camera(request.node.name)
