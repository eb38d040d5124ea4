"""The order of a run's documents, whatever the number of its files: read side by side, and yet always the same.

The files are dealt to `READERS` lanes, the n-th file to lane n modulo their number. A lane reads its files one after
the other, in chunks; the lanes take turns, one chunk each, and one that has come to its end is left out. Where a chunk
ends depends on its file alone (`tokenmill.app.tools.produce.chunks`). So the order is a function of the sources and the
options, and it can be taken up again between any two chunks, with nothing but a `State`.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple, Self

from .ahead import ITEM_BYTES, Ahead
from .items import Item, Place, Refused, Unmet
from .sources import Source

READERS: Final = 4
"""Lanes, and threads that read. A constant, whatever the machine: a run may go on on another one."""
PATIENCE_SECONDS: Final = 0.05
"""How long a chunk may be awaited until what is at hand is sent: long beside reading a chunk, short for a person."""


class LaneState(NamedTuple):
    """Where a lane is."""

    file: int
    """Number of the source; the number of sources or more where the lane has come to its end."""
    place: Place


class State(NamedTuple):
    """Where the order is, between two chunks."""

    turn: int
    """The lane whose chunk is next."""
    lanes: tuple[LaneState, ...]

    @classmethod
    def start(cls, sources: int) -> "State":
        """Return the beginning."""
        return cls(0, tuple(LaneState(lane, Place()) for lane in range(max(1, min(READERS, sources)))))


class Turn(NamedTuple):
    """A chunk in its order."""

    items: list[Item | Refused]
    bytes_read: int
    """Of all sources, as they lie on disk."""
    after: State
    unmet: Unmet = Unmet()


class _Piece(NamedTuple):
    items: list[Item | Refused]
    size: int
    bytes_read: int
    after: LaneState
    unmet: Unmet


class Order:
    """All chunks from a state on; a context manager, which starts and stops the threads that read."""

    def __init__(self, sources: Sequence[Source], start: State) -> None:
        self._sources = sources
        self._state = start
        self._lanes = [Ahead(self._pieces(lane)) for lane in start.lanes]
        self._read = [0] * len(sources)
        for source, lane in ((number, number % len(start.lanes)) for number in range(len(sources))):
            if source < start.lanes[lane].file:
                self._read[source] = sources[source].size
        self._bytes_read = sum(self._read)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for lane in self._lanes:
            self._stack.enter_context(lane)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    async def turns(self) -> AsyncIterator[Turn | None]:
        """Yield the chunks in order; and None, once, before one for which the reader has to be waited for."""
        state = self._state
        while any(lane.file < len(self._sources) for lane in state.lanes):
            number = state.turn
            following = (number + 1) % len(state.lanes)
            if state.lanes[number].file >= len(self._sources):
                state = state._replace(turn=following)
                continue
            lane = self._lanes[number]
            piece = await lane.take(PATIENCE_SECONDS)
            if piece is None:
                yield None
                piece = await lane.take(None)
            if piece is None:
                return  # somebody left the context
            self._note(state.lanes[number].file, piece.bytes_read)
            state = State(following, (*state.lanes[:number], piece.after, *state.lanes[number + 1 :]))
            yield Turn(piece.items, self._bytes_read, state, piece.unmet)

    def _note(self, source: int, bytes_read: int) -> None:
        self._bytes_read += bytes_read - self._read[source]
        self._read[source] = bytes_read

    def _pieces(self, start: LaneState) -> Iterator[_Piece]:
        """Yield a lane's chunks; behind a file's last one, the lane is at its next file."""
        file, place = start
        while file < len(self._sources):
            source = self._sources[file]
            following = LaneState(file + len(self._lanes), Place())
            ended = False
            for chunk in source.chunks(place):
                ended = chunk.last
                after = following if ended else LaneState(file, chunk.after)
                size = ITEM_BYTES * len(chunk.items) + 2 * chunk.size
                yield _Piece(chunk.items, size, chunk.bytes_read, after, chunk.unmet)
            if not ended:
                raise ValueError(f"{source.name} has no last chunk")
            file, place = following
