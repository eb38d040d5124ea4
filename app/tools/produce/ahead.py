"""A thread that reads ahead of the event loop, a bounded number of bytes."""

import asyncio
from collections import deque
from collections.abc import Iterator
from threading import Condition, Thread
from typing import Final, Generic, Protocol, Self, TypeVar

AHEAD_BYTES: Final = 4 << 20
"""How far the thread reads ahead. One piece may be larger; several files are read side by side, so this is bounded."""
ITEM_BYTES: Final = 200
"""What an item costs beside value and text, so that a million empty lines are bounded as well."""


class Sized(Protocol):
    """What knows how much memory it takes."""

    @property
    def size(self) -> int:
        """Bytes, roughly."""


T = TypeVar("T", bound=Sized)


class Ahead(Generic[T]):
    """Pieces of a source, read by a thread of their own, so that a slow source (a pipe) never stops the event loop.

    A context manager: on leaving it, the thread reads no further, and ends when its source lets it.
    """

    def __init__(self, pieces: Iterator[T], most: int = AHEAD_BYTES) -> None:
        """Read ``pieces``, ``most`` bytes ahead and one piece more."""
        self._most = most
        self._pieces = pieces
        self._ready: deque[T] = deque()
        self._bytes = 0
        self._error: BaseException | None = None
        self._ended = False
        self._changed = Condition()
        # A daemon: it may sit in a read from a pipe that nobody writes to, and must not keep the process alive.
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
        """Whether nothing is there, nor will be."""
        with self._changed:
            return self._ended and not self._ready

    def take_now(self) -> T | None:
        """Return the next piece if it is there."""
        with self._changed:
            return self._take()

    async def take(self, seconds: float | None) -> T | None:
        """Return the next piece, waiting for it for so long; None where it has not come, or the source ended.

        Raises:
            Exception: what reading the source raised, after all pieces before it.

        """
        return self.take_now() or await asyncio.to_thread(self.wait, seconds)

    def wait(self, seconds: float | None) -> T | None:
        """Do as `take` does, for threads."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._ended, seconds)
            piece = self._take()
            if piece is None and self._error is not None:
                raise self._error
            return piece

    def _take(self) -> T | None:
        if not self._ready:
            return None
        piece = self._ready.popleft()
        self._bytes -= piece.size
        self._changed.notify_all()
        return piece

    def _read(self) -> None:
        try:
            for piece in self._pieces:
                size = piece.size
                with self._changed:
                    self._changed.wait_for(lambda: self._bytes < self._most or self._ended)
                    if self._ended:
                        return
                    self._ready.append(piece)
                    self._bytes += size
                    self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - handed to whoever takes
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
