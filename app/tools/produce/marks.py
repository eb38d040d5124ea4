"""The mark that a batch of a run carries: how far the run is in this partition, and where it can be taken up again.

A run numbers its documents from 0, in the run's order (`tokenmill.app.tools.produce.order`). The number, or the key,
decides the partition, so each partition gets its documents in the order of their numbers. They are sent in batches,
and a batch is in the log as a whole or not at all; its last record carries the mark. So the last mark of a run in a
partition says: of this partition's documents, those up to ``number`` are here, and no other.
"""

from typing import Any, Final, NamedTuple

import orjson

from .items import Place
from .order import LaneState, State

HEADER: Final = "tokenmill.produce"


class Floor(NamedTuple):
    """A place between two chunks, and what came before it."""

    number: int
    """All documents with lower numbers are in the log, in all partitions."""
    state: State
    """The order just before the document with this number."""
    refused: int = 0
    """How much before it was no document; what was to be a dead letter is one."""
    broken: int = 0
    """How many of these are sources that could not be read to their end."""


class Mark(NamedTuple):
    """What a mark says."""

    run: str
    begun: int
    """When the run began, in Unix milliseconds: runs that were started again on purpose are told apart by it."""
    number: int
    """Of the document in the record that carries the mark."""
    floor: Floor
    """Where the run can be taken up again."""


def encode(mark: Mark) -> bytes:
    """Return the header's value: JSON, which people can read, and short."""
    number, state, refused, broken = mark.floor
    lanes = [[lane.file, lane.place.entry, lane.place.byte] for lane in state.lanes]
    return orjson.dumps([mark.run, mark.begun, mark.number, number, state.turn, lanes, refused, broken])


def decode(value: bytes) -> Mark | None:
    """Return the mark, or None if it is none: anybody may write headers of that name."""
    try:
        run, begun, number, behind, turn, lanes, refused, broken = orjson.loads(value)
        places = tuple(LaneState(_number(file), Place(_number(entry), _number(byte))) for file, entry, byte in lanes)
        floor = Floor(_number(behind), State(_number(turn), places), _number(refused), _number(broken))
        return Mark(str(run), _number(begun), _number(number), floor)
    except (orjson.JSONDecodeError, ValueError, TypeError):
        return None


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value
