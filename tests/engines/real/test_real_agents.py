"""What agents report of real engines, without a gateway."""

import os
import signal

from live_conformance import check_engine
from real_support import LONG_LENGTH, MODEL, SEQUENCES, SHORT_LENGTH, kv_tokens

from workers.engines.vllm import VLLM


def test_vllm_conforms(engines):
    check_engine(VLLM, engines.servers["short"].url, MODEL)


def test_reports_say_what_the_engines_are(engines):
    for name, pool, length in (("short", "short-chat", SHORT_LENGTH), ("long", "long-context", LONG_LENGTH)):
        report = engines.wait_reported(name)
        assert (report.engine, report.pool, report.models) == ("vllm", pool, (MODEL,))
        assert report.url == engines.servers[name].url
        assert (report.max_model_len, report.max_num_seqs) == (length, SEQUENCES)
        assert report.kv_tokens == kv_tokens(length)
        assert report.version.startswith("0.32.0")
        assert report.supports_continuation


def test_a_hanging_engine_is_unreachable_and_comes_back_as_the_same(engines):
    before = engines.wait_reported("short")
    os.killpg(engines.servers["short"].pid, signal.SIGSTOP)
    try:
        hanging = engines.wait_reported("short", "unreachable")
        assert hanging.kv_usage is None
    finally:
        os.killpg(engines.servers["short"].pid, signal.SIGCONT)
    after = engines.wait_reported("short")
    assert after.incarnation == before.incarnation
    assert after.sequence > hanging.sequence > before.sequence


def test_an_engine_killed_and_started_again_is_another_incarnation(engines):
    before = engines.wait_reported("short")
    engines.servers["short"].kill()
    engines.wait_reported("short", "unreachable")
    after = engines.restart("short")
    assert after.incarnation != before.incarnation
    assert after.generation_tokens == 0
