"""The benchmark of loaders compares like with like."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.loader import _cell
from benchmarks.loaders import following
from benchmarks.loaders.ours import Limit, TokenMill
from benchmarks.loaders.place import Stock
from benchmarks.loaders.stock import make_stock

SHAPES = ({"blocks": 10_000}, {"blocks": 160, "segment_blocks": 8, "era_blocks": 160}, {"blocks": 80, "era_blocks": 2})
"""Two eras of the usual size; one of many segments; many of two blocks."""


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def stock(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stock:
    return make_stock(tmp_path_factory.mktemp("stock"), block_tokens=5, **request.param)


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_limit_reads_the_same_rows_in_the_same_order(stock: Stock, *, shuffle: bool, check: bool) -> None:
    ours, limit = TokenMill(check=check), Limit()
    for wide in (False, True):
        pairs = zip(
            ours.batches(stock, shuffle=shuffle, wide=wide),
            limit.batches(stock, shuffle=shuffle, wide=wide),
            strict=True,
        )
        number = 0
        for mine, its in pairs:
            assert np.array_equal(mine[0] if wide else mine, its[0] if wide else its)
            assert not wide or np.array_equal(mine[1], its[1])
            number += 1
        assert number == stock.blocks // 16


def test_ratios_are_formed_within_a_round() -> None:
    """So that a slow minute hits both; a loader that has no such way is left out."""
    run = {"tokens": 100, "wall_seconds": 1.0, "first_seconds": 0.5}
    runs: dict[str, list[Any]] = {
        "tokenmill": [run | {"cpu_seconds": 1.0}, run | {"cpu_seconds": 10.0}],
        "other": [run | {"cpu_seconds": 4.0}, run | {"cpu_seconds": 20.0}],
        "tokenmill-unchecked": [run | {"cpu_seconds": 1.0}, run | {"cpu_seconds": 5.0}],
        "limit": [run | {"cpu_seconds": 0.5}, run | {"cpu_seconds": 5.0}],
        "nanogpt": [None, None],
    }
    found = _cell({"shuffle": True, "wide": False, "cold": False}, runs)
    assert found["tokenmill_to"] == {"other": 3.0, "tokenmill-unchecked": 0.75, "limit": 0.5}
    assert found["unchecked_to_limit"] == 0.75
    assert found["tokens_per_second"]["other"] == {"median": 15, "min": 5, "max": 25}


@pytest.mark.needs("minutes")
def test_a_reader_of_a_growing_store_gets_each_era_as_one_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is measured of it is a time after the era was there."""
    monkeypatch.setattr(following, "ERAS", 2)
    monkeypatch.setattr(following, "IDLE_SECONDS", 0.2)
    found = following.measure_following(tmp_path)
    assert 0 < found["era_to_batch_seconds"]["median"] <= found["era_to_batch_seconds"]["max"]
    assert 0 <= found["idle_cores"] < 1
    assert not any(tmp_path.iterdir())
