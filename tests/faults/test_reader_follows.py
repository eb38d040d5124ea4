"""A reader that never closes, over rolls, kills of the writer, repairs and retired segments."""

import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from tests.faults.trial import Trial
from tests.store.chains import STREAM, contents, fill, flip, make_chain, make_info, make_store, tokens_of
from tests.store.giving import ChainDonor
from tokenmill.app.segments.retiring import retire
from tokenmill.app.tools.repair import repair_partition
from tokenmill.errors import DamagedError
from tokenmill.store import PartitionReader, open_partition

INFO: Final = make_info(block_tokens=17, segment_blocks=16)
"""As in `WRITE`."""
NOTICED_SECONDS: Final = 60
"""Readers look at the files under them some twenty times a second, and map those that grew again after five seconds."""
KEPT: Final = 96
"""Blocks that retiring leaves at least."""
WRITE: Final = """
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
"""Writes to the end from what it recovered, and says each commit; goes on when it is told to."""


class Follower:
    """A reader that checks every block as soon as it sees it, keeps some views for good, and looks back."""

    def __init__(self, store: Path, tokens: "np.ndarray[tuple[int, int], np.dtype[np.unsignedinteger]]") -> None:
        self.reader: PartitionReader = open_partition(store, STREAM, 0, check=True)
        self.seen = 0
        self.views: list[tuple[int, np.ndarray[tuple[int], np.dtype[np.unsignedinteger]]]] = []
        self._tokens = tokens

    def follow(self, rng: random.Random) -> None:
        """Read what is new, and something old."""
        blocks = self.reader.refresh()
        assert blocks >= self.seen
        assert self.reader.gather(range(self.seen, blocks)).tobytes() == self._tokens[self.seen : blocks].tobytes()
        if blocks > self.seen:
            self.views.append((blocks - 1, self.reader.read(blocks - 1)))
            old = rng.randrange(self.reader.first_block, blocks)
            assert self.reader.read(old).tobytes() == self._tokens[old].tobytes()
            assert self.reader.documents(old)[0].offset == 100 * old
        self.seen = blocks

    def assert_views_stand(self) -> None:
        """Look at every view that was ever taken: the files behind most of them have gone."""
        for number, view in self.views:
            assert view.tobytes() == self._tokens[number].tobytes()


@pytest.mark.fault("reader-follows")
def test_reader_stays_right_whatever_becomes_of_the_files(tmp_path: Path, trial: Trial) -> None:
    """Each block once, in order; a damaged one is refused until it is repaired; no view changes, none is lost."""
    rng, kills = trial.rng, trial.rounds(4, 100)
    blocks = 400 * kills
    chain = make_chain(INFO, blocks)
    store = make_store(tmp_path / "store", INFO)
    follower = Follower(store.path, tokens_of(chain, INFO))
    for round_ in range(kills):
        until = blocks if round_ == kills - 1 else min(follower.seen + rng.randrange(100, 400), blocks)
        trial.fired("writer SIGKILL", _write(store.path, follower, blocks, until, trial))
        _damage_and_repair(store.path, follower, ChainDonor(chain, INFO), trial)
        trial.fired("segments rolled", follower.seen // INFO.segment_blocks - trial.faults["segments rolled"])
    fill(store, INFO, chain, [blocks])
    follower.follow(rng)
    follower.assert_views_stand()
    assert follower.seen == blocks
    calm = make_store(tmp_path / "calm", INFO)
    fill(calm, INFO, chain, [blocks])
    kept = contents(store)
    kept.pop("start.json", None)
    assert kept == {name: data for name, data in contents(calm).items() if name in kept}
    trial.held("reader", "exact", blocks=blocks, views=len(follower.views))


def _write(store: Path, follower: Follower, blocks: int, until: int, trial: Trial) -> int:
    """Run a writer process, retire now and then beside it, and kill it once the reader has come far enough."""
    rng = trial.rng
    command: Sequence[str] = [sys.executable, "-c", WRITE, str(store), str(blocks), str(rng.randrange(1 << 30))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        for line in writer.stdout:
            follower.follow(rng)
            word, number = line.split()
            assert word != "committed" or follower.seen >= int(number)
            if rng.random() < 0.05:
                gone = retire(store, STREAM, 0, max(follower.seen - KEPT, 0)).segments
                trial.fired("segments retired", gone)
            if word == "committed":
                writer.stdin.write("go on\n")
            if follower.seen >= until:
                time.sleep(rng.random() * 0.004)
                writer.kill()
                break
    follower.follow(rng)
    return int(writer.returncode < 0)


def _damage_and_repair(store: Path, follower: Follower, donor: ChainDonor, trial: Trial) -> None:
    """Change a block in the very file that the reader has mapped; it refuses the block, and reads it once repaired."""
    reader = follower.reader
    number = trial.rng.randrange(reader.first_block, follower.seen)
    first = number - number % INFO.segment_blocks
    path = store / STREAM / "0" / f"{first:012d}.bin"
    at = (number - first) * INFO.block_bytes + trial.rng.randrange(INFO.block_bytes)
    before = [view.copy() for _, view in follower.views]
    flip(path, at)
    with pytest.raises(DamagedError, match=rf"{path.name}: block {number}, at byte"):
        _read_again_and_again(reader, number)
    repaired = list(repair_partition(path.parent, INFO, 0, donor))
    assert [found.first for found in repaired] == [first]
    same = [view.tobytes() == old.tobytes() for (_, view), old in zip(follower.views, before, strict=True)]
    assert same.count(False) <= 1  # a view of the damaged block shows the damage, as maps do
    follower.views = [kept for kept, unchanged in zip(follower.views, same, strict=True) if unchanged]
    assert reader.read(number).tobytes() == tokens_at(donor, number)
    trial.fired("block damaged and repaired")


def _read_again_and_again(reader: PartitionReader, number: int) -> None:
    """Read a block that was sound: it is checked again once the file's change was noticed."""
    until = time.monotonic() + NOTICED_SECONDS
    while time.monotonic() < until:
        reader.read(number)
        time.sleep(0.01)


def tokens_at(donor: ChainDonor, number: int) -> bytes:
    """Return a block as it must be."""
    return next(iter(donor(number, number + 1))).tokens
