"""Clients that leave and engines that die."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from real_support import MODEL, until

IGNORE_EOS = {"ignore_eos": True}
LONG_ANSWER = 1500


def chat(client, **more):
    options = {"max_tokens": LONG_ANSWER, "extra_body": IGNORE_EOS} | more
    return client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Tell me about the sea."}], **options
    )


def test_a_client_that_leaves_stops_the_engines_work(fleet, client):
    fleet.wait_idle()
    before = made(fleet)
    stream = chat(client, stream=True)
    for _ in zip(range(5), stream, strict=False):
        pass
    assert running(fleet) == 1
    stream.close()
    until(lambda: running(fleet) == 0, 3.0, "the engine's work to stop")
    assert made(fleet) - before < LONG_ANSWER / 2
    fleet.wait_idle()


def running(fleet):
    """Requests in the engines' batches: a short request may run as a guest of the other pool."""
    return sum(fleet.engines.reading(worker).running for worker in ("short", "long"))


def made(fleet):
    """Tokens the engines have generated."""
    return sum(fleet.engines.reading(worker).generation_tokens for worker in ("short", "long"))


def test_a_client_that_leaves_before_a_whole_answer_stops_it_too(fleet, client):
    fleet.wait_idle()
    before = made(fleet)
    with pytest.raises(openai.APITimeoutError):
        chat(client, timeout=0.5)
    until(lambda: running(fleet) == 0, 3.0, "the engine's work to stop")
    assert made(fleet) - before < LONG_ANSWER
    fleet.wait_idle()


@pytest.fixture
def doomed(fleet):
    """The short engine; alive again afterwards."""
    fleet.wait_idle()
    yield fleet.engines.servers["short"]
    if fleet.engines.servers["short"].ended.is_set():
        fleet.engines.restart("short")
        fleet.wait_ready("short")


class Call:
    """One request on a thread of its own: what came of it, and when its first event came."""

    def __init__(self, client, stream):
        self.stream = stream
        self.first_event_at = None
        self.done = False
        self.error = None
        self.thread = threading.Thread(target=self._run, args=(client,))
        self.thread.start()

    def _run(self, client):
        try:
            if not self.stream:
                answer = chat(client, max_tokens=400)
                self.done = answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 400
                return
            finish = None
            for chunk in chat(client, max_tokens=400, stream=True):
                if self.first_event_at is None:
                    self.first_event_at = time.monotonic()
                finish = chunk.choices[0].finish_reason
            self.done = finish == "length"
        except openai.OpenAIError as error:
            self.error = error


def test_an_engine_killed_costs_no_request_that_had_not_streamed(fleet, client, doomed):
    calls = [Call(client, stream=index % 2 == 1) for index in range(16)]
    until(lambda: sum(call.first_event_at is not None for call in calls) >= 2, what="streams that have begun")
    doomed.kill()
    for call in calls:
        call.thread.join(90)
        assert not call.thread.is_alive()
    # Those cut off had begun to stream and are told so; a broken stream must never look complete.
    cut = [call for call in calls if call.error is not None]
    assert all(call.first_event_at is not None for call in cut)
    whole = [call for call in calls if call.error is None]
    assert len(whole) >= 8
    assert all(call.done for call in whole)
    fleet.engines.wait_reported("short", "unreachable")


def test_an_engine_started_again_is_a_new_incarnation_that_works(fleet, client, doomed):
    before = fleet.engines.report("short").incarnation
    doomed.kill()
    fleet.engines.wait_reported("short", "unreachable")
    assert chat(client, max_tokens=4).usage.completion_tokens == 4  # borrowed from the long pool
    fleet.engines.restart("short")
    fleet.wait_ready("short")
    assert fleet.engines.report("short").incarnation != before

    def worker_of(number):
        raw = client.chat.completions.with_raw_response.create(
            model=MODEL, messages=[{"role": "user", "content": f"{number} hello"}], max_tokens=64
        )
        return raw.headers["x-headrace-worker"]

    def served_by_short():
        # Several at once: one alone may be a guest of the other pool, where nothing waits either.
        with ThreadPoolExecutor(8) as threads:
            return "short" in threads.map(worker_of, range(8))

    until(served_by_short, 30, "the new engine to get work")
