"""The same rows as files of every format."""

import bz2
import csv
import gzip
import io
import json
import lzma
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO
from zipfile import ZIP_DEFLATED, ZipFile

import datasets
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

zstd: Any = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")

Rows = Sequence[dict[str, Any]]


def as_lines(rows: Rows) -> bytes:
    """Return JSON lines."""
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def write_jsonl(path: Path, rows: Rows) -> None:
    """Write JSON lines."""
    path.write_bytes(as_lines(rows))


def write_json(path: Path, rows: Rows) -> None:
    """Write one array, for people."""
    path.write_text(json.dumps(list(rows), indent=1, ensure_ascii=False))


def write_gzip(path: Path, rows: Rows) -> None:
    """Write JSON lines, compressed in two members."""
    half = len(rows) // 2
    path.write_bytes(gzip.compress(as_lines(rows[:half])) + gzip.compress(as_lines(rows[half:])))


def write_zstd(path: Path, rows: Rows) -> None:
    """Write JSON lines, compressed in two frames."""
    half = len(rows) // 2
    path.write_bytes(zstd.compress(as_lines(rows[:half])) + zstd.compress(as_lines(rows[half:])))


def write_bzip2(path: Path, rows: Rows) -> None:
    """Write JSON lines, compressed in two streams."""
    half = len(rows) // 2
    path.write_bytes(bz2.compress(as_lines(rows[:half])) + bz2.compress(as_lines(rows[half:])))


def write_xz(path: Path, rows: Rows) -> None:
    """Write JSON lines, compressed in two streams with padding between them."""
    half = len(rows) // 2
    path.write_bytes(lzma.compress(as_lines(rows[:half])) + bytes(4) + lzma.compress(as_lines(rows[half:])))


def write_zip(path: Path, rows: Rows) -> None:
    """Write a table as the only file in an archive, beside what is none."""
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        archive.mkdir("folder")
        archive.writestr("folder/.hidden.txt", "no")
        table = io.StringIO(newline="")
        _write_rows(table, rows, ",")
        archive.writestr("folder/a.csv", table.getvalue())


def write_utf_16(path: Path, rows: Rows) -> None:
    """Write a table as spreadsheets do: "Unicode text", with a byte order mark."""
    with path.open("w", newline="", encoding="utf-16") as file:
        _write_rows(file, rows, "\t")


def write_parquet(path: Path, rows: Rows) -> None:
    """Write several row groups."""
    pyarrow.parquet.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=max(1, len(rows) // 3))


def write_arrow(path: Path, rows: Rows) -> None:
    """Write an IPC file of several batches."""
    table = pa.Table.from_pylist(list(rows))
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=max(1, len(rows) // 3))


def write_stream(path: Path, rows: Rows) -> None:
    """Write an IPC stream."""
    table = pa.Table.from_pylist(list(rows))
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=max(1, len(rows) // 3))


def write_csv(path: Path, rows: Rows) -> None:
    """Write a table with commas."""
    _write_table(path, rows, ",")


def write_tsv(path: Path, rows: Rows) -> None:
    """Write a table with tabs."""
    _write_table(path, rows, "\t")


def _write_table(path: Path, rows: Rows, delimiter: str) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        _write_rows(file, rows, delimiter)


def _write_rows(file: TextIO, rows: Rows, delimiter: str) -> None:
    writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)


def write_wet(path: Path, rows: Rows) -> None:
    """Write conversion records behind a warcinfo, each compressed by itself, as Common Crawl has them."""
    pages = [warc_record("conversion", str(row["id"]), row["text"]) for row in rows]
    path.write_bytes(b"".join(map(gzip.compress, [warc_record("warcinfo", "info", "about"), *pages])))


def warc_record(kind: str, name: str, text: str, content_type: str = "text/plain") -> bytes:
    """Return one record, not compressed."""
    body = text.encode()
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


def write_dataset(path: Path, rows: Rows) -> None:
    """Write a folder as `save_to_disk` does."""
    datasets.Dataset.from_list(list(rows)).save_to_disk(path)


WRITERS: dict[str, Callable[[Path, Rows], None]] = {
    "a.jsonl": write_jsonl,
    "b.json": write_json,
    "c.jsonl.gz": write_gzip,
    "d.jsonl.zst": write_zstd,
    "e.parquet": write_parquet,
    "f.arrow": write_arrow,
    "g.arrows": write_stream,
    "h.csv": write_csv,
    "i.tsv": write_tsv,
    "j.warc.wet.gz": write_wet,
    "k.dataset": write_dataset,
    "l.jsonl.bz2": write_bzip2,
    "m.jsonl.xz": write_xz,
    "n.zip": write_zip,
    "o.tsv": write_utf_16,
}
"""How to write each, by a name that says what it is."""
