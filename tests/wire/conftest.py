"""The data plane's tests run on both loops: uvloop is what serves, asyncio what a platform without it gets.

Tests of the whole gateway run on uvloop alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.path.name.startswith("test_http_"):
        return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
    if item.path.name.startswith("test_app_"):
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}
