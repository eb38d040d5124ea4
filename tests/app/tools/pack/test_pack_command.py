"""`tokenmill pack` as a command: what it prints, standard input, interruption, and a process of its own that dies."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.app.sources.files import as_lines, write_jsonl
from tests.app.tools.pack.packing import rows
from tokenmill.errors import InputError
from tokenmill.store import open_partition

OPTIONS = ("--store", "store", "--tokenizer", "bytes", "--sequence-length", "63", "--partitions", "2")


def run(directory: Path, *arguments: str, data: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    """Run the command in a directory."""
    command = [sys.executable, "-m", "tokenmill.app.cli", "pack", *arguments, *OPTIONS]
    return subprocess.run(command, cwd=directory, input=data, capture_output=True, check=False)


@pytest.mark.slow
def test_documents_are_packed_told_and_verified(tmp_path: Path) -> None:
    """A row for each stream accounts for all documents; the verification says how many blocks are equal."""
    write_jsonl(tmp_path / "a.jsonl", rows(100))

    packed = run(tmp_path, "a.jsonl", "--processes", "2", "--json")
    verified = run(tmp_path, "a.jsonl", "--verify")
    again = run(tmp_path, "a.jsonl")

    assert b"wait until their blocks are full" not in packed.stderr  # but for progress, on a slow machine
    assert b" wait until their blocks are full; the same command with --flush" in again.stdout
    assert packed.returncode == 0, packed.stderr
    said: dict[str, Any] = json.loads(packed.stdout)
    assert (said["documents"], said["before"], said["refused"]) == (100, 0, 0)
    totals = [stream["totals"] for stream in said["streams"].values()]
    assert [one["records"] for one in totals] == [100, 100]
    assert sum(one["kept"] for one in totals) == 100
    assert sum(one["documents"] for one in said["partitions"]) == 100
    assert b"wait until their blocks are full" not in packed.stdout
    blocks = sum(stream["blocks"] for stream in said["streams"].values())
    assert verified.stdout.startswith(f"equal: {blocks} blocks as packed again, ".encode()), verified


@pytest.mark.slow
def test_what_is_piped_in_is_packed_once(tmp_path: Path) -> None:
    """Nothing can go on with it; a second call says so. What of documents is lost is said; named fields are not."""
    options = ("--flush", "--metadata-fields", "lang", "--packing", "rows")
    first = run(tmp_path, "-", "--format", "jsonl", *options, data=as_lines(rows(50)))
    second = run(tmp_path, "-", "--format", "jsonl", *options[1:], data=as_lines(rows(50)))

    assert first.returncode == 0, first.stderr
    assert b"50 documents, " in first.stdout
    carried = open_partition(tmp_path / "store", "raw-text.train", 0).documents(0)[0].fields
    assert carried["lang"] in {"de", "en"}
    assert set(carried) == {"lang"}
    assert b"Left out: " in first.stdout
    assert second.returncode == InputError.exit_code
    assert b"what is piped in cannot be continued" in second.stderr


@pytest.mark.slow
@pytest.mark.needs("minutes")
def test_a_run_of_which_all_is_refused_ends_and_binds_nobody(tmp_path: Path) -> None:
    """A function that always raises ends the run; corrected, with other settings, it is packed."""
    write_jsonl(tmp_path / "a.jsonl", rows(3000))
    (tmp_path / "own.py").write_text(
        "def wrong(row):\n    return row['body'].strip()\n\ndef right(row):\n    return row\n"
    )
    wrong = run(tmp_path, "a.jsonl", "--map", "own:wrong")
    few = run(tmp_path, "a.jsonl", "--map", "own:wrong", "--limit", "5", "--on-error", "dead-letter", "--end")
    right = run(tmp_path, "a.jsonl", "--map", "own:right", "--min-chars", "9")

    assert wrong.returncode == InputError.exit_code
    assert b"the first 1,000 rows were all refused" in wrong.stderr
    assert b"a.jsonl:1: --map: KeyError" in wrong.stderr
    assert b"there are no documents" in few.stderr
    assert right.returncode == 0, right.stderr
    assert b"3,000 documents" in right.stdout


@pytest.mark.needs("minutes")
def test_an_interrupted_pack_and_one_that_lost_a_process_go_on(tmp_path: Path) -> None:
    """Ctrl-C ends it with 130, and a process that is killed with an error that says so; the same command goes on."""
    write_jsonl(tmp_path / "a.jsonl", rows(50))
    command = [sys.executable, "-m", "tokenmill.app.cli", "pack", "a.jsonl", *OPTIONS, "--map", "waiting:wait"]
    (tmp_path / "waiting.py").write_text("import time\n\ndef wait(row):\n    time.sleep(0.5)\n    return row\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for process_itself, code, words in (
        (True, 130, b"interrupted: what was committed is in store"),
        (False, 1, b"ended with code -9"),
    ):
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE)
        miller = miller_of(process)
        time.sleep(1.0)
        if process_itself:
            process.send_signal(signal.SIGINT)
        else:
            miller.kill()
        _, said = process.communicate(timeout=60)
        assert (process.returncode, words in said) == (code, True), said
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"50 documents" in done.stdout + done.stderr


def miller_of(process: "subprocess.Popen[bytes]") -> psutil.Process:
    """Return a process of the command that mills, once there is one."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for child in psutil.Process(process.pid).children():
            if "spawn_main" in " ".join(child.cmdline()):
                return child
        time.sleep(0.05)
    pytest.fail("it has no processes")
