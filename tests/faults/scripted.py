"""A scripted life of a store: made, filled by writers that end in between, as a segment worker does it.

Calm or broken, in one process or in several, it ends with the same bytes; it says what it was told to be durable.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.store.chains import STREAM, contents, cut, make_chain, make_info
from tests.store.eras import make_eras, with_offsets
from tokenmill.errors import DiskError
from tokenmill.store import EraWriter, PartitionWriter, Store, open_eras, open_partition, read_stream
from tokenmill.store.layout import ERA_LINES_FILE

INFO: Final = make_info(block_tokens=40, segment_blocks=4)
BLOCKS: Final = 15
CHAIN: Final = make_chain(INFO, BLOCKS)
ERAS: Final = make_eras(INFO, {0: CHAIN}, [{0: 2}, {0: 7}, {0: 9}, {0: 14}, {0: BLOCKS}], end=True)
"""Some come before their blocks, as they do."""
LIVES: Final[tuple[tuple[list[int], list[int]], ...]] = (
    ([1, -2], [1]),
    ([3, 6, 7, -9, -10], [2, 4]),
    ([-11], []),
    ([12, 13, -14], []),
    ([BLOCKS], [6]),
)
"""What each worker in turn writes: how many blocks there are after each append, negative where they are not committed,
and how many eras after each commit."""
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
    eras: int = 0
    eras_appended: int = 0


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
            for parts, eras in LIVES:
                self._write(store, parts)
                if eras:
                    self._bring(store, eras)
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

    def _bring(self, store: Store, ends: list[int]) -> None:
        """Be who brings the eras: append up to each end."""
        with EraWriter.open(store, STREAM) as writer:
            for end in ends:
                if end <= writer.next_number:
                    continue
                self.said.eras_appended = max(self.said.eras_appended, end)
                self.on_step()
                writer.append(with_offsets(ERAS[writer.next_number : end]))
                self.said.eras = end
                self.on_step()

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
        tokens = reader.gather(range(reader.blocks)).tobytes()
        assert tokens == bytes(CHAIN.tokens)[: reader.blocks * INFO.block_bytes], said
        for number in range(reader.blocks):
            assert reader.documents(number)[0].offset == 100 * number
        eras = open_eras(path, STREAM)
        assert said.eras <= eras.eras <= said.eras_appended
        assert [eras.era(number) for number in range(eras.eras)] == ERAS[: eras.eras]
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
    with EraWriter.open(store, STREAM) as bringer:
        cut_off += bringer.truncated_bytes
        assert said.eras <= bringer.next_number <= said.eras_appended
        bringer.append(with_offsets(ERAS[bringer.next_number :]))
    assert whole_of(store) == whole
    return cut_off


def whole_of(store: Store) -> dict[str, bytes]:
    """Return all files that must be the same in the end, however often it was broken."""
    return contents(store) | {ERA_LINES_FILE: (store.path / STREAM / ERA_LINES_FILE).read_bytes()}


def calm_store(root: Path) -> dict[str, bytes]:
    """Return the files that the script makes where nothing fails."""
    root.mkdir()
    script = Script(root)
    script.run()
    assert script.said.blocks == BLOCKS
    assert script.said.eras == len(ERAS)
    return whole_of(Store.open(root / STORE))
