"""What a file is, wherever it is: by its name where that is known, and by its first bytes.

Many names say nothing (``wiki_00``, ``part-00000``, ``items.jl``), and some say what is not so: an archive that is
still packed, a pointer of Git LFS. The first bytes decide alone, so a run that goes on takes a file for what it was.
Also what other programs leave in folders: files that are about the data, and tables whose files are not their rows.
"""

import os
import re
import tarfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

import orjson

from .encodings import (
    BUFFER_BYTES,
    DAMAGE,
    UTF_8,
    Made,
    decompressed,
    is_binary,
    marked_encoding,
    pieces_of,
    recoded,
    seems,
    suffixes_of,
    why_no_text,
)
from .formats import Choice, kind_of
from .formats.text import table_kind
from .formats.web_pages import HTML_SUFFIXES
from .items import File, Needs

BEGIN_BYTES: Final = 64 << 10
"""Most bytes that are looked at: a first line that is longer is not looked at to its end."""
MOST_PACKED: Final = 2
"""How often a file may be compressed: some that do harm are compressed for ever."""
_FIRST_LINE: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*+\x1e?(?:\{|\[[\s\[]*+)?+\s*+\S[^\n]*+\n")
"""Up to the end of a line, with what stands behind a first bracket."""
_UNPACK: Final = "unpack it, and name the file or folder"
_PACKED_SO: Final = f"compressed in a way that is not read: {_UNPACK}"
_UNREAD: Final = (".br", ".deflate", ".lzo", ".snappy", ".sz", ".z", ".zz")
_FOREIGN: Final = {
    "a pointer of Git LFS, not the file: get it with `git lfs pull`": rb"version https://git-lfs\.github\.com/spec/",
    "a pointer of git-annex, not the file: get it with `git annex get`": rb"(?:\.\./|/)*+(?:\.git/)?annex/objects/",
    "a pointer of DVC, not the file: get it with `dvc pull`": (
        rb"(?:[a-z -][^\n]*\n)*?outs:\n *- (?:md5|etag|hash|path): "
    ),
    "a shortcut, not the file": rb"(?:\xef\xbb\xbf)?\[(?:InternetShortcut|Desktop Entry)\]",
    "checksums or a signature, no text": (
        rb"[0-9a-f]{32,128}(?:[ \t][^\n]+)?(?:\r?\n|\Z)|(?:MD5|SHA\d+) ?\([^\n]*?\) ?= |-----BEGIN PGP SIGNATURE-----"
    ),
    "a pointer, not the file: get it with git, and the extension that left it": (
        rb"# xet version |version https?://(?:hawser\.github\.com|git-media\.io)/"
    ),
    f"a zip archive, or a document in one; only .zip files on disk are read: {_UNPACK}": rb"PK(?:\x03\x04|\x05\x06)",
    f"a 7z archive: {_UNPACK}": rb"7z\xbc\xaf'\x1c",
    f"an archive of ar or cpio: {_UNPACK}": rb"!<arch>\n|07070[127][0-7]{6}",
    "an archive of the format ARC: write it as WARC": rb"filedesc://",
    f"a RAR archive: {_UNPACK}": rb"Rar!\x1a\x07",
    _PACKED_SO: rb"\x1f[\x9d\xa0]|x[\x01\x9c\xda]|\x02\x21\x4c\x18|LZIP\x01|\x89LZO|\xff\x06\0\0sNaPpY",
    "a document (PDF, PostScript, RTF, Office): take its text out of it": (
        rb"%PDF-\d|%!PS-|\{\\rtf|\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
    ),
    "a file of ORC, Avro, Hadoop or Feather 1: write its rows as parquet": (
        rb"ORC.?[\0-\x08\x80-\xff]|Obj\x01|SEQ[\x04-\x06]|FEA1"
    ),
    "an encrypted parquet file: write its rows without encryption": rb"PARE[\0-\x1f]",
    "a pickle of Python, which is code: write its rows as parquet or JSON lines": rb"\([ld]p[01]\n",
    "a database of SQLite: --sql reads its rows": rb"SQLite format 3\0",
}
"""What files begin with that are not read here, or that stand for others."""
_PACKED: Final = {
    ".gz": rb"\x1f\x8b",
    ".zst": rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18",
    ".bz2": rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)",
    ".xz": rb"\xfd7zXZ\0",
    ".lz4": rb"\x04\x22\x4d\x18|[\x50-\x5f]\x2a\x4d\x18",
}
_KINDS: Final = {"parquet": rb"PAR1[\0-\x1f]", "arrow": rb"ARROW1\0|\xff{4}...\0", "warc": rb"\s*WARC/[01]\.\d+\r?\n"}
_JSON: Final = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*+\x1e?"
    rb"(?:(\{)\s*+[\"'}]|\[[\s\[]*+[{\"]|(\")\s*+\[?+\s*+\{\s*+(?:\\\"|\}))"
)
"""What objects begin with, arrays of objects and of texts, and an object that was encoded twice."""
_HTML: Final = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*+(?:<(?:!--.*?--|\?[^>]*+)>\s*+)*+<(?:!doctype\s++html|html)[\s>]", re.IGNORECASE | re.DOTALL
)
_MIME: Final = re.compile(
    rb"(?:From [^\n]*+\n)?(?:[!-9;-~]++:[^\n]*+\n(?:[ \t][^\n]*+\n)*+)*?"
    rb"Content-(?:Type:\s*+multipart/|Transfer-Encoding:\s*+(?:base64|quoted-printable))",
    re.IGNORECASE,
)
"""A head by which what follows is in parts, or in letters and digits that stand for its text."""
_HIVE: Final = re.compile(rb"[^\n\x01]*+\x01")
_OR_TEXT: Final = "; if it is a text: --format text"
_NO_LINES: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*+(?:[\[{]|[^\n]*[}\]],)[ \t\r]*+\n")
"""A first line of JSON that goes on: of an array, of objects over several lines, or with commas between them."""


