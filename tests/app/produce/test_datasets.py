"""Data sets of Hugging Face: on disk, and streamed from a folder as from the hub."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest

from tests.app.produce.files import as_lines, write_jsonl
from tests.app.produce.hub import NAME, hub
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


READ_TWICE = """
import sys
from tests.app.produce.reading import reading_of
from tokenmill.app.produce import find_sources, read_items
from tokenmill.errors import InputError

for _ in range(2):
    sources = find_sources([sys.argv[1]], reading_of(plain=True), "train")
    print(sources[0].signature().decode(), *(item.text for item in read_items(sources)))
try:
    find_sources([sys.argv[1] + "-of-nobody"], reading_of())[0].signature()
except InputError as error:
    print(error)
"""
"""In a process of its own, for the libraries take the hub's address from the environment when they are imported."""


def test_the_commit_that_a_run_began_with_is_the_one_that_is_read(tmp_path: Path) -> None:
    """Though somebody pushes another one in between; the next call notices that, and what is not there is named."""
    command = [sys.executable, "-c", READ_TWICE, f"hf://{NAME}"]
    with hub([as_lines([{"text": "old"}]), as_lines([{"text": "new"}, {"text": "newer"}])]) as server:
        environment = {"HF_ENDPOINT": server.address, "HF_HOME": str(tmp_path), "NO_PROXY": "127.0.0.1"}
        done = subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=True
        )
        first, second = server.commits

    old, new, missing = done.stdout.splitlines()
    assert old == f"{first} old"
    assert new == f"{second} new newer"
    assert missing.startswith(f"hf://{NAME}-of-nobody: the hub does not tell its commit")
    assert missing.endswith("check the name and the connection, or send it in one go (--no-resume)")


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
        with pytest.raises(InputError, match=rf"pip install '\.\[{extra}\]'"):
            find_sources([path], reading_of())
