"""Closing the eras of a packed stream: by the number of blocks alone, so that equal sources give equal eras."""

from collections.abc import Mapping, Sequence

from tokenmill.eras import Era, EraLog, close_era
from tokenmill.errors import DamagedError, InputError
from tokenmill.reading.continuing import Extent
from tokenmill.store import EraWriter, PartitionReader, Store, open_partition
from tokenmill.wire.chain import genesis_hash
from tokenmill.wire.genesis import Genesis


def era_ends(
    stops: Mapping[int, int], blocks: Mapping[int, int], era_blocks: int, *, ended: bool
) -> dict[int, int] | None:
    """Return where the next era ends in each partition; None where it cannot be closed yet, or nothing is new.

    Eras take equal steps in all partitions, as long as these have blocks: a step is ``era_blocks`` divided by their
    number, rounded up. An era is as many steps as have ``era_blocks`` new blocks, or the rest.

    Args:
        stops: where the era before ended, by partition.
        blocks: the blocks that each partition has.
        era_blocks: blocks of an era, at least; the last ones may have fewer.
        ended: whether no partition gets more.

    """
    step = -(-era_blocks // len(blocks))
    steps = -(-max(stops.values(), default=0) // step)
    most = max(blocks.values())
    while True:
        steps += 1
        if not ended and min(blocks.values()) < steps * step:
            return None
        ends = {number: max(stops[number], min(held, steps * step)) for number, held in blocks.items()}
        new = sum(ends.values()) - sum(stops.values())
        if new >= era_blocks or steps * step >= most:
            return ends if new else None


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

    def close_due(self, blocks: Mapping[int, int], *, ended: bool = False, end: bool = False) -> None:
        """Write the eras that are due; durable on return.

        ``blocks`` are those that each partition has committed. ``ended``: no more come in this call. ``end``: none
        come ever, and the end marker is written.

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
        while (ends := era_ends(stops, blocks, self._era_blocks, ended=ended)) is not None:
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
