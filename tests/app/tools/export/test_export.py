"""Exports read back by their own libraries, token for token; run again, killed, and beside stores that are damaged."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import datasets
import lance
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import dataset as arrow_dataset

from tests.milled_store import (
    SHAPES,
    STREAM,
    MilledStore,
    assert_blocks,
    assert_documents,
    begun,
    milled_store,
    spelled,
)
from tests.store.chains import flip
from tests.store.harm import dies
from tests.store.test_other_readers import MegatronDataset
from tokenmill.app.tools.export import FORMATS, FormatChoice, What, export
from tokenmill.errors import DamagedError, DiskError, InputError, LockedError
from tokenmill.store import open_partition

HERE: tuple[FormatChoice, ...] = ("parquet", "arrow", "lance", "hf", "nanogpt", "megatron")
"""Formats whose readers are installed here; the others are read in tests/peers/formats."""
IN_EVERY_FORMAT = ("concat", "fit", "rows, split", "chunks, padded")
"""Packings that are exported in every format; the others are like one of them, and in one."""


def rows_of(to: FormatChoice, out: Path) -> list[dict[str, Any]]:
    if to in ("parquet", "arrow"):
        return list(arrow_dataset.dataset(out, format=to).to_table().to_pylist())
    if to == "lance":
        return list(lance.dataset(str(out)).to_table().to_pylist())
    if to == "hf":
        return [dict(row) for row in datasets.load_from_disk(str(out))]
    return list(_flat(to, out))


def _flat(to: FormatChoice, out: Path) -> list[dict[str, Any]]:
    made_of = json.loads((out / "_tokenmill" / "export.json").read_bytes())
    rows = []
    for file in sorted(out.glob("*.bin")):
        tokens = np.memmap(file, dtype=made_of["dtype"], mode="r")
        lines = [json.loads(line) for line in file.with_suffix(".jsonl").read_bytes().splitlines()]
        lengths = [line["tokens"] for line in lines]
        assert sum(lengths) == len(tokens)
        parts = np.split(tokens, np.cumsum(lengths)[:-1])
        if to == "megatron":  # by its index; Megatron's own code reads it in tests/peers/formats
            indexed = MegatronDataset(file)
            assert indexed.dtype == made_of["dtype"]
            assert indexed.documents.tolist() == list(range(len(lines) + 1))
            parts = [indexed.get(number) for number in range(len(indexed.lengths))]
        for line, part in zip(lines, parts, strict=True):
            about = line.get("document") or {}
            fields = json.dumps(about.get("fields"), ensure_ascii=False, separators=(",", ":"))
            more = {"id": spelled(about.get("id")), "fields": fields if about.get("fields") else None}
            rows.append({**line, **more, "tokens": part.tolist()})
    return rows


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> MilledStore:
    return milled_store(tmp_path_factory.mktemp("store"), dtype="uint16")


@pytest.mark.cases(6)
@pytest.mark.parametrize(
    ("shape", "to"),
    [(shape, to) for shape in ("concat", *SHAPES) for to in (HERE if shape in IN_EVERY_FORMAT else HERE[:1])],
)
def test_everything_comes_back_token_for_token(tmp_path: Path, shape: str, to: FormatChoice) -> None:
    milled = milled_store(tmp_path / "store", **SHAPES.get(shape, {"dtype": "uint16"}))
    blocks = export(milled.path, STREAM, tmp_path / "blocks", to=to, what="blocks")
    rows = rows_of(to, tmp_path / "blocks")
    assert_blocks(rows, milled)
    assert (blocks.rows, blocks.tokens) == (len(rows), sum(len(row["tokens"]) for row in rows))
    documents = export(milled.path, STREAM, tmp_path / "documents", to=to, what="documents")
    rows = rows_of(to, tmp_path / "documents")
    assert_documents(rows, begun(milled, documents.waiting))
    assert len(rows) == documents.rows > 10
    assert shape != "concat" or any(len(row["tokens"]) > 9 * 16 for row in rows), "some are longer than a segment"


@pytest.mark.parametrize("to", HERE)
@pytest.mark.parametrize("shape", ["concat", "fit"])
@pytest.mark.cases(2)
def test_of_a_stream_that_has_ended_everything_comes_back(tmp_path: Path, to: FormatChoice, shape: str) -> None:
    milled = milled_store(tmp_path / "store", dtype="uint16", **SHAPES.get(shape, {}))
    assert all(len(blocks) % 16 for blocks in milled.blocks.values())
    for what in get_args(What):
        export(milled.path, STREAM, tmp_path / f"{what}-before", to=to, what=what)
    milled.close_era(end=True)
    for what in get_args(What):
        for name in ("before", "at once"):
            out = tmp_path / f"{what}-{name}"
            result = export(milled.path, STREAM, out, to=to, what=what)
            assert result.waiting == []
            rows = rows_of(to, out)
            assert len(rows) == result.rows
            if what == "blocks":
                assert_blocks(rows, milled)
            else:
                assert_documents(rows, begun(milled))
        again = export(milled.path, STREAM, out, to=to, what=what)
        assert again.written == []
        if to != "lance":  # its versions are those of the runs
            assert bytes_of(tmp_path / f"{what}-before") == bytes_of(tmp_path / f"{what}-at once")


def test_an_end_that_a_store_has_not_reached_is_waited_for(tmp_path: Path) -> None:
    milled = milled_store(tmp_path / "store", stop=20)
    milled.close_era(end=True)
    for what in get_args(What):
        result = export(milled.path, STREAM, tmp_path / what, to="arrow", what=what)
        last = [f"{n}/{len(blocks) // 16 * 16}" for n, blocks in milled.blocks.items()]
        assert set(last) <= set(result.waiting)
        milled.fill(None if what == "documents" else 40)
    assert export(milled.path, STREAM, tmp_path / "blocks", to="arrow", what="blocks").waiting == []
    assert_blocks(rows_of("arrow", tmp_path / "blocks"), milled)
    short = milled_store(tmp_path / "short", records=3)
    assert max(map(len, short.blocks.values())) < 16
    short.close_era(end=True)
    export(short.path, STREAM, tmp_path / "file", to="parquet", what="blocks")
    assert_blocks(rows_of("parquet", tmp_path / "file"), short)


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("to", "file", "name"), [("hf", "state.json", "_fingerprint"), ("litdata", "index.json", "updated_at")]
)
def test_what_libraries_know_an_export_by_is_its_content(
    tmp_path: Path, store: MilledStore, to: FormatChoice, file: str, name: str
) -> None:
    """Another for other tokens, rows, or segments, though files and their names are as many; else always the same."""
    other = milled_store(tmp_path / "other", dtype="uint16", seed=9)
    part = milled_store(tmp_path / "part", dtype="uint16", stop=16)
    found = []
    cases: list[tuple[MilledStore, What]] = [(one, "blocks") for one in (store, other, part)]
    for number, (milled, what) in enumerate([*cases, (store, "documents")]):
        for again in range(2):
            out = tmp_path / f"{number}-{again}"
            export(milled.path, STREAM, out, to=to, what=what)
            found.append(json.loads((out / file).read_bytes())[name])
    assert found[::2] == found[1::2]
    assert len(set(found)) == 4


def test_litdata_has_the_tokens_alone_as_well(tmp_path: Path, store: MilledStore) -> None:
    """Of each file, back to back behind its offsets, where its ``TokensLoader`` looks; and how many there are."""
    export(store.path, STREAM, tmp_path / "out", to="litdata", what="blocks")
    index = json.loads((tmp_path / "out" / "index.json").read_bytes())
    assert "item_loader" not in index["config"]  # it would bind the files to one loader
    for chunk in index["chunks"]:
        data = (tmp_path / "out" / chunk["filename"]).read_bytes()
        partition, first = map(int, chunk["filename"].split("-")[:2])
        tokens = store.tokens(partition)[first : first + chunk["chunk_size"]]
        assert chunk["dim"] == tokens.size
        begin = 4 * (chunk["chunk_size"] + 2)
        assert data[begin : begin + tokens.nbytes] == tokens.tobytes()
        assert int.from_bytes(data[4:8], "little") == begin + tokens.nbytes


def test_lance_gives_tokens_by_row(tmp_path: Path, store: MilledStore) -> None:
    export(store.path, STREAM, tmp_path / "out", to="lance", what="blocks")
    opened = lance.dataset(str(tmp_path / "out"))
    count = opened.count_rows()
    indices = np.random.default_rng(1).permutation(count)[:7].tolist()
    taken = opened.take(indices).to_pylist()
    assert opened.schema.field("tokens").type == pa.list_(pa.uint16(), 9)
    for row in taken:
        assert row["tokens"] == store.tokens(row["partition"])[row["block"]].tolist()
    rows = opened.to_table().to_pylist()
    assert taken == [rows[index] for index in indices]


@pytest.mark.slow
@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("what", ["blocks", "documents"])
@pytest.mark.cases(2)
def test_files_are_a_function_of_the_segments(tmp_path: Path, to: FormatChoice, what: What) -> None:
    milled = milled_store(tmp_path / "store", records=24, stop=40)
    before: dict[str, tuple[bytes, int]] = {}
    for stop in (40, 90, None):
        milled.fill(stop)
        export(milled.path, STREAM, tmp_path / "grown", to=to, what=what)
        files = {name: (path.read_bytes(), path.stat().st_mtime_ns) for name, path in data_files(tmp_path / "grown")}
        assert {name: files[name] for name in before} == before
        before = files
    export(milled.path, STREAM, tmp_path / "once", to=to, what=what)
    assert {name: data for name, (data, _) in before.items()} == bytes_of(tmp_path / "once")
    assert len(before) > 6
    again = export(milled.path, STREAM, tmp_path / "grown", to=to, what=what)
    assert again.written == []


def data_files(out: Path) -> list[tuple[str, Path]]:
    """Return the files of an export that hold rows."""
    libraries_own = {"_versions", "_transactions"}
    found = [path for path in out.rglob("*-*.*") if not libraries_own & {*path.parts} and path.suffix != ".tmp"]
    return sorted((str(path.relative_to(out)), path) for path in found)


def bytes_of(out: Path) -> dict[str, bytes]:
    return {name: path.read_bytes() for name, path in data_files(out)}


def assert_whole(to: FormatChoice, out: Path) -> None:
    if to in HERE:
        if (out / "state.json").exists() or (out / "_versions").exists():
            rows_of(to, out)
    elif (out / "index.json").exists():
        index = json.loads((out / "index.json").read_bytes())
        named = [(one["raw_data"]["basename"], one["raw_data"]["bytes"]) for one in index.get("shards", ())]
        named += [(one["filename"], one["chunk_bytes"]) for one in index.get("chunks", ())]
        for name, size in named:
            assert (out / name).stat().st_size >= size > 0


@pytest.mark.slow
@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.cases(1)
def test_a_killed_run_leaves_nothing_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: FormatChoice) -> None:
    milled = milled_store(tmp_path / "store", records=10)
    export(milled.path, STREAM, tmp_path / "whole", to=to, what="documents")
    wanted = bytes_of(tmp_path / "whole")
    for nth in count(3, 3):
        out = tmp_path / f"out-{nth}"
        work = partial(export, milled.path, STREAM, out, to=to, what="documents")
        died = dies(work, nth, ("rename", "fsync", "fdatasync"), monkeypatch)
        assert bytes_of(out).items() <= wanted.items()
        assert_whole(to, out)
        result = export(milled.path, STREAM, out, to=to, what="documents")
        assert bytes_of(out) == wanted
        assert_whole(to, out)
        if to in HERE:
            assert_documents(rows_of(to, out), begun(milled, result.waiting))
        assert not list(out.rglob("*.tmp"))
        if not died:
            break
    assert nth > 10


@pytest.mark.needs("minutes")
def test_an_export_in_a_process_of_its_own_is_killed_and_goes_on(tmp_path: Path) -> None:
    """SIGKILL when some files are there, or half of one: called again, it makes what one that nobody killed does."""
    milled = milled_store(tmp_path / "store", records=120)
    killed = 0
    for to in FORMATS:
        command = [sys.executable, "-m", "tokenmill.app.cli", "export", STREAM, "--store", str(milled.path)]
        command += ["--to", to, "--what", "documents", "--out"]
        whole, out = tmp_path / f"{to}-whole", tmp_path / f"{to}-out"
        subprocess.run([*command, str(whole)], check=True, capture_output=True)
        wanted = bytes_of(whole)
        for files in range(0, len(wanted), max(len(wanted) // 4, 1)):
            process = subprocess.Popen([*command, str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while process.poll() is None and len(list(out.rglob("*-*.*"))) <= files:
                time.sleep(0.001)
            process.kill()
            killed += process.wait() == -signal.SIGKILL
            assert bytes_of(out).items() <= wanted.items()
            assert_whole(to, out)
        subprocess.run([*command, str(out)], check=True, capture_output=True)
        assert bytes_of(out) == wanted
        assert_whole(to, out)
        if to in HERE:
            assert rows_of(to, out) == rows_of(to, whole)
        assert not list(out.rglob("*.tmp"))
    assert killed > len(FORMATS)


def test_a_document_waits_for_its_end(tmp_path: Path) -> None:
    """A segment whose last document goes on behind what the store holds is exported later, and its blocks at once."""
    milled = milled_store(tmp_path / "store", stop=16, longest=4)
    ends = [open_partition(milled.path, STREAM, partition).documents(15)[-1] for partition in (0, 1)]
    assert any(piece.stop == 9 for piece in ends)
    first = export(milled.path, STREAM, tmp_path / "documents", to="arrow", what="documents")
    assert first.waiting
    assert not [one for one in first.written if f"{one.partition}/{one.first}" in first.waiting]
    assert export(milled.path, STREAM, tmp_path / "blocks", to="arrow", what="blocks").waiting == []
    milled.fill(17)
    later = export(milled.path, STREAM, tmp_path / "documents", to="arrow", what="documents")
    assert later.waiting == []
    assert_documents(rows_of("arrow", tmp_path / "documents"), begun(milled, stop=16))


def test_a_folder_without_rows_is_no_data_set_yet(tmp_path: Path) -> None:
    milled = milled_store(tmp_path / "store", stop=16)
    out = tmp_path / "documents"
    assert export(milled.path, STREAM, out, to="hf", what="documents").rows == 0
    with pytest.raises(FileNotFoundError, match="neither a `Dataset` directory"):
        rows_of("hf", out)
    milled.fill()
    waiting = export(milled.path, STREAM, out, to="hf", what="documents").waiting
    assert_documents(rows_of("hf", out), begun(milled, waiting))


def test_folders_of_something_else_are_refused(tmp_path: Path, store: MilledStore) -> None:
    out, theirs = tmp_path / "out", tmp_path / "theirs"
    file = r"thesis\.txt.* is a file, or below one: name a folder with --out"
    export(store.path, STREAM, out, to="arrow", what="blocks")
    theirs.mkdir()
    (theirs / "thesis.txt").touch()
    other = milled_store(tmp_path / "other", dtype="uint8")
    copy = milled_store(tmp_path / "copy", dtype="uint16", seed=7)
    refused: list[tuple[MilledStore, Path, FormatChoice, What, str]] = [
        (store, out, "parquet", "blocks", r"to 'arrow' there, to 'parquet' asked for.*--out"),
        (store, out, "arrow", "documents", "what 'blocks' there, what 'documents' asked for"),
        (other, out, "arrow", "blocks", "holds another export: fingerprint"),
        (copy, out, "arrow", "blocks", "two streams with one name and recipe"),
        (store, theirs, "arrow", "blocks", "is not empty, and holds no export"),
        (store, theirs / "thesis.txt", "arrow", "blocks", file),
        (store, theirs / "thesis.txt" / "out", "arrow", "blocks", file),
    ]
    for milled, folder, to, what, words in refused:
        with pytest.raises(InputError, match=words):
            export(milled.path, STREAM, folder, to=to, what=what)


def test_files_that_went_are_named(tmp_path: Path, store: MilledStore) -> None:
    out = tmp_path / "out"
    result = export(store.path, STREAM, out, to="mds", what="blocks")
    (out / result.files[0].name).unlink()
    with pytest.raises(InputError, match=r"0-000000000000-000\.mds is missing: remove .*0-000000000000\.json, and"):
        export(store.path, STREAM, out, to="mds", what="blocks")
    (out / "_tokenmill" / "0-000000000000.json").unlink()
    export(store.path, STREAM, out, to="mds", what="blocks")
    assert (out / result.files[0].name).exists()


def test_damage_is_refused_and_no_file_made_of_it(tmp_path: Path) -> None:
    for suffix in ("bin", "docs"):
        milled = milled_store(tmp_path / suffix)
        file = milled.path / STREAM / "0" / f"000000000016.{suffix}"
        flip(file, file.stat().st_size // 2)
        with pytest.raises(DamagedError, match="tokenmill repair"):
            export(milled.path, STREAM, tmp_path / f"{suffix}-out", to="parquet", what="blocks")
        assert [file.name for file in (tmp_path / f"{suffix}-out").rglob("*.parquet")] == ["0-000000000000.parquet"]


def test_a_stream_without_a_sealed_segment_says_what_to_do(tmp_path: Path) -> None:
    milled = milled_store(tmp_path / "store", stop=5)
    with pytest.raises(InputError, match=r"no sealed segment .*segment has 16 blocks .* has 5\. Wait for more"):
        export(milled.path, STREAM, tmp_path / "out", to="parquet", what="blocks")
    assert not (tmp_path / "out").exists()


def test_a_run_goes_on_after_a_full_disk(tmp_path: Path, store: MilledStore) -> None:
    full = chain(repeat(None, 29), [OSError(28, "No space left on device")], repeat(None))
    said = r"No space left.*make room, and give the same command again"
    with mock.patch.object(os, "fsync", side_effect=full), pytest.raises(DiskError, match=said):
        export(store.path, STREAM, tmp_path / "out", to="parquet", what="blocks")
    assert not list((tmp_path / "out").glob(".*"))
    result = export(store.path, STREAM, tmp_path / "out", to="parquet", what="blocks")
    assert 0 < len(result.written) < len(result.files)
    assert_blocks(rows_of("parquet", tmp_path / "out"), store)


def test_two_exports_into_one_folder_exclude_each_other(tmp_path: Path, store: MilledStore) -> None:
    out = tmp_path / "out"

    def report(_done: int, _total: int, _name: str) -> None:
        with pytest.raises(LockedError, match=str(os.getpid())):
            export(store.path, STREAM, out, to="arrow", what="blocks")

    assert export(store.path, STREAM, out, to="arrow", what="blocks", report=report).written
