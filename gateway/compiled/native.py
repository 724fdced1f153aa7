"""Gives dataclasses constructors that can be compiled, in the copy of the source that is compiled.

`dataclasses` writes `__init__` while the program starts, so mypyc never sees it and making an object stays as slow as
in plain Python: a tenth of a small request's cost. Here the same constructor is written out, on the blank line between
the class's docstring and its first field, so that no line of the file moves and tracebacks name the right ones.
Named tuples that are made for each request and used by their names alone become plain classes in the same way.
Of what is made for each request the memory of one that has ended is kept for the next.
"""

from __future__ import annotations

import ast

RECORDS = frozenset({"Classified", "Outcome", "Request", "RequestFacts"})
"""Named tuples that nobody compares, unpacks or hashes: in plain Python they are made fastest as tuples."""

VALUES = frozenset(
    {
        "Admitted", "Attempt", "BodyFacts", "Choice", "Classified", "Cost", "Lease", "Outcome", "RawRequest", "Request",
        "RequestRecord", "Ticket", "Usage",
    }
)  # fmt: skip
"""Made for each request. Nothing that makes another one runs when one of them ends, so the compiler may keep
its memory for the next one of its kind: a third of the time that it takes to make one.

mypyc's `acyclic`, which spares the collector them, is not for Python 3.11: it writes before such an object where many
deallocations are nested.
"""

VALUE = "@mypyc_attr(free_list_len=1)"

OPEN = frozenset({"PrefixIndex"})
"""Of these a load test has classes of its own, which are not compiled."""

INHERITED = "@mypyc_attr(allow_interpreted_subclasses=True)"
NAMED = "from __future__ import annotations"
IMPORTED = "if MYPY: from mypy_extensions import mypyc_attr"
"""Stands on the blank line after `NAMED`; the compiler takes MYPY for true."""


def with_constructors(text: str) -> str:
    """The same module with a written-out `__init__` in each dataclass that leaves a blank line for it.

    Of a frozen one the copy is not frozen: that nothing assigns to it is mypy's to say, and it has, of the original.
    """
    lines = text.split("\n")
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ClassDef):
            continue
        if _write_out(node, text, lines) and node.name in VALUES:
            _say(VALUE, node, lines)
        elif node.name in OPEN:
            _say(INHERITED, node, lines)
    return "\n".join(lines)


def _say(what: str, node: ast.ClassDef, lines: list[str]) -> None:
    """Tell the compiler of a class, on blank lines as well. It reads that; nothing runs it."""
    above = min([node.lineno, *(one.lineno for one in node.decorator_list)]) - 2
    begin = next((at for at, line in enumerate(lines) if line.startswith(NAMED)), -1)
    if lines[above].strip() or begin < 0:
        return
    if lines[begin] == NAMED and not lines[begin + 1].strip():
        lines[begin] = f"{NAMED}; MYPY = False"
        lines[begin + 1] = IMPORTED
    if lines[begin + 1] == IMPORTED:
        lines[above] = what


def _write_out(node: ast.ClassDef, text: str, lines: list[str]) -> bool:
    """Whether it was done."""
    decorator = next((one for one in node.decorator_list if _is_dataclass(one)), None)
    fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]
    methods = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
    tuple_like = node.name in RECORDS and [ast.unparse(base) for base in node.bases] == ["NamedTuple"]
    if not fields or not (tuple_like or (decorator and not node.bases)) or {"__init__", "__post_init__"} & methods:
        return False
    place = fields[0].lineno - 2  # the line before the first field, counted from 0
    written = [_parameter(one, text) for one in fields]
    if place < node.lineno or lines[place].strip() or any(one is None for one in written):
        return False
    parameters, stores = zip(*[one for one in written if one is not None], strict=True)
    indent = " " * fields[0].col_offset
    lines[place] = f"{indent}def __init__(self, {', '.join(parameters)}) -> None: {'; '.join(stores)}"
    if decorator is None:
        lines[node.lineno - 1] = lines[node.lineno - 1].replace("(NamedTuple)", "")
        return True
    at = decorator.lineno - 1
    lines[at] = lines[at].replace("frozen=True", "unsafe_hash=True").replace("slots=True", "slots=True, init=False")
    return True


def _is_dataclass(node: ast.expr) -> bool:
    """A decorator `@dataclass(..., slots=True, ...)` on one line."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "dataclass"
        and node.lineno == node.end_lineno
        and any(keyword.arg == "slots" for keyword in node.keywords)
    )


def _parameter(field: ast.AnnAssign, text: str) -> tuple[str, str] | None:
    """A field as a parameter and the statement that stores it; None for what this does not understand."""
    assert isinstance(field.target, ast.Name)
    name = field.target.id
    kind = ast.get_source_segment(text, field.annotation)
    value = field.value
    if kind is None or "\n" in kind or kind.startswith(("ClassVar", "InitVar")):
        return None
    if value is None:
        return f"{name}: {kind}", f"self.{name} = {name}"
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "field":
        if len(value.keywords) != 1 or value.args:
            return None
        [keyword] = value.keywords
        given = ast.get_source_segment(text, keyword.value)
        if keyword.arg == "default_factory" and given is not None and given.isidentifier():
            return f"{name}: {kind} | None = None", f"self.{name} = {name} if {name} is not None else {given}()"
        if keyword.arg != "default":
            return None
        value = keyword.value
    default = ast.get_source_segment(text, value)
    if default is None or "\n" in default:
        return None
    return f"{name}: {kind} = {default}", f"self.{name} = {name}"
