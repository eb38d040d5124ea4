"""Says what a process is given, and ends as it is told: ``python -m tests.saying``, for tests of `tests.forked`."""

import os
import signal
import sys

if __name__ == "__main__":
    with os.fdopen(int(os.environ["PIPE"]), "w") as pipe:
        pipe.write("through the pipe")
    print(*sys.argv[1:], sorted(os.environ), os.getsid(0) == os.getpid())  # noqa: T201
    print("an error", file=sys.stderr)  # noqa: T201
    if sys.argv[1] == "wait":
        signal.pause()
    sys.exit(7)
