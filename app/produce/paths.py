"""From what somebody names to sources: files, folders, patterns, standard input, data sets."""

import os
import re
from collections.abc import Iterator, Sequence
from glob import glob
from pathlib import Path
from typing import Final

from tokenmill.errors import InputError

from .addresses import HUB
from .archives import ZIP, ZipMember, zip_sources
from .datasets import DatasetSource, is_dataset
from .formats import require
from .sources import STDIN, STDIN_NUMBER, FileSource, Reading, Source, StandardInput

_PATTERN: Final = re.compile(r"[*?\[]")


def find_sources(paths: Sequence[str], reading: Reading, split: str | None = None) -> list[Source]:
    """Return the sources: the paths in order, inside folders and patterns by name.

    A path is a file, a zip archive (each member is a file), a folder (read recursively, without names that start with
    a dot, links to folders not followed), a pattern (``data/**/*.jsonl``), a data set (``hf://name``, or a folder that
    ``save_to_disk`` wrote; ``split`` is for these), or ``-`` for standard input.

    Raises:
        InputError: a path does not exist, a pattern matches nothing, standard input is a terminal or stands beside
            other paths twice; or a library is missing that a format needs.

    """
    if paths.count(STDIN) > 1:
        raise InputError("standard input can be read once: give - once")
    sources = [source for path in paths for source in _sources(path, reading, split)]
    require(source.kind for source in sources if isinstance(source, FileSource | ZipMember))
    return sources


def _sources(path: str, reading: Reading, split: str | None) -> Iterator[Source]:
    if path == STDIN:
        if os.isatty(STDIN_NUMBER):
            raise InputError("standard input is a terminal: pipe documents into it, or name a file instead of -")
        yield StandardInput(reading)
    elif path.startswith(HUB) or is_dataset(path):
        yield DatasetSource(path, split, reading)
    elif os.path.lexists(path):
        yield from _files(path, reading)
    else:
        matches = sorted(glob(path, recursive=True)) if _PATTERN.search(path) else []  # noqa: PTH207 - takes absolute ones
        if not matches:
            why = "matches nothing" if _PATTERN.search(path) else "there is no such file or folder"
            raise InputError(f"{path}: {why}; check the path")
        for match in matches:
            yield from _files(match, reading)


def _files(path: str, reading: Reading) -> Iterator[Source]:
    for file in find_files(path):
        if Path(file).suffix.lower() == ZIP:
            yield from zip_sources(file, reading)
        else:
            yield FileSource(file, reading)


def find_files(path: str) -> Iterator[str]:
    """Yield the file, or all files in the folder, folders and files by name."""
    if not Path(path).is_dir():
        yield str(Path(path))  # ./a is a: names become ids
        return
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            file = Path(folder, name)
            # Pipes and sockets would block for ever; a link that leads nowhere is reported when it is opened.
            if not name.startswith(".") and (file.is_file() or file.is_symlink()):
                yield str(file)
