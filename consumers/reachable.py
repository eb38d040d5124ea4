"""A stream's files while they are read: deleted, moved away or forbidden, they are named, and so is what helps."""

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tokenmill.errors import DamagedError, DiskError, StoreError
from tokenmill.store.layout import STREAM_FILE, stream_directory


class ReachableStream:
    """A context in which a stream that was opened is read; entered as often as one likes, at no cost to speak of.

    What was read before stays valid: files that are mapped outlive their names.
    """

    def __init__(self, store: Path, stream: str) -> None:
        """Name a stream that is there."""
        self._store = store
        self._stream = stream
        self._file = stream_directory(store, stream) / STREAM_FILE

    def require(self) -> None:
        """Return if the stream is still there; costs one look at a name.

        Raises:
            StoreError: it was deleted, moved away, or its disk is not mounted.
            DiskError: it may not be read, or its disk fails.

        """
        try:
            os.stat(self._file)  # noqa: PTH116 - many times a second, and nothing else of it is wanted
        except (FileNotFoundError, NotADirectoryError):
            raise StoreError(
                f"the store {self._store} no longer holds the stream {self._stream!r}: it was deleted or moved, or its "
                "disk is not mounted. Bring it back, or open another copy of the store; a saved state goes on there"
            ) from None
        except OSError as error:
            raise self._unreadable(error) from error

    def __enter__(self) -> None:
        """Begin to read."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let errors pass that say what is wrong; say it of others.

        Raises:
            StoreError: the stream went away, so what seemed damaged is not there.
            DiskError: the system refused to read a file.

        """
        if isinstance(error, OSError | DamagedError):
            self.require()
        if isinstance(error, OSError):
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> DiskError:
        file = error.filename or self._store
        return DiskError(f"{file} cannot be read ({error.strerror}): let this user read it, or replace its disk")


class ReachableStreams:
    """The same of several streams."""

    def __init__(self, streams: Sequence[ReachableStream]) -> None:
        """Take streams that are there."""
        self._streams = streams

    def require(self) -> None:
        """Return if all are still there; raises as `ReachableStream.require`."""
        for stream in self._streams:
            stream.require()

    def __enter__(self) -> None:
        """Begin to read."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Say of an error what is wrong, as `ReachableStream` does."""
        for stream in self._streams:
            stream.__exit__(kind, error, trace)
