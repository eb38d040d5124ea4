"""Writing so that it stays written."""

import os
from pathlib import Path

import pytest

from tokenmill.store.layout import put_file, write_at


def test_a_file_is_put_whole_in_its_place(tmp_path: Path) -> None:
    """Over an older one too, and nothing else stays behind."""
    put_file(tmp_path / "a.json", b"old and longer")
    put_file(tmp_path / "a.json", b"new")
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("a.json", b"new")]


def test_a_failed_sync_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rename comes after the sync, never before."""
    put_file(tmp_path / "a.json", b"old")

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        put_file(tmp_path / "a.json", b"new")
    assert (tmp_path / "a.json").read_bytes() == b"old"


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may take less than it was given."""
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: pwrite(descriptor, data[:3], offset))
    with (tmp_path / "x").open("wb") as file:
        write_at(file.fileno(), b"0123456789", 5)
    assert (tmp_path / "x").read_bytes() == bytes(5) + b"0123456789"
