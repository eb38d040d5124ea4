"""`tokenmill pack` is killed again and again, and called again: the store is the one of a call that nobody killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from tests.app.sources.files import WRITERS, write_jsonl
from tests.app.tools.pack.packing import content, require_equal, rows
from tests.faults.trial import Trial
from tokenmill.errors import DiskError

OFTEN: Final = """
import sys
from tokenmill.app.tools.pack import packing_run, parted_sources

packing_run.COMMIT_SECONDS, parted_sources.PART_BYTES = 0.0, 1 << 16
from tokenmill.app.cli import main

main(sys.argv[1:])
"""
"""The command, with a commit after each chunk, so that there is something to lose."""
WAIT_SECONDS: Final = 240
ROWS: Final = 1500
"""In the files of lines: some chunks of each."""
POLL_SECONDS: Final = 0.002


def corpus(folder: Path) -> Path:
    """Write a file of every format, and large ones; return the folder."""
    folder.mkdir()
    for seed, (name, write) in enumerate(WRITERS.items()):
        write(folder / name, rows(60, seed))
    for seed in (50, 51):
        write_jsonl(folder / f"large-{seed}.jsonl", rows(ROWS, seed, words=120))
    (folder / "bad.jsonl").write_bytes(b'{"text": "a"}\nno JSON\n')
    return folder


PACKINGS: Final = (
    "concat",
    '{"name": "fit", "open_blocks": 8, "max_age_offsets": 300}',
    '{"name": "rows", "long": "split"}',
    '{"name": "chunks", "chunk_tokens": 126, "rest": "pad"}',
)


def started(
    folder: Path, store: Path, log: Path, *, packing: str = "concat", limit: int | None = None
) -> "subprocess.Popen[bytes]":
    """Start the command; no file may be larger than a ``limit``."""
    command = ["prlimit", f"--fsize={limit}"] if limit is not None else []
    command += [sys.executable, "-c", OFTEN, "pack", str(folder), "--store", str(store), "--tokenizer", "bytes"]
    options = {
        "--sequence-length": 63,
        "--segment-blocks": 500,
        "--era-blocks": 2000,
        "--partitions": 3,
        "--packing": packing,
    }
    command += [str(part) for pair in options.items() for part in pair]
    command += ["--processes", "2", "--on-error", "dead-letter", "--flush", "--end", "--json"]
    with log.open("ab") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, cwd=log.parent)


def finished(process: "subprocess.Popen[bytes]", log: Path) -> dict[str, Any]:
    """Wait for the end of a call that nobody kills, and return what it said."""
    assert process.wait(WAIT_SECONDS) == 0, log.read_text()
    found: dict[str, Any] = json.loads([line for line in log.read_text().splitlines() if line.startswith("{")][-1])
    return found


def size(store: Path) -> int:
    """Return how much there is in a store."""
    found = 0
    for directory, _, names in os.walk(store):
        for name in names:
            try:
                found += (Path(directory) / name).stat().st_size
            except FileNotFoundError:
                continue
    return found


def kill_at_work(process: "subprocess.Popen[bytes]", store: Path, trial: Trial, most: int) -> bool:
    """Kill the call, or one of its processes, when the store has grown to a random size; return whether it worked."""
    wanted = trial.rng.randrange(most)
    deadline = time.monotonic() + trial.rng.choice([1.0, 10.0])  # sometimes before it has begun
    while process.poll() is None and size(store) < wanted and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    victim: Callable[[], None] = process.kill
    children = psutil.Process(process.pid).children() if process.poll() is None else []
    millers = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
    if millers and trial.rng.random() < 0.25:
        victim = trial.rng.choice(millers).kill
    try:
        victim()
    except psutil.NoSuchProcess:
        process.kill()
    code = process.wait(WAIT_SECONDS)
    return code in (-signal.SIGKILL, 1)


@pytest.mark.fault("pack-killed")
@pytest.mark.needs("minutes")
def test_killed_packs_make_the_store_of_one_that_was_not(tmp_path: Path, trial: Trial) -> None:
    """Segments, eras, letters and totals, whatever was killed when, in a random packing."""
    packing = trial.rng.choice(PACKINGS)
    folder, log = corpus(tmp_path / "in"), tmp_path / "log"
    whole = tmp_path / "whole"
    wanted = finished(started(folder, whole, log, packing=packing), log)
    most = size(whole)
    kills = 0
    number = 0
    while kills < trial.rounds(2, 100):
        store = tmp_path / f"store-{number}"
        number += 1
        for _ in range(trial.rng.randint(2, trial.rounds(3, 12))):
            if kill_at_work(started(folder, store, log, packing=packing), store, trial, most):
                kills += 1
                trial.fired("pack SIGKILL")
        log.unlink()
        found = finished(started(folder, store, log, packing=packing), log)
        require_equal(content(store, eras=True), content(whole, eras=True))
        require_equal(letters(store), letters(whole))
        assert found["streams"] == wanted["streams"]
        assert found["refused"] == wanted["refused"] > 0
    blocks = sum(stream["blocks"] for stream in wanted["streams"].values())
    trial.held("exact", "complete", "conserved", "dead letters", blocks=blocks * number)


def letters(store: Path) -> dict[str, bytes]:
    """Return the files of letters."""
    return {path.name: path.read_bytes() for path in (store / "pack" / "raw-text").glob("*.jsonl")}


@pytest.mark.fault("disk-full")
@pytest.mark.needs("minutes")
def test_a_full_disk_ends_a_pack_and_the_next_call_goes_on(tmp_path: Path, trial: Trial) -> None:
    """A file that may not grow is what a full disk is: the call names it, and what was committed stays."""
    folder, log = corpus(tmp_path / "in"), tmp_path / "log"
    whole, store = tmp_path / "whole", tmp_path / "store"
    finished(started(folder, whole, log), log)
    for limit in trial.rng.sample([500, 5_000, 20_000, 30_000], trial.rounds(2, 4)):
        log.unlink()
        assert started(folder, store, log, limit=limit).wait(WAIT_SECONDS) == DiskError.exit_code, log.read_text()
        assert "cannot be used (File too large); what was committed is kept" in log.read_text()
        trial.fired("EFBIG")
    log.unlink()
    finished(started(folder, store, log), log)
    require_equal(content(store, eras=True), content(whole, eras=True))
    trial.held("exact", "complete", "loud")
