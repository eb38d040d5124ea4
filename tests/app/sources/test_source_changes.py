"""What became of a run's sources: told by their content."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.sources.reading import reading_of
from tokenmill.app.sources import find_sources, read_items
from tokenmill.app.sources.items import DocumentSource
from tokenmill.app.sources.source_changes import (
    KnownSource,
    SourceComparison,
    by_name,
    changes_line,
    compare_sources,
    look_at_sources,
    sources_to_send,
)

Files = Mapping[str, bytes]
lines = st.lists(st.sampled_from([b"\n", b"a\n", b"bb\n"]), max_size=5).map(b"".join)


@dataclass
class Folder:
    path: Path
    suffix: str = ".jsonl"

    def write(self, files: Files) -> None:
        for path in self.path.iterdir():
            path.unlink()
        for name, content in files.items():
            (self.path / f"{name}{self.suffix}").write_bytes(content)

    def sources(self) -> list[DocumentSource]:
        return find_sources([str(self.path)], reading_of())

    def seen(self, *, whole_lines: bool = False) -> list[KnownSource]:
        return [one.seen for one in look_at_sources(self.sources(), whole_lines=whole_lines)]

    def compared(self, known: list[KnownSource], *, whole_lines: bool = False) -> SourceComparison:
        return compare_sources(known, look_at_sources(self.sources(), known, whole_lines=whole_lines))

    def changed(self, before: Files, now: Files) -> SourceComparison:
        self.write(before)
        known = self.seen()
        self.write(now)
        return self.compared(known)

    def wheres(self, seen: list[KnownSource]) -> list[tuple[str, bytes]]:
        """Return file and content of each line that a part sends: no line here is an object."""
        return [(Path(item.where).name, item.data) for item in read_items(sources_to_send(seen, self.sources()))]  # type: ignore[union-attr]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "in").mkdir()
    return Folder(tmp_path / "in")


def kinds(found: SourceComparison) -> list[tuple[str, str]]:
    return [(change.kind, Path(change.name).stem) for change in found.changes]


def test_what_is_the_same_is_no_change(folder: Folder) -> None:
    folder.write({"a": b"1\n2\n", "b": b""})
    known = folder.seen()
    os.utime(folder.path / "a.jsonl")
    found = folder.compared(known)
    assert found.changes == []
    assert [one.sent_now for one in found.present] == [False, False]
    assert [one.size for one in found.present] == [4, 0]


def test_content_is_read_only_where_size_or_time_changed(folder: Folder) -> None:
    """A folder of terabytes is looked at in no time."""
    folder.write({"a": b"1\n", "b": b"2\n"})
    known = folder.seen()
    (folder.path / "b.jsonl").write_bytes(b"2\n3\n")
    with mock.patch.object(Path, "open", autospec=True, side_effect=Path.open) as opened:
        assert kinds(folder.compared(known)) == [("grown", "b")]
    assert {call.args[0].stem for call in opened.call_args_list} == {"b"}


@pytest.mark.parametrize(
    ("before", "after", "kind", "why"),
    [
        (b"1\n2\n", b"1\n2\n3\n", "grown", "began with is the same"),
        (b"1\n2\n", b"1\n9\n", "changed", "content is another one"),
        (b"1\n2\n", b"1\n9\n3\n", "changed", "in the middle"),
        (b"1\n2\n", b"1\n", "changed", "shorter"),
        (b"1\n2\n", b"", "changed", r"\(4 bytes then, 0 now\)"),
        (b"1\n2\n", b"1\n2\n3", "grown", ""),
        (b"1\n2", b"1\n2\n3", "grown", ""),
        (b"1\n2", b"1\n2\r\n3", "grown", ""),
        (b"1\n2", b"1\n2\r3", "changed", ""),  # the line itself goes on
        (b"1\n2", b"1\n23", "changed", ""),
        (b"", b"1", "grown", ""),
    ],
)
def test_a_change_is_named_with_what_changed(folder: Folder, before: bytes, after: bytes, kind: str, why: str) -> None:
    folder.write({"a": before})
    known = folder.seen()
    folder.write({"a": after})
    found = folder.compared(known)
    assert kinds(found) == [(kind, "a")]
    assert re.search(why, changes_line(found.changes))
    (present,) = found.present
    assert present.sent_now == (kind == "grown")
    if kind == "grown":
        assert (present.entry, present.byte, present.size) == (before.count(b"\n"), len(before), len(after))
    else:
        assert (present.size, present.digest) == (known[0].size, known[0].digest)


def test_new_gone_and_renamed_files_are_told_apart(folder: Folder) -> None:
    found = folder.changed(
        {"a": b"a\n", "b": b"b\nb\n", "c": b"c\nc\nc\n", "d": b"d\n"},
        {"a": b"a\n", "a2": b"a\n", "e": b"b\nb\n", "f": b"c\nc\nc\nmore\n"},
    )
    assert kinds(found) == [("new", "a2"), ("renamed", "e"), ("renamed", "f"), ("grown", "f"), ("gone", "d")]
    assert folder.wheres(found.present) == [("a2.jsonl:1", b"a"), ("f.jsonl:4", b"more")]
    again = folder.compared(found.present)
    assert again.changes == []


def test_a_line_that_is_being_written_waits_for_its_end(folder: Folder) -> None:
    folder.write({"a": b"1\n2", "b": b"no end"})
    known = folder.seen(whole_lines=True)
    assert folder.wheres(known) == [("a.jsonl:1", b"1")]
    folder.write({"a": b"1\n2\n3", "b": b"no end"})
    found = folder.compared(known, whole_lines=True)
    assert folder.wheres(found.present) == [("a.jsonl:2", b"2")]
    folder.write({"a": b"1\n2"})
    assert folder.compared(folder.seen(), whole_lines=True).changes == []


def test_a_file_that_cannot_be_read_is_named(folder: Folder) -> None:
    folder.write({"a": b"1\n"})
    known = folder.seen()
    (folder.path / "a.jsonl").unlink()
    (folder.path / "a.jsonl").symlink_to("nowhere")
    assert "cannot be read now" in changes_line(folder.compared(known).changes)
    unreadable = folder.seen()
    folder.write({"a": b"1\n"})
    assert kinds(folder.compared(unreadable)) == [("changed", "a")]


def test_a_path_that_is_given_twice_is_two_sources(folder: Folder) -> None:
    folder.write({"a": b"1\n"})
    path = str(folder.path / "a.jsonl")
    sources = find_sources([path, path], reading_of())
    known = [one.seen for one in look_at_sources(sources)]
    folder.write({"a": b"1\n2\n"})
    found = compare_sources(known, look_at_sources(sources, known))
    assert [change.kind for change in found.changes] == ["grown", "grown"]
    assert len(list(read_items(sources_to_send(found.present, sources)))) == 2
    assert [*by_name([KnownSource(name, 0, 0, "") for name in "aba"])] == [("a", 0), ("b", 0), ("a", 1)]


def test_a_file_that_is_no_file_of_lines_never_grows_and_many_changes_are_told_in_short(folder: Folder) -> None:
    folder.suffix = ".txt"
    assert "no file of lines" in changes_line(folder.changed({"a": b"1\n"}, {"a": b"1\n2\n"}).changes)
    text = changes_line(folder.changed({}, {f"{number}": b"" for number in range(8)}).changes)
    assert text.count("is new") == 5
    assert text.endswith("; and 3 more")


@given(st.lists(st.dictionaries(st.sampled_from("abcd"), lines, max_size=4), min_size=2, max_size=4))
@pytest.mark.slow
def test_parts_send_added_lines_once(tmp_path_factory: pytest.TempPathFactory, states: list[dict[str, bytes]]) -> None:
    folder = Folder(tmp_path_factory.mktemp("in"))
    held: dict[str, bytes] = {}
    known: list[KnownSource] = []
    sent: list[tuple[str, bytes]] = []
    for number, state in enumerate(states):
        for name, added in state.items():
            held[name] = held.get(name, b"") + added
        folder.write(held)
        if number:
            found = folder.compared(known)
            assert found.of("changed") == []
            known = found.present
        else:
            known = folder.seen()
        sent += folder.wheres(known)
    whole = folder.wheres(folder.seen())
    assert sorted(sent) == sorted(whole)
    for name in held:
        own = [one for one in sent if one[0].startswith(f"{name}.")]
        assert own == [one for one in whole if one[0].startswith(f"{name}.")]
