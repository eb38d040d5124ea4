"""A process that reads all partitions of a store while the store is filled: it must see every block, and never die."""

import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, Self

from tokenmill.errors import DamagedError, StoreError
from tokenmill.store import PartitionReader, open_partition, partitions_in, streams_in

ROOT: Final = Path(__file__).parents[2]
PAUSE_SECONDS: Final = 0.2


class Following:
    """The process, from entry to exit; `blocks` once it has ended."""

    def __init__(self, store: Path) -> None:
        self.blocks = 0
        """How many blocks it read, each once and checked."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.store_follower", str(store)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._process.kill()
        words = self._process.communicate()[0]
        if kind is None:
            assert self._process.returncode == 0, f"the reader ended with {self._process.returncode}"
            self.blocks = int(words)


def follow(store: Path) -> int:
    """Read until standard input ends and nothing new is there; return the number of blocks."""
    readers: dict[tuple[str, int], PartitionReader] = {}
    seen: dict[tuple[str, int], int] = {}
    stopping = False
    while True:
        new = 0
        for stream in streams_in(store):
            for partition in partitions_in(store, stream):
                key = (stream, partition)
                try:
                    reader = readers.get(key) or open_partition(store, stream, partition, check=True)
                    blocks = _read(reader, seen.get(key, 0))
                except (DamagedError, StoreError):
                    if store.exists():
                        raise
                    break  # a test moved it away: there is another look
                new += blocks - seen.get(key, 0)
                readers[key], seen[key] = reader, blocks
        if stopping and not new:
            return sum(seen.values())
        stopping = stopping or not wait_for_input()
        time.sleep(PAUSE_SECONDS)


def _read(reader: PartitionReader, seen: int) -> int:
    """Read what is new, tokens and documents; return how many blocks there are."""
    blocks = reader.refresh()
    assert blocks >= seen
    reader.gather(range(seen, blocks))
    for number in range(seen, blocks):
        reader.documents(number)
    return blocks


def wait_for_input() -> bool:
    """Return whether standard input is still open; never waits."""
    return not select.select([sys.stdin], [], [], 0)[0]


if __name__ == "__main__":
    try:
        print(follow(Path(sys.argv[1])))  # noqa: T201 - its answer
    except StoreError as error:
        sys.exit(str(error))
