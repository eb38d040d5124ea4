"""Closing the eras of a packed stream: by the number of blocks alone, so that equal sources give equal eras.

They are closed when a call has read everything: only then is it known which part of the whole each partition has.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from tokenmill.eras import Era, EraLog, close_era
from tokenmill.errors import DamagedError, InputError
from tokenmill.reading.continuing import Extent
from tokenmill.store import EraWriter, PartitionReader, Store, open_partition
from tokenmill.wire.chain import genesis_hash
from tokenmill.wire.genesis import Genesis


def era_ends(stops: Mapping[int, int], blocks: Mapping[int, int], era_blocks: int) -> dict[int, int] | None:
    """Return where the next era ends in each partition, once no more blocks come; None where nothing is new.

    An era ends at the same part of each partition, the smallest one by which it has ``era_blocks`` new blocks: so all
    eras are as the whole, whatever a partition has. The last one has the rest.

    Args:
        stops: where the era before ended, by partition; what is behind the others there catches up.
        blocks: the blocks that each partition has.
        era_blocks: blocks of an era, at least; the last one may have fewer.

    """
    total = sum(blocks.values())

    def ends(part: int) -> dict[int, int]:
        return {number: max(stops[number], held * part // total) for number, held in blocks.items()}

    known = sum(stops.values())
    if known >= total:
        return None
    return ends(min(total, bisect_left(range(total), known + era_blocks, key=lambda part: sum(ends(part).values()))))


class PackedEras:
    """Writes the eras of one stream; holds the lock on its directory."""

    def __init__(self, store: Store, genesis: Genesis, era_blocks: int, closed: int) -> None:
        """Go on after the last era; ``closed`` is what all have as the time when they were closed.

        Raises:
            LockedError, DamagedError, DiskError: as `EraWriter.open`.

        """
        self._store = store
        self._genesis = genesis
        self._era_blocks = era_blocks
        self._closed = closed
        self._writer = EraWriter.open(store, genesis.stream)
        self._log = EraLog(genesis.recipe.fingerprint, self._writer.last)

    @property
    def eras(self) -> int:
        """How many there are."""
        return self._log.next_number

    def close_all(self, blocks: Mapping[int, int], *, end: bool) -> None:
        """Write eras with all blocks that each partition has committed; durable on return.

        ``end``: no more come ever, and the end marker is written.

        Raises:
            InputError: there are more blocks, and the end marker was written before.

        """
        stops = {number: self._log.end(number)[0] for number in blocks}
        if self._log.ended:
            if any(held > stops[number] for number, held in blocks.items()):
                raise InputError(
                    f"{self._genesis.stream} was closed (--end), and there are more blocks now: trainers that saw the "
                    "end do not read them. Pack everything into another store"
                )
            return
        due: list[tuple[Mapping[int, int], bool]] = []
        while (ends := era_ends(stops, blocks, self._era_blocks)) is not None:
            due.append((ends, False))
            stops = ends
        if end:
            due.append((stops, True))
        if due:  # all at once: the syncs of one era take longer than everything else about it
            self._write(due)

    def _write(self, due: Sequence[tuple[Mapping[int, int], bool]]) -> None:
        """Write eras, each with where it ends in each partition, and whether it is the end marker."""
        stream = self._genesis.stream
        held = [number for number, block in due[-1][0].items() if block]
        readers = {number: open_partition(self._store.path, stream, number) for number in held}
        eras: list[tuple[Era, int]] = []
        for ends, end in due:
            extents = {number: self._extent(readers, number, block) for number, block in ends.items()}
            era = close_era(self._log, extents, now=self._closed, era_blocks=1, overdue=True, end=end)
            if era is None:
                raise ValueError("an era without blocks")
            self._log.add(era.pack())
            eras.append((era, era.number))  # there is no control topic; readers of stores ask for no offset
        self._writer.append(eras)

    def _extent(self, readers: Mapping[int, PartitionReader], partition: int, block: int) -> Extent:
        if not block:
            return Extent(0, genesis_hash(self._genesis.recipe.fingerprint, partition))
        chain = readers[partition].chain_before(block)
        if chain is None:
            raise DamagedError(f"{self._genesis.stream} partition {partition} no longer holds block {block - 1}")
        return Extent(block, chain)

    @property
    def stream(self) -> str:
        """The stream's name."""
        return self._genesis.stream

    def close(self) -> None:
        """Unlock the eras."""
        self._writer.close()
