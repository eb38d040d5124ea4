"""The comparison of padded batches with ``datasets``."""

from pathlib import Path

import pytest

pytest.importorskip("datasets")

from benchmarks.padded import measure_padded


def test_both_give_the_same_batches(tmp_path: Path) -> None:
    """Or nothing would be measured; the ratio is the lower one."""
    found = measure_padded(tmp_path, rounds=1, count=400, seconds=0.05)
    assert found["documents"] == 400
    assert found["ratio"] == min(found["shuffled"]["ratio"], found["bucketed"]["ratio"]) > 0
