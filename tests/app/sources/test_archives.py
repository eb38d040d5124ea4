"""Zip archives: each member is a file."""

import gzip
import json
from pathlib import Path
from zipfile import ZIP_BZIP2, ZIP_DEFLATED, ZipFile, ZipInfo

import pytest

from tests.app.sources.files import as_lines, write_parquet, write_wet
from tests.app.sources.reading import found_in, peak_of, reading_of, refusals, values
from tokenmill.app.settings import Settings
from tokenmill.app.sources import Refused, find_sources
from tokenmill.app.sources.items import Place

ROWS = [{"id": f"n{number}", "text": f"text {number}"} for number in range(9)]


def test_members_are_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    """Of any format, compressed once more or not; ids and refusals name archive, member and line, and each link."""
    write_parquet(tmp_path / "rows", ROWS)
    write_wet(tmp_path / "pages", ROWS)
    path = tmp_path / "a.ZIP"
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        archive.writestr("z.jsonl.gz", gzip.compress(as_lines(ROWS[:2]) + b"{\n"))
        archive.writestr("b/notes.md", "a note")
        archive.writestr("b/.git/config", "hidden")
        archive.writestr("__MACOSX/b/._notes.md", "hidden")
        archive.writestr("./a.csv", "text,id\none,1\n")
        archive.write(tmp_path / "rows", "rows.parquet")
        archive.write(tmp_path / "pages", "pages.warc.wet.gz")
        link = ZipInfo("link.txt")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "b/notes.md")

    found = found_in(reading_of(), path)

    ids = [json.loads(value)["id"] for value in values(found)]
    names = [str(row["id"]) for row in ROWS]
    assert ids == ["1", f"{path}!b/notes.md", *names, *names, "n0", "n1"]
    assert [item.where for item in found if isinstance(item, Refused)] == [f"{path}!link.txt", f"{path}!z.jsonl.gz:3"]


def test_what_of_an_archive_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", "secret")
        archive.writestr("b.txt", "text", ZIP_BZIP2)
        archive.writestr("c.zip", b"PK")
        archive.writestr("d.jsonl", as_lines(ROWS * 200))
        archive.writestr("e.txt", "well")
        flagged = archive.getinfo("a.txt")
        damaged = archive.getinfo("d.jsonl")
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1  # the first entry of the table of members: its flags
    middle = damaged.header_offset + damaged.compress_size // 2
    data[middle : middle + 64] = bytes(64)
    path.write_bytes(data)
    (tmp_path / "b.zip").write_bytes(data[: len(data) // 2])

    (tmp_path / "c.zip").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n")

    found = found_in(reading_of(), path, tmp_path / "b.zip", tmp_path / "c.zip")

    assert flagged.header_offset == 0
    told = dict(refusals(found))
    assert "encrypted: unpack it" in told["a.zip!a.txt"]
    assert "compressed by method 12" in told["a.zip!b.txt"]
    assert "an archive in an archive" in told["a.zip!c.zip"]
    assert told["a.zip!d.jsonl"].startswith("cannot be read")
    assert "no zip archive, or damaged" in told["b.zip"]
    assert "git lfs pull" in told["c.zip"]
    assert sum(item.broken for item in found if isinstance(item, Refused)) == 6
    texts = [json.loads(value)["text"] for value in values(found)]
    assert texts[-1] == "well"
    assert texts[:-1] == [row["text"] for row in ROWS * 200][: len(texts) - 1]


def test_a_member_that_becomes_gigabytes_is_never_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with ZipFile(path, "w", ZIP_DEFLATED, compresslevel=1) as archive:
        for name in ("a.txt", "b.jsonl"):
            with archive.open(name, "w") as member:
                for _ in range(64):
                    member.write(bytes(1 << 20))
    assert path.stat().st_size < 1 << 20
    found, peak = peak_of(lambda: found_in(reading_of(Settings(max_record_bytes=1 << 20)), path))
    assert [why for _, why in refusals(found)] == ["longer than 1048576 bytes (max_record_bytes)"] * 2
    assert peak < 12 << 20


def test_a_member_is_told_by_its_content(tmp_path: Path) -> None:
    """Another content of the same length is noticed; the same one, in an archive made anew, is the same."""
    signatures = []
    for text, time in (("one", 1980), ("two", 1980), ("one", 1999)):
        path = tmp_path / "a.zip"
        with ZipFile(path, "w") as archive:
            archive.writestr(ZipInfo("a.txt", (time, 1, 1, 0, 0, 0)), text)
        (source,) = find_sources([str(path)], reading_of())
        signatures.append(source.signature())
    assert signatures[0] == signatures[2] != signatures[1]


def test_how_far_an_archive_is_read_adds_up_to_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenmill.app.sources.file_sources.CHUNK_ENTRIES", 50)
    path = tmp_path / "a.zip"
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        archive.writestr("a.jsonl", as_lines(ROWS * 10000))
        archive.writestr("b.txt", "text")
    many, one = find_sources([str(path)], reading_of())
    read = [chunk.bytes_read for chunk in many.chunks(Place())]
    assert read == sorted(read)
    assert 0 < read[0] < read[-1] == many.size
    assert many.size + one.size < path.stat().st_size


@pytest.mark.parametrize("choice", ["text", "jsonl"])
def test_a_format_holds_for_the_members(choice: str, tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with ZipFile(path, "w") as archive:
        archive.writestr("rows", b"\n" + as_lines(ROWS))
    found = found_in(reading_of(choice=choice), path)  # type: ignore[arg-type]
    assert len(values(found)) == (1 if choice == "text" else len(ROWS))
