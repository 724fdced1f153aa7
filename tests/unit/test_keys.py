"""Keys: made once, kept as a hash, looked up strictly; and the tenant that follows from them."""

import asyncio
import hashlib
import json
import multiprocessing
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import keys as module
from gateway.errors import ErrorAnswer, ErrorCode
from gateway.keys import (
    ANYONE,
    Caller,
    KeyFileError,
    KeyRecord,
    KeyStore,
    create_key,
    read_keys,
    record_of,
    recorded,
    revoke_key,
    rotate_key,
    stage,
)
from gateway.tenants import FAILURES_BURST, MAX_ADDRESSES, FailureThrottle, tenant_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "keys.json"


def bearer(key: str) -> bytes:
    return b"Bearer " + key.encode()


def test_without_keys_everybody_is_default(path: Path):
    for store in (KeyStore(None), KeyStore(path)):
        assert not store.required
        assert store.lookup(None) is ANYONE
        assert store.lookup(b"Bearer sk-whatever") is ANYONE
        assert store.lookup_key(b"sk-whatever") is ANYONE
        assert not store.refresh()


def test_a_key_names_its_tenant(path: Path):
    record, key = create_key(path, "acme", 1000.0, trusted=True, note="for the batch jobs")
    store = KeyStore(path)
    expected = Caller("acme", record.id, True)
    assert store.required
    assert store.lookup(bearer(key)) == expected
    assert store.lookup(b"bEARER  " + key.encode() + b" ") == expected
    assert store.lookup_key(key.encode()) == expected
    assert key.startswith(f"hr_{record.id}_")
    assert len(bytes.fromhex(key.rsplit("_", 1)[1])) == 32


def test_only_a_hash_is_kept_in_a_file_for_the_owner_alone(path: Path):
    record, key = create_key(path, "acme", 1000.0)
    text = path.read_text()
    secret = key.rsplit("_", 1)[1]
    assert secret not in text
    assert hashlib.sha256(secret.encode()).hexdigest() == record.sha256
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(path.parent) == ["keys.json"]
    assert read_keys(path) == [record]


HOSTILE = [
    None,
    b"",
    b"Bearer",
    b"Bearer ",
    b"Basic aGk6aG8=",
    b"Bearer sk-abc",
    b"Bearer hr_*_{secret}",
    b"Bearer hr_{id}_{secret}x",
    b"Bearer hr_{id}_{secret} x",
    b"Bearer hr_{id}_{secret}\r\n",
    b"Bearer hr_{id}_{SECRET}",
    b"Bearer hr_{id}_{secret}, Bearer hr_{id}_{secret}",
    b"Bearer hr_aaaaaaaaaaaa_{secret}",
    b"Bearer hr_{id}_" + b"0" * 64,
    b"Bearer hr_aaaaaaaaaaaa_" + b"0" * 64,
    b"hr_{id}_{secret}",
    b"Bearer hr_{id}_{secret}\x00",
    b"Bearer \xff\xfe",
    b"Bearer " + b"a" * 100_000,
]


@pytest.mark.parametrize("value", HOSTILE)
def test_anything_else_is_nobody(path: Path, value: bytes | None):
    record, key = create_key(path, "acme", 1000.0)
    store = KeyStore(path)
    if value is not None:
        secret = key.rsplit("_", 1)[1].encode()
        value = value.replace(b"{id}", record.id.encode()).replace(b"{secret}", secret)
        value = value.replace(b"{SECRET}", b"A" + secret[1:])
    assert store.lookup(value) is None


def test_a_missing_id_is_compared_all_the_same(path: Path, monkeypatch: pytest.MonkeyPatch):
    create_key(path, "acme", 1000.0)
    store = KeyStore(path)
    compared = []
    real = module.hmac.compare_digest
    monkeypatch.setattr(module.hmac, "compare_digest", lambda a, b: compared.append((len(a), len(b))) or real(a, b))
    assert store.lookup_key(b"hr_zzzzzzzzzzzz_" + b"0" * 64) is None
    assert compared == [(32, 32)]


def test_the_store_follows_the_file(path: Path):
    store = KeyStore(path)
    first, first_key = create_key(path, "acme", 1.0)
    assert store.lookup(bearer(first_key)) is ANYONE
    assert store.refresh()
    assert not store.refresh()
    assert store.lookup(None) is None
    rotated, new_key = rotate_key(path, first.id)
    assert rotated.id == first.id
    assert store.refresh()
    assert store.lookup(bearer(first_key)) is None
    assert store.lookup(bearer(new_key)) == Caller("acme", first.id)
    assert revoke_key(path, first.id, 5.0).revoked == 5.0
    assert revoke_key(path, first.id, 6.0).revoked == 5.0
    store.refresh()
    assert store.lookup(bearer(new_key)) is None
    with pytest.raises(KeyFileError, match="is revoked"):
        rotate_key(path, first.id)


