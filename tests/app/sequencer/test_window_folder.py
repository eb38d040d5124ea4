"""What a sequencer leaves on its disk: one process has it, and what does not belong together is no note."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

from tokenmill.app.milling.duplicates.signatures import Exact
from tokenmill.app.milling.duplicates.window import Window
from tokenmill.app.sequencer.domain_messages import SliceStart, VerdictEnd
from tokenmill.app.sequencer.rebuilding import NOTE, WindowFolder, WindowNote
from tokenmill.app.settings import Domain

DOMAIN = Domain("web", ("raw-text",), "", {"name": "exact", "window": 400, "version": 1})
KNOWN = SliceStart(0, 7, 200, {(0, 1): VerdictEnd(9, bytes(range(16)))})


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def filled(folder: WindowFolder) -> Window:
    window = Window(Exact(window=400), folder.path, goes_on=False)
    hashes = np.arange(1, 201, dtype=np.uint64)[:, None]
    window.judge(hashes, np.zeros((200, 2), np.uint64))
    return window


def test_a_note_is_read_by_the_next_one() -> None:
    folder = WindowFolder(DOMAIN)
    window = filled(folder)
    assert folder.is_due(window)
    folder.write(window, WindowNote(KNOWN, [1, 2**64 - 1]))
    assert not folder.is_due(window)
    folder.close()
    again = WindowFolder(DOMAIN)
    assert again.read() == WindowNote(KNOWN, [1, 2**64 - 1])
    known = Window(Exact(window=400), again.path, KNOWN.kept)
    assert (
        known.judge(np.arange(1, 202, dtype=np.uint64)[:, None], np.zeros((201, 2), np.uint64)).kinds > 0
    ).sum() == 200


def test_one_process_has_the_folder() -> None:
    first, second = WindowFolder(DOMAIN), WindowFolder(DOMAIN)
    assert first.path is not None
    assert second.path is None
    window = filled(second)
    assert not second.is_due(window)
    second.write(window, WindowNote(KNOWN, []))
    second.clear()
    assert first.read() is None
    first.close()
    assert WindowFolder(DOMAIN).path is not None


@pytest.mark.parametrize("data", [b"", b"{}", b"null", b'{"known": {"domain": "00"}, "digests": []}', b"\xff"])
def test_what_is_no_note_is_none(data: bytes) -> None:
    """As it is after a disk was damaged, or of another domain."""
    folder = WindowFolder(DOMAIN)
    assert folder.path is not None
    (folder.path / NOTE).write_bytes(data)
    assert folder.read() is None


def test_what_another_one_put_there_is_not_used(temporary: Path) -> None:
    """A link in its place, or a file: temporary folders are open to all users."""
    path = WindowFolder(DOMAIN).path
    assert path is not None
    path.rename(temporary / "elsewhere")
    path.symlink_to(temporary / "elsewhere")
    assert WindowFolder(DOMAIN).path is None
    path.unlink()
    path.touch()
    assert WindowFolder(DOMAIN).path is None
    path.unlink()
    assert WindowFolder(DOMAIN).path == path
    assert path.stat().st_mode & 0o777 == 0o700


def test_a_full_disk_leaves_the_note_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = WindowFolder(DOMAIN)
    window = filled(folder)
    folder.write(window, WindowNote(KNOWN, [1]))

    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fdatasync", full)
    folder.write(window, WindowNote(SliceStart(0, 8, 201), [2]))
    assert folder.read() == WindowNote(KNOWN, [1])
    assert "No space left" in capsys.readouterr().out
