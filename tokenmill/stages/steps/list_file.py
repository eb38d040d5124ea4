"""A list that a step reads from a file of the user's: its content decides, its path does not.

A worker reads the file where the settings name it. What it makes of the content, in one canonical form, has a SHA-256
that is in the recipe, and is on the stream's control topic. So the recipe of a worker with another content has
another fingerprint and is refused, and who verifies a stream elsewhere needs no file.
"""

from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final, Self

from tokenmill.errors import SettingsError

MAX_LIST_BYTES: Final = 64 * 1024 * 1024
"""Largest file of a list, and largest canonical form: a million domains have 20 MB, and every worker reads it."""
DIGEST_PREFIX: Final = "sha256:"
"""Begins what a recipe has in place of a path."""


@dataclass(frozen=True, slots=True)
class ListFile:
    """The content of a list, in its canonical form."""

    sha256: str
    content: bytes = field(repr=False)

    @classmethod
    def of(cls, content: bytes) -> Self:
        """Return the list with this content."""
        return cls(sha256(content).hexdigest(), content)

    @property
    def reference(self) -> str:
        """What a recipe has in place of a path."""
        return DIGEST_PREFIX + self.sha256

    def lines(self) -> list[str]:
        """Return the lines of a list in the form of `canonical_lines`."""
        return self.content.decode().split("\n")[:-1]


def read_list_file(path: str, where: str) -> bytes:
    """Return what a list file holds.

    Raises:
        SettingsError: it cannot be read, or is larger than `MAX_LIST_BYTES`; begins with ``where``.

    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_LIST_BYTES + 1)
    except OSError as error:
        raise SettingsError(
            f"{where}: cannot read {path}: {error.strerror}; name a file that every worker has"
        ) from error
    if len(content) > MAX_LIST_BYTES:
        raise SettingsError(f"{where}: {path} is larger than {MAX_LIST_BYTES >> 20} MiB, the most that a list may have")
    return content


def canonical_lines(content: bytes) -> bytes:
    """Return a list's entries one a line, sorted, each once: white space around them, case order and CRLF do not count.

    Empty lines and those that begin with ``#`` are left out.

    Raises:
        ValueError: it is no UTF-8.

    """
    stripped = {line.strip() for line in content.decode("utf-8-sig").split("\n")}
    entries = sorted(line for line in stripped if line and not line.startswith("#"))
    return "".join(f"{entry}\n" for entry in entries).encode()


def list_entries(written: tuple[str, ...] | ListFile) -> list[str]:
    """Return the entries of a list that stands in the settings or in a file."""
    return written.lines() if isinstance(written, ListFile) else list(written)
