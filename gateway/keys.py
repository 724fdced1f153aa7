"""API keys: `hr_<id>_<secret>`, 256 random bits each, of which only the SHA-256 is kept.

A plain hash is enough because the secret is random, not chosen: there is nothing to guess from. The file is written
whole, under a lock, with mode 0600; the gateway reads it again when it changed (`KeyStore.refresh`). Revoked keys stay
in it, so that revoking the last one closes the gateway instead of opening it.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

MAX_KEYS = 100_000
MAX_FILE_BYTES = 64 * 1024 * 1024
FILE_VERSION = 1
MAX_NOTE_CHARS = 256

_KEY = re.compile(rb"hr_([0-9a-z]{12})_([0-9a-f]{64})")
_BEARER = re.compile(rb"bearer[ \t]+(\S+)[ \t]*", re.IGNORECASE)
_TENANT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}")
_ID_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
_NO_HASH = bytes(32)


class KeyFileError(Exception):
    """The key file cannot be used, or a key in it does not exist; says which and why in one line."""


class NoSuchKeyError(KeyFileError):
    """There is no key of that id."""


class TenantNameError(KeyFileError):
    """A name that no tenant can have."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request. `trusted` callers may speak for any tenant (`X-Headrace-Tenant`)."""

    tenant: str
    key_id: str | None
    trusted: bool = False


ANYONE = Caller("default", None)
"""The caller where no keys exist."""


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """What is kept of a key. Times are seconds since the epoch; `revoked` is None while the key is good."""

    id: str
    sha256: str  # hexadecimal, of the secret's text
    tenant: str
    trusted: bool
    note: str
    created: float
    revoked: float | None = None
    rotated: int = 0  # how often it got a new secret


def shown_record(record: KeyRecord) -> dict[str, Any]:
    """What may be shown of a key: everything but what would let anybody use it."""
    return {name: value for name, value in asdict(record).items() if name != "sha256"}


def recorded(record: KeyRecord) -> dict[str, Any]:
    """The record as plain values, as `record_of` takes them."""
    return asdict(record)


def stage(record: KeyRecord) -> str:
    """How far a key's life has come, as text that sorts: revoked is the end, a new secret comes after the old one. Of
    two secrets made at the same time at two gateways one holds, at both the same."""
    return f"{int(record.revoked is not None)}{record.rotated:012d}{record.sha256}"


def valid_tenant(name: str) -> bool:
    """Whether this may be a tenant's name: as in the policy, so that it fits headers, labels and Redis keys."""
    return _TENANT.fullmatch(name) is not None


# === Looking callers up ===


