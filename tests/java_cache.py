"""What Java makes of Kafka's classes, kept in a file, with which a broker starts in half the time.

`make test` makes it once (`tests/warm_up.py`): ``python -m tests.java_cache``. Without it, and with one that fits no
longer, brokers start as they do elsewhere.
"""

import os
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tokenmill.app.local.broker import Broker
from tokenmill.app.processes import Process

VARIABLE: Final = "JAVA_TOOL_OPTIONS"
CACHE: Final = Path(sys.prefix) / "kafka.aot"
QUICK: Final = "-XX:TieredStopAtLevel=1"
"""A broker of the tests lives for minutes at most: the quick compiler alone takes a third off its start."""
SECONDS: Final = 120.0
"""For writing the file, which takes three."""


def java_options() -> str:
    return f"{QUICK} '-XX:AOTCache={CACHE}' -Xlog:disable" if CACHE.exists() else QUICK


def make_cache() -> None:
    new = CACHE.with_suffix(".new")
    os.environ[VARIABLE] = f"{QUICK} '-XX:AOTCacheOutput={new}'"
    with TemporaryDirectory() as directory, Broker(Path(directory)) as broker:
        process = Process.load(broker.directory / "broker.pid")
        assert process is not None
        process.signal(signal.SIGTERM)
        ended = process.ends_within(SECONDS)  # Java writes the file then
    if not (ended and new.exists()):
        sys.exit(f"Java has written no {new}: brokers of the tests start as they do elsewhere")
    new.replace(CACHE)


if __name__ == "__main__":
    make_cache()
