"""Each benchmark runs from end to end, and says what it promises. What the numbers are is nobody's business here."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import scaling
from benchmarks.corpus import documents
from benchmarks.field import CONTENDERS, OURS
from benchmarks.report import KEYS


def run(module: str, *arguments: object) -> str:
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_same_documents_come_each_time() -> None:
    """So that every contender, and every run on this installation, has the same work."""
    assert list(documents(500, 20_000)) == list(documents(500, 20_000))


def test_documents_have_about_the_size_that_was_asked_for() -> None:
    """They end at the first line end from there on, and together have what was asked for."""
    found = [len(document.text.encode()) for document in documents(500, 20_000)]
    assert min(found) >= 500
    assert sum(found) / len(found) < 700
    assert 20_000 <= sum(found) < 20_000 + max(found)


@pytest.mark.needs("minutes")
def test_every_contender_has_every_number_and_the_same_tokens(tmp_path: Path) -> None:
    """With TokenMill's ratio to each of the others; a run in which one has other tokens fails by itself, too."""
    run("ingest", "--quick", "--no-picture", "--directory", tmp_path / "work", "--output", tmp_path)
    result = json.loads((tmp_path / "ingest.json").read_text())
    assert {"machine", "versions", "rounds", "cells"} <= result.keys()
    (cell,) = result["cells"]
    assert list(cell["contenders"]) == [contender.name for contender in CONTENDERS]
    for numbers in cell["contenders"].values():
        assert all(0 < numbers[key]["min"] <= numbers[key]["median"] <= numbers[key]["max"] for key in KEYS)
    assert set(cell["ratios"]) == set(cell["contenders"]) - {OURS}
    assert all(set(ratios) == set(KEYS) for ratios in cell["ratios"].values())
    (tokens,) = {numbers["tokens_on_disk"] for numbers in cell["contenders"].values()}
    assert tokens > 0


@pytest.mark.needs("minutes")
def test_every_way_to_a_block_is_measured_as_often_as_was_asked_for(tmp_path: Path) -> None:
    run("latency", "--documents", 2, "--rounds", 1, "--directory", tmp_path / "work", "--output", tmp_path)
    seconds = json.loads((tmp_path / "latency.json").read_text())["seconds"]
    wanted = {"low load": 2, "low load, near duplicates left out": 2, "after a clean stop": 1, "after SIGKILL": 1}
    assert {name: len(times) for name, times in seconds.items()} == wanted


def test_padded_batches_are_measured_where_both_give_the_same(tmp_path: Path) -> None:
    """The ratio is the lower one."""
    pytest.importorskip("datasets")
    from benchmarks.padded import measure_padded  # noqa: PLC0415

    found = measure_padded(tmp_path, rounds=1, count=400, seconds=0.05)
    assert found["documents"] == 400
    assert found["ratio"] == min(found["shuffled"]["ratio"], found["bucketed"]["ratio"]) > 0


@pytest.mark.needs("minutes")
def test_each_path_has_its_files() -> None:
    _, record, message, batch = re.split(r"^.* \d+ files \(goal: \d+\)$", run("path_files"), flags=re.MULTILINE)
    assert {"app/milling/partition_mill.py", "app/mill/publisher.py"} <= {*record.split()}
    assert {"app/segments/token_partition.py", "tokenmill/store/writer.py"} <= {*message.split()}
    assert {"consumers/sample_lookup.py"} <= {*batch.split()}
    assert not {"app/mill/era_closing.py", "app/worker/watchdog.py"} & {*record.split()}


@pytest.mark.needs("minutes")
def test_each_part_of_scaling_is_measured_and_ranks_have_each_sample_once(tmp_path: Path) -> None:
    scaling.main(rounds=1, share=0.01, directory=tmp_path / "work", output=tmp_path)
    found = json.loads((tmp_path / "scaling.json").read_text())
    assert list(found["eras"]) == ["1", "100", "ratios"]
    assert list(found["partitions"]) == ["2", "4", "ratios"]
    assert list(found["streams"]) == ["1", "2", "ratios"]
    assert found["ranks"]["samples_each_once"] == 160 * 4 * 10


def test_samples_that_ranks_share_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "RANK_PLACES", scaling.RANK_PLACES.replace("int(rank)", "int(rank) // 2"))
    with pytest.raises(SystemExit, match="8 ranks took"):
        scaling._ranks(tmp_path, 0.001, 1)
