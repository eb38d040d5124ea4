"""The names and paths of everything in a store; no file is looked at.

::

    <store>/store.json
    <store>/<stream>/stream.json, tokenizer.json, lock, eras.jsonl, eras.index
    <store>/<stream>/<partition>/lock, start.json, <first block, 12 digits>.{bin,docs,commits,index,json,idx}
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from tokenmill.errors import InputError, StoreError

StorePath: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
"""What people give as a store's directory."""

FORMAT: Final = 1
"""Version of the store's files; raised when a reader of the old version could not read the new one."""
STORE_FILE: Final = "store.json"
STREAM_FILE: Final = "stream.json"
TOKENIZER_FILE: Final = "tokenizer.json"
ERA_LINES_FILE: Final = "eras.jsonl"
ERA_INDEX_FILE: Final = "eras.index"
LOCK_FILE: Final = "lock"
START_FILE: Final = "start.json"
"""Where a partition begins, if that is not block 0."""
PACK_DIRECTORY: Final = "pack"
"""In a store that `tokenmill pack` fills: what it goes on from; no stream has this name, for theirs hold a dot."""
REPAIR_DIRECTORY: Final = "repair"
"""In a partition's directory: where a segment is rebuilt."""
READY_FILE: Final = "ready"
"""In the repair directory: the segment there is complete, and is moved to its place."""
BROKEN: Final = ".broken"
"""Ends the name of a damaged file that a repair put aside; a number follows where the name was taken."""
TEMPORARY: Final = ".tmp"
"""Ends the name of a file that is still being written; recovery removes what a crash left."""

_SEGMENT: Final = re.compile(r"([0-9]{12,})\.(?:bin|docs|commits|index|json|idx)")
_PARTITION: Final = re.compile(r"0|[1-9][0-9]*")
_STREAM: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class SegmentPaths:
    """The files of one segment; which of them exist shows the state of the segment."""

    directory: Path
    first: int
    """Number of the segment's first block, a multiple of ``segment_blocks``."""

    @property
    def all(self) -> tuple[Path, ...]:
        """All of them, in the order in which they are created."""
        return self.tokens, self.documents, self.commits, self.index, self.megatron, self.manifest

    @property
    def tokens(self) -> Path:
        """Tokens only, blocks back to back."""
        return self._path("bin")

    @property
    def documents(self) -> Path:
        """The document table: one entry per block, back to back."""
        return self._path("docs")

    @property
    def commits(self) -> Path:
        """The commit log: what of the two files above counts, until the manifest is there."""
        return self._path("commits")

    @property
    def index(self) -> Path:
        """Written at seal: one row per block."""
        return self._path("index")

    @property
    def manifest(self) -> Path:
        """Written at seal, last: the segment is sealed if and only if this file is there."""
        return self._path("json")

    @property
    def megatron(self) -> Path:
        """Written at seal: the index by which Megatron reads the tokens."""
        return self._path("idx")

    def _path(self, suffix: str) -> Path:
        return self.directory / f"{self.first:012d}.{suffix}"


def store_directory(store: StorePath) -> Path:
    """Return the absolute path of a store: it stays the same when the working directory changes; ``~`` is at home.

    Raises:
        InputError: this is no path.

    """
    try:
        text = os.fsdecode(store)
        if text and "\0" not in text and "://" not in text:
            return Path(text).expanduser().absolute()
    except (TypeError, ValueError, RuntimeError, FileNotFoundError):  # no path; no such home; no working directory
        pass
    raise InputError(f"store is {repr(store)[:200]}: give the path of the store's directory, on a disk of this machine")


def stream_directory(store: Path, stream: str) -> Path:
    """Return the directory of a stream.

    Raises:
        StoreError: the name could lead elsewhere, or is none that a Kafka topic could have.

    """
    if not _STREAM.fullmatch(stream) or stream in {".", ".."}:
        raise StoreError(f"{stream!r} is no stream name: use up to 249 letters, digits, dots, underscores and hyphens")
    return store / stream


def partition_directory(store: Path, stream: str, partition: int) -> Path:
    """Return the directory of one partition of a stream."""
    return stream_directory(store, stream) / str(partition)


def segment_firsts(names: Iterable[str]) -> list[int]:
    """Return the first blocks of the segments of which at least one file is among ``names``, in order."""
    found = (_SEGMENT.fullmatch(name) for name in names)
    return sorted({int(match[1]) for match in found if match})


def partition_numbers(names: Iterable[str]) -> list[int]:
    """Return the partitions among the names in a stream's directory, in order."""
    return sorted(int(name) for name in names if _PARTITION.fullmatch(name))
