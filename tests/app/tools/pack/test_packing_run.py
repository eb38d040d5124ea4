"""Packs: going on, what is refused or left out, the same blocks as a mill makes, and what a verification finds."""

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from base64 import b64decode
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from tests.app.milling.duplicates.plain_duplicates import plainly
from tests.app.sources.files import WRITERS, as_lines, write_jsonl, write_parquet
from tests.app.tools.pack.packing import (
    blocks_in,
    content,
    corpus,
    opened,
    pack_into,
    plan_of,
    require_equal,
    rows,
    small_settings,
)
from tests.commands import die_while_starting
from tests.conftest import TopicFactory
from tests.service import Service, in_own_loop, service_settings
from tests.store.chains import flip
from tokenmill.app.local.broker import Broker
from tokenmill.app.mill.recipes import plan_topic
from tokenmill.app.milling.duplicates.signatures import Near
from tokenmill.app.settings import Settings
from tokenmill.app.tools.inspect.packed import packed_rejects, packed_streams
from tokenmill.app.tools.pack import packing_run, parted_sources
from tokenmill.app.tools.pack.mill_processes import Millers
from tokenmill.app.tools.pack.pack_verification import verify_pack
from tokenmill.app.tools.pack.packed_partition import PackFiles, era_ends, pack_directory
from tokenmill.app.tools.pack.packing_run import held_recipe
from tokenmill.app.tools.produce.producing import RunPlan, flush, partition_of, produce
from tokenmill.app.tools.produce.run_notes import run_identity
from tokenmill.app.tools.verify.sides import ReferenceSample
from tokenmill.app.tools.verify.verify_result import VerifyResult
from tokenmill.consumers import Batches
from tokenmill.errors import (
    DifferenceError,
    FingerprintError,
    InputError,
    LockedError,
    SettingsError,
    StoreError,
    TokenMillError,
)
from tokenmill.store import Store, open_eras, open_partition
from tokenmill.store.layout import StoreLock

STREAMS = TRAIN, VALIDATION = ("raw-text.train", "raw-text.validation")


def verified(settings: Settings, paths: list[Path], *, everything: bool = False, **plan: Any) -> VerifyResult:
    (reading, sources), sample = opened(settings, paths), ReferenceSample(1, everything=everything)
    return asyncio.run(verify_pack(settings, sources, reading, plan_of(settings, paths, **plan), sample=sample))


