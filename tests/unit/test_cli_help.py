"""What every command says of itself in the list of its group, on a terminal of 80 columns."""

from collections.abc import Iterator

import click
import pytest

from gateway.cli_output import counted
from headrace import LazyGroup


def groups(group: click.Group, name: str = "headrace") -> Iterator[tuple[str, click.Context]]:
    context = click.Context(group, info_name=name, terminal_width=80)
    yield name, context
    for word in group.list_commands(context):
        command = group.get_command(context, word)
        if isinstance(command, click.Group):
            yield from groups(command, f"{name} {word}")


ALL = dict(groups(LazyGroup()))


def test_there_are_groups():
    assert {"headrace", "headrace policy", "headrace worker", "headrace audit", "headrace loadtest"} <= set(ALL)


@pytest.mark.parametrize("name", ALL)
def test_no_sentence_is_cut(name):
    usage, *lines = ALL[name].get_help().splitlines()
    assert usage.startswith(f"Usage: {name} ")
    assert not [line for line in lines if "..." in line or len(line) > 80]


def test_the_number_of_things():
    told = [
        counted(*one) for one in ((1, "entry"), (2, "entry"), (0, "rule"), (1, "class"), (3, "class"), (1000, "pool"))
    ]
    assert told == ["1 entry", "2 entries", "0 rules", "1 class", "3 classes", "1,000 pools"]
