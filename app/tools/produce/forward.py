"""Streams that can be made from their beginning on only: going back means making them again."""

import io
from abc import abstractmethod
from typing import Any, Final

_SKIPPED_BYTES: Final = 1 << 20
"""Made at once on the way to a position."""


class ForwardStream(io.RawIOBase):
    """A stream of what `_more` returns, with positions in that."""

    def __init__(self) -> None:
        self._made = memoryview(b"")
        self._at = 0

    @abstractmethod
    def _more(self, size: int) -> bytes:
        """Return what comes next, about so many bytes; nothing at the end."""

    @abstractmethod
    def _restart(self) -> None:
        """Go back to the beginning."""

    def readable(self) -> bool:
        """Tell that it is."""
        return True

    def seekable(self) -> bool:
        """Tell that it is, slowly."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what one step makes, so that damage behind it is met only when it has been taken."""
        if not self._made:
            self._made = memoryview(self._more(len(buffer)))
        size = min(len(self._made), len(buffer))
        buffer[:size], self._made = self._made[:size], self._made[size:]
        self._at += size
        return size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position, or as near to it as the stream is long."""
        if whence == io.SEEK_END:
            self._skip(None)
        target = offset + (0 if whence == io.SEEK_SET else self._at)
        if target < self._at:
            self._restart()
            self._made, self._at = memoryview(b""), 0
        self._skip(target)
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def _skip(self, target: int | None) -> None:
        buffer = memoryview(bytearray(_SKIPPED_BYTES))
        while target is None or self._at < target:
            if not self.readinto(buffer if target is None else buffer[: target - self._at]):
                return
