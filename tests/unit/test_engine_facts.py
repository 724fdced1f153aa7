"""What engines say of themselves, and what of it is believed."""

import pytest

from gateway.engine_facts import NoAnswer, cache_of, models_of


def test_models_and_the_shortest_context():
    cards = (
        b'{"id":"a","max_model_len":4096},{"id":"lora","max_model_len":2048},{"id":"b"},{"id":"c","max_model_len":"x"}'
    )
    body = b'{"data":[' + cards + b"]}"
    assert models_of(body) == (("a", "lora", "b", "c"), 2048)
    assert models_of(b'{"data":[{"id":"a"}]}') == (("a",), None)


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"{}", b'{"data":[]}', b'{"data":[1,{"id":3},{"id":"a\\nb"},{"id":""}]}']
)
def test_no_models(body):
    with pytest.raises(NoAnswer):
        models_of(body)


def info(engine: int, **labels: str) -> bytes:
    inner = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return f'vllm:cache_config_info{{engine="{engine}",{inner}}} 1.0\n'.encode()


def test_kv_capacity_over_all_engines():
    text = b"process_start_time_seconds 1.79596621219e+09\n"
    text += info(0, num_gpu_blocks="65", block_size="32", kv_cache_size_tokens="2080")
    text += info(1, num_gpu_blocks="101", block_size="16")
    assert cache_of(text) == (2048 + 1600, "1.79596621219e+09")
    assert cache_of(info(0, kv_cache_size_tokens="999")) == (999, "")
    assert cache_of(info(0, num_gpu_blocks="None", block_size="16")) == (None, "")
    assert cache_of(b"") == (None, "")
