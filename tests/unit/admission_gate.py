"""An Admission with a real policy, classifier and key file, for tests that ask it things."""

import json
from collections.abc import Mapping
from pathlib import Path

from gateway.admission import Admission, Admitted, LocalAnswer
from gateway.errors import ErrorAnswer
from gateway.http.messages import RawRequest
from gateway.keys import KeyStore
from gateway.policy_store import Current
from policies.classify import Classifier
from policies.document import policy_from_mapping
from policies.revisions import first_revision, next_revision

NOW = 1000.0
HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "Hello, water."}]}


class Source:
    """A policy that a test may change."""

    def __init__(self, document: Mapping[str, object]) -> None:
        policy = policy_from_mapping(document)
        self.now = Current(first_revision(policy, "", 500.0, "test"), Classifier(policy))

    def adopt(self, document: Mapping[str, object]) -> None:
        policy = policy_from_mapping(document)
        self.now = Current(next_revision(self.now.revision, policy, "", "test", "", 600.0), Classifier(policy))

    def current(self) -> Current:
        return self.now


class Twice:
    """Calibration that doubles, and output lengths that are known."""

    def scale(self, model: str) -> float:
        return 2.0

    def expect(self, tenant: str, route: str, limit: int | None, model: str) -> tuple[int, int]:
        return 30, 90


class Gate:
    """An Admission with everything it needs."""

    def __init__(
        self,
        document: Mapping[str, object] | None = None,
        keys: Path | None = None,
        fleet: Mapping[str, int | None] | None = None,
    ) -> None:
        self.source = Source(document or {})
        self.fleet = {"tiny": 4096} if fleet is None else fleet
        self.ready = (True, "3 workers")
        learned = Twice()
        self.admission = Admission(
            self.source,
            KeyStore(keys),
            learned,
            learned,
            lambda: self.fleet,
            lambda: NOW,
            lambda: self.ready,
        )

    def ask(
        self, path: str, body: object = b"", *headers: tuple[bytes, bytes], method: str = "POST", peer: str = "10.0.0.1"
    ) -> Admitted | LocalAnswer | ErrorAnswer:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.admission.admit(RawRequest(method, path, b"", list(headers), raw, peer=peer), "req-1")

    def admitted(self, body: object, *headers: tuple[bytes, bytes], path: str = "/v1/chat/completions") -> Admitted:
        answer = self.ask(path, body, *headers)
        assert isinstance(answer, Admitted), answer
        return answer

    def refused(self, body: object, *headers: tuple[bytes, bytes], path: str = "/v1/chat/completions") -> ErrorAnswer:
        answer = self.ask(path, body, *headers)
        assert isinstance(answer, ErrorAnswer), answer
        return answer

    def local(self, path: str, *headers: tuple[bytes, bytes]) -> LocalAnswer:
        answer = self.ask(path, b"", *headers, method="GET")
        assert isinstance(answer, LocalAnswer), answer
        return answer