def test_revoking_the_last_key_does_not_open_the_gateway(path: Path):
    record, _ = create_key(path, "acme", 1.0)
    revoke_key(path, record.id, 2.0)
    store = KeyStore(path)
    assert store.required
    assert store.lookup(None) is None


def test_a_lost_or_broken_file_keeps_the_keys(path: Path):
    _, key = create_key(path, "acme", 1.0)
    store = KeyStore(path)
    good = path.read_bytes()
    path.write_bytes(b"{")
    with pytest.raises(KeyFileError, match="not a key file"):
        store.refresh()
    assert store.lookup(bearer(key)) is not None
    path.unlink()
    with pytest.raises(KeyFileError, match="is gone"):
        store.refresh()
    assert store.lookup(bearer(key)) is not None
    assert store.lookup(None) is None
    path.write_bytes(good)
    path.chmod(0o600)
    assert store.refresh()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not a key file"),
        (b"[]", "version 1"),
        (b'{"version": 2, "keys": []}', "version 1"),
        (b'{"version": 1, "keys": {}}', "has to be a list"),
        (b'{"version": 1, "keys": [1]}', r"keys\[0\]"),
        (b'{"version": 1, "keys": [{"id": "x"}]}', r"keys\[0\]"),
    ],
)
def test_a_file_that_is_no_key_file_is_refused(path: Path, content: bytes, says: str):
    path.parent.mkdir()
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match=says):
        KeyStore(path)


@pytest.mark.parametrize(
    "change",
    [{"sha256": "zz"}, {"tenant": "a b"}, {"trusted": "yes"}, {"id": "UPPER"}, {"revoked": "no"}, {"tenant": 5}],
)
def test_a_record_with_a_wrong_field_is_refused(path: Path, change: dict[str, object]):
    create_key(path, "acme", 1.0)
    document = json.loads(path.read_bytes())
    document["keys"][0].update(change)
    path.write_text(json.dumps(document))
    with pytest.raises(KeyFileError, match="not a key's record"):
        read_keys(path)


def test_a_file_that_others_may_write_is_refused(path: Path):
    create_key(path, "acme", 1.0)
    path.chmod(0o620)
    with pytest.raises(KeyFileError, match="written by others"):
        KeyStore(path)


def test_bounds(path: Path, monkeypatch: pytest.MonkeyPatch):
    create_key(path, "acme", 1.0)
    monkeypatch.setattr(module, "MAX_KEYS", 1)
    with pytest.raises(KeyFileError, match="1 are allowed"):
        create_key(path, "acme", 1.0)
    monkeypatch.setattr(module, "MAX_FILE_BYTES", 10)
    with pytest.raises(KeyFileError, match="10 are allowed"):
        read_keys(path)


@pytest.mark.parametrize("tenant", ["", "a b", "a:b", "a*", "a\r\nb", "{a}", "x" * 65, "-a", "é"])
def test_tenants_that_cannot_be(path: Path, tenant: str):
    with pytest.raises(KeyFileError, match="cannot be a tenant"):
        create_key(path, tenant, 1.0)
    assert not path.exists()


def test_unknown_ids(path: Path):
    create_key(path, "acme", 1.0)
    with pytest.raises(KeyFileError, match="has no key"):
        revoke_key(path, "nope", 1.0)
    with pytest.raises(KeyFileError, match="has no key"):
        rotate_key(path, "nope")


def test_places_that_cannot_be_used(tmp_path: Path):
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(KeyFileError, match=r"Not a directory|File exists"):
        create_key(blocker / "keys.json", "acme", 1.0)
    with pytest.raises(KeyFileError, match="Not a directory"):
        KeyStore(blocker / "keys.json")
    with pytest.raises(KeyFileError, match="Not a directory"):
        read_keys(blocker / "keys.json")
    (tmp_path / "keys.json").mkdir(mode=0o700)
    with pytest.raises(KeyFileError, match="Is a directory"):
        read_keys(tmp_path / "keys.json")


def test_a_failed_write_leaves_the_old_keys_and_nothing_else(path: Path, monkeypatch: pytest.MonkeyPatch):
    record, _ = create_key(path, "acme", 1.0)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "fsync", full)
    with pytest.raises(KeyFileError, match="No space left"):
        create_key(path, "acme", 2.0)
    assert read_keys(path) == [record]
    assert os.listdir(path.parent) == ["keys.json"]


def _make(path: Path, count: int) -> None:
    for _ in range(count):
        create_key(path, "acme", 1.0)


