"""Data sets of Hugging Face: streamed from the hub, or in a folder that ``save_to_disk`` wrote."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import xxhash

from tokenmill.errors import InputError

from .chunks import Chunker
from .extras import library
from .formats import Bad, Entry
from .items import Chunk, Place
from .sources import Reading, broken

HUB: Final = "hf://"
MARKS: Final = ("dataset_dict.json", "state.json")
"""One of them lies in a folder that ``save_to_disk`` wrote: of several splits, or of one."""


def is_dataset(path: str) -> bool:
    """Tell whether a folder is a saved data set."""
    return any(Path(path, mark).is_file() for mark in MARKS)


class DatasetSource:
    """One split of a data set; entries are rows, numbered from 1."""

    size = 0

    def __init__(self, path: str, split: str | None, reading: Reading) -> None:
        """Name the split of ``hf://name``, ``hf://name/configuration`` (three parts or more), or of a folder.

        Raises:
            InputError: the library is missing.

        """
        self._path = path
        self._split = split
        self._reading = reading
        self._library = library("datasets", "hf", "reading data sets")
        self._commit: str | None = None
        name = os.fsencode(path).decode("utf-8", "replace")
        self.name = f"{name}[{split}]" if split else name

    def signature(self) -> bytes:
        """Return the names, sizes and times of a folder's files; or the commit of one on the hub.

        From then on `chunks` reads just that commit, whatever is pushed meanwhile.

        Raises:
            InputError: the hub does not tell the commit.

        """
        folder = self._path.removeprefix(HUB)
        if self._path.startswith(HUB) and not Path(folder).is_dir():
            self._commit = self._commit or self._newest(_parts(folder)[0])
            return self._commit.encode()
        found = [
            (file, file.stat())
            for file in sorted(Path(folder).rglob("*"))
            if file.is_file() and not file.name.startswith("cache-")
        ]
        text = "\n".join(f"{file} {status.st_size} {status.st_mtime_ns}" for file, status in found)
        return xxhash.xxh3_128_digest(text.encode("utf-8", "surrogateescape"))

    def chunks(self, start: Place) -> Iterator[Chunk]:
        """Yield the rows' items."""
        chunker = Chunker(self._reading.shape, self.name, start)
        try:
            entries = self._entries(start)
            mapping = self._reading.mapping
            for items in chunker.chunks(entries if mapping is None else mapping.of(entries)):
                yield chunker.chunk(items, 0)
        except Exception as error:  # noqa: BLE001 - any library may be behind a data set, with errors of its own
            yield broken(chunker, error)
        else:
            yield chunker.chunk(chunker.rest, 0, last=True)

    def _entries(self, start: Place) -> Iterator[Entry]:
        rows = self._rows()
        if (names := rows.column_names) and (bad := self._reading.needs.missing(list(names))):
            yield 0, 0, bad
            return
        for number, row in enumerate(rows.skip(start.entry), start.entry + 1):
            yield number, 0, dict(row) if isinstance(row, dict) else Bad("no row")

    def _newest(self, name: str) -> str:
        """Return the newest commit of a data set on the hub."""
        hub = library("huggingface_hub", "hf", "reading data sets")
        try:
            return str(hub.HfApi(endpoint=self._library.config.HF_ENDPOINT).dataset_info(name).sha)
        except Exception as error:  # any library may be between here and the hub, with errors of its own
            raise InputError(
                f"{self.name}: the hub does not tell its commit, without which nobody can go on in it: "
                f"{' '.join(str(error).split())}; "
                "check the name and the connection, or send it in one go (--no-resume)"
            ) from error

    def _rows(self) -> Any:
        """Open the split: a data set that is iterated, never loaded."""
        if self._path.startswith(HUB):
            name, configuration = _parts(self._path.removeprefix(HUB))
            opened = self._library.load_dataset(
                name, configuration, split=self._split, streaming=True, revision=self._commit
            )
        else:
            opened = self._library.load_from_disk(self._path)
            if self._split and isinstance(opened, dict):
                opened = _one(opened, self._split)
        if isinstance(opened, dict):
            opened = _one(opened, None)
        return opened if hasattr(opened, "_ex_iterable") else opened.to_iterable_dataset()


def _parts(name: str) -> tuple[str, str | None]:
    """Return a data set's name and its configuration: ``owner/name/configuration``; a folder has none."""
    if Path(name).is_dir() or name.count("/") < 2:  # noqa: PLR2004 - owner/name has one
        return name, None
    owner, short, configuration = name.split("/", 2)
    return f"{owner}/{short}", configuration


def _one(splits: dict[str, Any], split: str | None) -> Any:
    wanted = split or (next(iter(splits)) if len(splits) == 1 else None)
    if wanted not in splits:
        raise InputError(f"the data set has the splits {', '.join(map(str, splits))}: choose one with --split")
    return splits[wanted]
