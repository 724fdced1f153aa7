"""The gate as a whole: every request is let in, answered or refused, and what goes on is the client's own bytes."""

import json
from pathlib import Path

import pytest
from admission_gate import HELLO, NOW, Gate
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.admission import Admitted, LocalAnswer
from gateway.body_fields import ENGINE_FIELDS
from gateway.errors import ErrorAnswer, ErrorCode
from gateway.http.known_heads import HeadNotes
from gateway.http.messages import RawRequest
from gateway.keys import create_key
from policies.classify import Classified
from policies.document import Policy
from policies.endpoints import Endpoint


@pytest.fixture
def gate() -> Gate:
    return Gate()


# === What is let in ===


def test_a_chat_request_is_let_in_whole(gate: Gate):
    body = json.dumps({**HELLO, "max_tokens": 50, "n": 2, "stream": True}).encode()
    admitted = gate.admitted(body)
    assert admitted.body_parts[0] is body
    assert (admitted.path, admitted.method, admitted.stream) == ("/v1/chat/completions", "POST", True)
    assert (admitted.model_public, admitted.endpoint, admitted.tenant) == ("tiny", Endpoint.CHAT, "default")
    assert (admitted.key_id, admitted.forward_authorization, admitted.revision_number) == (None, True, 1)
    assert admitted.timeouts == Policy().timeouts
    assert admitted.prompt_estimate == 2 * admitted.estimate_raw
    request = admitted.request
    assert (request.id, request.tenant, request.model, request.pools[0]) == ("req-1", "default", "tiny", "short-chat")
    assert (request.prompt_tokens, request.prefill_tokens) == (admitted.prompt_estimate, None)
    assert (request.max_output_tokens, request.sequences, request.generates) == (50, 2, True)
    assert (request.expected_output, request.p90_output) == (30, 90)
    assert (request.body_bytes, request.may_queue, request.session) == (len(body), True, "")
    assert request.deadline == NOW + 600


def test_one_head_may_come_with_any_models_tiers_and_sizes_and_under_any_policy(gate: Gate):
    document = {"models": {"m": {"pools": ["short-chat", "long-context"], "served_as": "tiny"}}}
    notes = HeadNotes()
    asks = [
        {**HELLO, "model": model, "max_tokens": limit, **tier}
        for model in ("tiny", "m", "tiny")
        for limit in (5, 90_000)
        for tier in ({}, {"service_tier": "flex"}, {"service_tier": "auto"})
    ]
    for _ in range(2):
        for body in asks:
            data = json.dumps(body).encode()
            known, fresh = (
                gate.admission.admit(RawRequest("POST", "/v1/chat/completions", b"", [], data, notes=each), "req-1")
                for each in (notes, None)
            )
            assert isinstance(known, Admitted)
            assert isinstance(fresh, Admitted)
            assert parts(known.classified) == parts(fresh.classified)
            assert (known.model_public, known.revision_number) == (fresh.model_public, fresh.revision_number)
        gate.source.adopt(document)


def parts(classified: Classified) -> tuple[object, ...]:
    return (
        (classified.tenant, classified.klass, classified.class_name, classified.pool, classified.pools),
        (classified.fallback_pools, classified.served_model, classified.why),
        (classified.prompt_tokens, classified.output_tokens),
        (classified.queue_timeout_s, classified.deadline_s, classified.home_budget_tokens),
    )


def test_a_long_prompt_is_known_by_its_beginnings_at_one_model(gate: Gate):
    def chain(text: str, model: str = "tiny") -> tuple[int, ...]:
        body = {"model": model, "messages": [{"role": "user", "content": text}]}
        request = gate.admitted(body).request
        assert len(request.prefix_hashes) == len(request.prefix_ends)
        assert not request.prefix_ends or request.prefix_ends[-1] <= request.prompt_tokens
        return request.prefix_hashes

    text = "Where does the water go? " * 100
    assert len(chain(text)) == 4
    assert chain(text + "And then?" * 100)[:4] == chain(text)
    assert not set(chain(text)) & set(chain(text, model="other"))
    assert chain("short") == ()


def test_several_prompts_are_measured_by_the_longest_and_paid_for_together(gate: Gate):
    admitted = gate.admitted({"model": "tiny", "input": [[1] * 10, [2] * 30]}, path="/v1/embeddings")
    assert (admitted.request.prompt_tokens, admitted.request.prefill_tokens) == (30, 40)
    assert admitted.request.prompt_exact
    assert admitted.estimate_raw == 0  # counted, not estimated: nothing for calibration to learn
    assert not admitted.request.generates
    assert (admitted.request.expected_output, admitted.request.p90_output) == (0, 0)
    assert admitted.classified.pool == "embeddings"


