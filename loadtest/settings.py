"""What the environment says to the measuring side: what processes that it starts must not hear of it."""

from __future__ import annotations

import os
from collections.abc import Mapping

PREFIX = "HEADRACE_"


def environment_of_children(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment without what is said there to an installation on this host.

    Each `HEADRACE_…` would take precedence over the settings file of a gateway that is started for a suite.
    """
    return {name: value for name, value in environ.items() if not name.upper().startswith(PREFIX)}
