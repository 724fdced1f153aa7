"""Tie a program's life to its parent's, then become it: `python -I -S process_launcher.py PARENT_PID PROGRAM ARG…`.

Linux sends a process the signal set by `PR_SET_PDEATHSIG` when the thread that started it ends, even by SIGKILL, so a
killed parent leaves no child. The setting survives `exec` but must be made in the child. `preexec_fn` would run Python
between fork and exec of a process that may have threads, and costs the cheap `vfork`; a program of its own has neither
problem, needs no more than this file, and is gone after a few milliseconds.

Elsewhere than on Linux it only executes the program: there a killed parent's children must be ended by hand.
"""

import os
import signal
import sys

PR_SET_PDEATHSIG = 1
EXIT_ORPHANED = 125  # the parent died before the tie was made
EXIT_NOT_FOUND = 127  # as shells have it


def bind_to_parent(parent_pid: int) -> bool:
    """Have the kernel kill this process when its parent dies. False: the parent is gone already."""
    if sys.platform != "linux":
        return True
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl(PR_SET_PDEATHSIG): {os.strerror(error)}")
    # A parent that died before the call sends nothing any more; then somebody else is our parent by now.
    return os.getppid() == parent_pid


def main(argv: list[str]) -> int:
    """Bind and execute; returns only when that failed."""
    if not bind_to_parent(int(argv[1])):
        return EXIT_ORPHANED
    try:
        os.execvp(argv[2], argv[2:])  # noqa: S606 - an argument list, as it came
    except OSError as error:
        print(f"{argv[2]}: {error.strerror}", file=sys.stderr)  # noqa: T201 - its parent reads this
        return EXIT_NOT_FOUND


if __name__ == "__main__":
    sys.exit(main(sys.argv))
