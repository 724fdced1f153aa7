"""Paths: the allowlist and nothing beside it."""

import pytest

from gateway.errors import Dialect, ErrorAnswer, ErrorCode
from gateway.routes import ROUTES, Local, Route, route
from policies.endpoints import Endpoint

PATHS = {
    "/v1/chat/completions": Endpoint.CHAT,
    "/v1/completions": Endpoint.COMPLETIONS,
    "/v1/responses": Endpoint.RESPONSES,
    "/v1/messages": Endpoint.MESSAGES,
    "/v1/embeddings": Endpoint.EMBEDDINGS,
    "/v1/rerank": Endpoint.RERANK,
    "/rerank": Endpoint.RERANK,
    "/v1/score": Endpoint.SCORE,
    "/score": Endpoint.SCORE,
    "/classify": Endpoint.CLASSIFY,
    "/pooling": Endpoint.POOLING,
    "/tokenize": Endpoint.TOKENIZE,
    "/detokenize": Endpoint.DETOKENIZE,
    "/v1/audio/transcriptions": Endpoint.TRANSCRIPTIONS,
    "/v1/audio/translations": Endpoint.TRANSLATIONS,
}
LOCAL = {"/v1/models": Local.MODELS, "/livez": Local.LIVEZ, "/readyz": Local.READYZ}


def test_the_allowlist_is_exactly_the_design():
    assert {path: entry.target for path, entry in ROUTES.items()} == {**PATHS, **LOCAL}


@pytest.mark.parametrize(("path", "endpoint"), PATHS.items())
def test_endpoints_take_post_only(path: str, endpoint: Endpoint):
    found = route("POST", path)
    assert isinstance(found, Route)
    assert found.target is endpoint
    for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "post", "TRACE", "CONNECT", ""):
        answer = route(method, path)
        assert isinstance(answer, ErrorAnswer)
        assert (answer.status, answer.code) == (405, ErrorCode.METHOD_NOT_ALLOWED)
        assert (b"allow", b"POST") in answer.head_fields()


@pytest.mark.parametrize("path", [*LOCAL, "/v1/models/tiny"])
def test_br_09_07_local_routes_take_get_and_head(path: str):
    for method in ("GET", "HEAD"):
        assert isinstance(route(method, path), Route)
    for method in ("POST", "OPTIONS", "DELETE"):
        answer = route(method, path)
        assert isinstance(answer, ErrorAnswer)
        assert (b"allow", b"GET, HEAD") in answer.head_fields()


ENGINE_ONLY = [
    *("/pause", "/resume", "/sleep", "/wake_up", "/update_weights", "/collective_rpc", "/invocations", "/metrics"),
    *("/ping", "/health", "/version", "/load", "/docs", "/openapi.json", "/server_info", "/reset_prefix_cache"),
    *("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/scale_elastic_ep", "/v1/chat/completions/batch"),
    *("/v1/messages/count_tokens", "/v1/responses/resp_1", "/inference/v1/generate", "/generative_scoring"),
    *("/v2/embed", "/v2/rerank", "/v1/chat/completions/render", "/kv_event_sources", "/admin/v1/fleet", "/dashboard"),
]


def variants(path: str) -> list[str]:
    """Spellings that some server would take for `path`."""
    return [
        path + "/",
        "/" + path,
        path + "//",
        path + ";a=b",
        path + "%20",
        path + " ",
        path + "\0",
        path + "?x",
        path.upper(),
        path.replace("/", "//"),
        path.replace("/", "/./"),
        path.replace("/", "/x/../"),
        path.replace("/", "/%2e/"),
        path.replace("/", "\\"),
        path[:2] + "%" + format(ord(path[2]), "02x") + path[3:],
        path[:-1] + "%" + format(ord(path[-1]), "02X"),
        "http://gateway" + path,
        path[1:],
    ]


@pytest.mark.parametrize("path", ["", "/", "*", "/v1", "/v1/", *ENGINE_ONLY])
def test_s17_nothing_else_exists(path: str):
    for method in ("GET", "POST", "OPTIONS"):
        answer = route(method, path)
        assert isinstance(answer, ErrorAnswer)
        assert answer.code is ErrorCode.NOT_FOUND


@pytest.mark.parametrize("path", [*PATHS, *LOCAL])
def test_s17_spelling_variants_do_not_exist(path: str):
    for variant in variants(path):
        for method in ("GET", "POST"):
            answer = route(method, variant)
            assert isinstance(answer, ErrorAnswer), variant
            assert answer.status == 404


@pytest.mark.parametrize("path", ["/v1/models/", "/v1/models/" + "x" * 300, "/v1/models/a\0b", "/v1/models/a\nb"])
def test_names_that_no_model_can_have(path: str):
    answer = route("GET", path)
    assert isinstance(answer, ErrorAnswer)
    assert answer.status == 404


def test_a_hostile_path_is_repeated_cut_and_escaped():
    answer = route("GET", "/\r\nset-cookie: a=b" + "x" * 10_000)
    assert isinstance(answer, ErrorAnswer)
    assert "\r" not in answer.message
    assert len(answer.message) < 250


def test_errors_below_messages_have_the_anthropic_shape():
    answer = route("GET", "/v1/messages")
    assert isinstance(answer, ErrorAnswer)
    assert answer.dialect is Dialect.ANTHROPIC
