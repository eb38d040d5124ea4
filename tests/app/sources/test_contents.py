"""What a file is, by its first bytes where its name does not say it."""

import gzip
import io
import json
import os
import re
import subprocess
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import cramjam
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.app.milling.decoding.opened import opened
from tests.app.sources.files import WRITERS, Rows, as_lines, as_records, zstd
from tests.app.sources.reading import found_in, reading_of, refusals, values
from tests.app.sources.test_encodings import Drops
from tests.app.sources.web import Web, serving
from tokenmill.app.settings import Settings
from tokenmill.app.sources import Item, Refused, ShapeOptions, shape_for
from tokenmill.app.sources.contents import look_at, open_file
from tokenmill.app.sources.file_sources import FileSource
from tokenmill.app.sources.formats.text import read_text
from tokenmill.app.sources.items import Bad, Entry, File, Needs, Place, Text
from tokenmill.errors import RecordError

ROWS = [{"id": f"n{number}", "text": f"text {number}"} for number in range(9)]
TEXTS = [row["text"] for row in ROWS]


KINDS: dict[str, Callable[[Path, Rows], object]] = {
    **{name: WRITERS[name] for name in ("a.jsonl", "b.json", "e.parquet", "f.arrow", "g.arrows")},
    **{name: WRITERS[name] for name in ("h.csv", "i.tsv", "o.tsv")},
    "indented": lambda path, rows: path.write_text("\n".join(json.dumps(row, indent=1) for row in rows)),
    "marked": lambda path, rows: path.write_bytes(as_lines(rows).decode().encode("utf-16")),
    "warc": lambda path, rows: path.write_bytes(as_records(rows)),
}
PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "gzip": gzip.compress,
    "zstd": zstd.compress,
    "lz4": lambda data: bytes(cramjam.lz4.compress(data)),
    "skippable": lambda data: b"\x57\x2a\x4d\x18\2\0\0\0ab" + zstd.compress(data),
    "twice": lambda data: gzip.compress(zstd.compress(data), mtime=0),
}


def texts(path: Path | str) -> list[str]:
    found = found_in(reading_of(metadata_fields=[]), path)
    assert refusals(found) == []
    return [json.loads(value)["text"] for value in values(found)]


@pytest.mark.parametrize("packing", [*PACK])
@pytest.mark.parametrize("kind", [*KINDS])
@pytest.mark.cases(20)
def test_names_that_say_nothing_are_read_as_what_they_hold(kind: str, packing: str, tmp_path: Path) -> None:
    path = tmp_path / "folder" / "wiki_00"
    path.parent.mkdir()
    KINDS[kind](path, ROWS)
    path.write_bytes(PACK[packing](path.read_bytes()))
    with ZipFile(tmp_path / "a.zip", "w", ZIP_DEFLATED) as archive:
        archive.write(path, "part-00000")
    assert texts(path) == texts(path.parent) == texts(tmp_path / "a.zip") == TEXTS
    with serving(Web({"data/items.jl": path.read_bytes()})) as web:
        assert texts(f"{web.address}/data/items.jl") == TEXTS
    piped = tmp_path / "pipe"
    os.mkfifo(piped)
    with subprocess.Popen(["/bin/sh", "-c", 'cat "$0" > "$1"', path, piped]):
        found = found_in(reading_of(metadata_fields=[]), piped)
    if kind in {"e.parquet", "f.arrow"}:  # their ends say what is in them
        assert "what is piped in can be read once" in refusals(found)[-1][1]
    else:
        assert [json.loads(value)["text"] for value in values(found)] == TEXTS


