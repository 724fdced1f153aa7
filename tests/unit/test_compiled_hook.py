"""The hook finds compiled modules for exactly the source that they were made from."""

import json
from pathlib import Path

import pytest

from gateway.compiled.hook import MANIFEST, Finder, digest_of


def tree(root: Path) -> Path:
    for package in ("policies", "gateway/http"):
        (root / package).mkdir(parents=True)
    (root / "policies/work.py").write_text("A = 1\n")
    (root / "gateway/http/sse.py").write_text("B = 2\n")
    return root


def finder(place: Path, root: Path, **other: object) -> Finder:
    place.mkdir()
    libraries = {"policies.work": "policies/work.so", "gateway.http.sse": "gateway/http/sse.so"}
    (place / MANIFEST).write_text(json.dumps({"digest": digest_of(root), "libraries": libraries, **other}))
    return Finder(place)


def test_modules_of_the_same_source_are_found_and_others_are_not(tmp_path: Path) -> None:
    root = tree(tmp_path / "root")
    found = finder(tmp_path / "place", root)
    assert found.find_spec("json.decoder", ["/nowhere"]) is None
    assert found.find_spec("policies") is None
    spec = found.find_spec("gateway.http.sse", [str(root / "gateway/http")])
    assert spec is not None
    assert spec.origin == str(tmp_path / "place/gateway/http/sse.so")
    assert found.find_spec("gateway.app", [str(root / "gateway")]) is None
    work = found.find_spec("policies.work", [str(root / "policies")])
    assert work is not None
    loader = work.loader
    assert loader.get_source("policies.work") == "A = 1\n"  # type: ignore[union-attr]
    assert loader.get_code("policies.work").co_filename == str(root / "policies/work.py")  # type: ignore[union-attr]


def test_any_change_of_the_source_ends_it(tmp_path: Path) -> None:
    root = tree(tmp_path / "root")
    found = finder(tmp_path / "place", root)
    (root / "gateway/new.py").write_text("")
    assert found.find_spec("policies.work", [str(root / "policies")]) is None
    (root / "gateway/new.py").unlink()
    again = Finder(tmp_path / "place")
    assert again.find_spec("policies.work", [str(root / "policies")]) is not None
    # Decided once: what is loaded already must not be mixed with another state.
    (root / "policies/work.py").write_text("A = 2\n")
    assert again.find_spec("gateway.http.sse", [str(root / "gateway/http")]) is not None


@pytest.mark.parametrize("text", [None, b"", b"{}", b"[]", b'{"digest": 3}', b"\xff"])
def test_a_broken_manifest_means_source(tmp_path: Path, text: bytes | None) -> None:
    root = tree(tmp_path / "root")
    found = finder(tmp_path / "place", root)
    if text is None:
        (tmp_path / "place" / MANIFEST).unlink()
    else:
        (tmp_path / "place" / MANIFEST).write_bytes(text)
    assert found.find_spec("policies.work", [str(root / "policies")]) is None
