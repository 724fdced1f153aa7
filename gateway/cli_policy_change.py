"""Comparing and changing the policy from the command line."""

from __future__ import annotations

import getpass
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import click

from gateway.admin_client import AdminError
from gateway.cli_base import gateway_at, status_of
from gateway.cli_output import Failure, Output
from gateway.cli_policy import tell_problems
from policies.problems import PolicyError, Problem

if TYPE_CHECKING:
    from policies.document import Policy

DIFFERENT = 3
V1 = "/admin/v1"
PATIENCE_S = 30.0  # of a change: a document of the largest size, every replica asked


def compare(file: Path, other: Path | None, text: bool, admin_url: str, out: Output) -> int:
    """What FILE would change, or what OTHER would after it; the exit status."""
    if other is None:
        raw = read(file)
        try:
            found = gateway_at(out, admin_url).post(f"{V1}/policy:diff", raw, timeout_s=PATIENCE_S)
        except AdminError as error:
            raise Failure(str(error)) from None
        if not found["ok"]:
            tell_problems(file, raw, problems_of(found), out)
            return 2
    else:
        pair = [_local(path, out) for path in (file, other)]
        if pair[0] is None or pair[1] is None:
            return 2
        found = _compared(pair[0], pair[1], str(file), str(other))
    show_changes(found, text, out)
    return DIFFERENT if found["different"] else 0


def _local(path: Path, out: Output) -> Policy | None:
    from policies.document import parse_policy

    raw = read(path)
    try:
        return parse_policy(raw)
    except PolicyError as error:
        tell_problems(path, raw, error.problems, out)
        return None


def _compared(old: Policy, new: Policy, old_name: str, new_name: str) -> dict[str, Any]:
    from dataclasses import asdict

    from policies.diff import diff, lines, text_diff

    changes = diff(old, new)
    return {
        "different": bool(changes),
        "changes": [asdict(change) for change in changes],
        "lines": lines(changes),
        "text": text_diff(old, new, old_name, new_name),
        "guards": [],
    }


def show_changes(found: Mapping[str, Any], text: bool, out: Output) -> None:
    """What differs, in lines; guard rails that stand against it last."""
    if out.as_json:
        out.value(found)
        return
    for line in found["lines"]:
        click.echo(line)
    if text and found["text"]:
        click.echo(f"\n{found['text']}", nl=False)
    if not found["different"]:
        click.echo("No difference.")
    tell_guards(found["guards"])


def tell_guards(guards: list[Mapping[str, Any]]) -> None:
    """Guard rails that a change breaks, on stderr."""
    for guard in guards:
        click.echo(f"guard: {guard['message']}", err=True)


def apply(
    file: Path, expected: str | None, force: bool, note: str, author: str | None, admin_url: str, out: Output
) -> int:
    """Make FILE current; the exit status."""
    raw = read(file)
    gateway = gateway_at(out, admin_url, change=True)

    def send() -> tuple[Any, str]:
        seen = expected or gateway.call("GET", f"{V1}/policy")[1]
        return gateway.call(
            "PUT",
            f"{V1}/policy?{words(force, note, author)}",
            raw,
            headers={"if-match": f'"{seen}"' if seen != "*" else seen, "content-type": "application/yaml"},
            timeout_s=PATIENCE_S,
        )

    return changed(send, out, lambda found: tell_problems(file, raw, found, out, change=True))


def roll_back(revision: int | None, force: bool, note: str, author: str | None, admin_url: str, out: Output) -> int:
    """Bring an earlier revision back; the exit status."""
    gateway = gateway_at(out, admin_url, change=True)
    said: dict[str, Any] = {"note": note, "author": author or user()}
    if revision is not None:
        said["to"] = revision
    path = f"{V1}/policy:rollback{'?force=1' if force else ''}"
    return changed(lambda: gateway.call("POST", path, said, timeout_s=PATIENCE_S), out)


