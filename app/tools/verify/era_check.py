"""The eras of a stream: the chain of records on its control topic, what the store holds of it, and where eras end.

The records are read once, and the blocks of each partition by a process of its own: what these processes need is
written to a file for each partition, 32 bytes for each era that has blocks there.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final, Self

import numpy as np
import numpy.typing as npt
from zlib_ng.zlib_ng import crc32

from tokenmill.eras import Era, EraFollower
from tokenmill.errors import DifferenceError
from tokenmill.recipe import Genesis
from tokenmill.store.eras import COMMIT_ROWS, ROW_BYTES, EraRow, encode_row, row_seed, scan
from tokenmill.store.layout import ERA_ADVICE, ERA_INDEX_FILE, ERA_LINES_FILE, stream_directory

from ...kafka.clients import consumer
from ...kafka.control_topic import Settled, read_eras
from ...settings import Settings
from .verify_bounds import EraMarks, StoreEras, VerifiedEras
from .verify_result import BlockRun, EraResult, Kind, Side, VerifyDifference

END: Final = np.dtype([("block", "<i8"), ("era", "<i8"), ("chain", "V16")])
"""The block after an era's last one, the era, and the chain hash that it names there."""


class EraEndsFiles:
    """Takes the eras of one stream; after `close`, there is a file for each partition that they have blocks of."""

    def __init__(self, directory: Path) -> None:
        """Write into a ``directory`` of its own, which is made."""
        directory.mkdir()
        self._directory = directory
        self._held: dict[int, bytearray] = {}

    def add(self, era: Era) -> None:
        """Write where an era ends."""
        for partition, part in enumerate(era.ranges):
            if part.blocks:
                held = self._held.setdefault(partition, bytearray())
                held += np.array([(part.stop, era.number, part.after)], END).tobytes()
                if len(held) >= 64 * 1024:  # fewer files are open than there may be partitions
                    self._write(partition)

    def close(self) -> dict[int, Path]:
        """Return the files by partition."""
        for partition in self._held:
            self._write(partition)
        return {partition: self._directory / str(partition) for partition in self._held}

    def _write(self, partition: int) -> None:
        with (self._directory / str(partition)).open("ab") as file:
            file.write(self._held[partition])
        self._held[partition].clear()


class EraEnds:
    """The ends of eras in one partition, in ascending order: those that runs of blocks pass are checked at once."""

    def __init__(self, path: Path | None) -> None:
        """Map a file of `EraEndsFiles`; None: there are no eras."""
        self._ends: npt.NDArray[np.void] = np.memmap(path, END, "r") if path is not None else np.empty(0, END)
        self._blocks = self._ends["block"]
        self._passed: tuple[int, int] | None = None
        self.wrong = False

    def first_wrong(self, run: BlockRun) -> tuple[int, int] | None:
        """Return era and block of the first end among a run's blocks that has another hash; None if all are right."""
        low, high = np.searchsorted(self._blocks, (run.first, run.end), side="right").tolist()
        first = self._passed[0] if self._passed else low
        for index in range(low, high):
            end = self._ends[index]
            self._passed = first, index
            if end["chain"].tobytes() != run.chains[int(end["block"]) - 1 - run.first]:
                self.wrong = True
                return int(end["era"]), int(end["block"])
        self._passed = first, high
        return None

    @property
    def checked(self) -> int:
        """How many ends runs have passed that were right."""
        return self._passed[1] - self._passed[0] if self._passed else 0

    def rest(self) -> list[tuple[int, int, bytes]]:
        """Return block, era and hash of the ends that no run passed: below the first one, or above the last."""
        low, high = self._passed or (0, 0)
        left = np.concatenate([self._ends[:low], self._ends[high:]])
        return [(int(end["block"]), int(end["era"]), end["chain"].tobytes()) for end in left]


