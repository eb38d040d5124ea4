"""A process that lives the scripted life of a store (`tests.faults.scripted`), as often as it is asked to.

For each directory that it reads from standard input, it forks a child, says the child's process id, and waits for a
line before it lets the child go: time for strace to attach. What the child was told to be durable is a line of JSON
each in ``said`` beside the store.
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from tests.faults.scripted import Acknowledged, Script


def live(root: Path, log: int) -> None:
    """Live the life below ``root``."""
    said = Acknowledged()
    script = Script(root, said, on_step=lambda: write_line(log, json.dumps(asdict(said))))
    script.on_error = lambda error: write_line(log, json.dumps(asdict(said) | {"error": str(error)}))
    script.run()


def write_line(descriptor: int, line: str) -> None:
    """Write by a call that the store never makes."""
    os.write(descriptor, line.encode() + b"\n")


def main() -> None:
    """Serve until standard input ends; the wait status of each child is said, too."""
    for line in sys.stdin:
        root = Path(line.strip())
        ours, its = os.pipe()
        child = os.fork()
        if child == 0:
            log = os.open(root / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.read(ours, 1)
            live(root, log)
            os._exit(0)
        print(child, flush=True)  # noqa: T201 - it is asked to
        sys.stdin.readline()
        os.write(its, b"!")
        print(os.waitpid(child, 0)[1], flush=True)  # noqa: T201
        os.close(ours)
        os.close(its)


if __name__ == "__main__":
    main()
