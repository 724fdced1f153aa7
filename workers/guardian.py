"""Stands over one engine: `python -I -S guardian.py LOG MAX_BYTES KEEP PROGRAM ARG…`. Imports nothing of this project.

An engine is a family: vLLM's API server has an engine core, which has workers, and a killed parent leaves the others
holding the device. `PR_SET_PDEATHSIG` reaches direct children only, so this small process stands between:

1. Its standard input is a pipe of which only the supervisor has the other end. When that ends, however the supervisor
   ended, everything below is killed. The supervisor also closes it on purpose, to kill at once.
2. The engine gets a process group of its own, and dies with this process should somebody kill that (PDEATHSIG).
3. It is the reaper of whatever the engine's family leaves orphaned (PR_SET_CHILD_SUBREAPER), so "no child is left"
   means that nobody is left, also of those that made sessions of their own.
4. SIGTERM is passed to the engine's first process alone: it knows how to end its family in order.
5. What the family prints goes to LOG, which is rotated: at most KEEP older files of MAX_BYTES. A full disk loses lines,
   never the engine.
6. It ends as the engine ended, after all of the family: same status, or by the same signal.

Its first line on standard output is the engine's process id.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
EXIT_NOT_FOUND = 127  # as shells have it
EXIT_ORPHANED = 125
PIECE = 65536
KILL_S = 20.0  # a process that survives SIGKILL this long hangs in a driver
POLL_S = 0.02
SUPERVISOR = 0  # descriptor of the lifeline


def prctl(option: int, value: int) -> None:
    """Ask the kernel for something about this process; nothing elsewhere than on Linux."""
    if sys.platform != "linux":
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")


class Log:
    """A file that never grows past `max_bytes`, and `keep` older ones. Trouble with the disk only loses lines."""

    def __init__(self, path: str, max_bytes: int, keep: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._file: int | None = None
        self._size = 0
        self._lost = 0

    def write(self, data: bytes) -> None:
        """Append, after making room."""
        try:
            if self._file is not None and self._size + len(data) > self._max_bytes:
                self._rotate()
            if self._file is None:
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
                self._size = os.fstat(self._file).st_size
                if self._size + len(data) > self._max_bytes:
                    self._rotate()
                    self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
            if self._lost:
                os.write(self._file, b"[guardian] %d bytes of output could not be written\n" % self._lost)
                self._lost = 0
            self._size += os.write(self._file, data)
        except OSError:
            # Told in the log itself as soon as that can be written again: there is no other place.
            self._lost += len(data)

    def _rotate(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file, self._size = None, 0
        for number in range(self._keep, 0, -1):
            older = self._path if number == 1 else f"{self._path}.{number - 1}"
            if os.path.exists(older):
                os.replace(older, f"{self._path}.{number}")
        if self._keep == 0:
            os.unlink(self._path)


def start_engine(argv: list[str], output: int) -> int:
    """Fork and execute the engine; return its process id, which is also its group's."""
    guardian = os.getpid()
    # Until the child has its own way with it, a SIGTERM must wait: our handler there would swallow it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        return pid
    status = EXIT_NOT_FOUND
    try:
        os.setpgid(0, 0)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guardian:  # it was killed before the tie was made
            os._exit(EXIT_ORPHANED)
        for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        os.execvp(argv[0], argv)  # noqa: S606 - an argument list, as it came
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(status)


def has_ended(engine: int) -> bool:
    """Whether the engine's first process ended; it stays unreaped. Reaps orphans of its family on the way."""
    while True:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return False
        if ended.si_pid == engine:
            return True
        os.waitpid(ended.si_pid, 0)


def descendants() -> list[int]:
    """Process ids of everyone below this process, as /proc tells it; children first."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, IndexError):
            continue  # ended meanwhile
        children.setdefault(parent, []).append(int(name))
    found = [os.getpid()]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found[1:]


def end_all(engine: int) -> int:
    """Kill everyone that is left and reap them; return the engine's wait status."""
    status = 0
    kill_group(engine)  # unreaped, so its id is still its own
    deadline = time.monotonic() + KILL_S
    while time.monotonic() < deadline:
        for pid in descendants():
            kill(pid, signal.SIGKILL)
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == engine:
                    status = ended[1]
        except ChildProcessError:
            return status
        time.sleep(POLL_S)
    return status or signal.SIGKILL


def kill_group(engine: int) -> None:
    """SIGKILL to the engine's group, which may be empty."""
    try:
        os.killpg(engine, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # nobody left but the ended leader


def kill(pid: int, number: int) -> None:
    """A signal to somebody who may have ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def end_as(status: int) -> int:
    """The exit status for the engine's wait status; does not return when a signal ended the engine."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the engine has left its core, if anybody
    if -code not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-code, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [-code])
    os.kill(os.getpid(), -code)
    return 128 - code


class Guardian:
    """The loop: lifeline, output, signals, until the engine or the supervisor ends."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._wake, wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._asked = False
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: object) -> None:
        self._asked = True

    def run(self, argv: list[str]) -> int:
        """Start the engine, stand over it, and return its wait status once all of it is gone."""
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        output, inlet = os.pipe()
        engine = start_engine(argv, inlet)
        os.close(inlet)
        os.write(1, b"%d\n" % engine)
        os.close(1)
        watched = {SUPERVISOR, output, self._wake}
        while not has_ended(engine):
            if self._asked:
                self._asked = False
                kill(engine, signal.SIGTERM)
            readable, _, _ = select.select(watched, (), ())
            if self._wake in readable:
                os.read(self._wake, PIECE)
            if output in readable and not self._copy(output):
                watched.discard(output)
            if SUPERVISOR in readable and not os.read(SUPERVISOR, PIECE):
                break
        status = end_all(engine)
        # All writers are gone, so what is left in the pipe ends by itself; unless one hangs in a driver.
        while output in watched and select.select([output], (), (), 0)[0] and self._copy(output):
            continue
        return status

    def _copy(self, output: int) -> bool:
        piece = os.read(output, PIECE)
        if piece:
            self._log.write(piece)
        return bool(piece)


def main(argv: list[str]) -> int:
    """`argv` as in the first line of this file."""
    log = Log(argv[1], int(argv[2]), int(argv[3]))
    return end_as(Guardian(log).run(argv[4:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv))