def test_a_store_of_earlier_rules_is_packed_on_by_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its stream was made with decides, also where a step has other rules since."""
    paths = corpus(tmp_path, rows(40))
    settings = small_settings(tmp_path / "store", steps=[{"name": "language", "label_only": True}])
    newest = plan_topic(settings, "raw-text").recipes[settings.streams()[0]]
    with monkeypatch.context() as before:
        before.setattr(packing_run, "held_recipe", lambda *_: replace(newest, steps=({"name": "not_empty"},)))
        first = pack_into(settings, paths)
    again = pack_into(settings, paths)
    assert (first.documents, again.documents, again.before) == (40, 0, 40)
    recipe = held_recipe(settings, "raw-text")
    assert recipe is not None
    assert (recipe.rules or {})["language"] == 1


@pytest.mark.slow
def test_a_source_that_ends_in_the_middle_of_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing_run, "COMMIT_SECONDS", 0.0)
    second, no_document = tmp_path / "b.jsonl", tmp_path / "c.txt"
    second.write_bytes(as_lines(rows(80, 1)) + b'{"id": "x", "text": "cut o')
    no_document.write_text("{a text that begins like JSON")
    paths = [*corpus(tmp_path, rows(80)), second, no_document]
    one, other = (small_settings(tmp_path / name / "store") for name in ("one", "other"))
    plain: dict[str, Any] = {"reading": {"plain": True}}

    with pytest.raises(InputError, match=r"b\.jsonl:81: malformed_json.*goes on from there"):
        pack_into(one, paths, on_error="fail", **plain)
    held = {stream: blocks_in(one.store, stream) for stream in STREAMS}
    summary = pack_into(one, paths, on_error="dead-letter", **plain)
    whole = pack_into(other, paths, on_error="dead-letter", processes=2, **plain)

    assert sum(map(sum, held.values())) > 0
    assert (summary.before > 0, summary.documents + summary.before) == (True, 160)
    assert (summary.refused, whole.refused, whole.documents) == (2, 2, 160)
    assert summary.streams == whole.streams
    require_equal(content(one.store, eras=True), content(other.store, eras=True))
    for store in (one.store, other.store):
        found = letters(store, "sources")
        assert {letter["reason"] for letter in found} == {"not_produced"}
        assert sorted((letter["source"], b64decode(letter["value"])) for letter in found) == [
            (f"{second}:81", b'{"id": "x", "text": "cut o'),
            (str(no_document), no_document.read_bytes()),
        ]
        assert [*letters(store, "0"), *letters(store, "1")] == []
    totals = [stream.totals for stream in whole.streams.values()]
    assert [one.records for one in totals] == [160, 160]
    assert sum(one.kept for one in totals) == 160


def letters(store: Path, name: str) -> list[dict[str, Any]]:
    path = store / "pack" / "raw-text" / f"dead-letters-{name}.jsonl"
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, list[Path]]:
    directory = tmp_path_factory.mktemp("packed")
    settings, paths = small_settings(directory / "store"), corpus(directory, rows(200))
    pack_into(settings, paths, flush=True, end=True)
    return settings, paths


@pytest.mark.slow
def test_a_packed_store_is_closed_and_the_same_command_changes_nothing(packed: tuple[Settings, list[Path]]) -> None:
    settings, paths = packed
    before = content(settings.store, eras=True)
    summary = pack_into(settings, paths, flush=True, end=True)
    assert (summary.documents, summary.before) == (0, 200)
    require_equal(content(settings.store, eras=True), before)
    for stream in STREAMS:
        eras = open_eras(settings.store, stream)
        assert (eras.blocks, eras.ended) == (sum(blocks_in(settings.store, stream)), True)
    assert [stream.open_tokens for stream in summary.streams.values()] == [0, 0]


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], type[Exception], str]] = {
    "recipe": ({"sequence_length": 31}, {}, FingerprintError, "sequence_length: the stream has 63, here 31"),
    "segments": ({"segment_blocks": 8}, {}, FingerprintError, "segment_blocks"),
    "partitions": ({}, {"partitions": 3}, InputError, "--partitions 2"),
    "options": ({}, {"reading": {"key": "lang"}}, InputError, "another command packed"),
    "pipe": ({}, {"resume": False}, InputError, "piped in"),
    "start": ({"start": "2026-01-01T00:00:00Z"}, {}, SettingsError, "no time"),
    "topic": ({}, {"topic": "other"}, SettingsError, "raw_topics"),
}


@pytest.mark.cases(3)
@pytest.mark.parametrize("case", REFUSED)
def test_another_command_on_a_packed_store_is_refused(packed: tuple[Settings, list[Path]], case: str) -> None:
    settings, paths = packed
    update, options, error, words = REFUSED[case]
    with pytest.raises(error, match=words):
        pack_into(settings.model_copy(update=update), paths, **options)


def test_a_store_that_others_fill_is_refused(packed: tuple[Settings, list[Path]], tmp_path: Path) -> None:
    settings, paths = packed
    lock = StoreLock(settings.store, exclusive=False)
    with pytest.raises(LockedError, match="fills the store"):
        pack_into(settings, paths)
    lock.close()
    of_kafka = tmp_path / "store"  # a stream, and nothing that was packed
    Store.open_or_create(of_kafka)
    (of_kafka / STREAMS[0]).mkdir()
    shutil.copy(settings.store / STREAMS[0] / "stream.json", of_kafka / STREAMS[0])
    with pytest.raises(StoreError, match="came from Kafka"):
        pack_into(settings.model_copy(update={"store": of_kafka}), paths)


@pytest.mark.slow
def test_a_process_that_ends_while_it_starts_ends_the_pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much it is to be told; the same command goes on."""
    tokenizer = Tokenizer(WordLevel({f"word {number}": number for number in range(20_000)}, "word 0"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    given = {"tokenizer": str(tmp_path / "tokenizer.json"), "end_of_document": "1"}
    settings, paths = small_settings(tmp_path / "store", **given), corpus(tmp_path, rows(20))
    with monkeypatch.context() as patch:
        die_while_starting(patch)
        with pytest.raises(TokenMillError, match=r"ended with code 0 .*the same command goes on"):
            pack_into(settings, paths)
    assert pack_into(settings, paths).documents == 20


@pytest.mark.needs("minutes")
@pytest.mark.parametrize(
    ("partitions", "period", "key"), [(4, 2, None), (3, 3, None), (5, 10, None), (4, 5, "lang")], ids=str
)
def test_every_tenth_of_a_run_is_as_the_whole(tmp_path: Path, partitions: int, period: int, key: str | None) -> None:
    """Whatever alternates in the source, and however much more one partition has than the others."""
    kinds = [("a", 400) if number % period == 0 else ("b", 90) for number in range(3000)]
    paths = corpus(tmp_path, [{"text": kind * length, "lang": kind} for kind, length in kinds])
    settings = small_settings(tmp_path / "store", era_blocks=100, splits={"all": 1})
    pack_into(settings, paths, partitions=partitions, reading={"key": key} if key else None, end=True)
    batches = Batches(settings.store, "raw-text.all", batch_size=8, sequence_length=63)
    tenths = np.array_split(np.array([(batch.x.numpy() == ord("a")).mean() for batch in batches]), 10)
    whole = np.concatenate(tenths).mean()
    assert [one.mean() for one in tenths] == pytest.approx([whole] * 10, abs=0.06)


@pytest.mark.parametrize("more", [{"flush": True}, {"limit": 30}, {"flush": True, "end": True}])
def test_nothing_is_packed_behind_the_end(tmp_path: Path, more: dict[str, Any]) -> None:
    """Neither padding nor documents: no trainer would read them, and each later call would be refused."""
    settings, paths = small_settings(tmp_path / "store", splits={"all": 1}), corpus(tmp_path, rows(30))
    summary = pack_into(settings, paths, end=True, limit=20)
    assert all(stream.ended and stream.open_tokens for stream in summary.streams.values())
    before = content(settings.store, eras=True)
    with pytest.raises(InputError, match=r"was closed \(--end\), and there are more .* into another store"):
        pack_into(settings, paths, **{"limit": 20, **more})
    require_equal(content(settings.store, eras=True), before)
    assert pack_into(settings, paths, limit=20).before == 20


def test_texts_over_the_limit_are_left_out_where_they_are_read(tmp_path: Path) -> None:
    """By the limit that a tokenizer has, whatever their characters; no mill sees them."""
    given = rows(300)
    for number, word in ((40, "a "), (150, "\u00e4 "), (151, "a ")):
        given[number]["text"] = word * 800_000
    settings, paths = (
        small_settings(tmp_path / "store", splits={"all": 1}, **word_level(tmp_path)),
        corpus(tmp_path, given),
    )
    with pytest.raises(InputError, match=r"the text is longer than .*\(max_text_bytes\)"):
        pack_into(settings, paths, partitions=3, on_error="fail")
    summary = pack_into(settings, paths, partitions=3)
    assert (summary.before + summary.documents, summary.refused, summary.over) == (297, 3, {"max_text_bytes": 3})
    assert not summary.streams["raw-text.all"].totals.dead_lettered
    assert verified(settings, paths, partitions=3).complete


def test_places_are_ids_in_what_is_packed_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = corpus(tmp_path, [{"text": row["text"]} for row in rows(300)])
    one, parts = (small_settings(tmp_path / name, splits={"all": 1}) for name in ("one", "parts"))
    pack_into(one, paths, partitions=1, flush=True)
    monkeypatch.setattr(parted_sources, "LEAST_BYTES", 0)
    monkeypatch.setattr(parted_sources, "PART_BYTES", 900)
    pack_into(parts, paths, partitions=1, processes=2, flush=True)
    assert verified(parts, paths, partitions=1, flush=True).complete
    require_equal(content(one.store), content(parts.store))
    held = open_partition(one.store, "raw-text.all", 0)
    begun = [piece.id for block in range(held.blocks) for piece in held.documents(block) if piece.position == 0]
    assert begun == [f"{paths[0]}:{number}" for number in range(1, 301)]


def word_level(folder: Path) -> dict[str, str]:
    tokens = [AddedToken("<eos>", special=True), AddedToken("</s>", normalized=False)]
    tokenizer = Tokenizer(WordLevel({"u": 0, "<eos>": 1, "</s>": 2, "a": 3}, "u"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_tokens(tokens[1:])
    tokenizer.add_special_tokens(tokens[:1])
    tokenizer.save(str(folder / "tokenizer.json"))
    return {"tokenizer": str(folder / "tokenizer.json")}


def test_a_stream_keeps_the_end_that_an_earlier_version_guessed(tmp_path: Path) -> None:
    tokenizer, paths = word_level(tmp_path), corpus(tmp_path, rows(20))
    new, old = (small_settings(tmp_path / name, **tokenizer) for name in ("new", "old"))
    around = "a document begins with no token, ends with {}; padding is the token at its end"
    assert pack_into(new, paths).marks == around.format("<eos> (id 1), the special token with a usual name")
    pack_into(old.model_copy(update={"end_of_document": "</s>"}), paths, limit=10)
    assert pack_into(old, paths).marks == around.format("</s> (id 2), as its streams were settled")


def test_changed_sources_are_named(tmp_path: Path) -> None:
    """By content, not by time: a file that was touched is the same, and one of the same size and time is not."""
    settings, paths = small_settings(tmp_path / "store"), [*corpus(tmp_path, rows(50)), tmp_path / "b.jsonl"]
    write_jsonl(paths[1], rows(50, 2))
    pack_into(settings, paths)
    path, status, data = paths[0], paths[0].stat(), paths[0].read_bytes()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))
    assert pack_into(settings, paths).before == 100
    path.write_bytes(data + b'{"text": "more"}\n')
    with pytest.raises(InputError, match=r"a\.jsonl grew"):
        pack_into(settings, paths)
    put_back(path, data.replace(b"mill", b"MILL", 1), status)
    with pytest.raises(InputError, match=r"a\.jsonl has changed"):
        verified(settings, paths)


def put_back(path: Path, data: bytes, status: os.stat_result) -> None:
    """Write a file anew, with the times that it had."""
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.slow
def test_other_documents_behind_a_commit_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the state says nothing of a change, the chain of the blocks does."""
    monkeypatch.setattr(packing_run, "read_digests", lambda run, _sources: run)
    settings, paths = small_settings(tmp_path / "store"), corpus(tmp_path, rows(100))
    pack_into(settings, paths)
    state = settings.store / "pack" / "raw-text"
    for name in ("0.json", "1.json", "position.json"):  # as if it had been killed before they were written
        (state / name).unlink()
    status, data = paths[0].stat(), paths[0].read_bytes()
    put_back(paths[0], data.replace(b"mill", b"MILL", 1), status)
    with pytest.raises(DifferenceError, match="a source has changed"):
        pack_into(settings, paths)
    put_back(paths[0], data, status)
    assert pack_into(settings, paths).documents == 100
    assert verified(settings, paths).ok


DAMAGE: list[list[tuple[str, int, str, float]]] = [
    [
        *((TRAIN, 0, "0/000000000000.bin", 0.4), (TRAIN, 1, "1/000000000016.docs", 0.7)),
        *((VALIDATION, 1, "1/000000000000.bin", 0.1), (TRAIN, -1, "eras.jsonl", 0.6)),
    ],
    [(TRAIN, 0, "0/000000000000.index", 0.5), (TRAIN, -1, "eras.index", 0.99)],
    [(TRAIN, 0, "0/000000000000.idx", 0.9), (TRAIN, 1, "1/000000000000.json", 0.5)],
]
"""Rounds: stream, partition (-1: of eras) and file, and where in it a bit is flipped."""


@pytest.mark.slow
def test_a_verification_finds_every_flipped_bit(packed: tuple[Settings, list[Path]]) -> None:
    settings, paths = packed

    def flip_bits(damage: list[tuple[str, int, str, float]]) -> None:
        for stream, _, name, share in damage:
            file = settings.store / stream / name
            flip(file, int(file.stat().st_size * share))

    assert verified(settings, paths, processes=2).ok
    for damage in DAMAGE:
        flip_bits(damage)
        found = verified(settings, paths)
        flip_bits(damage)  # back
        assert {one.side for one in found.differences} == {"store"}
        places = {(one.stream, -1 if one.partition is None else one.partition) for one in found.differences}
        assert places >= {(stream, partition) for stream, partition, *_ in damage}


PARAMETERS = Near(window=400, bands=10, rows=3)
NEAR = {"name": "near", "window": 400, "bands": 10, "rows": 3}
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


def duplicates_in(found: list[dict[str, Any]]) -> dict[tuple[int, int], tuple[str, str]]:
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
    rejects = packed_rejects(settings, packed_streams(settings), limit=10**6)
    return {(one.place.partition, one.place.offset): (one.reason, one.detail) for one in rejects}


@pytest.mark.needs("minutes")
@pytest.mark.slow
def test_duplicates_are_those_of_a_list_whatever_packs_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = repeating(1500)
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    write_jsonl(paths[0], found[:700])
    write_jsonl(paths[1], found[700:])
    stores, told = {}, duplicates_in(found)
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
    checked = verified(stores[1], paths, everything=True, partitions=PARTITIONS, processes=2)
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

    def reached() -> int:
        position = files.read_position()
        return position.number if position is not None else 0

    killed = [0]
    for _ in range(2):
        process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        while process.poll() is None:
            if reached() >= killed[-1] + 1500:
                process.kill()
                break
            time.sleep(0.002)
        process.communicate()
        killed.append(reached())
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    whole = small_settings(tmp_path / "whole", **large)
    pack_into(whole, [tmp_path / "texts"], partitions=PARTITIONS)

    assert done.returncode == 0, done.stderr
    assert 0 < killed[1] < killed[2] < 6000
    assert told_by(settings) == told_by(whole)
    require_equal(content(settings.store, eras=False), content(whole.store, eras=False))
    assert len(list(files.directory.glob("seen-*.bin"))) <= 4


FIT: dict[str, Any] = {"name": "fit", "open_blocks": 5, "max_age_offsets": 40}
CHUNKS: dict[str, Any] = {"name": "chunks", "chunk_tokens": 126, "rest": "pad"}
FLUSH = {"flush": True}


def sent(settings: Settings, topic: str, paths: list[Path], options: dict[str, Any], **plan: Any) -> None:
    identity = run_identity(topic, {}, [str(path) for path in paths]) if plan.pop("resume", True) else None
    _, sources = opened(settings, paths, options, topic)
    in_own_loop(lambda: produce(settings, topic, sources, RunPlan(identity=identity, **plan)))


def test_packed_is_what_is_milled_of_every_format(
    broker: Broker, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parted_sources, "LEAST_BYTES", 1)
    monkeypatch.setattr(parted_sources, "PART_BYTES", 3000)
    formats = tmp_path / "formats"
    formats.mkdir()
    for seed, (name, write) in enumerate(WRITERS.items()):
        write(formats / name, rows(25, seed))
    (formats / "text.txt").write_text("a text that is a document " * 20)
    (formats / "bad.txt").write_bytes(b"\xff\xfe no text")
    (formats / "notes.md").write_text("# notes\n" * 30)
    lines, table, csv = tmp_path / "large.jsonl", tmp_path / "large.parquet", formats / "h.csv"
    write_jsonl(lines, rows(300, 77))
    write_parquet(table, rows(300, 78))
    fields = {"metadata_fields": ("lang", "score")}
    shuffled = {"shuffle": 50, "seed": 3, "limit": 200, "resume": False}
    filtered = {**fields, "min_chars": 30, "packing": "rows"}
    # Partitions, settings of the topic, sources, how these are read, the plan.
    cases: list[tuple[int, dict[str, Any], list[Path], dict[str, Any], dict[str, Any]]] = [
        (2, {"splits": {"train": 50, "validation": 50}}, [formats], {}, {}),
        (3, {"splits": {"train": 90, "_unused": 10}, **filtered}, [lines, table], {"key": "lang", **fields}, FLUSH),
        (1, {"splits": {"all": 1}, "segment_blocks": 5, "packing": CHUNKS}, [csv, lines], {"plain": True}, shuffled),
        (2, {"splits": {"train": 70, "validation": 30}, "packing": FIT}, [lines], {}, FLUSH),
    ]
    names = tuple(topic(partitions) for partitions, *_ in cases)
    tables = {name: own for name, (_, own, *_) in zip(names, cases, strict=True)}
    settings = service_settings(broker, names[0], tmp_path / "milled", raw_topics=names, topic=tables)
    packed = settings.model_copy(update={"store": tmp_path / "packed" / "store"})
    for name, (partitions, _, paths, options, plan) in zip(names, cases, strict=True):
        pack_into(packed, paths, topic=name, reading=options, partitions=partitions, processes=2, **plan)
        sent(settings, name, paths, options, **{key: value for key, value in plan.items() if key != "flush"})
        if plan.get("flush"):
            in_own_loop(partial(flush, settings, name))
    streams = [stream.name for stream in settings.streams()]
    wanted = {stream: blocks_in(packed.store, stream) for stream in streams}
    assert all(sum(found) > 10 for found in wanted.values())

    with Service(settings, tmp_path) as service:
        service.mill()
        service.segment()
        service.wait_until(lambda: stored(settings.store, streams) == wanted)
        service.stop()

    require_equal(content(settings.store), content(packed.store))


def stored(store: Path, streams: list[str]) -> dict[str, list[int]]:
    try:
        return {stream: blocks_in(store, stream) for stream in streams}
    except (StoreError, FileNotFoundError):
        return {}


COUNTS = st.lists(st.integers(0, 60), min_size=1, max_size=5)


def eras_of(blocks: dict[int, int], era_blocks: int, stops: dict[int, int] | None = None) -> list[dict[int, int]]:
    stops, found = stops or dict.fromkeys(blocks, 0), []
    while (ends := era_ends(stops, blocks, era_blocks)) is not None:
        found.append(ends)
        stops = ends
    return found


@given(counts=COUNTS, era_blocks=st.integers(1, 40), kill=st.integers(0, 300))
def test_eras_do_not_depend_on_kills(counts: list[int], era_blocks: int, kill: int) -> None:
    """A call that goes on behind some of them writes the others that an undisturbed call would have written."""
    blocks = dict(enumerate(counts))
    wanted = eras_of(blocks, era_blocks)
    for written in range(min(kill, len(wanted))):
        assert wanted[written + 1 :] == eras_of(blocks, era_blocks, wanted[written])


@given(counts=COUNTS, era_blocks=st.integers(1, 40))
def test_each_era_is_as_the_whole(counts: list[int], era_blocks: int) -> None:
    """To a block of each partition; all but the last have as many blocks as were asked for, and hardly more."""
    blocks = dict(enumerate(counts))
    found = eras_of(blocks, era_blocks)
    stops = [dict.fromkeys(blocks, 0), *found]
    assert stops[-1] == blocks
    sizes = [sum(ends.values()) for ends in stops]
    for ends, size in zip(stops, sizes, strict=True):
        for number, count in blocks.items():
            assert abs(ends[number] - count * size / max(1, sum(counts))) < len(counts)
    new = [high - low for low, high in pairwise(sizes)]
    assert all(era_blocks <= size < era_blocks + len(counts) for size in new[:-1])
    assert all(size > 0 for size in new)


@given(counts=COUNTS, before=COUNTS, era_blocks=st.integers(1, 40))
def test_what_earlier_calls_closed_is_caught_up_with(counts: list[int], before: list[int], era_blocks: int) -> None:
    """Each block is in one era, and the partition of which most is in none comes first."""
    stops = {number: before[number] if number < len(before) else 0 for number in range(len(counts))}
    blocks = {number: stops[number] + count for number, count in enumerate(counts)}
    reached = stops
    for ends in eras_of(blocks, era_blocks, stops):
        new = {number for number in blocks if ends[number] > reached[number]}
        assert new
        assert all(ends[number] >= reached[number] for number in blocks)
        part = max(ends[number] / blocks[number] for number in new)
        assert all(ends[number] + 1 >= blocks[number] * part for number in blocks if number not in new)
        reached = ends
    assert reached == blocks


def test_an_end_while_processes_are_told_their_task_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by Ctrl-C: the task is more than a pipe holds, and a thread still writes it when the pipe is closed."""
    failed: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    task: Any = b"a large tokenizer" * 100_000
    for _ in range(4):
        with Millers(task, 4, 4) as millers:
            pass
        assert not any(thread.name.startswith("pack ") for thread in threading.enumerate())
        assert not millers._processes[0].process.is_alive()
    assert not failed, [one.exc_value for one in failed]
