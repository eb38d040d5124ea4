"""A scripted life of a store: made, filled by writers that end in between, as a segment worker does it.

Calm or broken, in one process or in several, it ends with the same bytes; it says what it was told to be durable.
``python -m tests.faults.scripted`` lives it as often as it is asked to.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.store.chains import STREAM, contents, cut, make_chain, make_eras, make_info, with_offsets
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
STARTS_MOST: Final = 10  # starts within which the script must be through: each fault here ends, most after one call
STORE: Final = Path("disk/store")  # below a root: one directory more than there is


@dataclass
class Acknowledged:
    store: str | None = None  # its id
    stream: bool = False
    blocks: int = 0
    appended: int = 0  # blocks that were handed over; more than these cannot be there
    starts: int = 0
    eras: int = 0
    eras_appended: int = 0


@dataclass
class Script:
    """`run` lives the whole life; a disk that fails ends one worker, and the next begins."""

    root: Path
    said: Acknowledged = field(default_factory=Acknowledged)
    on_step: Callable[[], None] = lambda: None  # called when `said` has changed
    on_error: Callable[[DiskError], None] = lambda _: None

    def run(self) -> None:
        for start in range(STARTS_MOST):
            self.said.starts = start
            try:
                return self._live()
            except DiskError as error:
                self.on_error(error)
        raise AssertionError("it fails for ever")

    def _live(self) -> None:
        store = Store.open_or_create(self.root / STORE)
        self._say(store=store.id)
        store.add_stream(INFO, TOKENIZER)
        self._say(stream=True)
        for parts, eras in LIVES:
            self._write(store, parts)
            if eras:
                self._bring(store, eras)

    def _write(self, store: Store, ends: list[int]) -> None:
        """Be one writer: append up to each end and commit, but not where it is negative; then go without a word."""
        with PartitionWriter.open(store, STREAM, 0) as writer:
            for end in ends:
                if abs(end) > writer.next_block:
                    self._say(appended=max(self.said.appended, abs(end)))
                    writer.append(cut(CHAIN, INFO, writer.next_block, abs(end)), token_offset=abs(end))
                    self._say(blocks=max(self.said.blocks, abs(end) - abs(end) % INFO.segment_blocks))
                    if end > 0:
                        writer.commit()
                        self._say(blocks=max(self.said.blocks, end))

    def _bring(self, store: Store, ends: list[int]) -> None:
        with EraWriter.open(store, STREAM) as writer:
            for end in ends:
                if end > writer.next_number:
                    self._say(eras_appended=max(self.said.eras_appended, end))
                    writer.append(with_offsets(ERAS[writer.next_number : end]))
                    self._say(eras=end)

    def _say(self, **what: Any) -> None:
        for name, value in what.items():
            setattr(self.said, name, value)
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
    return contents(store) | {ERA_LINES_FILE: (store.path / STREAM / ERA_LINES_FILE).read_bytes()}


def calm_store(root: Path) -> dict[str, bytes]:
    root.mkdir()
    script = Script(root)
    script.run()
    assert script.said.blocks == BLOCKS
    assert script.said.eras == len(ERAS)
    return whole_of(Store.open(root / STORE))


def live(root: Path, log: int) -> None:
    """Live the life below ``root``; what was said to be durable is a line of JSON each in the log."""

    def write(**more: str) -> None:
        line = json.dumps(asdict(script.said) | more)
        os.write(log, line.encode() + b"\n")  # a call that the store never makes

    script = Script(root, on_step=write, on_error=lambda error: write(error=str(error)))
    script.run()


def main() -> None:
    """Live the life below each directory that standard input names, in a child.

    The child's process id is said, and it is let go at the next line: time for strace to attach. Then its wait status
    is said.
    """
    for line in sys.stdin:
        root = Path(line.strip())
        ours, its = os.pipe()
        child = os.fork()
        if child == 0:
            log = os.open(root / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.read(ours, 1)
            live(root, log)
            os._exit(0)
        print(child, flush=True)  # noqa: T201 - it is asked to
        sys.stdin.readline()
        os.write(its, b"!")
        print(os.waitpid(child, 0)[1], flush=True)  # noqa: T201
        os.close(ours)
        os.close(its)


if __name__ == "__main__":
    main()
