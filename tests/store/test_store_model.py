"""The store against a list: append, commit, crash, open again, roll, read, retire, damage and repair, in any order."""

import random
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.store.chains import STREAM, cut, directory_of, make_chain, make_info, make_store, tokens_of
from tests.store.harm import ChainDonor
from tokenmill.app.segments.retiring import retire
from tokenmill.app.tools.repair import repair_partition
from tokenmill.store import PartitionWriter, open_partition

INFO = make_info(segment_blocks=5)
CHAIN = make_chain(INFO, 60)
TOKENS = tokens_of(CHAIN, INFO)


class StoreModel(RuleBasedStateMachine):
    """One writer that crashes, one reader that stays, and three numbers that say what must be there."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp())
        self.store = make_store(self.path, INFO)
        self.reader = open_partition(self.path, STREAM, 0, check=True)
        self.writer = PartitionWriter.open(self.store, STREAM, 0)
        self.first = 0
        self.appended = 0
        self.committed = 0

    @rule(count=st.integers(1, 12))
    def append(self, count: int) -> None:
        """Append blocks; those that fill a segment are committed at once."""
        end = min(self.appended + count, 60)
        if end > self.appended:
            self.writer.append(cut(CHAIN, INFO, self.appended, end), token_offset=end)
        self.appended = end
        self.committed = max(self.committed, end - end % 5)

    @rule()
    def commit(self) -> None:
        self.writer.commit()
        self.committed = self.appended

    @rule(seed=st.integers(0, 1_000_000))
    def crash(self, seed: int) -> None:
        """End the process; what was not synced is there, not there, torn or changed."""
        self.writer.close()
        rng = random.Random(seed)
        first = self.committed - self.committed % 5
        table = sum(len(entry) for entry in CHAIN.entries[first : self.committed])
        for suffix, kept in (("bin", (self.committed - first) * INFO.block_bytes), ("docs", table)):
            file = directory_of(self.store) / f"{first:012d}.{suffix}"
            file.touch()
            data = file.read_bytes()
            tail = bytearray(data[kept : kept + rng.randint(0, len(data) - kept)]) + rng.randbytes(rng.choice([0, 3]))
            if tail and rng.random() < 0.5:
                tail[rng.randrange(len(tail))] ^= 0xFF
            file.write_bytes(data[:kept] + tail)
        with (directory_of(self.store) / f"{first:012d}.commits").open("ab") as log:
            log.write(rng.randbytes(rng.choice([0, 0, 1, 70])))
        self.appended = self.committed
        self.open_again()

    @rule()
    def open_again(self) -> None:
        """End cleanly; what was not committed is given up."""
        self.writer.close()
        self.writer = PartitionWriter.open(self.store, STREAM, 0)
        self.appended = self.committed
        assert self.writer.next_block == self.committed
        assert self.writer.chain == (
            CHAIN.chains[self.committed - 1] if self.committed else self.writer.chain_before(0)
        )

    @rule(data=st.data())
    def gather(self, data: st.DataObject) -> None:
        numbers = data.draw(st.lists(st.integers(self.first, max(self.committed - 1, self.first)), max_size=20))
        if self.committed > self.first:
            assert self.reader.gather(numbers).tobytes() == TOKENS[numbers].tobytes()

    @rule(below=st.integers(0, 60))
    def retire(self, below: int) -> None:
        """Free old segments beside the writer; the newest sealed one stays."""
        newest_sealed = self.committed - self.committed % 5 - 5
        self.first = max(self.first, min(below - below % 5, newest_sealed))
        assert retire(self.path, STREAM, 0, below).first == self.first

    @rule(seed=st.integers(0, 1_000_000))
    def damage_and_repair(self, seed: int) -> None:
        """Change, cut or lose files of committed segments while nobody writes; a repair brings back what counted."""
        self.writer.close()
        rng = random.Random(seed)
        first = self.committed - self.committed % 5
        files = sorted(
            path for path in directory_of(self.store).iterdir() if path.suffix in {".bin", ".docs", ".index"}
        )
        files = [path for path in files if self.first <= int(path.name[:12]) and (int(path.name[:12]) < first)]
        for path in rng.sample(files, min(len(files), rng.randint(0, 3))):
            damaged = bytearray(path.read_bytes())
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
            path.unlink()
            if rng.random() < 0.7:
                path.write_bytes(damaged[: rng.choice([None, len(damaged) // 2])])
        repairs = list(repair_partition(directory_of(self.store), INFO, 0, ChainDonor(CHAIN, INFO)))
        assert not [repair for repair in repairs if repair.lost]
        assert list(repair_partition(directory_of(self.store), INFO, 0, ChainDonor(CHAIN, INFO))) == []
        self.open_again()

    @rule()
    def read_from_the_start(self) -> None:
        fresh = open_partition(self.path, STREAM, 0, check=True)
        assert (fresh.first_block, fresh.blocks) == (self.first, self.committed)
        wanted = range(self.first, self.committed)
        assert fresh.gather(wanted).tobytes() == TOKENS[self.first : self.committed].tobytes()

    @invariant()
    def the_reader_sees_what_was_committed(self) -> None:
        assert self.reader.refresh() == self.committed
        if self.committed:
            assert self.reader.read(self.committed - 1).tobytes() == TOKENS[self.committed - 1].tobytes()
            assert self.reader.documents(self.committed - 1)[0].offset == 100 * (self.committed - 1)

    def teardown(self) -> None:
        self.writer.close()
        shutil.rmtree(self.path)


StoreModel.TestCase.settings = settings(stateful_step_count=40)
TestStoreModel = StoreModel.TestCase
