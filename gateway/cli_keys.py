"""`headrace key …`: keys are made and ended in the state directory, of which a running gateway reads the change."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click

from gateway.cli_output import Failure, Output
from gateway.keys import KeyFileError, KeyRecord, create_key, read_keys, revoke_key, rotate_key, shown_record

SHOWN_ONCE = "This is the only time the key is shown; what is kept is a hash."
SHUTS_OUT = (
    "Gateways with this state directory answer callers without a key 401 from now on, also when all keys are revoked. "
    "To undo that, stop them, delete this file and start them again (docs/quickstart.md, Keys)."
)
MAX_TARGET_CHARS = 64


def create(file: Path, tenant: str, trusted: bool, note: str, out: Output) -> None:
    """Make a key and print it."""
    with one_line_errors(), refusals_noted(file, "create", "", out):
        record, key = create_key(file, tenant, time.time(), trusted=trusted, note=note)
    note_change(file, "create", record.id, "ok", {"tenant": record.tenant}, out)
    hand_out(file, record, key, out, f" {SHUTS_OUT}")


def rotate(file: Path, key_id: str, out: Output) -> None:
    """Give a key a new secret and print it."""
    with one_line_errors(), refusals_noted(file, "rotate", key_id, out):
        record, key = rotate_key(file, key_id)
    note_change(file, "rotate", record.id, "ok", {"tenant": record.tenant}, out)
    hand_out(file, record, key, out)


def revoke(file: Path, key_id: str, out: Output) -> None:
    """End a key."""
    with one_line_errors(), refusals_noted(file, "revoke", key_id, out):
        record = revoke_key(file, key_id, time.time())
    note_change(file, "revoke", record.id, "ok", {"tenant": record.tenant}, out)
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


def hand_out(file: Path, record: KeyRecord, key: str, out: Output, more: str = "") -> None:
    """The key alone on stdout, so that a script can take it; the rest on stderr."""
    kept = file.absolute()
    if out.as_json:
        out.value(shown_record(record) | {"key": key, "file": str(kept)})
    else:
        click.echo(f"Key {record.id} for tenant {record.tenant}. {SHOWN_ONCE}", err=True)
        click.echo(f"Written to {kept}.{more}", err=True)
        click.echo(key)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """What is wrong with the key file ends the command with status 1 and one line."""
    try:
        yield
    except KeyFileError as error:
        raise Failure(str(error)) from None


@contextmanager
def refusals_noted(file: Path, action: str, key_id: str, out: Output) -> Iterator[None]:
    """A change that was refused is in the audit log, too."""
    try:
        yield
    except KeyFileError as error:
        note_change(file, action, key_id[:MAX_TARGET_CHARS], "failed", {"why": str(error)}, out)
        raise


def note_change(file: Path, action: str, key_id: str, result: str, detail: Mapping[str, str], out: Output) -> None:
    """A line in the audit log beside the keys, which a running gateway goes on writing: both lock the directory, and
    each chains to the last line there. One that cannot be written is told; the change holds all the same."""
    from gateway.audit import AuditLog
    from gateway.cli_policy_change import user

    log = AuditLog(file.with_name("audit.jsonl"))
    log.note(user(), "", "command line", f"key.{action}", key_id, result, detail)
    if log.error is not None:
        out.trouble(f"not in the audit log: {log.error}")
