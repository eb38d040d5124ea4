"""Data sets of Hugging Face: on disk, and streamed from a folder as from the hub."""

import json
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest

from tests.app.produce.files import write_jsonl
from tests.app.produce.reading import reading_of
from tokenmill.app.produce import Item, Refused, find_sources, read_items
from tokenmill.errors import InputError

ROWS: list[dict[str, Any]] = [{"id": f"n{number}", "text": f"text {number}"} for number in range(20)]


def read(path: Path | str, split: str | None = None) -> list[Item | Refused]:
    """Return what the data set yields."""
    return list(read_items(find_sources([str(path)], reading_of(), split)))


def test_a_data_set_is_streamed(tmp_path: Path) -> None:
    """`hf://` takes whatever `load_dataset` does, a folder of files too."""
    write_jsonl(tmp_path / "train.jsonl", ROWS)

    found = read(f"hf://{tmp_path}", "train")

    assert [json.loads(item.value) for item in found if isinstance(item, Item)] == ROWS


def test_a_split_must_be_chosen_where_there_are_several(tmp_path: Path) -> None:
    """It says which there are."""
    half = datasets.Dataset.from_list(ROWS[:10])
    datasets.DatasetDict({"train": half, "test": datasets.Dataset.from_list(ROWS[10:])}).save_to_disk(
        tmp_path / "saved"
    )

    found = read(tmp_path / "saved", "test")
    assert [json.loads(item.value) for item in found if isinstance(item, Item)] == ROWS[10:]
    (refused,) = read(tmp_path / "saved")
    assert isinstance(refused, Refused)
    assert refused.broken
    assert "has the splits train, test: choose one with --split" in refused.why


def test_a_data_set_that_is_not_there_is_told(tmp_path: Path) -> None:
    """A wrong column, too."""
    datasets.Dataset.from_list([{"body": "x"}]).save_to_disk(tmp_path / "saved")

    (refused,) = read(tmp_path / "saved")
    assert isinstance(refused, Refused)
    assert "no column 'text' or 'content'; there are: 'body'" in refused.why


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the extra to install, before anything is read."""
    for name in ("datasets", "pyarrow.ipc", "pyarrow.parquet", "warcio.archiveiterator"):
        monkeypatch.setitem(sys.modules, name, None)
    extras = {"hf://some/where": "hf"}
    for name in ("a.parquet", "a.arrow", "a.warc.gz"):
        (tmp_path / name).touch()
        extras[str(tmp_path / name)] = "produce"

    for path, extra in extras.items():
        with pytest.raises(InputError, match=rf"pip install 'tokenmill\[{extra}\]'"):
            find_sources([path], reading_of())