@pytest.mark.parametrize(
    "text",
    ["[a link](x)", "[INFO] begun", "{{Infobox|a}}", "{ pkgs }: pkgs", "{-# LANGUAGE #-}", "{a", "1,2\n3,4\n", '"So',
     "[1] A\n[2] B", "[[a]] b", '"Where?" she said.\n"There."', "1\n2\nthree", "true story", "text\none\n", "id,text",
     "a text, more of it\n1,2\n", '"text","\n', "BZh is how bzip2 begins", "PAR1 and PAR2 are genes", "ARROW1",
     "WARC/1.0 is a format", "%PDF- begins a document", "\x1b[31mred\x1b[0m", "outs:\n- the door", "~{~a~}",
     "id,story\n1,once\n"],
)  # fmt: skip
def test_texts_stay_texts(text: str, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text(text)
    (tmp_path / "lines.txt").write_bytes(as_lines(ROWS))
    assert texts(tmp_path / "notes") == [text]
    (value,) = values(found_in(reading_of(choice="text"), tmp_path / "lines.txt"))
    assert json.loads(value)["text"].encode() == as_lines(ROWS)


@pytest.mark.parametrize(
    "data",
    [
        '"a text"',
        '"one"\n\n"two"\n',
        "1\n-2e3\n",
        "NaN",
        "[1, 2]\n",
        "[[1], [2]]\n",
        '["a", "b"]\n',
        '[\n"a"\n]',
        json.dumps(json.dumps(ROWS[0])) + "\n",
        json.dumps(json.dumps(ROWS))[:-20],
    ],
)
def test_values_of_json_that_are_no_objects_are_no_texts(data: str, tmp_path: Path) -> None:
    (tmp_path / "part-0").write_text(data)
    found = found_in(reading_of(), tmp_path / "part-0")
    assert values(found) == []
    assert {why.partition(":")[0] for _, why in refusals(found)} <= {"not_an_object", "malformed_json"}
    (value,) = values(found_in(reading_of(choice="text"), tmp_path / "part-0"))
    assert json.loads(value)["text"] == data


@pytest.mark.parametrize("first", [b"Error: timed out", as_lines(ROWS)[5:9], b"# text", b"\xef\xbb\xbf// a"])
def test_lines_of_json_behind_another_first_line_are_no_text(first: bytes, tmp_path: Path) -> None:
    (tmp_path / "wiki_00").write_bytes(first + b"\n" + as_lines(ROWS))
    ((_, why),) = refusals(found := found_in(reading_of(), tmp_path / "wiki_00"))
    assert (values(found), "--format jsonl" in why, "--format text" in why) == ([], True, True)
    found = found_in(reading_of(choice="jsonl"), tmp_path / "wiki_00")
    assert [json.loads(value)["text"] for value in values(found)] == TEXTS
    assert [where for where, _ in refusals(found)] == ["wiki_00:1"]


@pytest.mark.parametrize(
    "head",
    [
        "From: a@b\r\nSubject: x\r\nContent-Transfer-Encoding: base64\r\n",
        "From a@b Mon\nTo: c\n <c@d>\ncontent-transfer-encoding:quoted-printable\n",
        'MIME-Version: 1.0\nContent-Type: multipart/related;\n\tboundary="b"\n',
    ],
)
def test_mails_and_saved_pages_whose_text_is_encoded_are_named(head: str, tmp_path: Path) -> None:
    """Their letters are no text; a mail that is not encoded is one, and so is what only talks of it."""
    (tmp_path / "a").write_text(f"{head}\naGVsbG8=\n", newline="")
    ((_, why),) = refusals(found_in(reading_of(), tmp_path / "a"))
    assert why.endswith("take it out; if it is a text: --format text")
    for text in ("From: a@b\nSubject: x\n\nhello\n", f"About heads.\n{head}", f"From: a@b\n\n{head}"):
        (tmp_path / "a").write_text(text, newline="")
        assert texts(tmp_path / "a") == [text]


def test_a_table_under_any_name_is_read_as_one_or_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "dump.txt").write_text("\ufeff\n'id','story'\n1,'a,b'\n")
    reading = replace(reading_of(fields=["story.de", "story"]), quote="'")
    assert [json.loads(value) for value in values(found_in(reading, tmp_path))] == [{"id": "1", "text": "a,b"}]
    assert FileSource(str(tmp_path / "dump.txt"), reading).kind == "csv"
    for content in ("sep=;\nid;text\n1;a\n", "id;text\n1;a\n"):
        (tmp_path / "dump.txt").write_text(content)
        found = found_in(reading_of(plain=True), tmp_path)
        assert values(found) == [b"a"] or refusals(found)[0][1].endswith("--delimiter ';'")
        assert values(found_in(reading_of(delimiter=";", plain=True), tmp_path)) == [b"a"]
    for said in (reading_of(choice="lines"), replace(reading_of(), separator="--"), reading_of(choice="text")):
        assert b"id;text" in values(found_in(said, tmp_path))[0]


LIKE_VALUES = st.lists(st.sampled_from([*'"{}[]1-e,: \n\\\0', ".5", "null", "NaN", "tru"]), min_size=1).map("".join)


@given(text=st.text(st.characters(codec="utf-8"), min_size=1) | LIKE_VALUES)
@example(text=json.dumps("a text"))
@example(text=json.dumps(json.dumps(ROWS[0]))[:-9])
@example(text="[1] A")
def test_a_text_that_goes_as_it_is_is_refused_where_a_mill_would_not_take_it_so(text: str) -> None:
    data = json.dumps({"text": text}).encode()
    for mode in ("auto", "text"):
        shape = shape_for(Settings(decode=mode).for_topic("raw"), 1 << 20, ShapeOptions(plain=True))
        try:
            taken = opened(mode)(text.encode()).text == text
        except RecordError:
            taken = False
        assert isinstance(shape.of_json("", data), Item) == taken


