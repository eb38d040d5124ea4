"""Exports as a Lance data set: a file and a fragment for each segment, and a version of the data set for each run."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from ...sources.items import library
from .arrow_files import Table
from .folder import ExportContent, ExportedFile, hidden
from .rows import ExportRows, RowShape

EXTRA: Final = "lance"
VERSION: Final = "2.2"
"""Of the data files: all of a data set have the same."""
DATA: Final = "data"
"""Folder of the data files in a Lance data set."""


class LanceFiles:
    """Lance's own writer writes the files; their names are ours, and a version names those that are whole."""

    def __init__(self, out: Path, shape: RowShape) -> None:
        """Load Lance.

        Raises:
            InputError: it is not installed.

        """
        self._lance = library("lance", EXTRA, "a Lance data set")
        self._file = library("lance.file", EXTRA, "a Lance data set")
        self._table = Table(shape, EXTRA)
        self._out = out

    def write(self, name: str, rows: Iterator[ExportRows]) -> list[ExportedFile]:
        """Write the data file of a segment; no version names it yet."""
        path = self._out / DATA / f"{name}.lance"
        path.parent.mkdir(exist_ok=True)
        count = tokens = 0
        temporary = hidden(path)
        with self._file.LanceFileWriter(str(temporary), self._table.schema, version=VERSION) as writer:
            for chunk in rows:
                writer.write_batch(self._table.batch(chunk))
                count, tokens = count + len(chunk), tokens + len(chunk.tokens)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.rename(path)
        return [ExportedFile(f"{DATA}/{path.name}", count, tokens, path.stat().st_size)]

    def index(self, content: ExportContent) -> None:
        """Commit a version with the files that the one before lacks: rows keep their numbers, new ones come behind."""
        opened = self._opened()
        known = {file.path for fragment in opened.get_fragments() for file in fragment.data_files()}
        new = [file for file in content.files if file.name.removeprefix(f"{DATA}/") not in known]
        if not new:
            return
        like = self._fragment(self._out / new[0].name)
        fragments = [_renamed(like, file) for file in new]
        append = self._lance.LanceOperation.Append(fragments)
        self._lance.LanceDataset.commit(str(self._out), append, read_version=opened.version)

    def _fragment(self, file: Path) -> Any:
        """Return how Lance itself describes a file of this schema: its numbers of fields and columns."""
        row = self._file.LanceFileReader(str(file)).read_range(0, 1).to_table()
        with TemporaryDirectory() as folder:
            (fragment,) = self._lance.fragment.write_fragments(row, folder, mode="create", data_storage_version=VERSION)
        return fragment

    def _opened(self) -> Any:
        try:
            return self._lance.dataset(str(self._out))
        except ValueError:  # there is none yet
            empty = self._table.schema.empty_table()
            return self._lance.write_dataset(empty, str(self._out), data_storage_version=VERSION)


def _renamed(fragment: Any, file: ExportedFile) -> Any:
    """Return the description of another file, of the same schema."""
    (data,) = fragment.files
    path, major, minor = file.name.removeprefix(f"{DATA}/"), data.file_major_version, data.file_minor_version
    described = type(data)(path, data.fields, data.column_indices, major, minor, file.size)
    return replace(fragment, files=[described], physical_rows=file.rows)
