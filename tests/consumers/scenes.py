"""Stores with eras for the tests of the training side, and the slow, plain answer to what comes in which order."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from traceback import clear_frames
from typing import Any

import numpy as np
import pytest

from tests.store.chains import STREAM, fill, make_chain, make_eras, make_info, make_store, tokens_of, write_eras
from tokenmill.consumers import Batch, Batches, Mixture, StepDataset
from tokenmill.eras import Era, Permutation
from tokenmill.reading import Blocks
from tokenmill.store import Store, StreamInfo
from tokenmill.wire.chain import genesis_hash, roll

INFO = make_info()
CHAINS = {partition: make_chain(INFO, 40, partition=partition, seed=partition) for partition in range(3)}
STOPS = ({0: 5}, {0: 6, 1: 3}, {1: 9, 2: 1}, {0: 20}, {0: 23, 1: 13, 2: 4})
"""How far the partitions reach after each era: 40 blocks in all, some eras without some partitions."""
ERAS = make_eras(INFO, CHAINS, STOPS, end=True)
OPEN_ERAS = ERAS[:-1]
BLOCKS = 40


@cache
def other_chains(kept: int = 0) -> dict[int, Blocks]:
    """Return chains of other tokens, as those of another cluster with the same recipe; up to ``kept`` eras the same."""
    reached = {number: part.stop for number, part in enumerate(ERAS[kept - 1].ranges)} if kept else {}
    chains = {}
    for partition, chain in CHAINS.items():
        same, other = reached.get(partition, 0), make_chain(INFO, 40, partition=partition, seed=100 + partition)
        tokens = bytes(chain.tokens)[: same * INFO.block_bytes] + bytes(other.tokens)[same * INFO.block_bytes :]
        entries = [*chain.entries[:same], *other.entries[same:]]
        hashes = roll(genesis_hash(INFO.fingerprint, partition), tokens, entries)
        chains[partition] = Blocks(0, tokens, entries, hashes)
    return chains


@cache
def other_eras(kept: int = 0) -> list[Era]:
    return make_eras(INFO, other_chains(kept), STOPS, end=True)


def era_store(path: Path, eras: Sequence[Era] = ERAS, chains: Mapping[int, Blocks] = CHAINS) -> Store:
    store = make_store(path, INFO)
    grow(store, eras, chains)
    return store


def grow(store: Store, eras: Sequence[Era], chains: Mapping[int, Blocks] = CHAINS, info: StreamInfo = INFO) -> None:
    """Bring eras, all from the first on, and their blocks into a store; without any, it stays as it is."""
    for partition, part in enumerate(eras[-1].ranges if eras else ()):
        if part.stop:
            fill(store, info, chains[partition], [part.stop], partition=partition)
    if eras:
        write_eras(store, eras)


def expected(
    eras: Iterable[Era] = ERAS, *, seed: int = 1, shuffle: bool = True, passes: int = 1, length: int = 4
) -> list[list[int]]:
    """Return the tokens of all samples, in order, as the protocol says: one by one."""
    rows: list[list[int]] = []
    named = list(eras)
    for passed in range(passes):
        for era in named:
            samples = [
                tokens_of(CHAINS[partition], INFO)[block, start : start + length + 1].tolist()
                for partition, part in enumerate(era.ranges)
                for block in range(part.first, part.stop)
                for start in range(0, INFO.block_tokens - 1, length)
            ]
            order = Permutation(len(samples), seed=seed, passed=passed, era=era.number)
            places = order(np.arange(len(samples))).tolist() if shuffle else range(len(samples))
            rows += [samples[place] for place in places]
    return rows


STEPS: dict[str, Any] = {"batch_size": 2, "sequence_length": 4, "seed": 1}
"""How tests open batches, unless they say otherwise."""


def open_batches(store: Store | Path, *, state: Any = None, **options: Any) -> Batches:
    batches = Batches(store if isinstance(store, Path) else store.path, STREAM, **(STEPS | options))
    if state is not None:
        batches.load_state_dict(state)
    return batches


def open_steps(store: Store | Path, **options: Any) -> StepDataset:
    return StepDataset(store if isinstance(store, Path) else store.path, STREAM, **(STEPS | options))


def halves(store: Store | Path) -> dict[str, Any]:
    """Return arguments of a mixture of a store's early eras with its late ones."""
    streams = {"early": {"eras": range(3)}, "late": {"eras": range(3, 5)}}
    path = store if isinstance(store, Path) else store.path
    return {"streams": streams, "weights": {"early": 2, "late": 3}, "store": path, "stream": STREAM, **STEPS}


def open_halves(store: Store | Path, **options: Any) -> Mixture:
    return Mixture.open(**halves(store) | options)


def open_ranks(store: Store, world_size: int, **options: Any) -> list[Batches]:
    return [open_batches(store, rank=rank, world_size=world_size, **options) for rank in range(world_size)]


def rows_of(batches: Iterable[Batch]) -> list[list[int]]:
    return [[*x, y[-1]] for batch in batches for x, y in zip(batch.x.tolist(), batch.y.tolist(), strict=True)]


def together(ranks: Sequence[Iterable[Batch]]) -> list[list[int]]:
    return [row for step in zip(*ranks, strict=True) for row in rows_of(step)]


@contextmanager
def raises_in_workers(error: type[Exception], match: str) -> Iterator[None]:
    """Expect what a loader's worker raises, and end the loader with it.

    The error that torch raises holds the loader's iterator in a cycle. Whenever Python looks for cycles, in whatever
    test that is, torch would wait five seconds for each worker.
    """
    with pytest.raises(error, match=match) as caught:
        yield
    clear_frames(caught.tb)