def test_two_processes_lose_no_key(path: Path):
    context = multiprocessing.get_context("spawn")
    makers = [context.Process(target=_make, args=(path, 5)) for _ in range(2)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join(30)
        assert maker.exitcode == 0
    assert len({record.id for record in read_keys(path)}) == 10


def test_only_trusted_keys_choose_a_tenant():
    assert tenant_of(Caller("acme", "k"), None) == "acme"
    assert tenant_of(Caller("acme", "k"), "other") == "acme"
    assert tenant_of(ANYONE, "other") == "default"
    assert tenant_of(Caller("acme", "k", True), None) == "acme"
    assert tenant_of(Caller("acme", "k", True), "other") == "other"
    answer = tenant_of(Caller("acme", "k", True), "a:b*")
    assert isinstance(answer, ErrorAnswer)
    assert answer.code is ErrorCode.INVALID_VALUE
    assert "'a:b*'" in answer.message


def test_failed_keys_are_slowed_by_address():
    throttle = FailureThrottle()
    burst = int(FAILURES_BURST)
    assert [throttle.observe_failure("a", 0.0) for _ in range(burst + 2)] == [False] * burst + [True, True]
    assert not throttle.observe_failure("b", 0.0)
    assert [throttle.observe_failure("a", 0.1) for _ in range(2)] == [False, True]
    assert [throttle.observe_failure("a", 1000.0) for _ in range(burst + 1)] == [False] * burst + [True]


def test_the_addresses_remembered_are_bounded():
    throttle = FailureThrottle()
    for number in range(MAX_ADDRESSES + 10):
        throttle.observe_failure(str(number), 0.0)
    assert len(throttle._buckets) == MAX_ADDRESSES
    assert "0" not in throttle._buckets


RECORDS = st.builds(
    KeyRecord,
    id=st.sampled_from(["a" * 12, "b" * 12, "c" * 12]),
    sha256=st.sampled_from(["0" * 64, "f" * 64]),
    tenant=st.just("acme"),
    trusted=st.just(False),
    note=st.just(""),
    created=st.just(1.0),
    revoked=st.none() | st.just(2.0),
    rotated=st.integers(0, 2),
)


@given(st.lists(RECORDS, max_size=8), st.randoms())
def test_gateways_agree_in_whatever_order_they_hear_of_keys(records, rng):
    shuffled = list(records)
    rng.shuffle(shuffled)
    one, other = KeyStore(None), KeyStore(None)
    for store, order in ((one, records), (other, shuffled)):
        for record in order:
            asyncio.run(store.adopt([record]))
    assert {record.id: record for record in one.records()} == {record.id: record for record in other.records()}
    for record in records:
        held = next(each for each in one.records() if each.id == record.id)
        assert held.revoked is not None or record.revoked is None, "what was revoked stays revoked"
        assert stage(held) >= stage(record)
    assert one.required == bool(records)


async def test_keys_of_another_gateway_are_kept_in_the_file(tmp_path):
    here, there = tmp_path / "here" / "keys.json", tmp_path / "there" / "keys.json"
    made, key = create_key(there, "acme", 1.0)
    store = KeyStore(here)
    await store.adopt(read_keys(there))
    assert store.lookup(f"Bearer {key}".encode()) == Caller("acme", made.id)
    rotated, fresh = rotate_key(there, made.id)
    assert (rotated.rotated, store.newer([rotated])) == (1, [rotated])
    await store.adopt([rotated])
    assert (store.lookup_key(key.encode()), KeyStore(here).lookup_key(fresh.encode())) == (
        None,
        Caller("acme", made.id),
    )
    await store.adopt([made])
    assert read_keys(here) == [rotated], "an older word changes nothing"
    await store.adopt([revoke_key(there, made.id, 2.0)])
    assert store.lookup_key(fresh.encode()) is None
    assert store.required


async def test_no_more_keys_are_taken_over_than_a_gateway_may_have(monkeypatch):
    monkeypatch.setattr("gateway.keys.MAX_KEYS", 2)
    store = KeyStore(None)
    records = [KeyRecord(letter * 12, "0" * 64, "acme", False, "", 1.0) for letter in "abc"]
    with pytest.raises(KeyFileError, match="2 keys already"):
        await store.adopt(records)
    assert store.records() == []


@pytest.mark.parametrize(
    "changes",
    [{"note": 7}, {"note": "x" * 257}, {"rotated": -1}, {"rotated": True}, {"rotated": 10**12}, {"id": "a"}, {"x": 1}],
)
def test_what_is_no_record(changes):
    plain = recorded(KeyRecord("a" * 12, "0" * 64, "acme", False, "", 1.0))
    assert recorded(record_of(plain)) == plain
    with pytest.raises(ValueError, match="not a key's record"):
        record_of({**plain, **changes})