@pytest.mark.parametrize(
    ("asked", "ruled", "expected"),
    [(None, None, 600), (b"5000", None, 5), (b"1", None, 1), (b"999999999", None, 600), (b"5000", 2, 2), (None, 7, 7)],
)
def test_the_deadline_is_the_shortest_and_at_least_a_second(asked: bytes | None, ruled: float | None, expected: float):
    gate = Gate({"rules": [{"deadline_s": ruled}]} if ruled else None)
    headers = [(b"x-headrace-timeout-ms", asked)] if asked else []
    assert gate.admitted(HELLO, *headers).request.deadline == NOW + expected


def test_what_the_fields_ask_for(gate: Gate):
    headers = [(b"x-headrace-priority", b"Batch"), (b"x-headrace-queue", b"never"), (b"x-session-id", b"s")]
    admitted = gate.admitted(HELLO, *headers)
    assert (admitted.classified.class_name, admitted.request.may_queue) == ("batch", False)
    assert admitted.request.session == "default\0s"
    assert admitted.request.queue_timeout_s == 120


def test_rules_see_the_fields_they_name():
    document = {"rules": [{"when": {"header": {"X-Team": "blue"}}, "class": "batch"}]}
    gate = Gate(document)
    assert gate.admitted(HELLO, (b"x-team", b"blue")).classified.class_name == "batch"
    assert gate.admitted(HELLO, (b"x-team", b"red")).classified.class_name == "standard"


def test_a_new_revision_holds_from_the_next_request_on(gate: Gate):
    before = gate.admitted(HELLO)
    gate.source.adopt({"timeouts": {"total_s": 5}})
    after = gate.admitted(HELLO)
    assert (before.revision_number, after.revision_number) == (1, 2)
    assert (before.timeouts.total_s, after.timeouts.total_s) == (600, 5)
    assert after.request.deadline == NOW + 5


# === The body as the engine gets it ===


def sent(admitted: Admitted) -> dict[str, object]:
    body: dict[str, object] = json.loads(b"".join(admitted.body_parts))
    return body


def test_an_alias_becomes_the_engines_name(gate: Gate):
    admitted = gate.admitted({**HELLO, "model": "chat"})
    assert (admitted.model_public, admitted.request.model) == ("chat", "tiny")
    assert sent(admitted) == HELLO


@pytest.mark.parametrize("field", sorted(ENGINE_FIELDS))
def test_br_07_09_what_engines_obey_is_taken_out(gate: Gate, field: str):
    for value in (-100, "high", {"remote_host": "10.0.0.1"}, None, [1, [2]]):
        assert sent(gate.admitted({field: value, **HELLO})) == HELLO
        assert sent(gate.admitted({**HELLO, field: value})) == HELLO
    spelled = json.dumps(HELLO)[:-1] + ', "' + "".join(f"\\u{ord(c):04x}" for c in field) + '": 5}'
    assert sent(gate.admitted(spelled.encode())) == HELLO


def test_usage_is_asked_for_where_the_client_did_not():
    gate = Gate({"admission": {"ask_usage": True}})
    stream = {**HELLO, "stream": True}
    admitted = gate.admitted({**stream, "stream_options": {"continuous_usage_stats": False}})
    assert (admitted.usage_injected, admitted.include_usage) == (True, False)
    assert sent(admitted)["stream_options"] == {"continuous_usage_stats": False, "include_usage": True}
    assert sent(gate.admitted(stream))["stream_options"] == {"include_usage": True}
    asked = gate.admitted({**stream, "stream_options": {"include_usage": True}})
    assert (asked.usage_injected, asked.include_usage) == (False, True)
    assert not gate.admitted(HELLO).usage_injected
    responses = gate.admitted({"model": "tiny", "input": "x", "stream": True}, path="/v1/responses")
    assert not responses.usage_injected
    # Counts on each event, which this client did not get without include_usage, could not be hidden from it.
    loud = gate.admitted({**stream, "stream_options": {"continuous_usage_stats": True}})
    assert sent(loud)["stream_options"] == {"continuous_usage_stats": False, "include_usage": True}


def test_usage_is_asked_for_where_a_tenants_tokens_are_limited():
    stream = {**HELLO, "stream": True}
    assert Gate({"tenants": {"default": {"tokens_per_min": 1000}}}).admitted(stream).usage_injected
    for document in ({}, {"tenants": {"default": {}, "acme": {"tokens_per_min": 1000}}}):
        admitted = Gate(document).admitted(stream)
        assert not admitted.usage_injected
        assert sent(admitted) == stream


FORM = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nchat\r\n--b--\r\n'


