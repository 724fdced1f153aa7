"""setuptools compiles the C files of a library one after the other; here as many at once as there are processors."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any


def side_by_side(
    one_after_the_other: Callable[..., list[str]], told: Callable[[int, int], None]
) -> Callable[..., list[str]]:
    """A compiler's `compile` that starts with all sources at once. `told(done, whole)` hears of each that is compiled.

    What is raised for one source ends it: those that have not begun are not compiled any more.
    """

    def compile_all(sources: list[str], *more: Any, **named: Any) -> list[str]:
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            running = [pool.submit(one_after_the_other, [source], *more, **named) for source in sources]
            try:
                for done, each in enumerate(as_completed(running), 1):
                    each.result()
                    told(done, len(running))
            finally:
                pool.shutdown(cancel_futures=True)
        return [path for each in running for path in each.result()]

    return compile_all