class KeyStore:
    """The keys that a gateway accepts, kept in memory; read from `path`, which need not exist yet."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._callers: dict[bytes, tuple[bytes, Caller]] = {}
        self._records: dict[str, KeyRecord] = {}
        self.required = False
        """Whether a key is needed: as soon as one was ever made, revoked ones included."""
        self.version = 0
        """Grows whenever the file was read: what was looked up before may not hold any more."""
        self.refresh()

    def refresh(self) -> bool:
        """Read the file again if it changed; whether it had. Raises `KeyFileError` and keeps the keys it has."""
        if self._path is None:
            return False
        try:
            status = self._path.stat()
        except FileNotFoundError:
            if self.required:
                raise KeyFileError(f"{self._path} is gone; the keys read before stay valid") from None
            return False
        except OSError as error:
            raise KeyFileError(f"{self._path}: {error.strerror}") from error
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        if stamp == self._stamp:
            return False
        self._take(read_keys(self._path))
        self._stamp = stamp
        return True

    def _take(self, records: Iterable[KeyRecord]) -> None:
        self._records = {record.id: record for record in records}
        self._callers = {
            record.id.encode(): (bytes.fromhex(record.sha256), Caller(record.tenant, record.id, record.trusted))
            for record in self._records.values()
            if record.revoked is None
        }
        self.required = self.required or bool(self._records)
        self.version += 1

    def records(self) -> list[KeyRecord]:
        """All keys that are known, in the order they were made."""
        return list(self._records.values())

    def newer(self, found: Iterable[KeyRecord]) -> list[KeyRecord]:
        """Those that are further in their life than ours (`stage`), or that we do not know."""
        return [one for one in found if (known := self._records.get(one.id)) is None or stage(one) > stage(known)]

    async def adopt(self, found: Iterable[KeyRecord]) -> None:
        """Take over keys of another gateway as far as they are newer; in the file, where there is one. Raises
        `KeyFileError`."""
        newer = self.newer(found)
        if newer and self._path is None:
            self._take(_merged(self._records.values(), newer))
        elif newer and self._path is not None:
            await asyncio.to_thread(merge_keys, self._path, newer)
            self.refresh()

    def lookup(self, authorization: bytes | None) -> Caller | None:
        """Who a value of `Authorization` stands for; None if nobody. Where no key is required, everybody is `default`.

        A missing id costs the same comparison as a wrong secret, so that timing tells nothing about which ids exist.
        """
        if not self.required:
            return ANYONE
        bearer = None if authorization is None else _BEARER.fullmatch(authorization)
        return None if bearer is None else self.lookup_key(bearer[1])

    def lookup_key(self, key: bytes) -> Caller | None:
        """As `lookup`, for the bare key (`x-api-key`, as Anthropic's clients send it)."""
        if not self.required:
            return ANYONE
        match = _KEY.fullmatch(key)
        if match is None:
            return None
        expected, caller = self._callers.get(match[1], (_NO_HASH, None))
        return caller if hmac.compare_digest(hashlib.sha256(match[2]).digest(), expected) else None


def _merged(own: Iterable[KeyRecord], found: Iterable[KeyRecord]) -> list[KeyRecord]:
    by_id = {one.id: one for one in own}
    for one in found:
        known = by_id.get(one.id)
        if known is None and len(by_id) >= MAX_KEYS:
            raise KeyFileError(f"there are {MAX_KEYS} keys already; of another gateway's no more are taken")
        if known is None or stage(one) > stage(known):
            by_id[one.id] = one
    return list(by_id.values())


# === Making and ending keys (the command line) ===


def create_key(path: Path, tenant: str, now: float, *, trusted: bool = False, note: str = "") -> tuple[KeyRecord, str]:
    """Make a key for `tenant`; its record, and the key itself, which is not kept. `now`: seconds since the epoch."""
    if not valid_tenant(tenant):
        raise TenantNameError(f"{tenant!r} cannot be a tenant: letters, digits and _ . - only, 64 at most")
    with _editing(path) as (records, write):
        if len(records) >= MAX_KEYS:
            raise KeyFileError(f"{path} holds {len(records)} keys already; {MAX_KEYS} are allowed")
        key_id = "".join(secrets.choice(_ID_LETTERS) for _ in range(12))
        digest, key = _new_secret(key_id)
        record = KeyRecord(key_id, digest, tenant, trusted, note[:MAX_NOTE_CHARS], now)
        write([*records, record])
    return record, key


def rotate_key(path: Path, key_id: str) -> tuple[KeyRecord, str]:
    """Give a key a new secret; the old one ends at once. For an overlap make a second key and revoke the first."""
    with _editing(path) as (records, write):
        place = _place(path, records, key_id)
        if records[place].revoked is not None:
            raise KeyFileError(f"key {key_id} is revoked; make a new one")
        digest, key = _new_secret(key_id)
        record = replace(records[place], sha256=digest, rotated=records[place].rotated + 1)
        write([*records[:place], record, *records[place + 1 :]])
    return record, key


def merge_keys(path: Path, found: Iterable[KeyRecord]) -> None:
    """Keep keys of another gateway, each where it is further in its life than the one there is."""
    with _editing(path) as (records, write):
        write(_merged(records, found))


def revoke_key(path: Path, key_id: str, now: float) -> KeyRecord:
    """End a key. Revoking it twice changes nothing."""
    with _editing(path) as (records, write):
        place = _place(path, records, key_id)
        record = records[place]
        if record.revoked is None:
            record = replace(record, revoked=now)
            write([*records[:place], record, *records[place + 1 :]])
    return record


def read_keys(path: Path) -> list[KeyRecord]:
    """All keys of a file, in the order they were made; none where there is no file."""
    try:
        status = path.stat()
        if status.st_mode & 0o022:
            raise KeyFileError(f"{path} can be written by others; set its mode to 0600")
        if status.st_size > MAX_FILE_BYTES:
            raise KeyFileError(f"{path} has {status.st_size} bytes; {MAX_FILE_BYTES} are allowed")
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise KeyFileError(f"{path} is not a key file: {error}") from error
    if not isinstance(document, dict) or document.get("version") != FILE_VERSION:
        raise KeyFileError(f"{path} is not a key file of version {FILE_VERSION}")
    entries = document.get("keys")
    if not isinstance(entries, list) or len(entries) > MAX_KEYS:
        raise KeyFileError(f"{path}: keys has to be a list of at most {MAX_KEYS}")
    return [_record(path, place, entry) for place, entry in enumerate(entries)]


def _record(path: Path, place: int, entry: Any) -> KeyRecord:
    try:
        return record_of(entry)
    except ValueError as error:
        raise KeyFileError(f"{path}: keys[{place}] is not a key's record") from error


def record_of(entry: Any) -> KeyRecord:
    """The record of plain values (`recorded`). Raises ValueError for what is none."""
    try:
        record = KeyRecord(**entry)
        sound = (
            _KEY.fullmatch(f"hr_{record.id}_{record.sha256}".encode()) is not None
            and valid_tenant(record.tenant)
            and type(entry["trusted"]) is bool
            and type(entry["created"]) in (int, float)
            and type(entry.get("revoked")) in (int, float, type(None))
            and type(record.note) is str
            and len(record.note) <= MAX_NOTE_CHARS
            and type(entry.get("rotated", 0)) is int  # compiled, the record's own always is
            and 0 <= record.rotated < 10**12
        )
    except TypeError:  # not an object, or not these members
        sound = False
    if not sound:
        raise ValueError("not a key's record")
    return record


def _new_secret(key_id: str) -> tuple[str, str]:
    """(hash to keep, key to hand out)."""
    secret = secrets.token_hex(32)
    return hashlib.sha256(secret.encode()).hexdigest(), f"hr_{key_id}_{secret}"


def _place(path: Path, records: list[KeyRecord], key_id: str) -> int:
    for place, record in enumerate(records):
        if record.id == key_id:
            return place
    raise NoSuchKeyError(f"{path} has no key {key_id!r}")


@contextmanager
def _editing(path: Path) -> Iterator[tuple[list[KeyRecord], Callable[[list[KeyRecord]], None]]]:
    """The keys of a file and a way to write them, while no other process does."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        directory = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise KeyFileError(f"{path.parent}: {error.strerror}") from error
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)  # of the directory: it leaves no lock file behind
        yield read_keys(path), lambda records: _write(path, records, directory)
    finally:
        os.close(directory)


def _write(path: Path, records: list[KeyRecord], directory: int) -> None:
    """Replace the file in one step: a reader sees the old keys or the new ones, also after a crash."""
    document = {"version": FILE_VERSION, "keys": [asdict(record) for record in records]}
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        os.fsync(directory)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise KeyFileError(f"{path}: {error.strerror}") from error