def test_an_audio_form_passes_with_its_model_renamed(gate: Gate):
    headers = (b"content-type", b"multipart/form-data; boundary=b")
    admitted = gate.admitted(FORM, headers, path="/v1/audio/transcriptions")
    assert b"".join(admitted.body_parts) == FORM.replace(b"chat", b"tiny")
    same = FORM.replace(b"chat", b"tiny")
    assert gate.admitted(same, headers, path="/v1/audio/transcriptions").body_parts[0] is same


# === Models ===


@pytest.mark.parametrize("model", [{}, {"model": None}, {"model": ""}])
def test_a_request_without_a_model_gets_the_only_one(model: dict[str, object]):
    body = {"messages": [], **model}
    assert Gate().admitted(body).model_public == "tiny"
    assert Gate(fleet={}).admitted(body).model_public == "chat"  # the policy's only one
    answer = Gate(fleet={"a": None, "b": None}).refused(body)
    assert (answer.code, answer.param) == (ErrorCode.MISSING_PARAMETER, "model")
    two = {"models": {"a": {}, "b": {}}}
    assert Gate(two, fleet={}).refused(body).code is ErrorCode.MISSING_PARAMETER


def test_a_model_name_of_absurd_length_does_not_exist(gate: Gate):
    answer = gate.refused({**HELLO, "model": "m" * 257})
    assert answer.code is ErrorCode.MODEL_NOT_FOUND
    assert len(answer.message) < 200


def test_the_models_are_those_that_can_be_used_now():
    gate = Gate(fleet={"tiny": 4096, "lora_1": None})
    listed = json.loads(gate.local("/v1/models").body)
    assert listed["object"] == "list"
    assert [card["id"] for card in listed["data"]] == ["chat", "lora_1", "tiny"]
    assert listed["data"][0] == {
        "id": "chat",
        "object": "model",
        "created": 500,
        "owned_by": "headrace",
        "max_model_len": 4096,
    }
    assert "max_model_len" not in listed["data"][1]
    gate.fleet = {}
    assert json.loads(gate.local("/v1/models").body)["data"] == []


def test_a_model_by_name():
    gate = Gate(fleet={"org/model": None})
    for path in ("/v1/models/org/model", "/v1/models/org%2Fmodel"):
        assert json.loads(gate.local(path).body)["id"] == "org/model"
    answer = gate.ask("/v1/models/tiny", method="GET")
    assert isinstance(answer, ErrorAnswer)
    assert answer.code is ErrorCode.MODEL_NOT_FOUND


def test_liveness_and_readiness(gate: Gate):
    assert gate.local("/livez").status == 200
    assert json.loads(gate.local("/readyz").body) == {"status": "ready", "detail": "3 workers"}
    gate.ready = (False, "no worker")
    answer = gate.local("/readyz")
    assert (answer.status, json.loads(answer.body)["detail"]) == (503, "no worker")
    assert gate.local("/livez").status == 200


# === Callers ===


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def bearer(key: str) -> tuple[bytes, bytes]:
    return b"authorization", b"Bearer " + key.encode()


def test_a_key_is_needed_where_keys_exist(keys: Path):
    record, key = create_key(keys, "acme", 1.0)
    gate = Gate(keys=keys)
    for headers in (
        [],
        [bearer("sk-wrong")],
        [(b"x-api-key", b"sk-wrong")],
        [bearer("x"), (b"x-api-key", key.encode())],
    ):
        answer = gate.refused(HELLO, *headers)
        assert (answer.code, answer.status) == (ErrorCode.INVALID_API_KEY, 401)
        assert (b"www-authenticate", b"Bearer") in answer.head_fields()
        assert "sk-wrong" not in answer.message
    for headers in ([bearer(key)], [(b"x-api-key", key.encode())]):
        admitted = gate.admitted(HELLO, *headers)
        assert (admitted.tenant, admitted.key_id, admitted.forward_authorization) == ("acme", record.id, False)
    assert isinstance(gate.ask("/v1/models", method="GET"), ErrorAnswer)
    assert gate.local("/v1/models", bearer(key))
    assert gate.local("/livez")
    assert gate.local("/readyz")


def test_only_trusted_keys_speak_for_others(keys: Path):
    _, plain = create_key(keys, "acme", 1.0)
    _, trusted = create_key(keys, "edge", 1.0, trusted=True)
    gate = Gate(keys=keys)
    for_beta = (b"x-headrace-tenant", b"beta")
    assert gate.admitted(HELLO, bearer(plain), for_beta).tenant == "acme"
    assert gate.admitted(HELLO, bearer(trusted), for_beta).request.tenant == "beta"
    assert gate.refused(HELLO, bearer(trusted), (b"x-headrace-tenant", b"a b")).status == 400
    assert Gate().admitted(HELLO, for_beta).tenant == "default"


