"""What packing writes: partitions of a store, eras, and the state from which the same command goes on.

::

    <store>/pack/<name>/run.json         which command it is, and its sources; once
    <store>/pack/<name>/position.json    a place between two chunks of the reading order
    <store>/pack/<name>/<partition>.json where the chains of a partition continue
    <store>/pack/<name>/*.jsonl          what became no document (`letters`)

A partition's file is written after the blocks of its chains are committed, and ``position.json`` after the files of all
partitions: each is at the position, or further. Documents are a function of the sources, so what is between the
two is made again, and a chain passes over what it has.

Eras are closed by the number of blocks alone, so that equal sources give equal eras; and when a call has read
everything: only then is it known which part of the whole each partition has.
"""

import os
import time
from base64 import b64decode, b64encode
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import orjson

from tokenmill.documents import SourceRecord
from tokenmill.eras import Era, EraLog, close_era
from tokenmill.errors import DamagedError, DifferenceError, InputError, LockedError, StoreError
from tokenmill.reading import Blocks, Extent, ResumePoint, genesis_point, resume_point
from tokenmill.recipe import Genesis, canonical_json
from tokenmill.store import EraWriter, PartitionReader, PartitionWriter, Store, layout, open_partition
from tokenmill.store.layout import blaming, partition_directory, put_file, sync_directory
from tokenmill.store.sealing import UNKNOWN
from tokenmill.untrusted import open_regular, read_json_file
from tokenmill.wire.chain import genesis_hash
from tokenmill.wire.message import Message, decode_message, encode_header
from tokenmill.wire.totals import Totals

from ...kafka.dead_letters import DeadLetter, RecordPlace
from ...milling.outcomes import Outcome, Stages
from ...milling.partition_mill import ChainMill, Looked, PartitionMill
from ...sources.items import Place
from ...sources.reading_order import LaneState, OrderState
from ...sources.source_changes import ORDER, KnownSource, utf8

if TYPE_CHECKING:
    from ..verify.verify_result import ChainResult
    from .mill_processes import MillTask


T = TypeVar("T")
RUN_FILE: Final = "run.json"
POSITION_FILE: Final = "position.json"
SOURCE_LETTERS: Final = "sources"
"""Stands for the partition in the name of the file of what cannot be a document before it has one."""
DEAD: Final = "dead-letters"
REJECTED: Final = "rejected"
"""Names of a partition's files of letters; its number and a suffix follow."""
_ADVICE: Final = "pack into another store, or verify this one (--verify) and keep it as it is"


def pack_directory(store: Path, raw_topic: str, stream_suffix: str) -> Path:
    """Return where the state of the pack of a raw topic's streams is."""
    return store / layout.PACK_DIRECTORY / f"{raw_topic}{stream_suffix}"


@dataclass(frozen=True, slots=True)
class PackRun:
    """Which command fills the streams."""

    run: str
    """The command's identity (`run_identity`); empty where no other call can continue it."""
    partitions: int
    first_offset: int
    closed: int
    """Milliseconds that eras have as the time of their closing: that of the newest source."""
    sources: tuple[KnownSource, ...]
    """As they were at the beginning; without digests until they are known."""
    order: str = ORDER


@dataclass(frozen=True, slots=True)
class PackPosition:
    """A place between two chunks: all documents before it are milled, in all partitions, and durable."""

    number: int
    state: OrderState
    offsets: tuple[int, ...]
    refused: int = 0
    broken: int = 0
    unmet: int = 0
    without_field: int = 0
    letters: int = 0
    flushed: bool = False
    kept: int = 0
    """How many documents before the place are no duplicates, where these are looked for."""

    @classmethod
    def start(cls, sources: int, run: PackRun) -> Self:
        """Return the beginning."""
        return cls(0, OrderState.start(sources), (run.first_offset,) * run.partitions)


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Where the chains of a partition continue."""

    carries: Mapping[str, Message] = field(default_factory=dict)
    letters: Mapping[str, int] = field(default_factory=dict)
    """By name: bytes of the partition's files of letters."""


