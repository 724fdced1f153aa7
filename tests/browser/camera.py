"""Screenshots that the tests leave behind, for people to look at."""

from __future__ import annotations

import re
from pathlib import Path

from chromium import Page

ARTEFACTS = Path(__file__).parents[2] / "artefacts"


class Camera:
    """Screenshots for people to look at, under the test's name."""

    def __init__(self, test: str) -> None:
        self._test = re.sub(r"\W+", "-", test.removeprefix("test_"))

    async def shoot(self, page: Page, name: str) -> None:
        """Keep what is seen now."""
        await page.screenshot(ARTEFACTS / f"{self._test}-{name}.png")

    async def shoot_all(self, page: Page, name: str, *sizes: tuple[int, int]) -> None:
        """The same in the sizes and colours that are to be looked at; back to what it was afterwards."""
        for width, height in sizes or ((360, 740), (1280, 900)):
            await page.size(width, height)
            await self.shoot(page, f"{name}-{width}")
        await page.size(1280, 900)
        await page.prefer("dark")
        await self.shoot(page, f"{name}-dark")
        await page.prefer("light")
