"""Which tests only plain Python can run: `make test-compiled` leaves them out."""

from __future__ import annotations

import pytest

from gateway.compiled import in_use

REACH_INSIDE = (
    "unit/test_modes.py::test_the_least_in_flight",
    "unit/test_outputs.py::test_a_histogram_that_was_dropped",
    "unit/test_outputs.py::test_memory_is_bounded",
    "unit/test_quarantine.py::",
    "unit/test_sched_fairness.py::test_idle_tenants_are_forgotten",
    "unit/test_sched_fairness.py::test_orders_hear",
    "unit/test_sched_prefixes.py::",
    "unit/test_sched_timers.py::test_a_ticket_comes_up",
    "unit/test_sched_waiting.py::test_books_of_pools",
    "unit/test_traffic.py::",
    "wire/test_app_fleet_sync.py::",
    "wire/test_http_clients.py::test_leaving_while_connecting",
    "wire/test_http_dial.py::test_a_name_is_looked_up_again",
    "wire/test_names.py::test_a_name_is_looked_up_again",
)
"""They patch constants or methods, derive from classes, or pass stand-ins where compiled code wants the real thing."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if in_use():
        inside = pytest.mark.skip(reason="reaches into the inside of what is compiled")
        for item in items:
            if any(f"tests/{place}" in item.nodeid for place in REACH_INSIDE):
                item.add_marker(inside)
