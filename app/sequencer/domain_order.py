"""The order of a domain: signed ranges are judged as the signature log has them. Pure, but for the window's files.

docs/reliability.md has the rules, and tests/simulation/verdict_roles.py their model.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np

from tokenmill.errors import DifferenceError

from ..milling.duplicates.signatures import SLICES, Deduplication
from ..milling.duplicates.window import Window, slice_size
from .domain_messages import TWO_HISTORIES, JudgedRange, SignedRange, SliceStart, Source, VerdictEnd

BEGINNING: Final = SliceStart()
"""Of every domain: nothing is known."""


def first_slice(one: SliceStart, deduplication: Deduplication) -> int:
    """Return the first slice of the window at the beginning of the message that has a slice's first document.

    That is in the slice before, mostly; where a message has more documents than a slice, further back.
    """
    return max(0, one.kept // slice_size(deduplication) - SLICES + 1)


def base_of(slices: Iterable[SliceStart], whole: SliceStart, deduplication: Deduplication) -> SliceStart:
    """Return where to begin so that the window is whole where the slice ``whole`` begins."""
    wanted = first_slice(whole, deduplication)
    return next((one for one in slices if one.number == wanted), BEGINNING)


class DomainOrder:
    """What is known of a domain at a place of its signature log; `accept` each message, then `judge` or `take` it."""

    def __init__(
        self, deduplication: Deduplication, base: SliceStart, whole: int | None = 0, directory: Path | None = None
    ) -> None:
        """Begin at a slice, or at a note.

        Args:
            deduplication: What a duplicate is.
            base: What is known there.
            whole: The offset from which on the window is whole; None: ``directory`` has it.
            directory: Where the window's files go; None: they have no names.

        Raises:
            DamagedError: the folder lacks some of the window.
            DiskError: there is no room for the window.
            SettingsError: numba is not installed.

        """
        self.verdict_ends: dict[Source, VerdictEnd] = dict(base.verdict_ends)
        """How far each raw partition is judged."""
        self.started: list[SliceStart] = []
        """Slices that have begun since this was last emptied."""
        self.window = Window(deduplication, directory, base.kept, goes_on=whole is None)
        self._whole = base.signature if whole is None else whole

    def accept(self, signed: SignedRange) -> SignedRange | None:
        """Return the part of the next signed range that counts; None where it is known, or is behind a hole."""
        known = self.verdict_ends.get(signed.source, VerdictEnd()).next_offset
        return signed.since(known) if signed.begin <= known < signed.end else None

    def judge(self, part: SignedRange, signature: int) -> JudgedRange:
        """Return the verdicts on a part that was accepted, of the message at the offset ``signature``.

        Raises DiskError where the window cannot grow.
        """
        kept, verdict_end = self.window.kept, self.verdict_ends.get(part.source, VerdictEnd())
        found = self.window.judge(part.hashes, part.places)
        told = np.flatnonzero(found.kinds)
        judged = JudgedRange(
            *(part.begin, part.end, part.remembered, signature),
            *(part.offsets[told], found.kinds[told], found.places[told], verdict_end.chain),
        )
        self._passed(part.source, judged, kept)
        return judged

    def take(self, part: SignedRange, signature: int, out: JudgedRange) -> None:
        """Do as `judge`, where the verdicts are ``out`` already: these are the ones. Raises DifferenceError.

        Where the window is not whole, it cannot be said whether they are right: what was kept may depend on documents
        that had left it since.
        """
        verdict_end = self.verdict_ends.get(part.source, VerdictEnd())
        if (out.begin, out.end, out.before) != (part.begin, part.end, verdict_end.chain):
            raise DifferenceError(TWO_HISTORIES)
        if signature >= self._whole:
            if self.judge(part, signature).after != out.after:
                raise DifferenceError(TWO_HISTORIES)
            return
        kept, stays = self.window.kept, ~np.isin(part.offsets, out.offsets)
        self.window.keep(np.ascontiguousarray(part.hashes[stays]), part.places[stays])
        self._passed(part.source, out, kept)

    def _passed(self, source: Source, judged: JudgedRange, kept: int) -> None:
        """Go behind a range; the slices that begin in it are known by what was known before it."""
        size = slice_size(self.window.deduplication)
        first = max(1, -(-kept // size))
        if first * size < self.window.kept:
            verdict_ends = dict(self.verdict_ends)
            for number in range(first, -(-self.window.kept // size)):
                self.started.append(SliceStart(number, judged.signature, kept, verdict_ends))
        self.verdict_ends[source] = judged.after
