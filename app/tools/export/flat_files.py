"""Exports that are tokens and nothing else: for nanoGPT's loader, and for Megatron's with its index beside them."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import orjson

from tokenmill.store.sealing import index_of_lengths

from .folder import ExportContent, ExportedFile, new_file
from .rows import ExportRows, RowShape


class NanoGptFiles:
    """``<segment>.bin``: tokens, little-endian; and ``<segment>.jsonl``, with a line for each row and what it is."""

    def __init__(self, out: Path, shape: RowShape) -> None:
        self.out = out
        self.shape = shape

    def write(self, name: str, rows: Iterator[ExportRows]) -> list[ExportedFile]:
        """Write the files of a segment."""
        return self.with_lengths(name, rows)[0]

    def with_lengths(self, name: str, rows: Iterator[ExportRows]) -> tuple[list[ExportedFile], list["np.ndarray"]]:
        """Write the files of a segment; return the lengths of its rows as well."""
        lengths: list[np.ndarray] = []
        bin_path, line_path = self.out / f"{name}.bin", self.out / f"{name}.jsonl"
        with new_file(bin_path) as tokens, new_file(line_path) as lines:
            for chunk in rows:
                tokens.write(chunk.tokens.data)
                lines.writelines(self._lines(chunk))
                lengths.append(chunk.lengths)
        count, total = sum(map(len, lengths)), int(sum(int(one.sum()) for one in lengths))
        return [ExportedFile(p.name, count, total, p.stat().st_size) for p in (bin_path, line_path)], lengths

    def _lines(self, rows: ExportRows) -> Iterator[bytes]:
        about = "document" if self.shape.what == "documents" else "documents"
        for number, length, one in zip(rows.numbers, rows.lengths.tolist(), rows.about, strict=True):
            line = {"partition": rows.partition, self.shape.number: number, "tokens": length, about: one}
            yield orjson.dumps(line) + b"\n"

    def index(self, content: ExportContent) -> None:
        """Write nothing: each file is read by itself."""


class MegatronFiles(NanoGptFiles):
    """The same, and ``<segment>.idx``: ``<segment>`` is an `IndexedDataset`, whose sequences are the rows."""

    def write(self, name: str, rows: Iterator[ExportRows]) -> list[ExportedFile]:
        """Write the files of a segment."""
        files, lengths = self.with_lengths(name, rows)
        path = self.out / f"{name}.idx"
        with new_file(path) as file:
            file.write(index_of_lengths(np.concatenate(lengths), self.shape.dtype))
        return [*files, ExportedFile(path.name, files[0].rows, files[0].tokens, path.stat().st_size)]
