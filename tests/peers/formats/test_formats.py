"""MDS, litData and Megatron exports, read back by mosaicml-streaming, litdata and Megatron-Core, token for token.

`make test-peers` runs these; tests/app/tools/export reads the other formats.
"""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.milled_store import SHAPES, STREAM, assert_blocks, assert_documents, begun, milled_store
from tests.peers.running import run_with
from tokenmill.app.tools.describe import croissant, store_facts
from tokenmill.app.tools.export import FormatChoice, What, export

pytestmark = pytest.mark.peers


def read(to: FormatChoice | Literal["tokens"], folder: Path, home: Path) -> list[dict[str, Any]]:
    return list(json.loads(last_line(home, "-m", "tests.peers.formats.read_rows", to, folder)))


def last_line(home: Path, *arguments: object) -> str:
    return run_with("formats", *arguments, HOME=str(home), TMPDIR=str(home)).stdout.splitlines()[-1]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("to", ["mds", "litdata", "megatron"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("what", ["blocks", "documents"])
def test_an_export_comes_back_token_for_token(tmp_path: Path, to: FormatChoice, dtype: str, what: What) -> None:
    milled = milled_store(tmp_path / "store", dtype=dtype, records=24, stop=50)
    export(milled.path, STREAM, tmp_path / "out", to=to, what=what)
    first = read(to, tmp_path / "out", tmp_path)
    milled.fill()
    result = export(milled.path, STREAM, tmp_path / "out", to=to, what=what)
    rows = read(to, tmp_path / "out", tmp_path)
    assert 0 < len(first) < len(rows) == result.rows
    if what == "blocks":
        assert_blocks(rows, milled)
    else:
        assert_documents(rows, begun(milled, result.waiting))


@pytest.mark.timeout(300)
def test_litdata_reads_tokens_alone(tmp_path: Path) -> None:
    milled = milled_store(tmp_path / "store", dtype="uint16")
    export(milled.path, STREAM, tmp_path / "out", to="litdata", what="blocks")
    rows = read("litdata", tmp_path / "out", tmp_path)
    assert [row["tokens"] for row in read("tokens", tmp_path / "out", tmp_path)] == [row["tokens"] for row in rows]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("to", ["mds", "litdata", "megatron"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_packing_comes_back_token_for_token(tmp_path: Path, to: FormatChoice, shape: str) -> None:
    """Documents with each of their tokens once, in the segment in which they begin; blocks as they are."""
    milled = milled_store(tmp_path / "store", **SHAPES[shape])
    export(milled.path, STREAM, tmp_path / "blocks", to=to, what="blocks")
    assert_blocks(read(to, tmp_path / "blocks", tmp_path), milled)
    documents = export(milled.path, STREAM, tmp_path / "documents", to=to, what="documents")
    rows = read(to, tmp_path / "documents", tmp_path)
    assert_documents(rows, begun(milled, documents.waiting))
    assert len(rows) == documents.rows > 10


@pytest.mark.timeout(600)
@pytest.mark.parametrize("to", ["mds", "litdata", "megatron"])
def test_a_killed_export_is_read_as_far_as_it_is_and_goes_on(tmp_path: Path, to: FormatChoice) -> None:
    """SIGKILL between files and in the middle of one: the library reads rows that are whole; in the end all."""
    milled = milled_store(tmp_path / "store", records=160)
    command = [sys.executable, "-m", "tokenmill.app.cli", "export", STREAM, "--store", str(milled.path)]
    command += ["--to", to, "--what", "blocks", "--out"]
    subprocess.run([*command, str(tmp_path / "whole")], check=True, capture_output=True)
    wanted = read(to, tmp_path / "whole", tmp_path)
    files, killed, out = len(list((tmp_path / "whole").glob("*-*.*"))), 0, tmp_path / "out"
    for so_far in (1, files // 3, 2 * files // 3):
        process = subprocess.Popen([*command, str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and len(list(out.glob("*-*.*"))) <= so_far:
            time.sleep(0.001)
        process.kill()
        killed += process.wait() == -signal.SIGKILL
        if (out / "index.json").exists() or to == "megatron":
            assert all(row in wanted for row in read(to, out, tmp_path))
    subprocess.run([*command, str(out)], check=True, capture_output=True)
    assert read(to, out, tmp_path) == wanted
    assert killed > 1


CHECK = """
import json, sys
import mlcroissant

dataset = mlcroissant.Dataset(jsonld=json.loads(open(sys.argv[1]).read()))
issues = dataset.metadata.ctx.issues
print(json.dumps({"errors": sorted(issues.errors), "warnings": sorted(issues.warnings),
                  "files": len(dataset.metadata.distribution), "live": dataset.metadata.ctx.is_live_dataset}))
"""


@pytest.mark.parametrize("live", [True, False])
def test_mlcroissant_finds_no_error_in_a_description(tmp_path: Path, *, live: bool) -> None:
    """And misses only what is named as unknown."""
    milled = milled_store(tmp_path / "store", records=12)
    facts = store_facts(milled.path, STREAM, with_sha256=True)
    facts.live = live
    (tmp_path / "croissant.json").write_text(json.dumps(croissant(facts)))
    told = json.loads(last_line(tmp_path, "-c", CHECK, tmp_path / "croissant.json"))
    assert told["errors"] == []
    assert (told["files"], bool(told["live"])) == (len(facts.segments), live)
    missing = {one.rpartition("/")[2].partition('"')[0] for one in told["warnings"]}
    assert missing <= facts.unknown.keys(), told["warnings"]
