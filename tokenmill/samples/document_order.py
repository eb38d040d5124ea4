"""The orders of documents in a pass: pure functions of their eras, their lengths and a seed.

`Permutation` makes every choice, so an order is the same everywhere, and what is drawn without replacement is the
beginning of a permutation.
"""

import itertools
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.eras import Permutation
from tokenmill.samples.sequence import Numbers

_STRATA: Final = 1 << 61
"""Where permutations want the number of an era, a stratum has this plus its own, a window twice as much: other keys."""

Lengths = npt.NDArray[np.int32]


def era_order(eras: Numbers, *, seed: int, passed: int, shuffle: bool) -> Numbers:
    """Return all documents, era after era (``eras`` has that of each), and with ``shuffle`` permuted within each."""
    order = np.argsort(eras, kind="stable")
    if shuffle and len(order):
        grouped = eras[order]
        bounds = np.flatnonzero(np.concatenate([[True], grouped[1:] != grouped[:-1], [True]])).tolist()
        for start, stop in itertools.pairwise(bounds):
            era = int(grouped[start])
            order[start:stop] = order[start:stop][_permuted(stop - start, seed, passed, era)]
    return order


def bucket_order(order: Numbers, lengths: Lengths, *, window: int, bucket: int, seed: int, passed: int) -> Numbers:
    """Return documents so that ``bucket`` consecutive ones are about as long.

    Each ``window`` is sorted by length and cut into buckets, and these are permuted; what fills no bucket comes last.
    """
    found = np.empty_like(order)
    for number, start in enumerate(range(0, len(order), window)):
        part = order[start : start + window]
        part = part[np.argsort(lengths[part], kind="stable")]
        whole = len(part) // bucket
        chosen = _permuted(whole, seed, passed, (1 << 62) + number)
        found[start : start + whole * bucket] = part[: whole * bucket].reshape(whole, bucket)[chosen].reshape(-1)
        found[start + whole * bucket : start + len(part)] = part[whole * bucket :]
    return found


class Stratum(NamedTuple):
    """Documents of similar length, of which a share is drawn."""

    shortest: int
    """Tokens of the shortest; 0 where there are none."""
    longest: int
    documents: int
    share: int
    """How many were to be drawn."""

    @property
    def drawn(self) -> int:
        """How many are drawn: the share, or all where these are fewer."""
        return min(self.share, self.documents)


def strata_of(lengths: Lengths, strata: int) -> Numbers:
    """Return the stratum of each document: equal percentiles of the lengths, those of one length all in one."""
    bounds = np.quantile(lengths, np.arange(1, strata) / strata) if len(lengths) else np.empty(0)
    return np.searchsorted(bounds, lengths, side="left")


def describe_strata(lengths: Lengths, owners: Numbers, *, samples: int, strata: int) -> list[Stratum]:
    """Return what each stratum has, and its equal share of ``samples``; the first ones have what does not divide."""
    found = []
    for number in range(strata):
        mine = lengths[owners == number]
        share = samples // strata + (number < samples % strata)
        shortest, longest = (int(mine.min()), int(mine.max())) if len(mine) else (0, 0)
        found.append(Stratum(shortest, longest, len(mine), share))
    return found


def stratified_order(owners: Numbers, strata: list[Stratum], *, seed: int, passed: int) -> Numbers:
    """Return what is drawn of each stratum without replacement, permuted together."""
    drawn = []
    for number, stratum in enumerate(strata):
        members = np.flatnonzero(owners == number)
        chosen = Permutation(max(len(members), 1), seed=seed, passed=passed, era=_STRATA + number)
        drawn.append(members[chosen(np.arange(stratum.drawn))] if stratum.drawn else members[:0])
    together = np.concatenate([np.empty(0, np.int64), *drawn])
    return together[_permuted(len(together), seed, passed, _STRATA + len(strata))]


def _permuted(size: int, seed: int, passed: int, era: int) -> Numbers:
    return Permutation(size, seed=seed, passed=passed, era=era)(np.arange(size))
