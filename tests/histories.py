"""Ready chains of blocks, out of which messages are cut at will: what is about numbers and hashes needs no mill."""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenmill.reading import Acceptor
from tokenmill.wire.chain import Cursor, genesis_hash, roll
from tokenmill.wire.message import Message
from tokenmill.wire.pieces import Piece, encode_entry
from tokenmill.wire.totals import Totals

FINGERPRINT = bytes(range(16))
PARTITION = 3
BLOCK_BYTES = 4


@dataclass(frozen=True)
class History:
    fingerprint: bytes
    partition: int
    blocks: Sequence[bytes]
    entries: Sequence[bytes]
    chains: Sequence[bytes]
    """The chain hash before each block, and after the last one."""

    def __len__(self) -> int:
        return len(self.blocks)

    def message(self, first: int, end: int) -> Message:
        return Message(
            fingerprint=self.fingerprint,
            first=first,
            cursor=Cursor(10 * end, 0, end),
            before=self.chains[first],
            after=self.chains[end],
            totals=Totals(),
            tokens=b"".join(self.blocks[first:end]),
            entries=list(self.entries[first:end]),
        )

    def acceptor(self, block: int = 0) -> Acceptor:
        return Acceptor(self.fingerprint, self.partition, BLOCK_BYTES, block=block, chain=self.chains[block])


def make_history(
    length: int,
    *,
    other_from: int | None = None,
    in_entries: bool = False,
    fingerprint: bytes = FINGERPRINT,
    partition: int = PARTITION,
) -> History:
    blocks, entries = [], []
    for number in range(length):
        other = number == other_from
        blocks.append((2 * number + (other and not in_entries)).to_bytes(BLOCK_BYTES, "little"))
        entries.append(encode_entry([Piece(0, 2 * number + (other and in_entries), 0, b"")]))
    start = genesis_hash(fingerprint, partition)
    return History(fingerprint, partition, blocks, entries, [start, *roll(start, b"".join(blocks), entries)])
