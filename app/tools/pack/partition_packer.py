"""One partition, in the process that mills it: documents go in, blocks go into the store, letters into files."""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from tokenmill.errors import DamagedError, DifferenceError, LockedError
from tokenmill.reading.acceptance import Blocks
from tokenmill.reading.continuing import ResumePoint, genesis_point, resume_point
from tokenmill.records import SourceRecord
from tokenmill.store import PartitionWriter, Store, open_partition
from tokenmill.store.commit_log import UNKNOWN
from tokenmill.store.layout import blaming, partition_directory, repair_advice, sync_directory, write_at
from tokenmill.untrusted import open_regular
from tokenmill.wire.chain import genesis_hash
from tokenmill.wire.genesis import Genesis
from tokenmill.wire.message import Message
from tokenmill.wire.totals import Totals

from ...kafka.dead_letters import DeadLetter, RecordPlace, SourcePlace
from ...milling.chain_mill import ChainMill
from ...milling.outcomes import Outcome, Stages
from ...milling.partition_mill import PartitionMill
from ..verify.verify_result import ChainResult
from .pack_state import DEAD, REJECTED, PackFiles, PartitionState

if TYPE_CHECKING:
    from .millers import MillTask

MESSAGE_BYTES: Final = 4 << 20
"""Blocks that are hashed and appended at once: no message leaves the process, so this is for speed alone."""
LOCK_SECONDS: Final = 10.0
"""How long the processes of a killed call may take to end: they see it at once, but finish what they are at."""
LOCK_PAUSE: Final = 0.05


class LetterFile:
    """A file of letters, one on a line, as JSON of what Kafka would have; it is made with the first one."""

    def __init__(self, path: Path, size: int) -> None:
        """Go on after ``size`` bytes: what a killed process wrote behind them was never noted, and comes again."""
        self.size = size
        self._path = path
        self._descriptor = -1
        if path.exists():
            with blaming(path.parent):
                os.truncate(path, size)

    def add(self, letters: Iterable[DeadLetter]) -> None:
        """Append letters; `sync` makes them durable."""
        data = b"".join([_line(letter) for letter in letters])
        if not data:
            return
        with blaming(self._path.parent):
            if self._descriptor < 0:
                self._descriptor = open_regular(self._path, os.O_RDWR | os.O_CREAT)
                sync_directory(self._path.parent)
            write_at(self._descriptor, data, self.size)
        self.size += len(data)

    def sync(self) -> None:
        """Make durable what was added."""
        if self._descriptor >= 0:
            with blaming(self._path.parent):
                os.fdatasync(self._descriptor)


def _line(letter: DeadLetter) -> bytes:
    """Return a letter as `tokenmill dead-letters show --json` shows one."""
    values = {name: _plain(value) for name, value in letter.as_json().items()}
    return orjson.dumps(values, option=orjson.OPT_APPEND_NEWLINE)


def _plain(value: Any) -> Any:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def letter_of(outcome: Outcome, topic: str, partition: int) -> DeadLetter:
    """Return the letter of a record that is no document, or was filtered out."""
    record = outcome.record
    place = RecordPlace(topic, partition, record.offset)
    return DeadLetter(
        place, record.timestamp, outcome.reason, outcome.exception, outcome.detail, record.key, record.value, ()
    )


def source_letter(topic: str, run: str, where: str, why: str, data: bytes) -> DeadLetter:
    """Return the letter of something in a source that never became a record."""
    return DeadLetter(SourcePlace(topic, run, where), -1, "not_produced", "", why, None, data, ())


@dataclass(frozen=True, slots=True)
class ChainEnd:
    """How far a chain is."""

    blocks: int
    """Committed."""
    totals: Totals
    open_tokens: int
    verified: ChainResult | None = None
    """What was found, where it was verified."""