class Look(NamedTuple):
    """What a file is."""

    kind: str = ""
    """How its entries are read; empty where it is packed, or nothing that is read."""
    packing: str = ""
    encoding: str = UTF_8
    why_not: str = ""


def look_at(name: str, begin: bytes, choice: Choice, encoding: str | None, needs: Needs) -> Look:
    """Return what the file is that has this name and begins so; all else is said of all files."""
    why_not = why_foreign(begin) or (_PACKED_SO if name.lower().endswith(_UNREAD) else "")
    suffix, said = suffixes_of(name)
    named_so = said and (not begin or re.match(_PACKED.get(said, b""), begin))
    packing = said if named_so else _marked(begin, _PACKED)
    if said and not packing and not why_not:
        why_not = f"not packed as its name says, or damaged where it begins: if it is plain, take {said} off its name"
    if why_not or packing:
        return Look(packing="" if why_not else packing, why_not=why_not)
    kind = (_marked(begin, _KINDS) if choice in ("auto", "lines") else "") or kind_of(suffix, choice)
    if kind in ("parquet", "arrow", "warc"):  # these are in no encoding of text
        return Look(kind)
    encoding = marked_encoding(begin) or encoding or UTF_8  # a mark is of one file, and so believed
    if encoding == UTF_8 and (why := why_no_text(begin)) and (advice := seems(begin)):
        return Look(why_not=why + advice)
    text = begin if encoding == UTF_8 else begin.decode(encoding, "ignore").encode("utf-8", "ignore")
    if kind == "jsonl" and choice != "jsonl" and _NO_LINES.match(text):
        kind = "json"
    kind = kind or _json_kind(text) or ("lines" if choice == "lines" else "")
    if not kind and needs.separator is None:
        page = needs.extract and (suffix.lower() in HTML_SUFFIXES or _HTML.match(text))
        kind = table_kind(text, needs) or ("html" if page else "")
        why_not = "" if kind else _no_text(text)
    return Look(kind or "text", encoding=encoding, why_not=why_not)


