"""The list of steps: written in one way, read with its lists, and opened."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.app.milling.steps.curated import LIMITS
from tokenmill.app.milling.steps.pipeline import (
    MAX_STEPS,
    canonical_entries,
    list_digests,
    open_pipeline,
    read_pipeline,
)
from tokenmill.canonical import canonical_json
from tokenmill.errors import SettingsError


def test_equal_steps_are_written_alike() -> None:
    """A default is left out, said or not, and a number is one however it is written."""
    written = canonical_entries([{"name": "sample", "rate": 1, "seed": 0}, {"name": "words", "words": ("a",)}])
    assert written == ({"name": "sample", "rate": 1.0}, {"name": "words", "words": ["a"]})
    assert canonical_entries(written) == written
    assert canonical_entries(json.loads(canonical_json(written))) == written
    assert canonical_entries([{"name": "sample", "rate": 0.5}]) == ({"name": "sample"},)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (
            {"name": "gopher_qualty"},
            r"step 2: 'gopher_qualty' is unknown \(did you mean gopher_quality\?\); there are ",
        ),
        ({"rate": 1}, "step 2: it must be a table with a name"),
        ("sample", "step 2: it must be a table"),
        ({"name": "sample", "rat": 1}, r"step 2 \(sample\): unknown parameter rat \(did you mean rate\?\)"),
        ({"name": "sample", "rate": 2}, r"step 2 \(sample\): rate = 2\.0: a share is from 0 to 1"),
    ],
)
def test_a_step_that_cannot_be_is_named_by_its_number(entry: Any, said: str) -> None:
    """And what it should be."""
    with pytest.raises(SettingsError, match=f"^{said}"):
        canonical_entries([{"name": "sample"}, entry])


def test_there_are_few_steps() -> None:
    """Each has counters in every message."""
    assert len(canonical_entries([{"name": "sample"}] * MAX_STEPS)) == MAX_STEPS
    with pytest.raises(SettingsError, match=f"{MAX_STEPS + 1} steps, where a recipe has {MAX_STEPS} at most"):
        canonical_entries([{"name": "sample"}] * (MAX_STEPS + 1))


def test_a_list_is_named_by_its_content(tmp_path: Path) -> None:
    """Not by its path; the recipe needs no file any more."""
    for name in ("one", "two"):
        (tmp_path / name).write_text(f"bad\n#{name}")
    one, two = (read_pipeline([{"name": "words", "words": str(tmp_path / name)}]) for name in ("one", "two"))
    assert one == two
    (digest,) = one.lists
    assert one.entries == ({"name": "words", "words": f"sha256:{digest}"},)
    assert list_digests(one.entries) == {digest}
    assert list_digests([{"name": "words", "words": ["bad"]}, {"name": "newer", "words": "a"}]) == frozenset()
    (step,) = open_pipeline(one.entries, one.lists, limits=LIMITS)
    assert step.describe()["words"] == f"sha256:{digest}"
    with pytest.raises(
        SettingsError, match=rf"step 1 \(words\): the list words \(SHA-256 {digest[:12]}…\) is not there"
    ):
        open_pipeline(one.entries, limits=LIMITS)


def test_a_file_that_is_no_list_is_named(tmp_path: Path) -> None:
    """With its parameter."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match=r"step 1 \(words\): words: .*binary cannot be used: .*utf-8"):
        read_pipeline([{"name": "words", "words": str(tmp_path / "binary")}])
