"""Tables for people that never cut a name: as wide as needed in a pipe, without the least columns on a terminal.

They stand on the worker side, and every command line draws with them: the gateway may know the worker side, not the
other way round.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

UNBOUNDED = 1_000_000
"""Columns to measure in: more than any table has."""

GAP = 2  # spaces between columns


class PlainTable(Table):
    """A table that knows which of its columns may be left out, the least important first, and whether only
    those must go without which the longest words do not fit: sentences may take more lines than one."""

    least: Sequence[str] = ()
    folds: bool = False


def new_table(*columns: str, least: Sequence[str] = (), folds: bool = False, title: str | None = None) -> PlainTable:
    """An empty table; names that begin with `#` are numbers, to the right. `least` names columns that a narrow
    terminal does without, the first of them first; with `folds` cells take more lines before a column goes."""
    table = PlainTable(
        box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True, title=title, title_justify="left"
    )
    table.least, table.folds = least, folds
    for column in columns:
        right = column.startswith("#")
        table.add_column(
            column[1:] if right else column, justify="right" if right else "left", overflow="fold", vertical="top"
        )
    return table


def print_table(table: Table, console: Console | None = None) -> None:
    """Print a table so that it fits the terminal; where there is none, as wide as its longest cells."""
    console = Console() if console is None else console
    if table.title is not None:
        # On a line of its own: rich would break it where the table ends.
        console.print(Text(str(table.title), style="bold"), soft_wrap=True)
        table.title = None
    if console.file.isatty():
        fit(table, console.width)
        console.print(table)
    else:
        console.width = natural_width(table)  # a pipe has no width of its own: cut columns would be lost
        console.print(table)


def fit(table: Table, width: int) -> None:
    """Leave out the least columns until the rest fits in `width`. Where it still does not fit, cells take more lines:
    between words as long as there is room for the longest, and the first column, which names the row, last of all."""
    plain = table if isinstance(table, PlainTable) else PlainTable()
    left_out = list(plain.least)
    while True:
        room = width - GAP * (len(table.columns) - 1)
        sizes = [_measure(column.header, *column.cells) for column in table.columns]
        if sum(most for _, most in sizes) <= room:
            return
        spare = room - sum(words for words, _ in sizes)
        if not left_out or (plain.folds and spare >= 0):
            break
        name = left_out.pop(0)
        table.columns = [column for column in table.columns if column.header != name]
        for place, column in enumerate(table.columns):
            column._index = place  # by which rich pads the first and the last
    if spare < 0:
        table.columns[0].no_wrap = sizes[0][1] <= room // 2
        return
    for column, (words, most) in zip(table.columns, sizes, strict=True):
        column.width = min(most, words + spare)
        spare -= column.width - words


def _measure(*cells: RenderableType) -> tuple[int, int]:
    """Columns that the longest word and the longest cell take."""
    console = Console(width=UNBOUNDED)
    found = [Measurement.get(console, console.options, cell) for cell in cells]
    return max(one.minimum for one in found), max(one.maximum for one in found)


def natural_width(table: Table) -> int:
    """Columns that a table takes when nothing of it is cut or folded."""
    console = Console(width=UNBOUNDED)
    return max(1, Measurement.get(console, console.options, table).maximum)
