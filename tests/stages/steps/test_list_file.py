"""Lists in files."""

from pathlib import Path

import pytest

from tokenmill.errors import SettingsError
from tokenmill.stages.steps import list_file as module
from tokenmill.stages.steps.list_file import ListFile, canonical_lines, read_list_file


def test_entries_are_lines_in_order_and_each_once() -> None:
    """However a file is written; a separator that is no line feed stays."""
    content = canonical_lines("\ufeffb\r\n\r\n # no\n  a\u2028c \nb\n".encode())
    assert content == "a\u2028c\nb\n".encode()
    assert ListFile.of(content).lines() == ["a\u2028c", "b"]
    assert canonical_lines(content) == content
    assert ListFile.of(b"").lines() == []


def test_a_file_that_cannot_be_read_or_is_too_large_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the parameter, and what is allowed."""
    with pytest.raises(SettingsError, match=r"^step 2 \(words\): words: cannot read .*nowhere: No such file"):
        read_list_file(str(tmp_path / "nowhere"), "step 2 (words): words")
    with pytest.raises(SettingsError, match=r"cannot read .*: Is a directory"):
        read_list_file(str(tmp_path), "x")
    monkeypatch.setattr(module, "MAX_LIST_BYTES", 1 << 20)
    large = tmp_path / "large"
    large.write_bytes(b"x" * (1 << 20))
    assert len(read_list_file(str(large), "x")) == 1 << 20
    large.write_bytes(b"x" * ((1 << 20) + 1))
    with pytest.raises(SettingsError, match=r"^x: .*large is larger than 1 MiB, the most that a list may have"):
        read_list_file(str(large), "x")
