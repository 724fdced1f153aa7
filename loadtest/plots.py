"""Pictures of what a suite found; needs the `plots` extra."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadtest.figures import Figures


class NoPlotsError(RuntimeError):
    """matplotlib is not installed; says how to get it."""


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise NoPlotsError("plots need matplotlib: install headrace[plots]") from error
    matplotlib.use("agg")
    from matplotlib import pyplot

    return pyplot


def plot_goodput(found: Mapping[str, list[Figures]], directory: Path) -> list[Path]:
    """Goodput of every router in every window, one picture a load. `found`: results by "load: router"."""
    pyplot = _pyplot()
    directory.mkdir(parents=True, exist_ok=True)
    loads: dict[str, dict[str, list[Figures]]] = {}
    for name, results in found.items():
        load, _, router = name.partition(": ")
        loads.setdefault(load, {})[router] = results
    written = []
    for load, routers in loads.items():
        figure, axes = pyplot.subplots(1, 2, figsize=(11, 4), sharey=True)
        for panel, group in zip(axes, ("all", "long"), strict=True):
            for place, results in enumerate(routers.values()):
                shares = [100 * getattr(one, group).goodput for one in results]
                panel.plot([place] * len(shares), shares, "o", alpha=0.6)
                panel.plot([place - 0.3, place + 0.3], [sum(shares) / len(shares)] * 2, "k-", linewidth=1)
            panel.set_xticks(range(len(routers)), list(routers), rotation=30, ha="right")
            panel.set_title(f"{load}: {'all requests' if group == 'all' else 'long prompts'}")
            panel.grid(axis="y", alpha=0.3)
        axes[0].set_ylabel("goodput, % (a dot a window, a line the mean)")
        figure.tight_layout()
        path = directory / f"goodput-{load.replace(' ', '-')}.png"
        figure.savefig(path, dpi=120)
        pyplot.close(figure)
        written.append(path)
    return written
