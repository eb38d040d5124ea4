"""`make scaling`, small: every part is measured, and ranks have each sample once."""

import json
from pathlib import Path

import pytest

from benchmarks import scaling

pytestmark = pytest.mark.slow


@pytest.mark.needs("minutes")
def test_each_part_is_measured(tmp_path: Path) -> None:
    scaling.main(rounds=1, share=0.01, directory=tmp_path / "work", output=tmp_path)

    found = json.loads((tmp_path / "scaling.json").read_text())
    assert list(found["eras"]) == ["1", "100", "ratios"]
    assert list(found["partitions"]) == ["2", "4", "ratios"]
    assert list(found["streams"]) == ["1", "2", "ratios"]
    assert found["ranks"]["samples_each_once"] == 160 * 4 * 10


def test_samples_that_ranks_share_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "RANK_PLACES", scaling.RANK_PLACES.replace("int(rank)", "int(rank) // 2"))
    with pytest.raises(SystemExit, match="8 ranks took"):
        scaling._ranks(tmp_path, 0.001, 1)
