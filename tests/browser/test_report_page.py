"""The page of `headrace report` in a browser: on a phone and on a desk, in light and in dark, alone with itself."""

from __future__ import annotations

from pathlib import Path

import orjson
from camera import Camera
from chromium import Page

from loadtest.report import make_report

TIMES = {"p50_s": 0.1, "p90_s": 0.2, "p99_s": 1.5}
GROUP = {"requests": 4, "outcomes": {"answered": 3, "refused": 1}, "goodput": 0.75} | dict.fromkeys(
    ("ttft", "tpot", "total"), TIMES
)
TROUBLE = {"outcome": "refused", "code": "queue_full", "count": 1, "message": "a" * 300}
RUN = GROUP | {
    "seconds": 8.0, "took_s": 9.0, "wanted_per_s": 2.0, "reached_per_s": 2.0, "interrupted": False,
    "troubles": [TROUBLE], "pools": {"short-chat": GROUP, "long-context": GROUP}, "classes": {},
}  # fmt: skip
ABOUT = {
    "trace": "t" * 90, "url": "http://127.0.0.1:1", "model": "m", "seed": 1, "ttft_slo_s": 2.0, "tpot_slo_s": 0.1,
    "warnings": [],
}  # fmt: skip
LINES = [
    {"figure": "headrace: a request", "value": 3.0, "target": "s CPU; at most 2.5, 2 x nginx", "ok": False},
    {"figure": "nginx: a request", "value": 1.0, "target": "s CPU", "ok": True},
    {"figure": "x" * 200, "value": 1.0, "target": "y" * 200, "ok": True},
    RUN | ABOUT,
    *({"step": RUN | {"rate_per_s": rate, "kept": rate < 9}} for rate in (4.0, 10.0, 7.0)),
    ABOUT | {"goodput": 0.99, "greatest_per_s": 7.0, "ending": "goodput"},
]
CUT = """[...document.querySelectorAll("svg text")].filter(each => {
  const box = each.getBBox(), width = each.ownerSVGElement.viewBox.baseVal.width;
  return box.x < -0.5 || box.x + box.width > width + 0.5;
}).map(each => each.textContent)"""


async def test_it_fits_every_screen_and_asks_nobody_for_anything(page: Page, camera: Camera, tmp_path: Path) -> None:
    lines, output = tmp_path / "lines", tmp_path / "report.html"
    lines.write_bytes(b"\n".join(map(orjson.dumps, LINES)))
    make_report([str(lines)], output)
    await page.open(output.as_uri())
    for width in (360, 768, 1280):
        await page.size(width, 740)
        assert await page.run("document.documentElement.scrollWidth") == width
        assert await page.run(CUT) == []
        assert await page.run('[...document.querySelectorAll("svg")].every(each => each.clientWidth > 250)')
    assert await page.run('performance.getEntriesByType("resource").length') == 0
    backs = []
    for scheme in ("light", "dark"):
        await page.prefer(scheme)
        backs.append(await page.run("getComputedStyle(document.body).backgroundColor"))
    assert backs[0] != backs[1]
    assert await page.text("section h2") == "Fall short: 1 of 3 figures"
    await camera.shoot_all(page, "report", (360, 3000), (1280, 2000))
