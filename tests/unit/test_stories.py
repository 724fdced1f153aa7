"""Stories for all replicas: written in one operation, and bounded."""

from collections.abc import Awaitable, Callable
from typing import Any

from gateway import stories as module
from gateway.records import RequestRecord
from gateway.stories import Stories


class Link:
    """A way to a Redis that remembers what it was asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.answer: Any = None

    async def eval(self, *arguments: Any) -> int:
        self.calls.append(arguments)
        return 1

    async def get(self, key: str) -> Any:
        return self.answer

    async def run(self, operation: Callable[[Any], Awaitable[Any]]) -> Any:
        return await operation(self)


def stories(known: dict[str, Any]) -> tuple[Stories, Link]:
    link = Link()
    return Stories(link, "f", "r1", known.get), link  # type: ignore[arg-type]


def ended(request_id: str) -> RequestRecord:
    return RequestRecord(request_id, "POST", "/", "peer")


async def test_what_is_new_is_written_in_one_operation():
    found, link = stories({"a": {"request_id": "a"}, "b": {"request_id": "b"}, "long": {"text": "x" * 100_000}})
    await found.write()
    for name in ("a", "b", "forgotten", "long"):
        found.finished(ended(name))
    await found.write()
    (call,) = link.calls
    assert call[1] == 2
    await found.write()
    assert len(link.calls) == 1


async def test_a_burst_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "MOST_AT_ONCE", 10)
    found, link = stories({str(number): {"request_id": str(number)} for number in range(100)})
    for number in range(100):
        found.finished(ended(str(number)))
    await found.write()
    assert link.calls[0][1] == 10


async def test_only_the_request_that_was_asked_for():
    found, link = stories({})
    assert await found.find("a") is None
    for link.answer, expected in (
        (b"[]", None),
        (b'{"request_id": "b"}', None),
        (b'{"request_id": "a"}', {"request_id": "a"}),
    ):
        assert await found.find("a") == expected
