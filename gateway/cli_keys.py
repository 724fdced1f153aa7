"""`headrace key …`: keys are made and ended in the state directory, of which a running gateway reads the change."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from gateway.cli_output import Failure, Output
from gateway.keys import KeyFileError, KeyRecord, create_key, read_keys, revoke_key, rotate_key, shown_record

SHOWN_ONCE = "This is the only time the key is shown; what is kept is a hash."


def create(file: Path, tenant: str, trusted: bool, note: str, out: Output) -> None:
    """Make a key and print it."""
    with one_line_errors():
        record, key = create_key(file, tenant, time.time(), trusted=trusted, note=note)
    hand_out(record, key, out)


def rotate(file: Path, key_id: str, out: Output) -> None:
    """Give a key a new secret and print it."""
    with one_line_errors():
        record, key = rotate_key(file, key_id)
    hand_out(record, key, out)


def revoke(file: Path, key_id: str, out: Output) -> None:
    """End a key."""
    with one_line_errors():
        record = revoke_key(file, key_id, time.time())
    if out.as_json:
        out.value(shown_record(record))
    else:
        click.echo(f"Key {record.id} of tenant {record.tenant} is revoked.")


def list_keys(file: Path, out: Output) -> None:
    """Show the keys, without what would let anybody use them."""
    with one_line_errors():
        records = read_keys(file)
    if out.as_json:
        for record in records:
            out.value(shown_record(record))
        return
    from gateway.cli_tables import key_table, print_table

    print_table(key_table([shown_record(record) for record in records]))


def hand_out(record: KeyRecord, key: str, out: Output) -> None:
    """The key alone on stdout, so that a script can take it; the rest on stderr."""
    if out.as_json:
        out.value(shown_record(record) | {"key": key})
    else:
        click.echo(f"Key {record.id} for tenant {record.tenant}. {SHOWN_ONCE}", err=True)
        click.echo(key)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """What is wrong with the key file ends the command with status 1 and one line."""
    try:
        yield
    except KeyFileError as error:
        raise Failure(str(error)) from None
