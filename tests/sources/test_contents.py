"""What a file is, by its first bytes where its name does not say it."""

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sources.files import as_lines, write_arrow, write_json, write_parquet, write_stream, write_wet, zstd
from tests.sources.reading import found_in, reading_of, refusals, values
from tests.sources.test_recoding import Drops
from tests.sources.web import Web, serving
from tokenmill.sources import Refused
from tokenmill.sources.compressed import MEMORY_BYTES
from tokenmill.sources.contents import look_at, open_file
from tokenmill.sources.file_sources import FileSource
from tokenmill.sources.items import File, Place

ROWS = [{"id": f"n{number}", "text": f"text {number}"} for number in range(9)]
TEXTS = [row["text"] for row in ROWS]
WRITERS: dict[str, Callable[[Path], None]] = {
    "lines": lambda path: path.write_bytes(as_lines(ROWS)) and None,
    "array": lambda path: write_json(path, ROWS),
    "indented": lambda path: path.write_text("\n".join(json.dumps(row, indent=1) for row in ROWS)) and None,
    "marked": lambda path: path.write_bytes(as_lines(ROWS).decode().encode("utf-16")) and None,
    "parquet": lambda path: write_parquet(path, ROWS),
    "arrow": lambda path: write_arrow(path, ROWS),
    "stream": lambda path: write_stream(path, ROWS),
    "wet": lambda path: write_wet(path, ROWS),
}
PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "gzip": gzip.compress,
    "zstd": zstd.compress,
    "lz4": lambda data: bytes(cramjam.lz4.compress(data)),
    "twice": lambda data: gzip.compress(zstd.compress(data)),
}


def texts(path: Path | str) -> list[str]:
    """Return the texts that are read; nothing may be refused."""
    found = found_in(reading_of(metadata_fields=[]), path)
    assert refusals(found) == []
    return [json.loads(value)["text"] for value in values(found)]


@pytest.mark.parametrize("packing", [*PACK])
@pytest.mark.parametrize("kind", [*WRITERS])
def test_names_that_say_nothing_are_read_as_what_they_hold(kind: str, packing: str, tmp_path: Path) -> None:
    """By one rule, wherever the file lies: alone, in a folder, in an archive, behind an address, piped in."""
    path = tmp_path / "folder" / "wiki_00"
    path.parent.mkdir()
    WRITERS[kind](path)
    path.write_bytes(PACK[packing](path.read_bytes()))
    with ZipFile(tmp_path / "a.zip", "w", ZIP_DEFLATED) as archive:
        archive.write(path, "part-00000")
    assert texts(path) == texts(path.parent) == texts(tmp_path / "a.zip") == TEXTS
    with serving(Web({"data/items.jl": path.read_bytes()})) as web:
        assert texts(f"{web.address}/data/items.jl") == TEXTS
    piped = tmp_path / "pipe"
    os.mkfifo(piped)
    with subprocess.Popen(
        [sys.executable, "-c", f"open({str(piped)!r}, 'wb').write(open({str(path)!r}, 'rb').read())"]
    ):
        found = found_in(reading_of(metadata_fields=[]), piped)
    if kind in {"parquet", "arrow"}:  # their ends say what is in them
        assert "what is piped in can be read once" in refusals(found)[-1][1]
    else:
        assert [json.loads(value)["text"] for value in values(found)] == TEXTS


@pytest.mark.parametrize(
    "text", ["[a link](x)", "[INFO] begun", "{{Infobox|a}}", "{ pkgs }: pkgs", "{-# LANGUAGE #-}", "{a", "1,2\n3,4\n"]
)
def test_texts_stay_texts(text: str, tmp_path: Path) -> None:
    """What only begins a little like JSON is none; and whoever says that it is a text is believed."""
    (tmp_path / "notes").write_text(text)
    (tmp_path / "lines.txt").write_bytes(as_lines(ROWS))
    assert texts(tmp_path / "notes") == [text]
    (value,) = values(found_in(reading_of(choice="text"), tmp_path / "lines.txt"))
    assert json.loads(value)["text"].encode() == as_lines(ROWS)


def tar(kind: int) -> bytes:
    """Return a tar archive."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=kind) as archive:
        info = tarfile.TarInfo("a.txt")
        info.size = 4
        archive.addfile(info, io.BytesIO(b"text"))
    return made.getvalue()


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"ab" * 32 + b"\nsize 146946961\n"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (LFS, "git lfs pull"),
        (b"/annex/objects/SHA256E-s1--ab.txt\n", "git annex get"),
        (tar(tarfile.USTAR_FORMAT), "a tar archive: unpack it"),
        (tar(tarfile.GNU_FORMAT), "a tar archive: unpack it"),
        (gzip.compress(tar(tarfile.PAX_FORMAT)), "a tar archive: unpack it"),
        (gzip.compress(gzip.compress(gzip.compress(b"text"))), "compressed more than 2 times"),
        (b"PK\3\4\n\0\0\0", "a zip archive"),
        (b"7z\xbc\xaf'\x1c\0\4", "a 7z archive"),
        (b"Rar!\x1a\7\1\0", "a RAR archive"),
        (b"\x1f\x9d\x90text", "compressed in a way that is not read"),
        (b"%PDF-1.4\n1 0 obj\n", "take its text out of it"),
        (b"{\\rtf1 text}", "take its text out of it"),
        (b"Obj\1\4\x14avro.codec", "write its rows as parquet"),
        (b"SQLite format 3\0\x10", "--sql"),
    ],
)
@pytest.mark.parametrize("name", ["data", "data.txt", "data.jsonl", "data.parquet", "data.csv", "data.warc"])
def test_what_is_not_read_is_named_and_nothing_of_it_is_sent(name: str, data: bytes, why: str, tmp_path: Path) -> None:
    """Whatever it is called; of a file called .gz, the name wins."""
    (tmp_path / name).write_bytes(data)
    (refused,) = found_in(reading_of(), tmp_path / name)
    assert isinstance(refused, Refused)
    assert refused.broken
    assert why in refused.why
    (tmp_path / "data.gz").write_bytes(LFS)
    ((_, told),) = refusals(found_in(reading_of(), tmp_path / "data.gz"))
    assert "git lfs pull" in told


@given(
    data=st.lists(
        st.sampled_from([b"{", b'"', b"[", b"\n", b" ", b'{"text": "a"}', b"PAR1", b"x", b"\xef\xbb\xbf"])
    ).map(b"".join)
)
def test_a_pipe_is_what_a_file_would_be(data: bytes) -> None:
    """However few bytes come at a time; and nothing of it is lost by looking."""
    seekable = File("a", io.BufferedReader(io.BytesIO(data)))
    pipe = Drops(data)
    pipe.seekable = lambda: False  # type: ignore[method-assign]
    piped = File("a", io.BufferedReader(pipe, 5))
    looks = [open_file(file, "auto", None, MEMORY_BYTES) for file in (seekable, piped)]
    assert looks[0] == looks[1] == look_at("a", data, "auto", None)
    assert seekable.stream.read() == piped.stream.read() == data


def test_a_name_that_says_what_is_not_so_does_no_harm(tmp_path: Path) -> None:
    """Lines that are packed are no file of lines, so what is added to them is not taken for new ones."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(gzip.compress(as_lines(ROWS)))
    source = FileSource(str(path), reading_of())
    assert not source.grows
    (chunk,) = source.chunks(Place())
    assert len(chunk.items) == len(ROWS)