def tar(kind: int) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=kind) as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))
    return made.getvalue()


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"ab" * 32 + b"\nsize 146946961\n"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (LFS, "git lfs pull"),
        (b"# xet version 0\nfilesize = 10\n", "a pointer, not the file"),
        (b"version http://git-media.io/v/2\noid sha256:ab\nsize 1\n", "a pointer, not the file"),
        (b"/annex/objects/SHA256E-s1--ab.txt\n", "git annex get"),
        (tar(tarfile.USTAR_FORMAT), "a tar archive: unpack it"),
        (tar(tarfile.GNU_FORMAT), "a tar archive: unpack it"),
        (gzip.compress(tar(tarfile.PAX_FORMAT), mtime=0), "a tar archive: unpack it"),
        (PACK["twice"](gzip.compress(b"text", mtime=0)), "compressed more than 2 times"),
        (b"PK\3\4\n\0\0\0", "a zip archive"),
        (b"7z\xbc\xaf'\x1c\0\4", "a 7z archive"),
        (b"Rar!\x1a\7\1\0", "a RAR archive"),
        (b"\x1f\x9d\x90text", "compressed in a way that is not read"),
        (zlib.compress(b"text text"), "compressed in a way that is not read"),
        (b"%!PS-Adobe-3.0\n", "take its text out of it"),
        (b"%PDF-1.4\n1 0 obj\n", "take its text out of it"),
        (b"{\\rtf1 text}", "take its text out of it"),
        (b"Obj\1\4\x14avro.codec", "write its rows as parquet"),
        (b"SQLite format 3\0\x10", "--sql"),
        (b"outs:\n- md5: a304\n  size: 3\n  path: a.txt\n", "dvc pull"),
        (b"md5: 0a1b\nfrozen: true\ndeps:\n- path: a\nouts:\n- md5: a304\n", "dvc pull"),
        (b"[InternetShortcut]\r\nURL=https://example.org/\r\n", "a shortcut"),
        (b"ab" * 16 + b"  a.txt\n" + b"cd" * 16 + b" *b.txt\n", "checksums"),
        (b"ab" * 32, "checksums"),
        (b"MD5 (a.txt) = " + b"ab" * 16, "checksums"),
        (b"-----BEGIN PGP SIGNATURE-----\n", "a signature"),
        (b"!<arch>\na.txt/ ", "an archive of ar"),
        (b"070701" + b"0" * 104 + b"a.txt\0", "an archive of ar or cpio"),
        (b"filedesc://a.arc 0.0.0.0 20200101000000 text/plain 76\n", "write it as WARC"),
        (b"FEA1\0\0\0\0", "Feather 1: write its rows as parquet"),
        (b"PARE\x15\4", "an encrypted parquet file"),
        (b"(lp0\nVa text\np1\na.", "a pickle of Python"),
        (b"\2\x21\x4c\x18\1\0\0\0", "compressed in a way that is not read"),
    ],
)
@pytest.mark.parametrize("name", ["data", "data.txt", "data.jsonl", "data.parquet", "data.csv", "data.warc"])
@pytest.mark.cases(50)
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
        st.sampled_from(
            [b"{", b'"', b"[", b"\n", b" ", b'{"text": "a"}', b"PAR1", b"x", b"\xef\xbb\xbf", b"id,text", b"sep=;"]
        )
    ).map(b"".join)
)
@example(b"[[\n{")
def test_a_pipe_is_what_a_file_would_be(data: bytes) -> None:
    seekable = File("a", io.BufferedReader(io.BytesIO(data)))
    pipe = Drops(data)
    pipe.seekable = lambda: False  # type: ignore[method-assign]
    piped = File("a", io.BufferedReader(pipe, 5))
    looks = [open_file(file, "auto", None, Needs(1000, ("text",))) for file in (seekable, piped)]
    assert looks[0] == looks[1] == look_at("a", data, "auto", None, Needs(1000, ("text",)))
    assert seekable.stream.read() == piped.stream.read() == data


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"1\x01a text\x01en\n2\x01another\x01de\n", "as Hive writes tables"),
        (b"a\2b\3c\5d\6" * 9, "control characters"),
        (b"a text\0", "NUL bytes"),
        (b"ein Text f\xc3", "unexpected end of data"),
    ],
)
def test_bytes_that_are_no_text_are_refused_and_no_encoding_is_made_up(data: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / "000000_0").write_bytes(data)
    with ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.txt", data)
    found = found_in(reading_of(), tmp_path)
    assert values(found) == []
    assert all(why in told and "it seems to be" not in told for _, told in refusals(found))


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".bz2", ".xz", ".lz4"])
def test_a_name_of_a_compression_is_believed_only_if_the_file_begins_so(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    for packing in ("gzip", "zstd", "lz4"):
        path.write_bytes(PACK[packing](as_lines(ROWS)))
        assert texts(tmp_path) == TEXTS
    for content, told in ((as_lines(ROWS), f"take {suffix} off its name"), (b"", "it is empty")):
        path.write_bytes(content)
        ((_, why),) = refusals(found_in(reading_of(), tmp_path))
        assert told in why


def test_a_dictionary_and_memory_that_a_file_needs_are_named(tmp_path: Path) -> None:
    """A window of 256 MiB is read; less may be allowed, and more."""
    trained = zstd.train_dict([as_lines(ROWS[n % 9 :]) for n in range(999)], 4000)
    (tmp_path / "a.jsonl.zst").write_bytes(zstd.compress(as_lines(ROWS), zstd_dict=trained))
    ((_, why),) = refusals(found_in(reading_of(), tmp_path))
    assert "zstd -d -D DICTIONARY" in why
    packer = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 28})
    (tmp_path / "a.jsonl.zst").write_bytes(packer.compress(as_lines(ROWS)) + packer.flush())
    assert texts(tmp_path) == TEXTS
    ((_, why),) = refusals(found_in(replace(reading_of(), unpack_memory=1 << 27), tmp_path))
    assert "over 134,217,728 bytes of memory: --unpack-memory 2GiB allows more" in why


