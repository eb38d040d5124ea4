"""From paths to documents: files, folders and standard input, each in the format that fits."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, cast

from tokenmill.errors import InputError

from .items import Format, Item, Options, Refused
from .jsonl import read_jsonl
from .text import read_text, read_text_lines

if TYPE_CHECKING:
    from io import BufferedReader

STDIN: Final = "-"
STDIN_NAME: Final = "stdin"
STDIN_NUMBER: Final = 0
FORMATS: Final[dict[str, Format]] = {".jsonl": read_jsonl, ".ndjson": read_jsonl}
"""The formats by suffix; any other file is tried as text."""
READ_BUFFER_BYTES: Final = 1 << 20
"""Large, because Python's own 8 KiB costs a tenth of the speed with long lines."""

Choice = Literal["auto", "jsonl", "text", "lines"]


def read_sources(paths: Sequence[str], options: Options, choice: Choice = "auto") -> Iterator[Item | Refused]:
    """Return the documents of all paths: the paths in order, inside folders by name, each file from its start.

    A path is a file, a folder (read recursively, without names that start with a dot, links to folders not followed),
    or ``-`` for standard input. ``choice`` forces a format; ``auto`` takes it from the suffix, of standard input from
    the first byte; ``lines`` reads jsonl files as such and any other text line by line.

    Raises:
        InputError: at once, before a document is read: a path does not exist, or standard input is a terminal.

    """
    for path in paths:
        if path == STDIN and os.isatty(STDIN_NUMBER):
            raise InputError("standard input is a terminal: pipe documents into it, or name a file instead of -")
        if path != STDIN and not Path(path).exists():
            raise InputError(f"there is no file or folder {path}; check the path")
    return _read_all(paths, options, choice)


def _read_all(paths: Iterable[str], options: Options, choice: Choice) -> Iterator[Item | Refused]:
    for path in paths:
        if path == STDIN:
            yield from _read_stdin(options, choice)
        else:
            for file in find_files(Path(path)):
                yield from _read_file(file, options, choice)


def _read_stdin(options: Options, choice: Choice) -> Iterator[Item | Refused]:
    # Not sys.stdin: the interpreter closes that at its end, and aborts if a thread is still in the middle of a read.
    try:
        with open(STDIN_NUMBER, "rb", READ_BUFFER_BYTES, closefd=False) as stream:
            suffix = ".jsonl" if cast("BufferedReader", stream).peek(1)[:1] == b"{" else ""
            yield from _format(suffix, choice)(stream, STDIN_NAME, options)
    except OSError as error:
        yield Refused(STDIN_NAME, f"cannot be read: {error.strerror}")


def find_files(path: Path) -> Iterator[Path]:
    """Yield the file, or all files in the folder, folders and files by name; in bounded memory for any tree."""
    if not path.is_dir():
        yield path
        return
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            file = Path(folder, name)
            # Pipes and sockets would block for ever; a link that leads nowhere is reported when it is opened.
            if not name.startswith(".") and (file.is_file() or file.is_symlink()):
                yield file


def _read_file(path: Path, options: Options, choice: Choice) -> Iterator[Item | Refused]:
    name = os.fsencode(path).decode("utf-8", "replace")
    try:
        with path.open("rb", READ_BUFFER_BYTES) as stream:
            yield from _format(path.suffix, choice)(stream, name, options)
    except OSError as error:
        yield Refused(name, f"cannot be read: {error.strerror}")


def _format(suffix: str, choice: Choice) -> Format:
    if choice == "jsonl":
        return read_jsonl
    if choice == "text":
        return read_text
    return FORMATS.get(suffix.lower(), read_text_lines if choice == "lines" else read_text)