def _no_text(text: bytes) -> str:
    if b"\0" in text:  # its reader says so
        return ""
    if _HIVE.match(text):
        return f"fields with \\x01 between them, as Hive writes tables: write it as parquet{_OR_TEXT}"
    if _MIME.match(text):
        return f"a mail or a saved web page (MIME), whose text is encoded: take it out{_OR_TEXT}"
    return f"not text: much of it is control characters, as in binary data{_OR_TEXT}" if is_binary(text) else ""


def _marked(begin: bytes, marks: Mapping[str, bytes]) -> str:
    return next((found for found, mark in marks.items() if re.match(mark, begin, re.DOTALL)), "")


def why_foreign(begin: bytes) -> str:
    """Return what begins so, if it is not read here, or stands for another file; nothing if it is neither."""
    if found := _marked(begin, _FOREIGN):
        return found
    with suppress(tarfile.HeaderError):  # the first block of a tar archive has a checksum
        tarfile.TarInfo.frombuf(begin[:512], UTF_8, "surrogateescape")
        return f"a tar archive: {_UNPACK}"
    return ""


def _json_kind(text: bytes) -> str:
    found = _JSON.match(text)
    if found is not None and found[1] is None:
        return "jsonl" if found[2] else "json"
    line, ended, _ = text.lstrip(b"\xef\xbb\xbf\x1e\t\n\r ").partition(b"\n")
    parsed = None
    with suppress(orjson.JSONDecodeError):
        parsed = orjson.loads(line) if found or line.startswith(b"[") else None
    is_object = isinstance(parsed, dict) or (found is not None and not ended)
    return "jsonl" if is_object else "json" if found or isinstance(parsed, list) else ""


def _again(begin: bytes, error: BaseException | None, stream: "BufferedReader[Any]") -> Iterator[bytes]:
    if begin:
        yield begin
    if error is not None:
        raise error
    yield from pieces_of(stream)


def open_file(file: File, choice: Choice, encoding: str | None, needs: Needs) -> Look:
    """Return what a file is; then its stream is unpacked, within `Needs.unpack_memory`, and in UTF-8."""
    name, piped = file.name, not file.stream.seekable()
    file.path = None if piped else file.path  # opened again, it would wait for another writer
    for _ in range(MOST_PACKED + 1):
        look = look_at(name, begin_of(file, piped=piped), choice, encoding, needs)
        if not look.packing:
            break
        name = name[: -len(look.packing)] if suffixes_of(name)[1] else name
        file.stream, file.path = decompressed(file.stream, look.packing, needs.unpack_memory), None
    else:
        return Look(why_not=f"compressed more than {MOST_PACKED} times: {_UNPACK}")
    file.encoding = look.encoding
    file.stream = recoded(file.stream, look.encoding)
    return look


def begin_of(file: File, *, piped: bool = False) -> bytes:
    """Return a file's first bytes: its first line that is not blank, or `BEGIN_BYTES`. It is read from there again."""
    stream, error, at = file.stream, None, 0 if piped else file.stream.tell()
    begin = b"" if piped else stream.peek(1)  # no second request for the beginning of what a server has
    if not _is_enough(begin):
        begin = b""
        try:
            while not _is_enough(begin) and (piece := stream.read1(BEGIN_BYTES)):
                begin += piece
        except DAMAGE as damage:  # it is met again, behind what is well
            error = damage
        if piped:
            file.stream = BufferedReader(Made(None, lambda _: _again(begin, error, stream)), BUFFER_BYTES)
        else:
            stream.seek(at)
    return begin[:BEGIN_BYTES]


def _is_enough(begin: bytes) -> bool:
    in_bytes = marked_encoding(begin) in (None, UTF_8)
    return len(begin) >= BEGIN_BYTES or (in_bytes and _FIRST_LINE.match(begin) is not None)


