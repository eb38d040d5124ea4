"""Samplers over documents: which comes when, in orders that a seed decides and a small state resumes.

The orders of a pass are pure functions of the documents' eras, their lengths and the seed. `Permutation` makes every
choice, so an order is the same everywhere, and what is drawn without replacement is the beginning of a permutation.
"""

import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.eras import Permutation
from tokenmill.errors import InputError
from tokenmill.samples.sequence import Numbers

from . import arguments
from .arguments import DataRank, naming_unknown
from .documents import Documents

_STRATA: Final = 1 << 61
"""Where permutations want the number of an era, a stratum has this plus its own, a window twice as much: other keys."""

Lengths = npt.NDArray[np.int32]

log = logging.getLogger(__name__)


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


class DocumentSampler(ABC):
    """Numbers of documents, pass after pass; a ``sampler`` of torch's ``DataLoader`` over `Documents`, or of `Padded`.

    The sequence depends on nothing but the documents and the arguments. Iterating goes on where `state_dict` stands,
    and moves it with each number; `PaddedBatches` keeps a place of its own. By itself, rank r of w gives each w-th
    number, from the r-th on, and all ranks as many; among several, ``rank`` and ``world_size`` must be given: 0 and 1
    where a framework divides the batches (Accelerate, Lightning).
    """

    _kind: ClassVar[str]
    """Names the order in states."""

    def __init__(
        self, documents: Documents, *, seed: int, passes: int, rank: int | None, world_size: int | None
    ) -> None:
        self.documents: Documents = arguments.instance_of("documents", documents, Documents)
        """What is sampled."""
        self.in_pass = len(documents)
        """How many documents a pass has."""
        self._seed = arguments.seed_of("seed", seed)
        self._passes = arguments.whole("passes", passes, 1, "passes")
        self._data_rank = None if rank is world_size is None else DataRank.of(rank, world_size)
        self._ranks = arguments.ranks_of(1, *(self._data_rank or DataRank(0, 1))[:2], (0, 1))
        self._own: dict[str, Any] = {}
        """What else decides the sequence than seed and documents, as in states."""
        self._sample = 0
        self._pass: tuple[int, Numbers] | None = None

    @abstractmethod
    def _order(self, passed: int) -> Numbers:
        """Return the documents of a pass."""

    @property
    def _identity(self) -> dict[str, Any]:
        """What decides the sequence, for states: JSON."""
        shared = {"format": 1, "order": self._kind, "seed": self._seed}
        return shared | self.documents._identity | self._own

    @property
    def total(self) -> int:
        """How many numbers all passes have together."""
        return self.in_pass * self._passes

    def __len__(self) -> int:
        """Return how many numbers this rank gets in all passes together, those that were given included."""
        return self.total // self._ranks.world_size

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of this rank from here on; raises InputError where it is one of several, and not given."""
        if self._data_rank is None and (found := DataRank.of(None, None)).world_size > 1:
            raise InputError(
                f"this process is rank {found.rank} of {found.world_size}, and this sampler has no rank: give it rank "
                "and world_size, 0 and 1 where a framework divides the batches (Accelerate, Lightning); or loop over "
                "PaddedBatches"
            )
        rank, world_size = self._ranks.rank, self._ranks.world_size
        while self._sample + world_size <= self.total:
            (number,) = self._between(self._sample + rank, self._sample + rank + 1).tolist()
            self._sample += world_size
            yield number

    def _between(self, first: int, stop: int) -> Numbers:
        """Return the numbers ``[first, stop)`` of the sequence, as far as there are."""
        parts = [np.empty(0, np.int64)]
        stop = min(stop, self.total)
        while first < stop:
            passed, at = divmod(first, self.in_pass)
            if self._pass is None or self._pass[0] != passed:
                self._pass = (passed, self._order(passed))
            parts.append(self._pass[1][at : at + stop - first])
            first += len(parts[-1])
        return np.concatenate(parts)

    def state_dict(self) -> dict[str, Any]:
        """Return where the sampler stands: small, JSON."""
        return self._identity | {"sample": self._sample}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where a state of such a sampler, or of `PaddedBatches` over one, was saved.

        Raises InputError where it is no such state, or one of another sequence: of another order, seed, stream, choice
        of eras or labels, or over other content.
        """
        self._sample = self._sample_in(state_dict)

    def _sample_in(self, state: Any) -> int:
        """Return how many numbers a state says were given; raises as `load_state_dict`."""
        wanted = self._identity
        taken = "what state_dict() of the same sampler, or of PaddedBatches over it, returned"
        given = arguments.state_of(state, {"order", "sample"}, taken)
        others = [name for name, value in wanted.items() if given.get(name) != value]
        if others:
            told = ", ".join(f"{name} {arguments.shown(given.get(name))} (here {wanted[name]!r})" for name in others)
            raise InputError(
                f"the state is one of another sequence of documents: {told}. Open Documents and the sampler as they "
                "were when it was saved, over the same store or a copy of it, or begin without the state"
            )
        sample = arguments.whole("sample", given["sample"], 0, "documents")
        if sample > self.total:
            raise InputError(
                f"the state stands behind document {sample} of the sequence, but all passes have {self.total}: give as "
                "many passes as it was saved with, or more"
            )
        return sample


