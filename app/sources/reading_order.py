"""The order in which the documents of a run are read, whatever the number of its files.

The files are dealt to `READERS` lanes: the n-th file goes to lane n modulo their number. A lane reads its files one
after the other, in chunks, in a thread of its own. The lanes take turns, one chunk each; one that has ended is left
out. Where a chunk ends depends on its file alone (`Chunker` in `app.sources.file_sources`). So the order is a function
of the sources and the options, and an `OrderState` is enough to continue between two chunks.
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from threading import Condition, Thread
from typing import Final, Generic, NamedTuple, Protocol, Self, TypeVar

from .items import DocumentSource, ItemChunk, Place, Placed, Refused

AHEAD_BYTES: Final = 4 << 20
"""Bytes that a thread reads ahead; one piece may be larger. Several files are read side by side, so this is bounded."""
READERS: Final = 4
"""Lanes, and threads that read. A constant on every machine: a run may continue on another one."""
WAIT_SECONDS: Final = 0.05
"""How long to wait for a chunk before sending what was read: long beside reading a chunk, short for a person."""


class _Sized(Protocol):
    @property
    def memory(self) -> int: ...  # bytes, roughly


T = TypeVar("T", bound=_Sized)


class ReadAhead(Generic[T]):
    """Pieces of a source, read by a thread of their own, so that a slow source (a pipe) never stops the event loop.

    A context manager: on leaving it, the thread reads no further, and ends as soon as its source returns.
    """

    def __init__(self, pieces: Iterator[T], most: int = AHEAD_BYTES) -> None:
        self._most = most
        self._pieces = pieces
        self._ready: deque[T] = deque()
        self._bytes = 0
        self._error: BaseException | None = None
        self._ended = False
        self._changed = Condition()  # of a lock that one thread may take twice
        # A daemon: it may sit in a read from a pipe without a writer, and must not keep the process alive.
        self._thread = Thread(target=self._read, name="produce-reader", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def ended(self) -> bool:
        """Whether no piece is there, and none will come."""
        with self._changed:
            return self._ended and not self._ready

    def take_now(self) -> T | None:
        """Return the next piece if it is there."""
        with self._changed:
            if not self._ready:
                return None
            piece = self._ready.popleft()
            self._bytes -= piece.memory
            self._changed.notify_all()
            return piece

    async def take(self, seconds: float | None) -> T | None:
        """Return the next piece within ``seconds``, or None; raises what reading raised, after all pieces before it."""
        return self.take_now() or await asyncio.to_thread(self.wait, seconds)

    def wait(self, seconds: float | None) -> T | None:
        """Return the same, blocking this thread meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._ended, seconds)
            piece = self.take_now()
            if piece is None and self._error is not None:
                raise self._error
            return piece

    def _read(self) -> None:
        try:
            for piece in self._pieces:
                size = piece.memory
                with self._changed:
                    self._changed.wait_for(lambda: self._bytes < self._most or self._ended)
                    if self._ended:
                        return
                    self._ready.append(piece)
                    self._bytes += size
                    self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - raised by `wait`
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()


class LaneState(NamedTuple):
    """The position of a lane."""

    file: int
    """Number of the source; the number of sources or more at the lane's end."""
    place: Place


class OrderState(NamedTuple):
    """The position of a reading order, between two chunks."""

    turn: int
    lanes: tuple[LaneState, ...]

    @classmethod
    def start(cls, sources: int) -> "OrderState":
        """Return the beginning."""
        return cls(0, tuple(LaneState(lane, Place()) for lane in range(max(1, min(READERS, sources)))))


class OrderedChunk(NamedTuple):
    """A chunk, in its place in the order."""

    chunk: ItemChunk
    bytes_read: int
    """Of all sources so far, on disk."""
    after: OrderState


class _Piece(NamedTuple):
    chunk: ItemChunk
    memory: int
    after: LaneState


class ReadingOrder:
    """All chunks from a state on; a context manager that starts and stops the threads that read."""

    def __init__(self, sources: Sequence[DocumentSource], start: OrderState) -> None:
        self._sources = sources
        self._state = start
        self._lanes = [ReadAhead(self._pieces(lane)) for lane in start.lanes]
        files = [start.lanes[number % len(start.lanes)].file for number in range(len(sources))]
        self._read = [one.size if number < files[number] else 0 for number, one in enumerate(sources)]
        self._bytes_read = sum(self._read)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for lane in self._lanes:
            self._stack.enter_context(lane)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    async def turns(self) -> AsyncIterator[OrderedChunk | None]:
        """Yield the chunks in order; None before a chunk that has not been read within `WAIT_SECONDS`."""
        state = self._state
        while any(lane.file < len(self._sources) for lane in state.lanes):
            number = state.turn
            following = (number + 1) % len(state.lanes)
            if state.lanes[number].file >= len(self._sources):
                state = state._replace(turn=following)
                continue
            lane = self._lanes[number]
            piece = await lane.take(WAIT_SECONDS)
            if piece is None:
                yield None
                piece = await lane.take(None)
            if piece is None:
                return  # the context was left
            source, bytes_read = state.lanes[number].file, piece.chunk.bytes_read
            self._bytes_read += bytes_read - self._read[source]
            self._read[source] = bytes_read
            state = OrderState(following, (*state.lanes[:number], piece.after, *state.lanes[number + 1 :]))
            yield OrderedChunk(piece.chunk, self._bytes_read, state)

    def _pieces(self, start: LaneState) -> Iterator[_Piece]:
        """Yield a lane's chunks; after the last one of a file, the lane is at its next file."""
        file, place = start
        while file < len(self._sources):
            source = self._sources[file]
            following = LaneState(file + len(self._lanes), Place())
            ended = False
            for chunk in source.chunks(place):
                ended = chunk.last
                yield _Piece(chunk, chunk.memory, following if ended else LaneState(file, chunk.after))
            if not ended:
                raise ValueError(f"{source.name} has no last chunk")
            file, place = following


class ShuffleBuffer:
    """Holds ``size`` documents; each that comes in releases a random one. The same seed gives the same order.

    With a ``size`` of 0, all stay in the order in which they come.
    """

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._held: list[Placed] = []
        self._random = random.Random(seed)  # noqa: S311 - for variety, not secrecy

    def released(self, items: Iterable[Placed]) -> Iterable[Placed]:
        """Return what is refused as it comes, and for each document the one that it releases, once enough are held."""
        return filter(None, map(self._exchanged, items)) if self._size else items

    def _exchanged(self, item: Placed) -> Placed | None:
        if isinstance(item[0], Refused):
            return item
        if len(self._held) < self._size:
            self._held.append(item)
            return None
        # random() alone is promised to be the same in every Python (docs.python.org, "Notes on Reproducibility").
        place = int(self._random.random() * self._size)
        out, self._held[place] = self._held[place], item
        return out

    def rest(self) -> Iterator[Placed]:
        """Yield the documents that are still held, in random order."""
        while self._held:
            place = int(self._random.random() * len(self._held))
            self._held[place], self._held[-1] = self._held[-1], self._held[place]
            yield self._held.pop()