def append_new(writer: PartitionWriter, message: Message) -> None:
    """Append the blocks that the store does not have yet.

    Raises:
        DifferenceError: the blocks are not those that the store goes on from.

    """
    known = min(writer.next_block - message.first, message.count)
    block = message.first + known
    if (message.chains[known - 1] if known else message.before) != writer.chain_before(block):
        raise DifferenceError(
            f"the documents now make other blocks before block {block} than those that were packed: a source has "
            "changed, or a function of yours answers differently. Put back what it was, or pack into another "
            "store; --verify finds the first block that differs"
        )
    if known < message.count:
        tokens = memoryview(message.tokens)[known * (len(message.tokens) // message.count) :]
        blocks = Blocks(block, tokens, message.entries[known:], message.chains[known:])
        writer.append(blocks, token_offset=UNKNOWN)


@dataclass(slots=True)
class PartitionPacker:
    """Mills one partition into the store."""

    partition: int
    mill: PartitionMill
    writers: Mapping[str, PartitionWriter]
    """By split."""
    topic: str
    letters: Mapping[str, LetterFile] = field(default_factory=dict)
    """By name; none where nothing is written."""

    @classmethod
    def open(cls, task: "MillTask", stages: Stages, partition: int) -> "PartitionPacker":
        """Lock the partition of all streams, recover it, and go on where it was.

        Raises:
            LockedError, DamagedError, DiskError, StoreError: as `PartitionWriter.open`, and where the state is damaged,
                or the store has lost blocks.

        """
        store, files = Store.open(task.store), task.files
        state = files.read_partition(partition)
        chains, writers = [], {}
        for genesis in task.geneses:
            split = genesis.recipe.split
            carry = state.carries.get(split)
            point = genesis_start(genesis, partition) if carry is None else resume_point(carry)
            _require_packed(store, genesis.stream, partition, point.cursor.block)
            writers[split] = _open_writer(store, genesis.stream, partition)
            chains.append(ChainMill(genesis.recipe, point, message_bytes=MESSAGE_BYTES))
        names = (DEAD, REJECTED) if task.rejects else (DEAD,)
        letters = {name: LetterFile(files.letters(name, partition), state.letters.get(name, 0)) for name in names}
        mill = PartitionMill(stages, chains, list_rejected=task.rejects)
        return cls(partition, mill, writers, task.geneses[0].recipe.raw_topic, letters)

    def take(self, records: Sequence[SourceRecord]) -> None:
        """Mill consecutive records; those that all chains have passed are left out.

        Raises:
            EngineError, PanicError, SourceError: as `PartitionMill.feed`.
            DifferenceError, DiskError: as `append_new`.

        """
        milled = self.mill.feed(records)
        for name, outcomes in ((DEAD, milled.dead_letters), (REJECTED, milled.rejected)):
            if outcomes and name in self.letters:
                self.letters[name].add(letter_of(outcome, self.topic, self.partition) for outcome in outcomes)
        for split, messages in milled.messages.items():
            for message in messages:
                append_new(self.writers[split], message)

    def commit(self, files: PackFiles) -> None:
        """Make durable all that was taken, and then note where it continues."""
        for letters in self.letters.values():
            letters.sync()
        for writer in self.writers.values():
            writer.commit()
        carries = {split: carry_of(chain) for split, chain in self.mill.chains.items()}
        sizes = {name: letters.size for name, letters in self.letters.items()}
        files.write_partition(self.partition, PartitionState(carries, sizes))

    def ends(self) -> dict[str, ChainEnd]:
        """Return how far each chain is, by split."""
        return {
            split: ChainEnd(chain.next_block, chain.totals.copy(), chain.open_tokens)
            for split, chain in self.mill.chains.items()
        }


def _require_packed(store: Store, stream: str, partition: int, blocks: int) -> None:
    """Check that what was packed is there; before a writer opens, which cuts off what no commit record covers.

    Raises:
        DamagedError: it is not.

    """
    held = open_partition(store.path, stream, partition).blocks
    if held < blocks:
        directory = partition_directory(store.path, stream, partition)
        raise DamagedError(f"{directory} holds {held} blocks, and {blocks} were packed", repair_advice(directory))


def _open_writer(store: Store, stream: str, partition: int) -> PartitionWriter:
    """Lock and recover a partition; waits for what is left of a call that was killed a moment ago.

    No other process can have the lock: this call has the store's.
    """
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return PartitionWriter.open(store, stream, partition)
        except LockedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(LOCK_PAUSE)


def genesis_start(genesis: Genesis, partition: int) -> ResumePoint:
    """Return where a chain begins."""
    return genesis_point(genesis.start(partition), genesis_hash(genesis.recipe.fingerprint, partition))


def carry_of(chain: ChainMill) -> Message:
    """Return where a chain continues, between two feeds."""
    carry = chain.carry(chain.next_offset, by_value=True)
    if carry is None:
        raise ValueError("a chain is in the middle of a document after a feed")
    return carry
