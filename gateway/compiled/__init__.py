"""The core as machine code, for those who have a C compiler: the same modules, made by mypyc from the same source.

The source is what counts. `build.py` puts the result beside the environment's packages, where `hook.py` finds it for as
long as the source that it was made from is the source that is there; everything else runs as plain Python, as it does
where nothing was compiled.
"""

from __future__ import annotations


def in_use() -> bool:
    """Whether this process runs the compiled core."""
    import policies.work

    return not (policies.work.__file__ or ".py").endswith(".py")
