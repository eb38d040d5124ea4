"""Open blocks that are known by reference become tokens again: the records are read, compared, and milled once more.

A chain whose packing has several open blocks continues with them. Each of their documents must still be what it was:
the raw log may have been rewritten, even with documents of the same length.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np

from tokenmill.documents import SourceRecord
from tokenmill.errors import SourceError
from tokenmill.reading.continuing import ADVICE, ResumePoint
from tokenmill.recipe import Recipe
from tokenmill.wire.chain import record_crc
from tokenmill.wire.pieces import Piece, encode_entry, split_references

from ..columns import ChainOutcomes, OutcomeColumns, RecordColumns
from ..outcomes import Stages
from .document_shapes import document_shape

NEAR_OFFSETS: Final = 256
"""Referenced records that are nearer to each other than this are read in one go: a read of its own costs a request."""


def is_referenced(record: SourceRecord, crc: int) -> bool:
    """Return whether a record is the one that a reference with this CRC is to."""
    return record_crc(record.key, record.value) == crc


class Reopening:
    """The open blocks of one chain: read all `ranges`, give what is there to `take`, then ask for the `point`."""

    def __init__(
        self, recipe: Recipe, stages: Stages, point: ResumePoint, skips: Collection[int] = (), *, source_first: int = 0
    ) -> None:
        """Reopen the blocks of ``point``; ``skips`` are the offsets that a person put on the skip list.

        Where the point has them by value, their records are compared all the same, from ``source_first`` on, the first
        offset that the source holds.
        """
        self._recipe, self._stages, self._point, self._skips = recipe, stages, point, skips
        self._shape = document_shape(recipe)
        self._references = split_references(point.references)
        rows, lowest = self._references.rows.tolist(), source_first if point.is_complete else 0
        self._wanted = {row[0]: row[1:] for row in rows if row[0] >= lowest}
        self._seen: set[int] = set()
        self._found: dict[int, tuple[bytes, bytes]] = {}
        """Of each offset, the tokens from the first referenced one on, and the meta."""

    @property
    def ranges(self) -> Iterator[tuple[int, int]]:
        """The ranges ``[start, end)`` of offsets to read, ascending."""
        offsets = sorted(self._wanted)
        breaks = [at for at, (one, other) in enumerate(pairwise(offsets), 1) if other - one > NEAR_OFFSETS]
        for low, high in pairwise([0, *breaks, len(offsets)]):
            if low < high:
                yield offsets[low], offsets[high - 1] + 1

    def wanted(self, records: Sequence[SourceRecord]) -> Sequence[SourceRecord]:
        """Return those of some records that are referred to."""
        return [record for record in records if record.offset in self._wanted]

    def take(self, records: Sequence[SourceRecord]) -> None:
        """Mill those of these records, which are in the order of their offsets, that are referred to.

        Raises SourceError where one is another record now, and EngineError or PanicError as `PartitionMill.feed`.
        """
        wanted = self.wanted(records)
        for record in wanted:
            if not is_referenced(record, self._wanted[record.offset][2]):
                raise self._changed(record.offset, "is another record now")
            self._seen.add(record.offset)
        if not self._point.is_complete:
            fetch = RecordColumns.of(wanted)
            for low, high in fetch.parts():
                self._take_part(fetch.part(low, high))

    def _take_part(self, part: RecordColumns) -> None:
        columns = OutcomeColumns.sort(self._stages, part, self._skips)
        kept = columns.kept[self._recipe.split]
        encoded = self._stages.engine.encode(kept.documents.texts)
        documents = ChainOutcomes.of(self._recipe, part, columns, kept, encoded, shape=self._shape).documents
        offsets, bounds, metas = documents.offsets.tolist(), documents.bounds, documents.metas
        firsts, sizes = (np.array([self._wanted[offset][at] for offset in offsets], np.int64) for at in (0, 1))
        for at in np.flatnonzero(firsts + sizes != np.diff(bounds)).tolist():
            given, wanted = bounds[at + 1] - bounds[at], firsts[at] + sizes[at]
            raise self._changed(offsets[at], f"gives {given} tokens, not {wanted}")
        tokens = documents.tokens.cut(bounds[:-1] + firsts, bounds[1:])
        for at, offset in enumerate(offsets):
            meta = metas.data[metas.bounds[at] : metas.bounds[at + 1]]
            self._found[offset] = bytes(tokens[at]), meta

    def point(self) -> ResumePoint:
        """Return the point with the tokens of all open blocks. Raises SourceError where a record is gone."""
        there = self._seen if self._point.is_complete else self._found.keys()
        missing = sorted(self._wanted.keys() - there)
        if missing:
            raise self._changed(missing[0], "is gone, or is no document of the split any more")
        if self._point.is_complete:
            return self._point
        references, rows = self._references, self._references.rows.tolist()
        ends = np.cumsum(references.counts).tolist()
        blocks = [rows[end - count : end] for count, end in zip(references.counts, ends, strict=True)]
        tokens = b"".join(self._found[offset][0] for offset, *_ in rows)
        return replace(self._point, open_tokens=tokens, open_entry=b"".join(map(self._entry, blocks)))

    def _entry(self, rows: Sequence[tuple[int, int, int, int]]) -> bytes:
        pieces, start = [], 0
        for offset, first, tokens, _ in rows:
            pieces.append(Piece(start, offset, first, self._found[offset][1]))
            start += tokens
        return encode_entry(pieces)

    def _changed(self, offset: int, how: str) -> SourceError:
        return SourceError(
            f"the record at offset {offset} of {self._recipe.raw_topic}, of which an open block of split "
            f"{self._recipe.split} holds tokens, {how}: {ADVICE}"
        )
