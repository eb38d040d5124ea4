"""What the processes of a test run would otherwise make several times at once, made once.

``python -m tests.warm_up kernels bytecode java`` makes these three; the tests pass without any of them.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tokenmill.app.local.broker import Broker
from tokenmill.app.processes import Process

PARTS: Final = {
    # Machine code of filters: half a minute, as long as the other two together.
    "kernels": ("-c", "from tokenmill.app.milling.curation.choosing import compile_kernels; compile_kernels()"),
    # All modules, and the tests as pytest rewrites them.
    "bytecode": ("-m", "pytest", "--collect-only", "--quiet", "-p", "no:cacheprovider"),
    "java": ("-c", "from tests.warm_up import cache_java; cache_java()"),
}
VARIABLE: Final = "JAVA_TOOL_OPTIONS"
CACHE: Final = Path(sys.prefix) / "kafka.aot"
"""What Java makes of Kafka's classes: a broker starts in half the time. Java ignores a file that fits no longer."""
QUICK: Final = "-XX:TieredStopAtLevel=1"
"""A broker of the tests lives for minutes at most: the quick compiler alone takes a third off its start."""


def java_options() -> str:
    return f"{QUICK} '-XX:AOTCache={CACHE}' -Xlog:disable" if CACHE.exists() else QUICK


def cache_java() -> None:
    """Run a broker, and keep what Java has loaded for it."""
    new = CACHE.with_suffix(".new")
    os.environ[VARIABLE] = f"{QUICK} '-XX:AOTCacheOutput={new}'"
    with TemporaryDirectory() as directory, Broker(Path(directory)) as broker:
        process = Process.load(broker.directory / "broker.pid")
        assert process is not None
        process.signal(signal.SIGTERM)
        ended = process.ends_within(120.0)  # Java writes the file then, in some three seconds
    if not (ended and new.exists()):
        sys.exit(f"Java has written no {new}: brokers of the tests start as they do elsewhere")
    new.replace(CACHE)


def main(names: Sequence[str]) -> int:
    """Make these parts, side by side, and say which failed; return the exit code, 0 if none has."""
    with ThreadPoolExecutor(len(PARTS)) as pool:
        made = dict(zip(names, pool.map(_make, names), strict=True))
    failed = {name: process for name, process in made.items() if process.returncode}
    for name, process in failed.items():
        why = f"not made for the tests, which go on without: {name} (exit code {process.returncode})"
        sys.stderr.write(f"{process.stdout[-2000:]}\n{why}\n")
    return int(bool(failed))


def _make(name: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, *PARTS[name]]
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
