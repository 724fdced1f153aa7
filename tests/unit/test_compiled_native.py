"""Written-out constructors: the copy that is compiled means the same and keeps every line in its place."""

import ast
import textwrap
from pathlib import Path

import pytest

from gateway.compiled.build import core
from gateway.compiled.native import with_constructors

ROOT = Path(__file__).resolve().parents[2]


def run(text: str) -> dict[str, object]:
    found: dict[str, object] = {"__name__": __name__, "mypyc_attr": lambda **_: lambda one: one}
    exec(compile(text, "made.py", "exec"), found)
    return found


def module(body: str) -> str:
    head = (
        "from __future__ import annotations\nfrom dataclasses import dataclass, field\nfrom typing import NamedTuple\n"
    )
    return head + textwrap.dedent(body)


def test_a_dataclass_gets_the_constructor_that_it_would_have() -> None:
    text = module('''
        @dataclass(slots=True, eq=False)
        class Made:
            """A thing."""

            name: str
            size: int = 3  # of it
            parts: list[str] = field(default_factory=list)
            at: tuple[int, ...] = field(default=())
    ''')
    changed = with_constructors(text)
    assert changed.count("\n") == text.count("\n")
    assert "def __init__" in changed
    for source in (text, changed):
        made = run(source)["Made"]
        one, other = made("a"), made("b", 4, ["x"], at=(1,))  # type: ignore[operator]
        assert (one.name, one.size, one.parts, one.at) == ("a", 3, [], ())
        assert (other.name, other.size, other.parts, other.at) == ("b", 4, ["x"], (1,))
        assert one.parts is not made("c").parts  # type: ignore[operator]


def test_a_frozen_one_is_still_a_value() -> None:
    text = module('''
        @dataclass(frozen=True, slots=True)
        class Made:
            """A value."""

            name: str
            size: int = 3
    ''')
    made = run(with_constructors(text))["Made"]
    assert made("a") == made("a", 3)  # type: ignore[operator]
    assert hash(made("a")) == hash(made("a", 3))  # type: ignore[operator]
    assert made("a") != made("b")  # type: ignore[operator]


def test_a_named_tuple_of_the_hot_path_becomes_a_class_and_others_stay() -> None:
    text = module('''
        class Request(NamedTuple):
            """As asked."""

            id: str
            tokens: int = 1


        class Other(NamedTuple):
            """Compared."""

            id: str
    ''')
    found = run(with_constructors(text))
    request, other = found["Request"], found["Other"]
    assert not issubclass(request, tuple)  # type: ignore[arg-type]
    assert request("a").tokens == 1  # type: ignore[operator]
    assert issubclass(other, tuple)  # type: ignore[arg-type]


def test_the_memory_of_values_is_kept_for_the_next() -> None:
    text = module('''
        @dataclass(slots=True)
        class Cost:
            """Of one."""

            tokens: int


        @dataclass(slots=True)
        class Other:
            """Not one of them."""

            tokens: int
    ''').replace("annotations\n", "annotations\n\n", 1)
    changed = with_constructors(text)
    assert changed.count("\n") == text.count("\n")
    assert changed.count("mypyc_attr(") == 1
    assert changed.count("import mypyc_attr") == 1
    assert run(changed)["Cost"](3).tokens == 3  # type: ignore[operator]


@pytest.mark.parametrize(
    "body",
    [
        '@dataclass(slots=True)\nclass Made:\n    """No blank line."""\n    name: str\n',
        '@dataclass(slots=True)\nclass Made:\n    """More."""\n\n    name: str\n\n    def __post_init__(self): ...\n',
        '@dataclass(slots=True)\nclass Made:\n    """Odd."""\n\n    name: str = field(default="a", repr=False)\n',
        '@dataclass(slots=True)\nclass Made(Exception):\n    """Based."""\n\n    name: str\n',
        '@dataclass\nclass Made:\n    """Without slots."""\n\n    name: str\n',
    ],
)
def test_what_it_does_not_understand_it_leaves(body: str) -> None:
    assert with_constructors(module(body)) == module(body)


def test_a_class_that_others_derive_from_is_said_to_be_open() -> None:
    text = (ROOT / "gateway/scheduling/prefixes.py").read_text("utf-8")
    changed = with_constructors(text)
    assert "@mypyc_attr(allow_interpreted_subclasses=True)\nclass PrefixIndex:" in changed
    assert changed.count("\n") == text.count("\n")


def test_all_modules_of_the_core_keep_their_lines() -> None:
    files = core(ROOT)
    assert "policies/work.py" in files
    assert "gateway/scheduling/scheduler.py" in files
    for file in files:
        text = (ROOT / file).read_text("utf-8")
        changed = with_constructors(text)
        compile(changed, file, "exec")
        assert changed.count("\n") == text.count("\n"), file


PURE_CALLS = {"len", "min", "max", "find", "int", "end", "start", "lstrip", "bisect_right"}


def test_no_bound_of_a_slice_does_anything() -> None:
    """mypyc evaluates the bounds of a slice twice where it does not know what is sliced: log lines came double."""
    found = []
    for file in core(ROOT):
        for node in ast.walk(ast.parse((ROOT / file).read_text("utf-8"))):
            if isinstance(node, ast.Slice):
                calls = [each for each in ast.walk(node) if isinstance(each, ast.Call | ast.NamedExpr | ast.Await)]
                names = [ast.unparse(each.func).split(".")[-1] if isinstance(each, ast.Call) else "" for each in calls]
                found += [f"{file}: {ast.unparse(node)}: {name}" for name in names if name not in PURE_CALLS]
    assert not found
