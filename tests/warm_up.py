"""What the processes of a test run would otherwise make several times at once, made once.

``python -m tests.warm_up kernels bytecode java`` makes these three; the tests pass without any of them.
"""

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

PARTS: Final = {
    # Machine code of filters: half a minute, as long as the other two together.
    "kernels": ("-c", "from tokenmill.app.milling.curation.choosing import compile_kernels; compile_kernels()"),
    # All modules, and the tests as pytest rewrites them.
    "bytecode": ("-m", "pytest", "--collect-only", "--quiet", "-p", "no:cacheprovider"),
    # Kafka's classes as Java keeps them.
    "java": ("-m", "tests.java_cache"),
}
SHOWN: Final = 2000
"""Characters of what a part that failed has said."""


def main(names: Sequence[str]) -> int:
    """Make these parts, side by side, and say which failed; return the exit code, 0 if none has."""
    with ThreadPoolExecutor(len(PARTS)) as pool:
        made = dict(zip(names, pool.map(_make, names), strict=True))
    failed = {name: process for name, process in made.items() if process.returncode}
    for name, process in failed.items():
        sys.stderr.write(
            f"{process.stdout[-SHOWN:]}\nnot made for the tests, which go on without: {name} (exit code "
            f"{process.returncode})\n"
        )
    return int(bool(failed))


def _make(name: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *PARTS[name]],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
