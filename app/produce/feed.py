"""A thread that reads ahead of the event loop, a bounded number of bytes."""

import asyncio
from collections.abc import Iterator
from threading import Condition, Thread
from typing import Final, Self

from .items import Item, Refused

AHEAD_BYTES: Final = 16 << 20
"""How far the thread reads ahead. One record may be as large as this; more would only fill memory."""
ITEM_BYTES: Final = 200
"""What an item costs beside its value, so that a million empty lines are bounded as well."""


class Feed:
    """Items of a source, read by a thread of their own, so that a slow source (a pipe) never stops the event loop.

    A context manager: on leaving it, the thread reads no further, and ends when its source lets it.
    """

    def __init__(self, items: Iterator[Item | Refused]) -> None:
        self._items = items
        self._ready: list[Item | Refused] = []
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

    def take_now(self) -> list[Item | Refused]:
        """Return all items that are there, without waiting; none if there are none."""
        with self._changed:
            return self._take()

    async def take(self) -> list[Item | Refused]:
        """Return all items that are there, at least one, waiting for it; none at the end of the source.

        Raises:
            Exception: what reading the source raised, after all items before it.

        """
        return await asyncio.to_thread(self._wait)

    def _wait(self) -> list[Item | Refused]:
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._ended)
            items = self._take()
            if not items and self._error is not None:
                raise self._error
            return items

    def _take(self) -> list[Item | Refused]:
        items, self._ready, self._bytes = self._ready, [], 0
        self._changed.notify_all()
        return items

    def _read(self) -> None:
        try:
            for item in self._items:
                with self._changed:
                    self._changed.wait_for(lambda: self._bytes < AHEAD_BYTES or self._ended)
                    if self._ended:
                        return
                    self._ready.append(item)
                    self._bytes += ITEM_BYTES + (len(item.value) if isinstance(item, Item) else 0)
                    self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - handed to whoever takes
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
