"""Duplicates are left out of what is packed: the same ones with any number of processes, and after every kill."""

import asyncio
import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.app.milling.duplicates.plain_duplicates import plainly
from tests.app.sources.files import write_jsonl
from tests.app.tools.pack.packing import content, opened, pack_into, plan_of, require_equal, small_settings
from tokenmill.app.milling.duplicates.signatures import Near
from tokenmill.app.settings import Settings
from tokenmill.app.tools.inspect.packed import packed_rejects, packed_streams
from tokenmill.app.tools.pack import packing_run
from tokenmill.app.tools.pack.pack_verification import verify_pack
from tokenmill.app.tools.pack.packed_partition import PackFiles, pack_directory
from tokenmill.app.tools.produce.producing import partition_of
from tokenmill.app.tools.verify.sides import ReferenceSample

NEAR = {"name": "near", "window": 400, "bands": 10, "rows": 3}
PARAMETERS = Near(window=400, bands=10, rows=3)
PARTITIONS = 3


def repeating(count: int, seed: int = 1) -> list[dict[str, Any]]:
    """Return rows of which half were there before, as they are or with some words changed, some long ago."""
    rng, texts = random.Random(seed), list[str]()
    for _ in range(count):
        if texts and rng.random() < 0.5:
            words = texts[-rng.randint(1, min(len(texts), 900))].split()
            for _ in range(rng.choice([0, 0, 1, 2])):
                words[rng.randrange(len(words))] = f"other{rng.randrange(100)}"
            texts.append(" ".join(words))
        else:
            texts.append(" ".join(f"w{rng.randrange(10**6)}" for _ in range(rng.choice([2, 12, 20, 30]))))
    return [{"id": f"d{number}", "text": text} for number, text in enumerate(texts)]


def wanted(found: list[dict[str, Any]]) -> dict[tuple[int, int], tuple[str, str]]:
    """Return the reason and what is said of each duplicate among rows, by its place, as a list says it."""
    offsets, places = [1] * PARTITIONS, []
    for number in range(len(found)):
        partition = partition_of(number, None, PARTITIONS)
        places.append((partition, offsets[partition]))
        offsets[partition] += 1
    told = {}
    for number, (kind, (_, first)) in enumerate(plainly(PARAMETERS, [row["text"] for row in found])):
        if kind:
            partition, offset = places[first]
            how = ("duplicate_exact", "the text of") if kind == 1 else ("duplicate_near", "resembles")
            told[places[number]] = how[0], f"{how[1]} raw-text/{partition}/{offset}"
    return told


def told_by(settings: Settings) -> dict[tuple[int, int], tuple[str, str]]:
    """Return the same of a store."""
    rejects = packed_rejects(settings, packed_streams(settings), limit=10**6)
    return {(one.place.partition, one.place.offset): (one.reason, one.detail) for one in rejects}


@pytest.mark.needs("minutes")
@pytest.mark.slow
def test_duplicates_are_those_of_a_list_whatever_packs_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With their places; kept, filtered and verified alike; totals count each of them."""
    found = repeating(1500)
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    write_jsonl(paths[0], found[:700])
    write_jsonl(paths[1], found[700:])
    stores, told = {}, wanted(found)
    for processes, room, seconds in ((1, 1 << 14, 5.0), (3, 1 << 10, 0.1)):
        monkeypatch.setattr(packing_run, "BATCH_BYTES", room)
        monkeypatch.setattr(packing_run, "COMMIT_SECONDS", seconds)
        settings = small_settings(tmp_path / f"store{processes}", dedup=NEAR, rejects="topic")
        summary = pack_into(settings, paths, partitions=PARTITIONS, processes=processes, flush=True, end=True)
        stores[processes] = settings
        totals = [stream.totals for stream in summary.streams.values()]
        counted = sum((one.filtered for one in totals), Counter[str]())
        assert told_by(settings) == told
        assert counted == {reason: [one for one, _ in told.values()].count(reason) for reason in counted}
        assert counted["duplicate_exact"] > 100
        assert counted["duplicate_near"] > 100
    require_equal(content(stores[3].store, eras=True), content(stores[1].store, eras=True))

    again = pack_into(stores[1], paths, partitions=PARTITIONS, flush=True, end=True)
    reading, sources = opened(stores[1], paths)
    plan = plan_of(stores[1], paths, partitions=PARTITIONS, processes=2)
    sample = ReferenceSample(1, everything=True)
    checked = asyncio.run(verify_pack(stores[1], sources, reading, plan, sample=sample))

    assert (again.documents, again.before) == (0, 1500)
    assert checked.ok, checked.differences
    assert all(chain.sampled_blocks == chain.reference_blocks for chain in checked.chains)


ENDING = """
import sys
from tokenmill.app.cli import main
from tokenmill.app.tools.pack import packing_run
packing_run.COMMIT_SECONDS, packing_run.BATCH_BYTES = 0.1, 1 << 14
main(sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.needs("minutes")
def test_a_pack_that_is_killed_goes_on_with_the_same_duplicates(tmp_path: Path) -> None:
    """Killed twice, with its processes, at places that the window has left long ago at the end."""
    found = repeating(6000)
    (tmp_path / "texts").mkdir()
    for number in range(12):
        write_jsonl(tmp_path / "texts" / f"{number:02}.jsonl", found[number * 500 : (number + 1) * 500])
    options = ["--tokenizer=bytes", "--sequence-length=63", "--segment-blocks=4096", "--era-blocks=8192"]
    options += [f"--partitions={PARTITIONS}", "--processes=2", f"--dedup={json.dumps(NEAR)}", "--rejects=topic"]
    command = [sys.executable, "-c", ENDING, "pack", "texts", "--store", "store", *options]
    large: dict[str, Any] = {"dedup": NEAR, "rejects": "topic", "segment_blocks": 4096, "era_blocks": 8192}
    settings = small_settings(tmp_path / "store", **large)
    files = PackFiles(pack_directory(tmp_path / "store", "raw-text", ""))
    killed: list[int] = []
    for _ in range(2):
        process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        before = killed[-1] if killed else 0
        while process.poll() is None:
            position = files.read_position()
            if position is not None and position.number >= before + 1500:
                process.kill()
                break
            time.sleep(0.002)
        process.communicate()
        last = files.read_position()
        killed.append(last.number if last is not None else 0)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    whole = small_settings(tmp_path / "whole", **large)
    pack_into(whole, [tmp_path / "texts"], partitions=PARTITIONS)

    assert done.returncode == 0, done.stderr
    assert 0 < killed[0] < killed[1] < 6000
    assert told_by(settings) == told_by(whole)
    require_equal(content(settings.store, eras=False), content(whole.store, eras=False))
    assert len(list(files.directory.glob("seen-*.bin"))) <= 4
