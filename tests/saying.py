"""Says what a process is given, and ends as it is told: ``python -m tests.saying``, for tests of `tests.forked`."""

import os
import signal
import sys
from pathlib import Path

if __name__ == "__main__":
    with os.fdopen(int(os.environ["PIPE"]), "w") as pipe:
        pipe.write("through the pipe")
    print(*sys.argv[1:], sorted(os.environ), os.getsid(0) == os.getpid(), Path.cwd())  # noqa: T201
    threads = [*Path(f"/proc/{os.getppid()}/task").iterdir()]
    print("loaded" if "tests.loaded" in sys.modules else "new", len(threads))  # noqa: T201
    print("an error", file=sys.stderr)  # noqa: T201
    if sys.argv[1] == "wait":
        signal.pause()
    sys.exit(7)
