"""A scripted life of a store: made, filled by writers that end in between, as a segment worker does it.

Calm or broken, in one process or in several, it ends with the same bytes; it says what it was told to be durable.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.segments.chains import STREAM, contents, cut, make_chain, make_info
from tokenmill.errors import DiskError
from tokenmill.segments import PartitionWriter, Store, open_partition, read_stream

INFO: Final = make_info(block_tokens=40, segment_blocks=4)
BLOCKS: Final = 15
CHAIN: Final = make_chain(INFO, BLOCKS)
TOKENIZER: Final = b"{}" * 40
STARTS_MOST: Final = 10
"""Starts within which the script must be through: each fault here ends, most after one call."""
STORE: Final = Path("disk/store")
"""Below a root: one directory more than there is."""


@dataclass
class Acknowledged:
    """What was said to be durable."""

    store: str | None = None
    """Its id."""
    stream: bool = False
    blocks: int = 0
    appended: int = 0
    """Blocks that were handed over; more than these cannot be there."""
    starts: int = 0


@dataclass
class Script:
    """`run` lives the whole life; a disk that fails ends one worker, and the next begins."""

    root: Path
    said: Acknowledged = field(default_factory=Acknowledged)
    on_step: Callable[[], None] = lambda: None
    """Called when `said` has changed."""
    on_error: Callable[[DiskError], None] = lambda _: None

    def run(self) -> None:
        """Fill the store, whatever it holds."""
        while not self._lived():
            self.said.starts += 1
            assert self.said.starts < STARTS_MOST, "it fails for ever"

    def _lived(self) -> bool:
        """Be one worker after the other; return whether all is there, False where the disk ended one."""
        try:
            store = Store.open_or_create(self.root / STORE)
            self.said.store = store.id
            self.on_step()
            store.add_stream(INFO, TOKENIZER)
            self.said.stream = True
            self.on_step()
            for parts in ([1, -2], [3, 6, 7, -9, -10], [-11], [12, 13, -14], [BLOCKS]):
                self._write(store, parts)
        except DiskError as error:
            self.on_error(error)
            return False
        return True

    def _write(self, store: Store, ends: list[int]) -> None:
        """Be one writer: append up to each end and commit, but not where it is negative; then go without a word."""
        writer = PartitionWriter.open(store, STREAM, 0)
        try:
            for end in ends:
                if abs(end) <= writer.next_block:
                    continue
                self.said.appended = max(self.said.appended, abs(end))
                self.on_step()
                writer.append(cut(CHAIN, INFO, writer.next_block, abs(end)), token_offset=abs(end))
                self._durable(abs(end) - abs(end) % INFO.segment_blocks)
                if end > 0:
                    writer.commit()
                    self._durable(end)
        finally:
            writer.close()

    def _durable(self, blocks: int) -> None:
        if blocks > self.said.blocks:
            self.said.blocks = blocks
            self.on_step()


def assert_recovers(root: Path, said: Acknowledged, whole: dict[str, bytes]) -> int:
    """Hold what a crash left against what had been said, go on to the end; return the bytes that recovery cut off.

    First as a reader finds it, before any writer came; then as a worker does.
    """
    path = root / STORE
    if said.stream:
        assert read_stream(path, STREAM).encode() == INFO.encode()
        assert (path / STREAM / "tokenizer.json").read_bytes() == TOKENIZER
        reader = open_partition(path, STREAM, 0, check=True)
        assert said.blocks <= reader.blocks <= said.appended
        assert_prefix(reader.blocks, reader.gather(range(reader.blocks)).tobytes(), said)
        for number in range(reader.blocks):
            assert reader.documents(number)[0].offset == 100 * number
    store = Store.open_or_create(path)
    assert said.store in {None, store.id}
    store.add_stream(INFO, TOKENIZER)
    with PartitionWriter.open(store, STREAM, 0) as writer:
        cut_off = writer.truncated_bytes
        assert said.blocks <= writer.next_block <= said.appended
        assert writer.chain == (CHAIN.chains[writer.next_block - 1] if writer.next_block else writer.chain_before(0))
        if writer.next_block < BLOCKS:
            writer.append(cut(CHAIN, INFO, writer.next_block, BLOCKS), token_offset=BLOCKS)
        writer.commit()
    assert contents(store) == whole
    return cut_off


def assert_prefix(blocks: int, tokens: bytes, said: Acknowledged) -> None:
    """Hold tokens against the list."""
    assert tokens == bytes(CHAIN.tokens)[: blocks * INFO.block_bytes], said


def calm_store(root: Path) -> dict[str, bytes]:
    """Return the files that the script makes where nothing fails."""
    root.mkdir()
    script = Script(root)
    script.run()
    assert script.said.blocks == BLOCKS
    return contents(Store.open(root / STORE))
