"""What finished requests teach: how estimates compare with the engines' own counts, and how long outputs get."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from gateway.records import Terminal
from policies.endpoints import GENERATING
from policies.outputs import OutputLengths
from policies.tokens import Calibration

if TYPE_CHECKING:
    from gateway.records import RequestRecord

_OK: Final = Terminal.OK
_GENERATING: Final = frozenset(endpoint.value for endpoint in GENERATING)


class Learning:
    """Holds what was learned and learns on."""

    def __init__(self) -> None:
        self.calibration = Calibration()
        self.outputs = OutputLengths()
        self.learned = 0
        """How many requests taught something so far."""

    def finished(self, record: RequestRecord) -> None:
        """Learn from a request that ended well."""
        if record.outcome is not _OK:
            return
        if record.prompt_tokens is not None:
            self.calibration.observe(record.model, record.estimate_raw, record.prompt_tokens)
            self.learned += 1
        if record.output_tokens is not None and record.endpoint in _GENERATING:
            limit, tokens = record.max_output_tokens, record.output_tokens
            self.outputs.observe(record.tenant, record.endpoint, limit, tokens, record.model)
            self.learned += 1

    def snapshot(self) -> dict[str, object]:
        """What was learned, as JSON has it; nothing of any text."""
        return {"calibration": self.calibration.snapshot(), "outputs": self.outputs.snapshot()}

    def restore(self, document: object) -> int:
        """Take over an earlier snapshot; how many of its entries made sense. What is known already stays."""
        if not isinstance(document, Mapping):
            return 0
        taken = 0
        calibration, outputs = document.get("calibration"), document.get("outputs")
        if isinstance(calibration, Mapping):
            taken += self.calibration.restore(calibration)
        if isinstance(outputs, Mapping):
            taken += self.outputs.restore(outputs)
        return taken
