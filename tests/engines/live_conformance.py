"""What every engine must do for its adapter to be true, asked of a running one."""

import json
import time
import urllib.error
import urllib.request

from workers.engines.base import error_message


def fetch(url, body=None):
    """(status, body, headers) of one question."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read(), {name.lower(): value for name, value in answer.headers.items()}
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), {name.lower(): value for name, value in error.headers.items()}


def read(adapter, url):
    status, text, headers = fetch(url + adapter.metrics_path)
    assert status == 200
    return adapter.read_metrics(text, headers)


def check_engine(adapter, url, model, *, checks_model=True, has_kv=True):
    """Run the whole suite. `checks_model`: it refuses names it does not serve; `has_kv`: it shows its KV cache."""
    check_health_and_card(adapter, url, model)
    check_one_token(adapter, url, model)
    check_numbers(adapter, url, model, has_kv=has_kv)
    check_errors(adapter, url, model, checks_model=checks_model)
    check_capabilities(adapter, url, model)


def check_health_and_card(adapter, url, model):
    assert fetch(url + adapter.health_path)[0] == 200
    documents = {path: fetch(url + path)[1] for path in adapter.card_paths}
    documents |= {path: body for path in adapter.hint_paths for status, body, _ in [fetch(url + path)] if status == 200}
    card = adapter.read_card(documents)
    assert model in card.models
    assert card.max_model_len > 0
    assert adapter.read_card({path: documents[path] for path in adapter.card_paths}).models == card.models


def check_one_token(adapter, url, model):
    """The readiness question is a real inference: the first form that is not 404 is answered 200."""
    statuses = [fetch(url + ask.path, ask.body)[0] for ask in adapter.ask(model, "Hi", 1)]
    assert next(status for status in statuses if status not in (404, 405)) == 200


def check_numbers(adapter, url, model, *, has_kv):
    before = read(adapter, url)
    body = json.dumps({"model": model, "prompt": "Once upon a time there was", "max_tokens": 5}).encode()
    assert fetch(f"{url}/v1/completions", body)[0] == 200
    deadline = time.monotonic() + 20  # some count when a request is put away
    while (after := read(adapter, url)).generation_tokens == before.generation_tokens:
        assert time.monotonic() < deadline
        time.sleep(0.05)  # an engine tells nobody when it has counted
    assert after.prompt_tokens > before.prompt_tokens
    assert after.prefix_queries >= after.prefix_hits >= 0
    assert after.started == before.started
    if has_kv:
        assert 0 <= after.kv_usage <= 1
        assert after.kv_tokens > 0
        assert after.ttft.counts[-1] > before.ttft.counts[-1]
        assert after.itl is not None
    while (idle := read(adapter, url)).running + idle.waiting:
        assert time.monotonic() < deadline
        time.sleep(0.05)  # nor when it has nothing to do


def check_errors(adapter, url, model, *, checks_model):
    """Refusals have a status of their own and words that can be shown."""
    faults = [b"{", json.dumps({"model": model, "prompt": "x " * 40_000, "max_tokens": 1}).encode()]
    if checks_model:
        faults.append(json.dumps({"model": "no-such-model", "prompt": "x", "max_tokens": 1}).encode())
    for fault in faults:
        status, body, _ = fetch(f"{url}/v1/completions", fault)
        assert 400 <= status < 500 or (status == 500 and fault == b"{")
        message = error_message(body)
        assert message
        assert not message.startswith("{")


def check_capabilities(adapter, url, model):
    if adapter.tokenize_path is not None:
        body = json.dumps({"model": model, "prompt": "hello", "content": "hello"}).encode()
        status, said, _ = fetch(url + adapter.tokenize_path, body)
        assert status == 200
        assert json.loads(said)["tokens"]
