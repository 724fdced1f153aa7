"""What finished requests teach: how estimates compare with the engines' own counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from policies.tokens import Calibration

if TYPE_CHECKING:
    from gateway.records import RequestRecord

EXPECTED_OUTPUT = 128
P90_OUTPUT = 512


class Learning:
    """Holds what was learned and learns on."""

    def __init__(self) -> None:
        self.calibration = Calibration()
        self.outputs = self

    def expect(self, tenant: str, route: str, limit: int | None) -> tuple[int, int]:
        """(expected, 90th percentile) output tokens."""
        if limit is None:
            return EXPECTED_OUTPUT, P90_OUTPUT
        return min(EXPECTED_OUTPUT, limit), min(P90_OUTPUT, limit)

    def finished(self, record: RequestRecord) -> None:
        """Compare estimate and count of a request that ended well."""
        if record.outcome == "ok" and record.prompt_tokens is not None:
            self.calibration.observe(record.model, record.estimate_raw, record.prompt_tokens)
