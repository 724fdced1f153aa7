"""What admission asks of others: the policy in use, and what was learned of token counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from policies.classify import Classifier
    from policies.revisions import Revision


class CurrentPolicy(Protocol):
    """One revision and its classifier (`policy_store.Current`)."""

    @property
    def revision(self) -> Revision:
        """The numbered document."""
        ...

    @property
    def classifier(self) -> Classifier:
        """The document, ready for classifying."""
        ...


class PolicySource(Protocol):
    """Where the revision in use is found (`policy_store.PolicyStore`)."""

    def current(self) -> CurrentPolicy:
        """What holds now; a new object for each revision."""
        ...


class Scales(Protocol):
    """Corrections of the token estimate (`policies.tokens.Calibration`)."""

    def scale(self, model: str) -> float:
        """Factor from estimated to real tokens; 1 where nothing was observed."""
        ...


class OutputLengths(Protocol):
    """Learned output lengths."""

    def expect(self, tenant: str, route: str, limit: int | None, model: str) -> tuple[int, int]:
        """(expected, 90th percentile) output tokens of a tenant's answer of a model on a route, within `limit`."""
        ...
