"""From what somebody names to sources: files, folders, patterns, standard input, data sets."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tokenmill.errors import InputError

from .addresses import HUB
from .archives import ZIP, ZipMember, zip_sources
from .datasets import DatasetSource, is_dataset
from .folders import WILD, Walk
from .formats import require
from .sources import STDIN, STDIN_NUMBER, FileSource, Reading, Source, StandardInput


def find_sources(
    paths: Sequence[str], reading: Reading, split: str | None = None, walk: Walk | None = None
) -> list[Source]:
    """Return the sources: the paths in order, inside folders and patterns by name.

    A path is a file, a zip archive (each member is a file), a folder (read recursively, without names that start with
    a dot), a pattern (``data/**/*.jsonl``), a data set (``hf://name``, or a folder that ``save_to_disk`` wrote;
    ``split`` is for these), or ``-`` for standard input. What is named may be a pipe. What is merely found in a folder,
    or by a pattern, is left out where it is no regular file, or leads out of the folder by a link: ``walk`` says
    whether such links are followed, and afterwards what was left out.

    Raises:
        InputError: a path does not exist, a pattern matches nothing, standard input is a terminal or stands beside
            other paths twice; or a library is missing that a format needs.

    """
    if paths.count(STDIN) > 1:
        raise InputError("standard input can be read once: give - once")
    walk = walk or Walk()
    sources = [source for path in paths for source in _sources(path, reading, split, walk)]
    require(source.kind for source in sources if isinstance(source, FileSource | ZipMember))
    return sources


def _sources(path: str, reading: Reading, split: str | None, walk: Walk) -> Iterator[Source]:
    if path == STDIN:
        if os.isatty(STDIN_NUMBER):
            raise InputError("standard input is a terminal: pipe documents into it, or name a file instead of -")
        yield StandardInput(reading)
    elif path.startswith(HUB) or is_dataset(path):
        yield DatasetSource(path, split, reading)
    elif os.path.lexists(path):
        # ./a is a: names become ids
        yield from _files(walk.folder(path) if Path(path).is_dir() else [str(Path(path))], reading)
    else:
        files = list(_files(walk.matches(path), reading)) if WILD.search(path) else []
        if not files:
            why = "matches nothing" if WILD.search(path) else "there is no such file or folder"
            raise InputError(f"{path}: {why}; check the path")
        yield from files


def _files(files: Iterable[str], reading: Reading) -> Iterator[Source]:
    for file in files:
        if Path(file).suffix.lower() == ZIP:
            yield from zip_sources(file, reading)
        else:
            yield FileSource(file, reading)


def is_piped(path: str) -> bool:
    """Tell whether a path gives what it holds once: standard input, a pipe (``<(command)``), or a device."""
    if path == STDIN or path.startswith(HUB):
        return path == STDIN
    return os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path))  # noqa: PTH110, PTH112, PTH113