_ABOUT: Final = re.compile(
    r"(?:^|[/\\])(?:"
    r"\.(?!\.?(?:[/\\]|$))[^/\\]*"
    r"|_(SUCCESS|FAILURE|metadata|common_metadata|spark_metadata|symlink_format_manifest|temporary|logs)"
    r"|_(started|committed)_(vacuum)?\d+|_(delta_log|delta_index|change_data)"
    r"|[^/\\]*(_\$folder\$|\.(crc|md5|sha\d+))|(MD5|SHA\d+)SUMS|dvc\.(yaml|lock)"
    r"|cache-[0-9a-f]{16}(_\d+_of_\d+)?\.arrow|dataset_infos?\.json"
    r"|__MACOSX|(?i:(eh)?Thumbs\.db|desktop\.ini|\$RECYCLE\.BIN)"
    r")(?:[/\\]|$)"
)
"""Names that begin with a dot, and what Hadoop, Hive, Spark, Databricks, Hugging Face, DVC, macOS and Windows write
beside data, and people who publish it: checksums. In zip archives of Windows, folders may end with a backslash."""
_CACHE: Final = re.compile(r"(?:^|/)(?:datasets|models|spaces)--[^/]+/(?:blobs|refs)(?:/|$)")
"""What is in a cache of Hugging Face beside the files by their names, which are links to these."""
_POINTER: Final = ".dvc"  # suffix of a file that DVC leaves beside the data, or in place of it
_TABLES: Final = {
    "Delta Lake": ("_delta_log", r"\d{20}\.(json|checkpoint\..*)|_last_checkpoint", "deltalake"),
    "Iceberg": ("metadata", r"(v\d+|\d{5}-[0-9a-f-]{36})(\.gz)?\.metadata\.json(\.gz)?", "pyiceberg"),
    "Hudi": (".hoodie", r"hoodie\.properties", "hudi"),
    "Paimon": ("snapshot", r"snapshot-\d+|LATEST|EARLIEST", "pypaimon"),
    "Lance": ("_versions", r"\d+\.manifest", "lance"),
}
"""Formats of tables, whose files also hold deleted rows: the folder that says which count, its files, who reads it."""


def is_about_data(path: str, folder: str = "") -> bool:
    """Return whether a file or folder, found beside data in a ``folder``, is none itself, or is in one that is none."""
    return _ABOUT.search(path) is not None or _CACHE.search(f"{folder}/{path}") is not None


def without_pointers(names: Collection[str]) -> set[str]:
    """Return the names but those of pointers to data that is there as well."""
    there = {*names}
    return {name for name in there if not (name.endswith(_POINTER) and name.removesuffix(_POINTER) in there)}


def why_no_rows(table: str) -> str:
    """Return why the files of a table are not read, and what to do."""
    reader = _TABLES[table][2]
    return f"a table of {table}, whose files also hold deleted rows: write its rows as parquet, with {reader}"


def table_above(folder: Path) -> tuple[Path, str] | None:
    """Return the table that a folder is in, or is, and its format; None where it is in none."""
    return next(((above, table) for above in (folder, *folder.parents) if (table := _table_at(above))), None)


@lru_cache(4096)
def _table_at(folder: Path) -> str:
    for table, (inner, names, _) in _TABLES.items():
        with suppress(OSError):
            if any(re.fullmatch(names, name) for name in os.listdir(folder / inner)):  # noqa: PTH208 - names alone
                return table
    return ""


def data_among(names: Collection[str]) -> tuple[set[str], dict[str, str]]:
    """Return which names in an archive or a store are of data; and formats of tables, by names that end in a slash."""
    tables: dict[str, str] = {}
    for path in map(PurePosixPath, names):
        for table, (inner, file_names, _) in _TABLES.items():
            if path.parent.name == inner and re.fullmatch(file_names, path.name):
                tables[f"{path.parent.parent}/".removeprefix("./")] = table
    roots = tuple(tables)
    data = {name for name in without_pointers(names) if not name.startswith(roots) and not is_about_data(name)}
    return data, tables
