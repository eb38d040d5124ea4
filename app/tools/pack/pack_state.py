"""What a pack keeps beside the streams of its store, so that the same command goes on where it was.

::

    <store>/pack/<name>/run.json         which command it is, and its sources; once
    <store>/pack/<name>/position.json    a place between two chunks of the reading order
    <store>/pack/<name>/<partition>.json where the chains of a partition continue
    <store>/pack/<name>/*.jsonl          what became no document (`letters`)

A partition's file is written after the blocks of its chains are committed, and ``position.json`` after the files of all
partitions: each is at the position, or further. Documents are a function of the sources, so what is between the
two is made again, and a chain passes over what it has.
"""

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from tokenmill.errors import DamagedError, StoreError
from tokenmill.recipe import canonical_json
from tokenmill.store.layout import PACK_DIRECTORY, blaming, put_file, sync_way_to, unreadable
from tokenmill.untrusted import read_json_file
from tokenmill.wire.message import Message, decode_message, encode_header

from ...sources.items import Place
from ...sources.reading_order import LaneState, OrderState
from ...sources.source_changes import KnownSource
from ..produce.run_notes import ORDER, utf8

T = TypeVar("T")
RUN_FILE: Final = "run.json"
POSITION_FILE: Final = "position.json"
SOURCE_LETTERS: Final = "sources"
"""Stands for the partition in the name of the file of what cannot be a document before it has one."""
DEAD: Final = "dead-letters"
REJECTED: Final = "rejected"
"""Names of a partition's files of letters; its number and a suffix follow."""
MOST_BYTES: Final = 1 << 30
"""Of a file here: of a million sources, ``run.json`` has a hundred megabytes."""
_ADVICE: Final = "pack into another store, or verify this one (--verify) and keep it as it is"


def pack_directory(store: Path, raw_topic: str, stream_suffix: str) -> Path:
    """Return where the state of the pack of a raw topic's streams is."""
    return store / PACK_DIRECTORY / f"{raw_topic}{stream_suffix}"


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
            sync_way_to(self.directory)

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
        values = asdict(run) | {"sources": [[utf8(seen.name), *seen[1:]] for seen in run.sources]}
        self._write(RUN_FILE, values)

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
            return decode(read_json_file(path, most=MOST_BYTES))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unreadable(path, error) from error
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
