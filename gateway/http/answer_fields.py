"""Header fields, and those of an answer that was read before. A file of its own: compiled classes cannot be lists."""

from __future__ import annotations

Fields = list[tuple[bytes, bytes]]


class AnswerFields(list[tuple[bytes, bytes]]):
    """The fields of an answer's head that was read before, and those of them that cross to clients."""

    __slots__ = ("crossing",)

    crossing: Fields