def test_s30_failed_keys_are_slowed_but_good_ones_work(keys: Path):
    _, key = create_key(keys, "acme", 1.0)
    gate = Gate(keys=keys)
    statuses = [gate.refused(HELLO, bearer("wrong")).status for _ in range(30)]
    assert statuses == [401] * 20 + [429] * 10
    assert gate.admitted(HELLO, bearer(key))
    answer = gate.ask("/v1/chat/completions", HELLO, peer="10.0.0.2")
    assert isinstance(answer, ErrorAnswer)
    assert answer.status == 401


# === What is refused ===


@pytest.mark.parametrize(
    ("headers", "body", "status", "code"),
    [
        ([(b"content-encoding", b"gzip")], b"\x1f\x8b", 415, "unsupported_encoding"),
        ([(b"content-encoding", b"identity, zstd")], b"{}", 415, "unsupported_encoding"),
        ([(b"content-type", b"multipart/form-data; boundary=b")], FORM, 415, "unsupported_media_type"),
        ([], b'{"messages":"' + b"x" * 1024 + b'"}', 413, "request_too_large"),
        ([], b"", 400, "invalid_json"),
        ([], b"\xef\xbb\xbf{}", 400, "invalid_json"),
        ([], b"{}", 400, "missing_parameter"),
        ([(b"x-headrace-queue", b"maybe")], b"{}", 400, "invalid_value"),
        ([(b"x-headrace-timeout-ms", b"-5")], b"{}", 400, "invalid_value"),
        ([(b"x-session-id", b"a"), (b"x-session-id", b"b")], b"{}", 400, "bad_request"),
    ],
)
def test_refusals(headers: list[tuple[bytes, bytes]], body: bytes, status: int, code: str):
    answer = Gate({"limits": {"body_bytes": 1024}}).refused(body, *headers)
    assert (answer.status, answer.code.value) == (status, code)


PRIORITIES = [
    b"0",
    b"high",
    b" ",
    b"99999",
    b"-1",
    b"abc",
    b"low, high",
    b"interactive, batch",
    b"",
    b"\xff",
    b"a" * 9000,
]


@pytest.mark.parametrize("value", PRIORITIES)
def test_br_07_09_priorities_that_are_no_class(gate: Gate, value: bytes):
    answer = gate.refused(HELLO, (b"x-headrace-priority", value))
    assert (answer.status, answer.code) == (400, ErrorCode.INVALID_PRIORITY)
    assert "interactive, standard, batch" in answer.message
    assert json.loads(answer.body())["error"]["param"] == "X-Headrace-Priority"


def test_br_07_09_a_class_above_the_tenants_ceiling_is_lowered():
    gate = Gate({"tenants": {"default": {"max_class": "batch"}}})
    assert gate.admitted(HELLO, (b"x-headrace-priority", b"interactive")).classified.class_name == "batch"
    assert gate.admitted({**HELLO, "service_tier": "priority"}).classified.class_name == "batch"


def test_identity_is_no_encoding(gate: Gate):
    assert gate.admitted(HELLO, (b"content-encoding", b"Identity"))


def test_errors_speak_the_paths_dialect(gate: Gate):
    answer = gate.refused({"model": "tiny"}, path="/v1/messages")
    assert json.loads(answer.body())["type"] == "error"
    answer = gate.refused({"model": "tiny"})
    assert json.loads(answer.body())["error"]["code"] == "missing_parameter"


HEADERS = st.sampled_from(
    [b"authorization", b"x-headrace-priority", b"x-headrace-tenant", b"x-session-id", b"content-type", b"x-team"]
)


@settings(max_examples=200)
@given(
    st.sampled_from(["/v1/chat/completions", "/v1/messages", "/v1/audio/translations", "/v1/models/x", "/readyz"])
    | st.text(max_size=20),
    st.sampled_from(["GET", "POST", "OPTIONS"]) | st.text(max_size=5),
    st.lists(st.tuples(HEADERS, st.binary(max_size=20)), max_size=4),
    st.binary(max_size=60) | st.just(json.dumps(HELLO).encode()),
)
def test_nothing_a_client_sends_raises(path, method, headers, body):
    gate = Gate({"rules": [{"when": {"header": {"X-Team": "blue"}}, "class": "batch"}]})
    answer = gate.ask(path, body, *headers, method=method)
    assert isinstance(answer, (Admitted, LocalAnswer, ErrorAnswer))
    if isinstance(answer, ErrorAnswer):
        assert 400 <= answer.status < 500
        assert json.loads(answer.body())
        assert all(b"\n" not in value for _, value in answer.head_fields())
