"""Audio uploads: two small fields found near the ends of the form, the sound left alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ErrorAnswer, ErrorCode
from gateway.facts import BodyFacts
from gateway.forms import MAX_VALUE_BYTES, WINDOW_BYTES, form_facts
from gateway.prompts import AUDIO_TOKENS_MAX

TYPE = b"multipart/form-data; boundary=xYz"


def part(name: str, value: bytes, extra: bytes = b"") -> bytes:
    return (
        b'--xYz\r\nContent-Disposition: form-data; name="'
        + name.encode()
        + b'"'
        + extra
        + b"\r\n\r\n"
        + value
        + b"\r\n"
    )


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--xYz--\r\n"


FILE = part("file", b"\x00\xff--xY\r\n" * 100, b'; filename="a.wav"\r\nContent-Type: audio/wav')


@pytest.mark.parametrize("place", [0, 1])
def test_model_and_stream_before_or_behind_the_file(place: int):
    small = [part("model", b"whisper"), part("stream", b"true")]
    body = form(*small, FILE) if place == 0 else form(FILE, *small)
    facts = form_facts(body, TYPE)
    assert isinstance(facts, BodyFacts)
    assert (facts.model, facts.stream) == ("whisper", True)
    assert facts.model_span is not None
    assert body[slice(*facts.model_span)] == b"whisper"


@pytest.mark.parametrize("size", [100, 3 * WINDOW_BYTES, 25 << 20])
def test_the_file_may_be_large(size: int):
    sound = part("file", b"s" * size, b'; filename="a.wav"')
    facts = form_facts(form(sound, part("model", b"m")), TYPE)
    assert isinstance(facts, BodyFacts)
    assert facts.model == "m"
    assert 1 <= facts.prompt_tokens <= AUDIO_TOKENS_MAX


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--xYz--",
        b"nothing like a form",
        form(FILE),
        form(part("model", b"")),
        form(part("other", b"m"), part("model_", b"m")),
        form(part("model", b"m" * (MAX_VALUE_BYTES + 1))),
        part("model", b"m"),  # no closing delimiter
        b'--xYz\r\nContent-Disposition: form-data; filename="model"\r\n\r\nm\r\n--xYz--',
        b"--xYz\r\nno blank line\r\n--xYz--",
    ],
)
def test_what_is_not_found_is_the_engines_to_judge(body: bytes):
    facts = form_facts(body, TYPE)
    assert isinstance(facts, BodyFacts)
    assert facts.model is None
    assert facts.model_span is None


def test_a_field_that_only_looks_like_one_inside_the_file_is_not_one():
    fake = b'\r\nContent-Disposition: form-data; name="model"\r\n\r\nevil\r\n'
    facts = form_facts(form(part("file", fake), part("model", b"good")), TYPE)
    assert isinstance(facts, BodyFacts)
    assert facts.model == "good"


def test_the_last_of_two_models_counts_as_at_the_engine():
    facts = form_facts(form(part("model", b"a"), part("model", b"b")), TYPE)
    assert isinstance(facts, BodyFacts)
    assert facts.model == "b"


@pytest.mark.parametrize(
    "content_type",
    [
        b'multipart/form-data; boundary="xYz"',
        b"Multipart/Form-Data;charset=utf-8; Boundary=xYz; x=y",
    ],
)
def test_spellings_of_the_content_type(content_type: bytes):
    facts = form_facts(form(part("model", b"m")), content_type)
    assert isinstance(facts, BodyFacts)
    assert facts.model == "m"


@pytest.mark.parametrize(
    "content_type", [b"", b"application/json", b"multipart/form-data", b"multipart/form-data; boundary=", b"\xff"]
)
def test_without_a_boundary_it_is_no_form(content_type: bytes):
    answer = form_facts(form(part("model", b"m")), content_type)
    assert isinstance(answer, ErrorAnswer)
    assert answer.code is ErrorCode.UNSUPPORTED_MEDIA_TYPE


def test_a_model_that_is_not_text_is_refused():
    answer = form_facts(form(part("model", b"\xff\xfe")), TYPE)
    assert isinstance(answer, ErrorAnswer)
    assert answer.param == "model"


def test_more_parts_than_anybody_sends_end_the_search():
    parts = [part(f"f{n}", b"x") for n in range(70)]
    facts = form_facts(form(*parts, part("model", b"m")), TYPE)
    assert isinstance(facts, BodyFacts)
    assert facts.model is None


pieces = st.sampled_from(
    [b"--xYz", b"--", b"\r\n", b"\r\n\r\n", b'Content-Disposition: form-data; name="model"', b"m", b";"]
)


@given(st.lists(pieces | st.binary(max_size=5), max_size=20).map(b"".join), st.just(TYPE) | st.binary(max_size=40))
def test_no_bytes_raise(body, content_type):
    assert isinstance(form_facts(body, content_type), (BodyFacts, ErrorAnswer))
