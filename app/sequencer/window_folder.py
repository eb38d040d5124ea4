"""What a sequencer leaves on its host's disk: the window of a domain, and a note of its place in the logs.

It is a cache: without it, or where it does not belong to the logs, a sequencer reads a window of signatures again.
"""

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Final, NamedTuple

import orjson
import structlog

from tokenmill.errors import DamagedError, DiskError
from tokenmill.store.layout import blaming, put_file

from ..milling.duplicates.window import Window
from ..settings import Domain
from .domain_messages import SliceStart, domain_fingerprint

NOTES: Final = 64
"""Notes while a window fills once: what came after one, 156,000 documents by default, is judged again in a second."""
NOTE: Final = "note.json"

log = structlog.get_logger(__name__)


class WindowNote(NamedTuple):
    """A place in the logs of a domain, all verdicts before which are out."""

    known: SliceStart
    """What is known there."""
    digests: Sequence[int]
    """Of the newest signature messages before it (`tokenmill.app.sequencer.rebuilding.SignatureLog.digests`)."""


class WindowFolder:
    """A domain's folder among the temporary files of this user, which one process at a time uses."""

    def __init__(self, domain: Domain) -> None:
        """Take the folder; `path` is None where another process has it, or it cannot be used."""
        self._fingerprint = domain_fingerprint(domain)
        self._noted = 0
        self._lock = -1
        self.path: Path | None = None
        path = Path(gettempdir()) / f"tokenmill-window-{os.getuid()}-{self._fingerprint.hex()}"
        try:
            path.mkdir(0o700, exist_ok=True)
            self._lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            if os.fstat(self._lock).st_uid != os.getuid():
                raise PermissionError(f"{path} belongs to another user")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.path = path
        except OSError as error:
            self.close()
            log.warning("the window is not kept for a new start", folder=str(path), reason=str(error))

    def close(self) -> None:
        """Leave the folder to another process."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock, self.path = -1, None

    def read(self) -> WindowNote | None:
        """Return the newest note; None where there is none."""
        if self.path is None:
            return None
        try:
            told: dict[str, Any] = orjson.loads((self.path / NOTE).read_bytes())
            return WindowNote(SliceStart.unpack(orjson.dumps(told["known"]), self._fingerprint), told["digests"])
        except (OSError, ValueError, KeyError, TypeError, DamagedError):
            return None

    def clear(self) -> None:
        """Remove the note, and then what the window had."""
        if self.path is not None:
            for path in (self.path / NOTE, *self.path.glob("seen-*.bin")):
                path.unlink(missing_ok=True)

    def is_due(self, window: Window) -> bool:
        """Whether so much was kept since the last note that the next one is worth its time."""
        return self.path is not None and window.kept - self._noted >= max(1, window.deduplication.window // NOTES)

    def write(self, window: Window, note: WindowNote) -> None:
        """Make durable what the window has, then the note; another thread may go on to judge meanwhile.

        Where the disk refuses, the log says so, and the note before stays.
        """
        if self.path is None:
            return
        try:
            with blaming(self.path):
                window.sync()
                known = orjson.Fragment(note.known.pack(self._fingerprint))
                put_file(self.path / NOTE, orjson.dumps({"known": known, "digests": note.digests}))
                window.forget(note.known.kept)
        except DiskError as error:
            log.warning("the window is not kept for a new start", reason=str(error))
        self._noted = note.known.kept