class EraSampler(DocumentSampler):
    """All documents, in the order of the eras with which they were whole, shuffled inside each."""

    _kind = "eras"

    @naming_unknown
    def __init__(
        self,
        documents: Documents,
        *,
        seed: int = 0,
        shuffle: bool = True,
        passes: int = 1,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        """Take the documents; without ``shuffle``, those of an era come by partition and place.

        Raises:
            InputError: an argument cannot be used.
        """
        super().__init__(documents, seed=seed, passes=passes, rank=rank, world_size=world_size)
        self._own = {"shuffle": arguments.flag("shuffle", shuffle)}

    def _order(self, passed: int) -> Numbers:
        return era_order(self._eras, seed=self._seed, passed=passed, shuffle=self._own["shuffle"])

    @cached_property
    def _eras(self) -> Numbers:  # looked up once
        return self.documents._era_of_each()


class BucketSampler(EraSampler):
    """The same documents, so that those of a batch are about as long, and little is padded.

    Each ``window`` of documents, in the order of the eras, is sorted by length, cut into buckets, and these shuffled.
    """

    _kind = "buckets"

    @naming_unknown
    def __init__(
        self,
        documents: Documents,
        *,
        bucket_size: int = 64,
        window: int = 8192,
        seed: int = 0,
        passes: int = 1,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        """Take the documents; ``bucket_size`` is best that of a step, ``world_size * batch_size``.

        Raises:
            InputError: an argument cannot be used.
        """
        super().__init__(documents, seed=seed, passes=passes, rank=rank, world_size=world_size)
        bucket_size = arguments.whole("bucket_size", bucket_size, 1, "documents")
        window = arguments.whole("window", window, 1, "documents")
        if bucket_size > window:
            raise InputError(
                f"bucket_size is {bucket_size}, over the window of {window}: give a larger window, or less"
            )
        self._own |= {"bucket_size": bucket_size, "window": window}

    def _order(self, passed: int) -> Numbers:
        sizes = {"window": self._own["window"], "bucket": self._own["bucket_size"]}
        return bucket_order(super()._order(passed), self.documents.lengths, **sizes, seed=self._seed, passed=passed)


class StratifiedSampler(DocumentSampler):
    """An equal share of documents of each length: of strata between percentiles, without replacement, in each pass.

    A stratum that has fewer than its share gives all it has, which the log says; `strata` has the numbers.
    """

    _kind = "strata"

    @naming_unknown
    def __init__(
        self,
        documents: Documents,
        *,
        num_samples: int,
        num_strata: int,
        seed: int = 0,
        passes: int = 1,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        """Divide the documents into ``num_strata`` by length, and take ``num_samples`` in each pass.

        Raises:
            InputError: an argument cannot be used.
        """
        super().__init__(documents, seed=seed, passes=passes, rank=rank, world_size=world_size)
        samples = arguments.whole("num_samples", num_samples, 1, "documents")
        strata = arguments.whole("num_strata", num_strata, 1, "strata", 1 << 16)
        self._own = {"num_samples": samples, "num_strata": strata}
        self._owners = strata_of(documents.lengths, strata)
        self.strata: list[Stratum] = describe_strata(documents.lengths, self._owners, samples=samples, strata=strata)
        """Of each: its shortest and longest, how many documents it has, and its share."""
        self.in_pass = sum(one.drawn for one in self.strata)
        small = [(number, one) for number, one in enumerate(self.strata) if one.documents < one.share]
        if small:
            number, one = small[0]
            log.warning(
                "%s of %s strata have fewer documents than their share, %s documents are drawn and not %s: stratum %s, "
                "of %s to %s tokens, has %s, and its share is %s",
                *(len(small), strata, self.in_pass, samples),
                *(number, one.shortest, one.longest, one.documents, one.share),
            )

    def _order(self, passed: int) -> Numbers:
        return stratified_order(self._owners, self.strata, seed=self._seed, passed=passed)
