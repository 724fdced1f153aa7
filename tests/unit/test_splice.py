"""Splicing: the fields that change have changed, every other byte is the client's."""

import json

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from gateway.splice import splice

NAMES = ("model", "priority", "stream_options", "kv_transfer_params")

scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(alphabet=st.sampled_from('model"\\:,{}[] é汉\n\u2028') | st.characters(codec="utf-8"), max_size=12)
keys = st.sampled_from(NAMES) | texts
values = st.recursive(
    scalars | texts | st.sampled_from(NAMES),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)
blanks = st.sampled_from(["", " ", "\n", "\r\n\t", "  "])


@st.composite
def spelled_key(draw: st.DrawFn, name: str) -> str:
    """A key as JSON may spell it: letters escaped or not, hexadecimal digits in either case."""
    if not (name in NAMES and draw(st.booleans())):
        return json.dumps(name, ensure_ascii=draw(st.booleans()))
    out = ""
    for letter in name:
        escape = f"{ord(letter):04x}"
        out += draw(st.sampled_from([letter, letter, "\\u" + escape, "\\u" + escape.upper()]))
    return f'"{out}"'


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, list[tuple[str, object]]]:
    """A JSON object as text, written by hand so that keys repeat and blanks stand everywhere, and its members."""
    pairs = draw(st.lists(st.tuples(keys, values), max_size=6))
    blank = lambda: draw(blanks)  # noqa: E731
    written = []
    for key, value in pairs:
        text = json.dumps(value, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1])))
        written.append(f"{blank()}{draw(spelled_key(key))}{blank()}:{blank()}{text}{blank()}")
    return f"{blank()}{{{','.join(written) or blank()}}}{blank()}".encode(), pairs


changes_strategy = st.dictionaries(
    st.sampled_from(NAMES), st.none() | st.sampled_from([b'"tiny"', b"0", b'{"include_usage":true}', b"[]"])
)


def pairs_of(body: bytes) -> list[tuple[str, object]]:
    found: list[list[tuple[str, object]]] = []

    def hook(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found.append(pairs)
        return dict(pairs)

    json.loads(body, object_pairs_hook=hook)
    return found[-1]


def expected_pairs(pairs: list[tuple[str, object]], changes: dict[str, bytes | None]) -> list[tuple[str, object]]:
    present = {key for key, _ in pairs}
    out: list[tuple[str, object]] = [
        (name, json.loads(value)) for name, value in changes.items() if value is not None and name not in present
    ]
    for key, value in pairs:
        if key not in changes:
            out.append((key, value))
        elif changes[key] is not None:
            out.append((key, json.loads(changes[key])))
    return out


@given(bodies(), changes_strategy)
@example((b'{"priority":1,"priority":2}', [("priority", 1), ("priority", 2)]), {"priority": None})
@example((b"{ }", []), {"model": b"0"})
def test_the_result_is_the_body_with_the_changes(given_body, changes):
    body, pairs = given_body
    result = b"".join(splice(body, changes, {key for key, _ in pairs}))
    assert pairs_of(result) == expected_pairs(pairs, changes)


NEW = b'"#new#"'  # in no body: the alphabet has no such sign


@given(bodies(), st.dictionaries(st.sampled_from(NAMES), st.sampled_from([None, NEW])))
def test_what_is_not_new_are_stretches_of_the_original_in_order(given_body, changes):
    body, pairs = given_body
    assume(NEW not in body)
    at = 0
    for part in splice(body, changes, {key for key, _ in pairs}):
        if NEW not in part:
            place = body.find(part, at)
            assert place >= 0
            at = place + len(part)


@given(bodies())
def test_without_a_change_the_body_itself_comes_back(given_body):
    body, pairs = given_body
    fields = {key for key, _ in pairs}
    absent = {name: None for name in NAMES if name not in fields}
    assert splice(body, {}, fields)[0] is body
    assert splice(body, absent, fields)[0] is body


def test_a_field_that_has_its_value_already_changes_nothing():
    body = b'{"model":"tiny"}'
    assert splice(body, {"model": b'"tiny"'}, {"model"})[0] is body


@pytest.mark.parametrize(
    ("body", "changes", "expected"),
    [
        (b'{"model":"chat","n":1}', {"model": b'"tiny"'}, b'{"model":"tiny","n":1}'),
        (b'{"model":"a","model":"b"}', {"model": b'"t"'}, b'{"model":"t","model":"t"}'),
        (b'{"a":{"model":1},"model":2}', {"model": b"3"}, b'{"a":{"model":1},"model":3}'),
        (b'{"a":"model","b":"\\"model\\":"}', {"model": b"3"}, b'{"model":3,"a":"model","b":"\\"model\\":"}'),
        (b'{"x\\"model":1, "model" : 2 }', {"model": b"3"}, b'{"x\\"model":1, "model" : 3 }'),
        (b'{"x\\\\":1,"\\u006dodel":2}', {"model": b"3"}, b'{"x\\\\":1,"\\u006dodel":3}'),
        (b'{"priority":-100,"n":1}', {"priority": None}, b'{"n":1}'),
        (b'{"n":1, "priority":-100}', {"priority": None}, b'{"n":1}'),
        (b'{"n":1, "priority":1 , "priority":2 }', {"priority": None}, b'{"n":1 }'),
        (b'{ "priority":[1,{"a":"]"}] }', {"priority": None}, b"{  }"),
        (b'{"priority":1}', {"priority": None, "model": b"1"}, b'{"model":1}'),
        (b"{}", {"model": b"1"}, b'{"model":1}'),
    ],
)
def test_examples(body: bytes, changes: dict[str, bytes | None], expected: bytes):
    assert b"".join(splice(body, changes, set(json.loads(body)))) == expected


def test_a_body_that_is_not_json_is_told_apart():
    with pytest.raises(ValueError, match="not valid JSON"):
        splice(b'{"model":[1', {"model": b"1"}, {"model"})


@pytest.mark.parametrize("front", [True, False])
def test_many_decoys_in_megabytes(front: bool):
    """A search that started over at each decoy would take minutes here."""
    text = json.dumps({"messages": [{"model": '"model": \\" [' * 20}] * 20_000}).encode()
    field = b'"model":"chat"'
    body = b"{" + field + b"," + text[1:] if front else text[:-1] + b"," + field + b"}"
    result = b"".join(splice(body, {"model": b'"tiny"'}, {"model", "messages"}))
    assert len(result) == len(body)
    assert json.loads(result)["model"] == "tiny"
