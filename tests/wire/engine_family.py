"""A program with a family as engines have them, for tests of what ends it: `python engine_family.py [deaf]`.

It prints `family`, its own process id, that of a child that is deaf to SIGTERM, and that of a grandchild that made a
session of its own, has an empty environment, and lost its parent.
"""

import os
import signal
import subprocess
import sys
import time

MIDDLE = """
import subprocess
print(subprocess.Popen(["/bin/sleep", "600"], start_new_session=True, env={}).pid, flush=True)
"""


def main():
    if sys.argv[1:] == ["deaf"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    deaf = subprocess.Popen(["/bin/sh", "-c", "trap '' TERM; while :; do sleep 600; done"])
    middle = subprocess.Popen([sys.executable, "-S", "-c", MIDDLE], stdout=subprocess.PIPE)
    stray = int(middle.stdout.readline())
    middle.wait()
    print("family", os.getpid(), deaf.pid, stray, flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main()
