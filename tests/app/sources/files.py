"""The same rows as files of every format."""

import bz2
import csv
import gzip
import json
import lzma
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import datasets
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

zstd: Any = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")

Rows = Sequence[dict[str, Any]]


def as_lines(rows: Rows) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def write_jsonl(path: Path, rows: Rows) -> None:
    path.write_bytes(as_lines(rows))


def write_packed(compress: Callable[[bytes], bytes], path: Path, rows: Rows, padding: bytes = b"") -> None:
    half = len(rows) // 2
    path.write_bytes(compress(as_lines(rows[:half])) + padding + compress(as_lines(rows[half:])))


def write_zip(path: Path, rows: Rows) -> None:
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        archive.mkdir("folder")
        archive.writestr("folder/.hidden.txt", "no")
        write_csv(path.with_suffix(".csv"), rows)
        archive.write(path.with_suffix(".csv"), "folder/a.csv")
    path.with_suffix(".csv").unlink()


def write_parquet(path: Path, rows: Rows) -> None:
    pyarrow.parquet.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=max(1, len(rows) // 3))


def write_arrow(path: Path, rows: Rows, new: Callable[..., Any] = pa.ipc.new_file) -> None:
    table = pa.Table.from_pylist(list(rows))
    with new(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=max(1, len(rows) // 3))


def write_csv(path: Path, rows: Rows, delimiter: str = ",", encoding: str = "utf-8") -> None:
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def write_wet(path: Path, rows: Rows) -> None:
    """Write conversion records behind a warcinfo, each compressed by itself, as Common Crawl has them."""
    pages = [warc_record("conversion", row["id"], row["text"]) for row in rows]
    path.write_bytes(b"".join(map(gzip.compress, [warc_record("warcinfo", "info", "about"), *pages])))


def as_records(rows: Rows) -> bytes:
    return b"".join(warc_record("conversion", row["id"], row["text"]) for row in rows)


def warc_record(kind: str, name: str, text: str | bytes, content_type: str = "text/plain") -> bytes:
    body = text.encode() if isinstance(text, str) else text
    head = {
        "WARC-Type": kind,
        "WARC-Record-ID": f"<{name}>",
        "WARC-Target-URI": f"https://example.org/{name}",
        "WARC-Date": "2026-01-01T00:00:00Z",
        "Content-Type": content_type,
        "Content-Length": len(body),
    }
    lines = "".join(f"{key}: {value}\r\n" for key, value in head.items())
    return b"WARC/1.0\r\n" + lines.encode() + b"\r\n" + body + b"\r\n\r\n"


WRITERS: dict[str, Callable[[Path, Rows], object]] = {
    "a.jsonl": write_jsonl,
    "b.json": lambda path, rows: path.write_text(json.dumps(list(rows), indent=1, ensure_ascii=False)),
    "c.jsonl.gz": partial(write_packed, gzip.compress),
    "d.jsonl.zst": partial(write_packed, zstd.compress),
    "e.parquet": write_parquet,
    "f.arrow": write_arrow,
    "g.arrows": partial(write_arrow, new=pa.ipc.new_stream),
    "h.csv": write_csv,
    "i.tsv": partial(write_csv, delimiter="\t"),
    "j.warc.wet.gz": write_wet,
    "k.dataset": lambda path, rows: datasets.Dataset.from_list(list(rows)).save_to_disk(path),
    "l.jsonl.bz2": partial(write_packed, bz2.compress),
    "m.jsonl.xz": partial(write_packed, lzma.compress, padding=bytes(4)),
    "n.zip": write_zip,
    "o.tsv": partial(write_csv, delimiter="\t", encoding="utf-16"),  # "Unicode text" of spreadsheets, with a mark
}
"""How to write each, by a name that says what it is."""