@pytest.mark.parametrize(
    "data",
    [
        b'{"text": "a"},\n{"text": "b"}\n',
        b'[\n{"text": "a"},\n{"text": "b"}\n]\n',
        b'{\n  "text": "a"\n}\n{\n  "text": "b"\n}\n',
        b'\xef\xbb\xbf[\r\n{"text": "a"}]\r\n[{"text": "b"}]\r\n',
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a"])
def test_json_that_goes_on_over_lines_is_read_whatever_its_name(name: str, data: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    assert texts(tmp_path) == ["a", "b"]
    assert FileSource(str(tmp_path / name), reading_of(choice="jsonl")).kind == "jsonl"


@pytest.mark.parametrize("kind", ["e.parquet", "f.arrow", "warc"])
def test_rows_are_read_whatever_format_their_name_says(kind: str, tmp_path: Path) -> None:
    """The first bytes of these formats begin no text."""
    for name in ("a.csv", "a.jsonl", "a.txt", "a.json"):
        KINDS[kind](tmp_path / name, ROWS)
        assert texts(tmp_path / name) == TEXTS


PARAGRAPHS = "<p>A paragraph of a page that is long enough.</p>" * 9
PAGE = f"<html><body><main>{PARAGRAPHS}<p>Café</p></main></body></html>"


@pytest.mark.parametrize("begin", ["<!DOCTYPE html>", "\ufeff\n<!-- made by hand -->\n", ""])
@pytest.mark.parametrize("name", ["a.html", "a", "a.htm.gz"])
def test_pages_on_disk_are_extracted_where_that_is_asked_for(name: str, begin: str, tmp_path: Path) -> None:
    write = gzip.compress if name.endswith(".gz") else bytes
    (tmp_path / name).write_bytes(write((begin + PAGE).encode()))
    (text,) = texts(tmp_path)
    assert text == (begin + PAGE).removeprefix("\ufeff")
    reading = replace(reading_of(), extract=True)
    for data in ((begin + PAGE).encode(), PAGE.replace("<body>", '<meta charset="latin-1"><body>').encode("latin-1")):
        (tmp_path / name).write_bytes(write(data))
        (value,) = values(found_in(reading, tmp_path))
        assert "<p>" not in json.loads(value)["text"]
        assert json.loads(value)["text"].endswith("Café")


def test_blanks_are_no_document_and_byte_order_marks_no_part_of_texts_or_names_of_columns(tmp_path: Path) -> None:
    for data in (b"", b" \n\t\r\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"):
        (tmp_path / "a").write_bytes(data)
        assert found_in(reading_of(), tmp_path) == []
    (tmp_path / "a.csv").write_bytes("\ufeff\ufeffid,text\n7,a\n".encode())
    (tmp_path / "b.txt").write_bytes("\ufeff\ufeffa".encode())
    (tmp_path / "c.jsonl").write_bytes('\ufeff\ufeff{"id":"8","text":"a"}\n'.encode())
    assert texts(tmp_path) == ["a"] * 3
    assert b'"7"' in values(found_in(reading_of(), tmp_path))[0]


def test_a_name_that_says_what_is_not_so_does_no_harm(tmp_path: Path) -> None:
    """Lines that are packed are no file of lines, so what is added to them is not taken for new ones."""
    (tmp_path / "a.jsonl").write_bytes(gzip.compress(as_lines(ROWS)))
    source = FileSource(str(tmp_path / "a.jsonl"), reading_of())
    assert not source.grows
    (chunk,) = source.chunks(Place())
    assert len(chunk.items) == len(ROWS)


PIECES = [b"<|end|>", b"\n", b"\r\n", b"a", b"bc", b"<|", b"|>", b" "]


@given(pieces=st.lists(st.sampled_from(PIECES), max_size=30), separator=st.sampled_from(["<|end|>", "\n\n", "a"]))
def test_a_text_is_cut_at_each_separator_and_goes_on_from_any_document(pieces: list[bytes], separator: str) -> None:
    data = b"".join(pieces)
    needs = Needs(1000, separator=separator)

    def entries(start: Place) -> list[Entry]:
        return list(read_text(File("a", io.BufferedReader(Drops(data), 5)), needs, start))

    found = entries(Place())
    parts = re.split(separator.replace("\n", "\r?\n").replace("|", "[|]").encode(), data)
    expected = [(number, part.strip(b"\r\n")) for number, part in enumerate(parts, 1) if part.strip()]
    assert [(number, content.data) for number, _, content in found if isinstance(content, Text)] == expected
    for index, (number, at, _) in enumerate(found):
        assert entries(Place(number, at)) == found[index + 1 :]


def test_a_text_between_separators_that_is_too_long_takes_no_other_with_it() -> None:
    data = b"one|" + b"x" * (5 << 20) + b"|three"
    found = list(read_text(File("a", io.BufferedReader(io.BytesIO(data))), Needs(1000, separator="|"), Place()))
    assert [number for number, _, _ in found] == [1, 2, 3]
    assert [type(content) for _, _, content in found] == [Text, Bad, Text]


ABOUT = [
    "_SUCCESS", "_started_12", "_committed_12", "_committed_vacuum1", "_temporary/0/part-0", ".part-0.crc", "a.crc",
    "a.md.sha256", "MD5SUMS", "dvc.lock", "_posts/a.md.dvc", "cache-0123456789abcdef_00000_of_00002.arrow",
    "dataset_info.json", "datasets--a--b/refs/main", "datasets--a--b/blobs/0a1b", "a/Desktop.ini",
    "$RECYCLE.BIN/$R1.txt",
]  # fmt: skip
MARKS = {
    "Delta Lake": "_delta_log/00000000000000000000.json",
    "Iceberg": "metadata/00000-0a1b2c3d-0000-4000-8000-000000000000.metadata.json",
    "Hudi": ".hoodie/hoodie.properties",
    "Lance": "_versions/1.manifest",
    "Paimon": "snapshot/LATEST",
}


def put_all(folder: Path, names: list[str]) -> None:
    with ZipFile(folder.with_suffix(".zip"), "w") as archive:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("text")
            archive.write(folder / name, name)


def test_what_other_programs_leave_beside_data_is_not_read(tmp_path: Path) -> None:
    put_all(tmp_path / "data", [*ABOUT, "_posts/a.md", "__init__.py"])
    for path in ("data", "data/*", "data/**", "data.zip"):
        assert len(texts(tmp_path / path)) == 2


@pytest.mark.parametrize("table", [*MARKS])
def test_tables_are_named_and_no_file_of_theirs_is_read(table: str, tmp_path: Path) -> None:
    put_all(tmp_path / "data", [f"t/{MARKS[table]}", "t/lang=en/a.txt", "t/b.txt", "beside/c.txt"])
    for path in ("data", "data.zip", "data/*", "data/**/*.txt"):
        found = found_in(reading_of(), tmp_path / path)
        ((where, why),) = refusals(found)
        assert where in {"t", "data.zip!t"}
        assert f"a table of {table}" in why
        assert len(values(found)) == 1
    for path in ("data/t", "data/t/lang=en", "data/t/*.txt", "data/t/b.txt"):
        assert [f"a table of {table}" in why for _, why in refusals(found_in(reading_of(), tmp_path / path))] == [True]
        assert values(found_in(reading_of(), tmp_path / path)) == []