def changed(
    send: Callable[[], tuple[Any, str]],
    out: Output,
    tell: Callable[[tuple[Problem, ...]], None] | None = None,
) -> int:
    """Send a change and show what became of it; the exit status."""
    try:
        answer, _ = send()
    except AdminError as error:
        problems = problems_of(error.value)
        if problems and tell is not None:
            tell(problems)
        else:
            if out.as_json and error.value:
                out.value(error.value)
            guards = list(error.value.get("guards", []))
            cure = "guard rails stand against it, so nothing was changed; --force applies it all the same"
            out.trouble(cure if guards else _said(error))
            tell_guards([] if out.as_json else guards)
        return status_of(error)
    if out.as_json:
        out.value(answer)
        return 0
    revision = answer["revision"]
    for line in answer["lines"]:
        click.echo(line)
    if answer["changed"]:
        click.echo(f"Revision {revision['number']} is in force (digest {revision['digest']}).")
        tell_guards(answer["guards"])
    else:
        click.echo(f"Nothing to do: revision {revision['number']} says the same.")
    return 0


def _said(error: AdminError) -> str:
    """The gateway's own words; where somebody was faster, in the words of this command line and not of the API."""
    current = error.value.get("current")
    if error.status != 412 or not isinstance(current, Mapping):
        return str(error)
    number = current.get("number")
    return (
        f"revision {number} is current, not what you have seen: look at it (`headrace policy show`, `policy diff`), "
        f"then apply with --if-version {number}"
    )


def export(file: Path | None, write_back: bool, admin_url: str, out: Output) -> int:
    """Write the policy in force as it was given; the exit status."""
    gateway = gateway_at(out, admin_url)
    try:
        number = gateway.get(f"{V1}/policy/state")
        found = gateway.get(f"{V1}/policy/revisions/{number['revision']['number']}")
    except AdminError as error:
        raise Failure(str(error)) from None
    if write_back:
        if number["file"] is None:
            raise Failure("the gateway reads no policy file: name one")
        file = Path(number["file"]["path"])
    if file is None:
        if out.as_json:
            out.value(found)
        else:
            sys.stdout.write(found["text"] if found["text"].endswith("\n") else found["text"] + "\n")
        return 0
    try:
        replace_file(file, found["text"])
    except OSError as error:
        raise Failure(f"cannot write {file}: {error.strerror or error}") from None
    if out.as_json:
        out.value({"file": str(file), "revision": found["revision"]})
    else:
        click.echo(f"{file}: revision {found['revision']['number']}")
    return 0


def replace_file(file: Path, text: str) -> None:
    """Put `text` into a file in one step, so that whoever watches it never sees half; through a symlink, into what it
    points to. Raises `OSError`."""
    target = file.resolve()
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
    new = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())
        new.replace(target)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def refused(error: AdminError, file: Path, raw: bytes, out: Output, *, change: bool = True) -> int:
    """Tell why the gateway did not take FILE, its faults where they stand; the exit status. `change`: it was to be more
    than looked at."""
    problems = problems_of(error.value)
    if problems:
        tell_problems(file, raw, problems, out, change=change)
    else:
        out.trouble(str(error))
    return status_of(error)


def words(force: bool, note: str, author: str | None) -> str:
    """The query of a change."""
    said = {"author": author or user(), "note": note, "force": "1" if force else ""}
    return urlencode({name: value for name, value in said.items() if value})


def user() -> str:
    """Who sits here, as far as the system knows."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


def read(file: Path) -> bytes:
    """The file, or the end with status 2."""
    try:
        return file.read_bytes()
    except OSError as error:
        click.echo(f"headrace: cannot read {file}: {error.strerror or error}", err=True)
        raise SystemExit(2) from None


def problems_of(value: Mapping[str, Any]) -> tuple[Problem, ...]:
    """What is wrong with a document, from an answer of the admin plane."""
    return tuple(Problem(**one) for one in value.get("problems") or ())
