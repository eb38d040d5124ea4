"""A writer process that is killed at random moments, while a reader in another process follows."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.store.chains import STREAM, contents, fill, make_chain, make_info, make_store, tokens_of
from tokenmill.store import PartitionReader, open_partition

INFO = make_info(block_tokens=17, segment_blocks=16)
BLOCKS = 2000
CHAIN = make_chain(INFO, BLOCKS)
TOKENS = tokens_of(CHAIN, INFO)
KILLS = 6

WRITE = """
import random, sys
from tests.store.chains import STREAM, cut, make_chain, make_info
from tokenmill.store import PartitionWriter, Store

info = make_info(block_tokens=17, segment_blocks=16)
chain = make_chain(info, int(sys.argv[2]))
rng = random.Random(int(sys.argv[3]))
writer = PartitionWriter.open(Store.open(sys.argv[1]), STREAM, 0)
print("recovered", writer.truncated_bytes, flush=True)
while writer.next_block < int(sys.argv[2]):
    for _ in range(rng.randint(1, 3)):
        end = min(writer.next_block + rng.randint(1, 20), int(sys.argv[2]))
        if end > writer.next_block:
            writer.append(cut(chain, info, writer.next_block, end), token_offset=end)
    writer.commit()
    print("committed", writer.next_block, flush=True)
    sys.stdin.readline()
"""
LONGEST_DELAY = 0.004
"""Seconds between a writer's going on and its death: longer than some commits take, shorter than others."""


class Follower:
    """A reader that checks every block as soon as it sees it."""

    def __init__(self, store: Path) -> None:
        self.reader: PartitionReader = open_partition(store, STREAM, 0, check=True)
        self.seen = 0

    def follow(self) -> None:
        """See what is new."""
        blocks = self.reader.refresh()
        assert blocks >= self.seen
        assert self.reader.gather(range(self.seen, blocks)).tobytes() == TOKENS[self.seen : blocks].tobytes()
        if blocks > self.seen:
            assert self.reader.documents(blocks - 1)[0].offset == 100 * (blocks - 1)
        self.seen = blocks


def run(store: Path, follower: Follower, rng: random.Random) -> int:
    """Run a writer, kill it somewhere, and return the number of blocks that it said were committed."""
    command = [sys.executable, "-c", WRITE, str(store), str(BLOCKS), str(rng.randrange(1 << 30))]
    committed, killed = 0, False
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        for line in writer.stdout:
            word, number = line.split()
            committed = int(number) if word == "committed" else committed
            follower.follow()
            if word == "committed" and committed < BLOCKS and not killed:
                writer.stdin.write("go on\n")
                if rng.random() < 0.1:
                    time.sleep(rng.random() * LONGEST_DELAY)
                    writer.kill()
                    killed = True  # what it said before is read to the end
    return committed


@pytest.mark.slow
@pytest.mark.needs("minutes")
def test_a_killed_writer_loses_nothing_that_it_committed(tmp_path: Path) -> None:
    """And what the next one writes makes the same files as one that nobody killed."""
    store = make_store(tmp_path / "killed", INFO)
    rng = random.Random(3)
    follower = Follower(store.path)
    kills = 0
    while follower.seen < BLOCKS:
        committed = run(store.path, follower, rng)
        follower.follow()
        assert follower.seen >= committed
        kills += follower.seen < BLOCKS
        if kills >= KILLS:
            fill(store, INFO, CHAIN, [BLOCKS])
    assert kills >= 3
    calm = make_store(tmp_path / "calm", INFO)
    fill(calm, INFO, CHAIN, [BLOCKS])
    assert contents(store) == contents(calm)