class EraCopy:
    """The eras of a store from one on, in order; as many as it held at the mark."""

    def __init__(self, store: Path, genesis: Genesis, mark: StoreEras, before: EraRow) -> None:
        """Begin behind an era of which the row says ``before``, ``EraRow()`` for the first; `opened` reads."""
        self._stream = genesis.stream
        directory = stream_directory(store, genesis.stream)
        self._lines, self._index = directory / ERA_LINES_FILE, directory / ERA_INDEX_FILE
        self._mark = mark
        self._seed = row_seed(genesis.recipe.fingerprint)
        self._row = before
        self._earlier: int | None = None  # the place in its commit of the row before; None where that is not known

    @contextmanager
    def opened(self, first: int) -> Iterator[Self]:
        """Open the files at era ``first``; nothing is read where the store holds none from there on."""
        if first >= self._mark.eras:
            yield self
            return
        with self._lines.open("rb") as self._line_file, self._index.open("rb") as self._row_file:
            self._line_file.seek(self._row.stop)
            self._row_file.seek(first * ROW_BYTES)
            yield self

    def compare(self, era: Era, offset: int) -> VerifyDifference | None:
        """Compare the next era, whose record is at ``offset``, with the store; None: equal, or not there yet."""
        if era.number >= self._mark.eras:
            return None
        stored = self._row_file.read(ROW_BYTES)
        line = era.pack() + b"\n"
        held = self._line_file.read(len(line))
        row = EraRow.decode(stored) if len(stored) == ROW_BYTES else EraRow()
        if row.offset == era.number:  # a bucket does not say where its record is: it is there or behind
            offset = era.number
        wanted = encode_row((era, offset), line, self._seed, self._row, row.earlier)
        if held != line:
            return self._other_line(era, row, stored)
        fits = row.earlier < COMMIT_ROWS and (self._earlier is None or row.earlier in {0, self._earlier + 1})
        if stored != wanted or not fits:
            must = EraRow.decode(wanted)
            told = [name for name in EraRow._fields[:-1] if getattr(row, name) != getattr(must, name)]
            fields = ", ".join(told) or "its checksum or place"
            return self._differs(era, "damaged", f"{self._index}: the row of era {era.number} is wrong ({fields})")
        self._row, self._earlier = row, row.earlier
        return None

    def _other_line(self, era: Era, row: EraRow, stored: bytes) -> VerifyDifference:
        """Distinguish a line that is not what was committed from another era that was."""
        first = self._row.stop
        self._line_file.seek(first)
        found = self._line_file.read(max(min(row.stop - first, self._lines.stat().st_size), 0))
        if scan(stored, self._seed, era.number).count and crc32(found) == row.line:
            text = "differs from the one on the control topic: that was rewritten, or the store is of another stream"
            return self._differs(era, "different", f"{self._lines}: era {era.number} {text}")
        text = f"{self._lines}: era {era.number}, at byte {first}, is not what was committed"
        return self._differs(era, "damaged", text)

    def _differs(self, era: Era, kind: Kind, text: str) -> VerifyDifference:
        return VerifyDifference("store", kind, self._stream, None, f"{text}. {ERA_ADVICE}", era=era.number)


class EraCheck:
    """Reads the eras of one stream, once."""

    def __init__(
        self, settled: Settled, marks: EraMarks, store: Path | None, since: VerifiedEras | None, ends: EraEndsFiles
    ) -> None:
        self.settled, self.marks, self.store, self.since, self.ends = settled, marks, store, since, ends
        first = since.era.number + 1 if since is not None else 0
        held = marks.store.eras if marks.store is not None else None
        self.result = EraResult(settled.stream.name, since=first, store_eras=held)

    async def run(self, settings: Settings) -> EraResult:
        """Compare topic and store up to the marks; the ends of the new eras are written to files."""
        name, recipe = self.settled.stream.name, self.settled.genesis.recipe
        since, held = self.since, self.marks.store
        last, offset = (since.era, since.offset) if since is not None else (None, None)
        follower = EraFollower(name, recipe.fingerprint, last, offset)
        row = EraRow(since.stop, since.blocks, since.offset) if since is not None else EraRow()
        copy = None
        if self.store is not None and held is not None:
            copy = EraCopy(self.store, self.settled.genesis, held, row)
        try:
            with copy.opened(self.result.since) if copy is not None else nullcontext():
                async with consumer(settings) as client:
                    async for found in read_eras(client, self.settled.stream.control_topic, follower, self.marks.end):
                        for era, offset in found:
                            row = self._take(era, offset, copy, row)
            self.result.ignored = follower.ignored
        except DifferenceError as error:
            self.result.eras = follower.log.next_number - 1  # the follower is behind the one that is missing
            self._differs("control topic", "missing", str(error), self.result.eras)
        else:
            self.result.eras, self.result.ended = follower.log.next_number, follower.log.ended
        self._conclude()
        return self.result

    def _take(self, era: Era, offset: int, copy: EraCopy | None, row: EraRow) -> EraRow:
        result, held = self.result, self.marks.store
        result.eras = era.number + 1
        result.blocks += era.blocks
        self.ends.add(era)
        if copy is not None and not result.differences:
            if (found := copy.compare(era, offset)) is not None:
                result.differences.append(found)
            elif held is not None and era.number < held.eras:
                result.store_equal += 1
        row = EraRow(row.stop + len(era.pack()) + 1, row.blocks + era.blocks, offset)
        if held is None or era.number < held.eras:
            result.verified = VerifiedEras(era, offset, row.stop, row.blocks)
        return row

    def _conclude(self) -> None:
        result, held = self.result, self.marks.store
        result.verified = result.verified or self.since
        if held is None:
            return
        if held.damage is not None:
            self._differs("store", "damaged", held.damage, held.eras or None)
        elif held.eras < result.since:
            self._differs("store", "missing", f"it had {result.since} eras when it was last verified", held.eras)
        if held.eras > result.eras and not result.differences:
            text = (
                f"the store holds {held.eras} eras, the control topic {result.eras}: the topic lost its end, or the "
                "store is another's. Trainers of this store have been on these eras, and no new one will come: go on "
                "from a checkpoint before the first that is missing, or give new text a stream of its own "
                "(stream_suffix)"
            )
            self._differs("control topic", "missing", text, result.eras)

    def _differs(self, side: Side, kind: Kind, text: str, era: int | None) -> None:
        self.result.differences.append(VerifyDifference(side, kind, self.result.stream, None, text, era=era))
