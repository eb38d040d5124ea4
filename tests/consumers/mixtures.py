"""Mixtures for tests: stores of several streams that grow, and the slow, plain answer to what comes in which order."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.consumers.scenes import grow
from tests.store.chains import STREAM, make_chain, make_eras, make_info, make_store
from tokenmill.consumers import Batch, Batches, Mixture
from tokenmill.eras import Era
from tokenmill.reading import Blocks
from tokenmill.store import Store, StreamInfo

Row = tuple[str, tuple[int, ...]]
"""A sample's stream and tokens."""

INFO = make_info()
LONG_SEGMENTS = make_info(segment_blocks=512)
"""For streams that grow far: to seal a segment costs ten syncs of the disk."""
NAMES = ("books", "code", "web")
ERA = 8
"""Blocks of an era, in each of two partitions half of them."""


@cache
def chains_of(seed: int, eras: int) -> dict[int, Blocks]:
    count = ERA // 2 * eras
    return {part: make_chain(INFO, count, partition=part, seed=1000 * seed + part) for part in range(2)}


@cache
def eras_of(seed: int, eras: int) -> list[Era]:
    stops = [dict.fromkeys(range(2), ERA // 2 * (era + 1)) for era in range(eras)]
    return make_eras(INFO, chains_of(seed, eras), stops, end=True)


def stream_store(path: Path, seed: int, eras: int, *, there: int | None = None, info: StreamInfo = INFO) -> Store:
    """Make a store that has all eras and the end, or as many of them as are ``there``."""
    store = make_store(path, info)
    bring(store, seed, eras, eras if there is None else there, end=there is None, info=info)
    return store


def bring(store: Store, seed: int, eras: int, there: int, *, end: bool = False, info: StreamInfo = INFO) -> None:
    grow(store, eras_of(seed, eras)[: there + end], chains_of(seed, eras), info)


def stores_of(path: Path, eras: Mapping[str, int], **options: Any) -> dict[str, Path]:
    """Make a store for each stream; the n-th name has the seed n."""
    numbered = enumerate(eras.items())
    return {name: stream_store(path / name, seed, count, **options).path for seed, (name, count) in numbered}


def open_streams(stores: Mapping[str, Path], passes: Mapping[str, int] | None = None, **options: Any) -> Any:
    given = {"batch_size": 2, "sequence_length": 4, "seed": 1, "timeout": 0.0} | options
    return {
        name: Batches(path, STREAM, **(given | {"passes": (passes or {}).get(name, 1)}))
        for name, path in stores.items()
    }


def open_mixture(
    stores: Mapping[str, Path],
    weights: Any,
    mixed: Mapping[str, Any] | None = None,
    *,
    state: Any = None,
    **options: Any,
) -> Mixture:
    mixture = Mixture(open_streams(stores, **options), weights, **(mixed or {}))
    if state is not None:
        mixture.load_state_dict(state)
    return mixture


def places_of(step: int, global_batch: int) -> list[int]:
    """Return which of a step's samples each row of all ranks has, by the rule as it stands in the page."""
    first = (step * 0x9E3779B97F4A7C15 % 2**64 >> 32) * global_batch >> 32
    return [(row + first) % global_batch for row in range(global_batch)]


def given_rows(batches: Iterable[Batch]) -> list[Row]:
    """Return the stream and the tokens of each sample, row by row."""
    return [
        (name, (*x, y[-1]))
        for batch in batches
        for name, x, y in zip(batch.streams, batch.x.tolist(), batch.y.tolist(), strict=True)
    ]


def rows_of(batches: Iterable[Batch]) -> list[Row]:
    """Return the same in the order of the samples; the batches of all ranks in a step stand behind each other."""
    found = []
    for step, ranks in groupby(batches, lambda batch: batch.step):
        rows = given_rows(ranks)
        placed = dict(zip(places_of(step, len(rows)), rows, strict=True))
        found += [placed[place] for place in range(len(rows))]
    return found


def alone(stores: Mapping[str, Path], **options: Any) -> dict[str, list[tuple[int, ...]]]:
    """Return the tokens of all samples of each stream in its own order."""
    return {
        name: [row for _, row in given_rows(batches)]
        for name, batches in open_streams(stores, **({"batch_size": 1} | options)).items()
    }


Change = tuple[int, int, Mapping[str, Fraction]]
"""From which sample on weights hold, from which on that is known, and the weights."""


def drawn(  # noqa: C901 - the whole rule in one place
    changes: Sequence[Change], count: int, ends: Mapping[str, int] | None = None
) -> list[str]:
    """Return the stream of each sample, by the rule as it stands in the page: slowly, with fractions.

    ``ends`` are streams that leave behind so many samples.
    """
    taken: dict[str, int] = {}
    wanted: dict[str, Fraction] = {}
    found: list[str] = []
    gone: set[str] = set()

    def weights_at(sample: int) -> dict[str, Fraction]:
        given = [weights for start, _, weights in held if start <= sample][-1]
        kept = {name: weight for name, weight in given.items() if name not in gone}
        return {name: weight / sum(kept.values()) for name, weight in kept.items()}

    def due(name: str, sample: int) -> Fraction | None:
        """Return when a stream ought to have had one more than it was taken, looking ahead as far as is known."""
        starts = sorted({start for start, _, _ in held if start > sample})
        have = wanted[name]
        for begin, stop in zip([sample, *starts], [*starts, None], strict=True):
            weight = weights_at(begin).get(name, Fraction(0))
            if stop is None or have + weight * (stop - begin) >= taken[name] + 1:
                return begin + (taken[name] + 1 - have) / weight if weight else None
            have += weight * (stop - begin)
        return None

    for sample in range(count):
        held = effective(changes, sample)
        for name in (name for _, _, weights in held for name in weights):
            taken.setdefault(name, 0)
            wanted.setdefault(name, Fraction(0))
        for name, end in sorted((ends or {}).items()):
            if taken.get(name) == end and name not in gone:
                gone.add(name)
                owed = wanted[name] - end
                wanted[name] = Fraction(end)
                for other, weight in weights_at(sample).items():
                    wanted[other] += weight * owed
        now = weights_at(sample)
        may = [name for name in taken if name not in gone and taken[name] < wanted[name] + now.get(name, 0)]
        chosen = min(may, key=lambda name: (due(name, sample) is None, due(name, sample) or 0, name))
        found.append(chosen)
        taken[chosen] += 1
        for name, weight in now.items():
            wanted[name] += weight
    return found


def in_order(names: Sequence[str], own: Mapping[str, list[tuple[int, ...]]]) -> list[Row]:
    """Return samples of these streams, of each in its own order."""
    left = {name: iter(rows) for name, rows in own.items()}
    return [(name, next(left[name])) for name in names]


def worst_share(names: Sequence[str], changes: Sequence[Change]) -> Fraction:
    """Return by how much a stream was off at most of what the weights say, after any sample."""
    wanted: defaultdict[str, Fraction] = defaultdict(Fraction)
    taken: Counter[str] = Counter()
    worst = Fraction(0)
    for sample, name in enumerate(names):
        held = [weights for start, _, weights in effective(changes, sample) if start <= sample][-1]
        total = sum(held.values())
        for each, weight in held.items():
            wanted[each] += weight / total
        taken[name] += 1
        worst = max(worst, *(abs(taken[each] - part) for each, part in wanted.items()))
    return worst


def effective(changes: Sequence[Change], sample: int) -> list[Change]:
    """Return the changes that are known at a sample, without those that later ones took the place of."""
    found: list[Change] = []
    for change in changes:
        if change[1] <= sample:
            found = [one for one in found if one[0] < change[0]] + [change]
    return found
