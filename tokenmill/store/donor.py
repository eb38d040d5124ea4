"""Where a damaged store gets blocks from: the token topic (`tokenmill.app.tools.store_repair`), or another store."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tokenmill.errors import DamagedError, FingerprintError, InputError
from tokenmill.store.layout import partition_directory
from tokenmill.store.reader import PartitionReader
from tokenmill.store.rows import chain_after
from tokenmill.store.segment import Segment
from tokenmill.store.store import read_stream
from tokenmill.store.stream import StreamInfo


@dataclass(frozen=True, slots=True)
class Given:
    """A block as a donor holds it."""

    number: int
    """Its number in the partition."""
    tokens: bytes
    """Its token ids, ``block_bytes`` bytes."""
    entry: bytes
    """Its entry (`tokenmill.wire.pieces`)."""
    before: bytes | None
    """Chain hash before it, according to the donor; None where the donor does not know it."""


class Donor(Protocol):
    """Holds blocks of one partition; what it gives is believed only as far as hashes prove it."""

    def give(self, first: int, end: int) -> Iterator[Given]:
        """Yield what there is of the blocks ``[first, end)``, in any order; a block may come several times."""


class NoDonor:
    """Nothing but the files themselves."""

    def give(self, first: int, end: int) -> Iterator[Given]:  # noqa: ARG002 - as every donor
        """Yield no block."""
        return iter(())


class StoreDonor:
    """Another store of the stream, or a copy of one, damaged itself or not; its segments may have another length."""

    def __init__(self, store: Path, info: StreamInfo, partition: int) -> None:
        """Open one partition of it.

        Raises:
            StoreError: it holds no such stream.
            FingerprintError: it holds a stream of that name with other settings.

        """
        theirs = read_stream(store, info.name)
        if theirs.fingerprint != info.fingerprint:
            raise FingerprintError(
                f"{store} holds a stream {info.name} made with other settings ({theirs.differences(info)}): give a "
                "store of the same stream"
            )
        directory = partition_directory(store, info.name, partition)
        self._reader = PartitionReader(directory, theirs, partition, on_damage="skip")

    def give(self, first: int, end: int) -> Iterator[Given]:
        """Yield the undamaged blocks of ``[first, end)``, in order."""
        reader = self._reader
        for number in range(max(first, reader.first_block), min(end, reader.blocks)):
            try:
                segment, local = reader.locate(number)
                segment.check_tokens(local)
                segment.check_entry(local)
                yield Given(
                    number,
                    bytes(segment.tokens[local].tobytes()),
                    bytes(segment.entry(local)),
                    _before(segment, local) or reader.chain_before(number),
                )
            except (DamagedError, InputError):  # the other blocks are not affected
                continue


def _before(segment: Segment, local: int) -> bytes | None:
    return chain_after(segment.rows, local - 1) if local else None
