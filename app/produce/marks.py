"""The mark that a batch of a run carries: how far the run is in this partition, and where it can be taken up again.

A run numbers its documents from 0, in the run's order (`tokenmill.app.produce.order`). The number, or the key, decides
the partition, so each partition gets its documents in the order of their numbers. They are sent in batches, and a batch
is in the log as a whole or not at all; its last record carries the mark. So the last mark of a run in a partition says:
of this partition's documents, those up to ``number`` are here, and no other.
"""

from typing import Any, Final, NamedTuple

import orjson

from .items import Place
from .order import LaneState, State

HEADER: Final = "tokenmill.produce"


class Mark(NamedTuple):
    """What a mark says."""

    run: str
    begun: int
    """When the run began, in Unix milliseconds: runs that were started again on purpose are told apart by it."""
    number: int
    """Of the document in the record that carries the mark."""
    floor: int
    """All documents with lower numbers are in the log, in all partitions."""
    state: State
    """The order just before the document ``floor``."""


def encode(mark: Mark) -> bytes:
    """Return the header's value: JSON, which people can read, and short."""
    lanes = [[lane.file, lane.place.entry, lane.place.byte] for lane in mark.state.lanes]
    return orjson.dumps([mark.run, mark.begun, mark.number, mark.floor, mark.state.turn, lanes])


def decode(value: bytes) -> Mark | None:
    """Return the mark, or None if it is none: anybody may write headers of that name."""
    try:
        run, begun, number, floor, turn, lanes = orjson.loads(value)
        places = tuple(LaneState(_number(file), Place(_number(entry), _number(byte))) for file, entry, byte in lanes)
        return Mark(str(run), _number(begun), _number(number), _number(floor), State(_number(turn), places))
    except (orjson.JSONDecodeError, ValueError, TypeError):
        return None


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value