@dataclass(frozen=True, slots=True)
class PackFiles:
    """The files of a pack. What is written is durable when the call returns."""

    directory: Path

    def make(self) -> None:
        """Make the directory."""
        with blaming(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            layout.sync_way_to(self.directory)

    def letters(self, name: str, partition: int | str) -> Path:
        """Return the file of what was left out of a partition: `DEAD` letters, or documents that are `REJECTED`."""
        return self.directory / f"{name}-{partition}.jsonl"

    def read_run(self) -> PackRun | None:
        """Return the run, or None; StoreError where another version wrote it, DamagedError where it was changed."""
        run = self._read(
            RUN_FILE,
            lambda values: PackRun(**values | {"sources": tuple(KnownSource(*seen) for seen in values["sources"])}),
        )
        if run is not None and run.order != ORDER:
            raise StoreError(f"{self.directory}: this version reads files in another order than the one that began it")
        return run

    def write_run(self, run: PackRun) -> None:
        """Write the run."""
        self._write(RUN_FILE, asdict(run) | {"sources": [[utf8(seen.name), *seen[1:]] for seen in run.sources]})

    def read_position(self) -> PackPosition | None:
        """Return the position; None where there is none yet. Raises as `read_run`."""
        return self._read(POSITION_FILE, _position_of)

    def write_position(self, position: PackPosition) -> None:
        """Write the position."""
        turn, lanes = position.state
        state = [turn, [[lane.file, *lane.place] for lane in lanes]]
        self._write(POSITION_FILE, asdict(position) | {"state": state, "offsets": list(position.offsets)})

    def read_partition(self, partition: int) -> PartitionState:
        """Return a partition's state. Raises as `read_run`."""
        return self._read(f"{partition}.json", _partition_of) or PartitionState()

    def write_partition(self, partition: int, state: PartitionState) -> None:
        """Write a partition's state."""
        carries = {split: b64encode(encode_header(carry)).decode() for split, carry in state.carries.items()}
        self._write(f"{partition}.json", {"carries": carries, "letters": dict(state.letters)})

    def _read(self, name: str, decode: Callable[[dict[str, Any]], T]) -> T | None:
        path = self.directory / name
        try:
            return decode(read_json_file(path, most=1 << 30))  # of a million sources, a run has a hundred megabytes
        except FileNotFoundError:
            return None
        except OSError as error:
            raise layout.unreadable(path, error) from error
        except (TypeError, KeyError, ValueError, AttributeError, DamagedError) as error:
            raise DamagedError(f"{path} is not what was written there ({error!r})", _ADVICE) from error

    def _write(self, name: str, values: Mapping[str, Any]) -> None:
        with blaming(self.directory):
            put_file(self.directory / name, canonical_json(values) + b"\n")


def _position_of(values: dict[str, Any]) -> PackPosition:
    turn, lanes = values.pop("state")
    state = OrderState(turn, tuple(LaneState(file, Place(entry, byte)) for file, entry, byte in lanes))
    return PackPosition(state=state, offsets=tuple(values.pop("offsets")), **values)


def _partition_of(values: dict[str, Any]) -> PartitionState:
    carries = {split: decode_message(b64decode(header), None) for split, header in values["carries"].items()}
    return PartitionState(carries, values["letters"])


MESSAGE_BYTES: Final = 4 << 20
"""Blocks that are hashed and appended at once: no message leaves the process, so this is for speed alone."""


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
        data = bytearray()
        for letter in letters:  # as `tokenmill dead-letters show --json` shows one
            shown = {name: utf8(one) if isinstance(one, str) else one for name, one in letter.as_json().items()}
            data += orjson.dumps(shown, option=orjson.OPT_APPEND_NEWLINE)
        if not data:
            return
        with blaming(self._path.parent):
            if self._descriptor < 0:
                self._descriptor = open_regular(self._path, os.O_RDWR | os.O_CREAT)
                sync_directory(self._path.parent)
            layout.write_at(self._descriptor, bytes(data), self.size)
        self.size += len(data)

    def sync(self) -> None:
        """Make durable what was added."""
        if self._descriptor >= 0:
            with blaming(self._path.parent):
                os.fdatasync(self._descriptor)


def letter_of(outcome: Outcome, topic: str, partition: int) -> DeadLetter:
    """Return the letter of a record that is no document, or was filtered out."""
    record, why = outcome.record, (outcome.reason, outcome.exception, outcome.detail)
    place = RecordPlace(topic, partition, record.offset)
    return DeadLetter(place, record.timestamp, *why, record.key, record.value, ())


@dataclass(frozen=True, slots=True)
class ChainEnd:
    """How far a chain is committed."""

    blocks: int
    totals: Totals
    open_tokens: int
    verified: "ChainResult | None" = None


def _append_new(writer: PartitionWriter, message: Message) -> None:
    """Append the blocks that the store lacks; DifferenceError where they are not those that it goes on from."""
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


class PartitionPacker:
    """Mills one partition into the store."""

    def __init__(self, task: "MillTask", stages: Stages, partition: int) -> None:
        """Lock the partition of all streams, recover it, and go on where it was.

        Raises LockedError, DamagedError, DiskError or StoreError as `PartitionWriter.open`; DamagedError for its state.
        """
        self._files, self._partition = task.files, partition
        self._topic = task.geneses[0].recipe.raw_topic
        store, state = Store.open(task.store), task.files.read_partition(partition)
        chains = []
        self._writers: dict[str, PartitionWriter] = {}
        for genesis in task.geneses:
            split = genesis.recipe.split
            carry = state.carries.get(split)
            point = genesis_start(genesis, partition) if carry is None else resume_point(carry)
            # before a writer opens, which cuts off what no commit record covers
            held, packed = open_partition(store.path, genesis.stream, partition).blocks, point.cursor.block
            if held < packed:
                place = partition_directory(store.path, genesis.stream, partition)
                raise DamagedError(
                    f"{place} holds {held} blocks, and {packed} were packed", layout.repair_advice(place)
                )
            self._writers[split] = _open_writer(store, genesis.stream, partition)
            chains.append(ChainMill(genesis.recipe, point, message_bytes=MESSAGE_BYTES))
        self._letters = {
            name: LetterFile(task.files.letters(name, partition), state.letters.get(name, 0))
            for name in ((DEAD, REJECTED) if task.rejects else (DEAD,))
        }
        self.mill = PartitionMill(stages, chains, list_rejected=task.rejects)

    def take(self, records: Sequence[SourceRecord], looked: Looked | None = None) -> None:
        """Mill consecutive records; those that all chains have passed are left out. ``looked`` is for the mill.

        Raises as `PartitionMill.feed`; and DifferenceError or DiskError as `_append_new`.
        """
        milled = self.mill.feed(records, looked)
        for name, outcomes in ((DEAD, milled.dead_letters), (REJECTED, milled.rejected)):
            if outcomes and name in self._letters:
                self._letters[name].add(letter_of(outcome, self._topic, self._partition) for outcome in outcomes)
        for split, messages in milled.messages.items():
            for message in messages:
                _append_new(self._writers[split], message)

    def commit(self) -> None:
        """Make durable all that was taken, and then note where it continues."""
        for letters in self._letters.values():
            letters.sync()
        for writer in self._writers.values():
            writer.commit()
        carries = {split: _carry_of(chain) for split, chain in self.mill.chains.items()}
        sizes = {name: letters.size for name, letters in self._letters.items()}
        self._files.write_partition(self._partition, PartitionState(carries, sizes))

    def ends(self) -> dict[str, ChainEnd]:
        """Return how far each chain is, by split."""
        chains = self.mill.chains.items()
        return {split: ChainEnd(one.next_block, one.totals.copy(), one.open_tokens) for split, one in chains}


def _open_writer(store: Store, stream: str, partition: int) -> PartitionWriter:
    """Lock and recover a partition; nobody has it but a call that was killed a moment ago: this one has the store."""
    deadline = time.monotonic() + 10.0  # they see it at once, but finish what they are at
    while True:
        try:
            return PartitionWriter.open(store, stream, partition)
        except LockedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def genesis_start(genesis: Genesis, partition: int) -> ResumePoint:
    """Return where a chain begins."""
    return genesis_point(genesis.start(partition), genesis_hash(genesis.recipe.fingerprint, partition))


def _carry_of(chain: ChainMill) -> Message:
    if (carry := chain.carry(chain.next_offset, by_value=True)) is None:
        raise ValueError("a chain is in the middle of a document after a feed")
    return carry


def era_ends(stops: Mapping[int, int], blocks: Mapping[int, int], era_blocks: int) -> dict[int, int] | None:
    """Return where the next era ends in each partition, once no more blocks come; None where nothing is new.

    It ends at the same part of each partition, the smallest one by which it has ``era_blocks`` new ``blocks``: so all
    eras are as the whole, whatever a partition has. The last one has the rest. ``stops`` is where the era before ended,
    by partition; what is behind the others there catches up.
    """
    total = sum(blocks.values())

    def ends(part: int) -> dict[int, int]:
        return {number: max(stops[number], held * part // total) for number, held in blocks.items()}

    known = sum(stops.values())
    if known >= total:
        return None
    return ends(min(total, bisect_left(range(total), known + era_blocks, key=lambda part: sum(ends(part).values()))))


def behind_end(stream: str, things: str) -> InputError:
    """Return what to say where more comes after the end marker of a stream."""
    return InputError(
        f"{stream} was closed (--end), and there are more {things} now: trainers that saw the end do not read them. "
        "Keep what is there, or pack everything into another store (--store), with --flush and --end"
    )


@dataclass(frozen=True, slots=True)
class PackedEras:
    """Closes the eras of one stream."""

    store: Store
    genesis: Genesis
    writer: EraWriter
    era_blocks: int
    closed: int
    """What all have as the time when they were closed."""

    @property
    def ended(self) -> bool:
        """Whether the end marker is written."""
        return self.writer.last is not None and self.writer.last.end

    def close_all(self, blocks: Mapping[int, int], *, end: bool) -> None:
        """Write eras with all blocks that each partition has committed; durable on return.

        ``end``: no more come ever. Raises InputError where there are more blocks behind an end marker.
        """
        log = EraLog(self.genesis.recipe.fingerprint, self.writer.last)
        stops = {number: log.end(number)[0] for number in blocks}
        if log.ended:
            if any(held > stops[number] for number, held in blocks.items()):
                raise behind_end(self.genesis.stream, "blocks")
            return
        due: list[tuple[Mapping[int, int], bool]] = []
        while (ends := era_ends(stops, blocks, self.era_blocks)) is not None:
            due.append((ends, False))
            stops = ends
        if end:
            due.append((stops, True))
        path, stream = self.store.path, self.genesis.stream
        readers = {number: open_partition(path, stream, number) for number, block in stops.items() if block}
        eras: list[tuple[Era, int]] = []
        for reached, last in due:
            extents = {number: self._extent(readers.get(number), number, block) for number, block in reached.items()}
            era = close_era(log, extents, now=self.closed, era_blocks=1, overdue=True, end=last)
            if era is None:
                raise ValueError("an era without blocks")
            log.add(era.pack())
            eras.append((era, era.number))  # there is no control topic; readers of stores ask for no offset
        if eras:  # all at once: the syncs of one era take longer than everything else about it
            self.writer.append(eras)

    def _extent(self, reader: PartitionReader | None, partition: int, block: int) -> Extent:
        if reader is None or not block:
            return Extent(0, genesis_hash(self.genesis.recipe.fingerprint, partition))
        if (chain := reader.chain_before(block)) is None:
            raise DamagedError(f"{self.genesis.stream} partition {partition} no longer holds block {block - 1}")
        return Extent(block, chain)
