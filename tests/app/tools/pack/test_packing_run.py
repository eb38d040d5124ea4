"""Packing in this process: going on, what is refused, what became no document, and what a verification finds."""

import asyncio
import json
import os
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from tests.app.sources.files import as_lines, write_jsonl
from tests.app.tools.pack.packing import (
    blocks_in,
    content,
    opened,
    pack_into,
    plan_of,
    require_equal,
    rows,
    small_settings,
)
from tests.commands import die_while_starting
from tokenmill.app.mill.recipes import plan_topic
from tokenmill.app.settings import Settings
from tokenmill.app.tools.pack import packing_run, parted_sources
from tokenmill.app.tools.pack.pack_verification import verify_pack
from tokenmill.app.tools.pack.packing_run import held_recipe
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

STREAMS = ("raw-text.train", "raw-text.validation")


def verified(settings: Settings, paths: list[Path], **plan: Any) -> VerifyResult:
    """Verify in this process, as the command does."""
    reading, sources = opened(settings, paths)
    found = plan_of(settings, paths, **plan)
    return asyncio.run(verify_pack(settings, sources, reading, found, sample=ReferenceSample(1)))


def test_a_store_that_was_packed_by_earlier_rules_is_packed_on_by_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its stream was made with decides, also where a step has other rules since."""
    paths = [tmp_path / "a.jsonl"]
    write_jsonl(paths[0], rows(40))
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
    """It ends the run with file and line, if that is wanted; what came before it is kept, and the next call goes on."""
    monkeypatch.setattr(packing_run, "COMMIT_SECONDS", 0.0)
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    write_jsonl(first, rows(80))
    second.write_bytes(as_lines(rows(80, 1)) + b'{"id": "x", "text": "cut o')
    no_document = tmp_path / "c.txt"
    no_document.write_text("{a text that begins like JSON")
    paths = [first, second, no_document]
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
        found = [
            (letter["source"], letter["reason"], b64decode(letter["value"]))
            for letter in letters(store, "dead-letters-sources.jsonl")
        ]
        assert sorted(found) == [
            (f"{second}:81", "not_produced", b'{"id": "x", "text": "cut o'),
            (str(no_document), "not_produced", no_document.read_bytes()),
        ]
        assert [one for name in (0, 1) for one in letters(store, f"dead-letters-{name}.jsonl")] == []
    totals = [stream.totals for stream in whole.streams.values()]
    assert [one.records for one in totals] == [160, 160]
    assert sum(one.kept for one in totals) == 160


def letters(store: Path, name: str) -> list[dict[str, Any]]:
    """Return the letters in a file; none where there is no file."""
    path = store / "pack" / "raw-text" / name
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, list[Path]]:
    """Return the settings and the sources of a packed store."""
    directory = tmp_path_factory.mktemp("packed")
    settings = small_settings(directory / "store")
    path = directory / "a.jsonl"
    write_jsonl(path, rows(200))
    pack_into(settings, [path], flush=True, end=True)
    return settings, [path]


@pytest.mark.slow
def test_a_packed_store_is_closed_and_the_same_command_changes_nothing(packed: tuple[Settings, list[Path]]) -> None:
    """Each block is in an era, the end marker is the last, and a second call says that all was there."""
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
    """With what differs, and what to do."""
    settings, paths = packed
    update, options, error, words = REFUSED[case]
    with pytest.raises(error, match=words):
        pack_into(settings.model_copy(update=update), paths, **options)


def test_a_store_that_others_fill_is_refused(packed: tuple[Settings, list[Path]], tmp_path: Path) -> None:
    """Segment workers and mirrors hold it; a stream that came from Kafka is not gone on with."""
    settings, paths = packed
    lock = StoreLock(settings.store, exclusive=False)
    with pytest.raises(LockedError, match="fills the store"):
        pack_into(settings, paths)
    lock.close()
    with pytest.raises(StoreError, match="came from Kafka"):
        pack_into(with_stream_of_kafka(settings, tmp_path / "store"), paths)


def with_stream_of_kafka(settings: Settings, store: Path) -> Settings:
    """Return settings of a store that holds a stream, and nothing that was packed."""
    Store.open_or_create(store)
    (store / STREAMS[0]).mkdir()
    (store / STREAMS[0] / "stream.json").write_bytes((settings.store / STREAMS[0] / "stream.json").read_bytes())
    return settings.model_copy(update={"store": store})


@pytest.mark.slow
def test_a_process_that_ends_while_it_starts_ends_the_pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much it is to be told; the same command goes on."""
    write_jsonl(tmp_path / "a.jsonl", rows(20))
    tokenizer = Tokenizer(WordLevel({f"word {number}": number for number in range(20_000)}, "word 0"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    given = {"tokenizer": str(tmp_path / "tokenizer.json"), "end_of_document": "1"}
    settings, paths = small_settings(tmp_path / "store", **given), [tmp_path / "a.jsonl"]
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
    write_jsonl(tmp_path / "a.jsonl", [{"text": kind * length, "lang": kind} for kind, length in kinds])
    settings = small_settings(tmp_path / "store", era_blocks=100, splits={"all": 1})
    pack_into(settings, [tmp_path / "a.jsonl"], partitions=partitions, reading={"key": key} if key else None, end=True)

    batches = Batches(settings.store, "raw-text.all", batch_size=8, sequence_length=63)
    tenths = np.array_split(np.array([(batch.x.numpy() == ord("a")).mean() for batch in batches]), 10)
    whole = np.concatenate(tenths).mean()
    assert [one.mean() for one in tenths] == pytest.approx([whole] * 10, abs=0.06)


@pytest.mark.parametrize("more", [{"flush": True}, {"limit": 30}, {"flush": True, "end": True}])
def test_nothing_is_packed_behind_the_end(tmp_path: Path, more: dict[str, Any]) -> None:
    """Neither padding nor documents: no trainer would read them, and each later call would be refused."""
    write_jsonl(tmp_path / "a.jsonl", rows(30))
    settings, paths = small_settings(tmp_path / "store", splits={"all": 1}), [tmp_path / "a.jsonl"]
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
    write_jsonl(tmp_path / "a.jsonl", given)
    settings = small_settings(tmp_path / "store", splits={"all": 1}, **word_level(tmp_path))
    with pytest.raises(InputError, match=r"the text is longer than .*\(max_text_bytes\)"):
        pack_into(settings, [tmp_path / "a.jsonl"], partitions=3, on_error="fail")
    summary = pack_into(settings, [tmp_path / "a.jsonl"], partitions=3)
    assert (summary.before + summary.documents, summary.refused, summary.over) == (297, 3, {"max_text_bytes": 3})
    assert not summary.streams["raw-text.all"].totals.dead_lettered
    assert verified(settings, [tmp_path / "a.jsonl"], partitions=3).complete


def ids_in(store: Path, stream: str, partitions: int) -> list[list[str | int | None]]:
    """Return the ids of the documents that begin in each partition."""
    readers = [open_partition(store, stream, number) for number in range(partitions)]
    return [
        [piece.id for block in range(held.blocks) for piece in held.documents(block) if piece.position == 0]
        for held in readers
    ]


def test_places_are_ids_in_what_is_packed_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether one process reads the file or several its parts."""
    path = tmp_path / "a.jsonl"
    write_jsonl(path, [{"text": row["text"]} for row in rows(300)])
    one, parts = (small_settings(tmp_path / name, splits={"all": 1}) for name in ("one", "parts"))
    pack_into(one, [path], partitions=1, flush=True)
    with monkeypatch.context() as patch:
        patch.setattr(parted_sources, "LEAST_BYTES", 0)
        patch.setattr(parted_sources, "PART_BYTES", 900)
        pack_into(parts, [path], partitions=1, processes=2, flush=True)
        assert verified(parts, [path], partitions=1, flush=True).complete
    require_equal(content(one.store), content(parts.store))
    assert ids_in(one.store, "raw-text.all", 1) == [[f"{path}:{number}" for number in range(1, 301)]]


def word_level(folder: Path) -> dict[str, str]:
    """Write a small tokenizer; return the setting that names it."""
    tokens = [AddedToken("<eos>", special=True), AddedToken("</s>", normalized=False)]
    tokenizer = Tokenizer(WordLevel({"u": 0, "<eos>": 1, "</s>": 2, "a": 3}, "u"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_tokens(tokens[1:])
    tokenizer.add_special_tokens(tokens[:1])
    tokenizer.save(str(folder / "tokenizer.json"))
    return {"tokenizer": str(folder / "tokenizer.json")}


def test_a_stream_keeps_the_end_that_an_earlier_version_guessed(tmp_path: Path) -> None:
    """A word with a usual name; a new stream gets the special token, and says so."""
    tokenizer = word_level(tmp_path)
    write_jsonl(tmp_path / "a.jsonl", rows(20))
    paths = [tmp_path / "a.jsonl"]
    new, old = (small_settings(tmp_path / name, **tokenizer) for name in ("new", "old"))
    around = "a document begins with no token, ends with {}; padding is the token at its end"
    assert pack_into(new, paths).marks == around.format("<eos> (id 1), the special token with a usual name")
    pack_into(old.model_copy(update={"end_of_document": "</s>"}), paths, limit=10)
    assert pack_into(old, paths).marks == around.format("</s> (id 2), as its streams were settled")


def test_changed_sources_are_named(tmp_path: Path) -> None:
    """By content, not by time: a file that was touched is the same, and one of the same size and time is not."""
    settings = small_settings(tmp_path / "store")
    path, other = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    write_jsonl(path, rows(50))
    write_jsonl(other, rows(50, 2))
    pack_into(settings, [path, other])
    status = path.stat()

    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))
    assert pack_into(settings, [path, other]).before == 100

    data = path.read_bytes()
    path.write_bytes(data + b'{"text": "more"}\n')
    with pytest.raises(InputError, match=r"a\.jsonl grew"):
        pack_into(settings, [path, other])

    path.write_bytes(data.replace(b"mill", b"MILL", 1))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(InputError, match=r"a\.jsonl has changed"):
        verified(settings, [path, other])


@pytest.mark.slow
def test_other_documents_behind_a_commit_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the state says nothing of a change, the chain of the blocks does."""
    monkeypatch.setattr(packing_run, "read_digests", lambda run, _sources: run)
    settings = small_settings(tmp_path / "store")
    path = tmp_path / "a.jsonl"
    write_jsonl(path, rows(100))
    pack_into(settings, [path])
    state = settings.store / "pack" / "raw-text"
    for name in ("0.json", "1.json", "position.json"):  # as if it had been killed before they were written
        (state / name).unlink()
    status, data = path.stat(), path.read_bytes()
    path.write_bytes(data.replace(b"mill", b"MILL", 1))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    with pytest.raises(DifferenceError, match="a source has changed"):
        pack_into(settings, [path])

    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert pack_into(settings, [path]).documents == 100
    assert verified(settings, [path]).ok


DAMAGE: list[dict[str, float]] = [
    {
        f"{STREAMS[0]}/0/000000000000.bin": 0.4,
        f"{STREAMS[0]}/1/000000000016.docs": 0.7,
        f"{STREAMS[1]}/1/000000000000.bin": 0.1,
        f"{STREAMS[0]}/eras.jsonl": 0.6,
    },
    {f"{STREAMS[0]}/0/000000000000.index": 0.5, f"{STREAMS[0]}/eras.index": 0.99},
    {f"{STREAMS[0]}/0/000000000000.idx": 0.9, f"{STREAMS[0]}/1/000000000000.json": 0.5},
]
"""Rounds: files, and where in each a bit is flipped."""


@pytest.mark.slow
def test_a_verification_finds_every_flipped_bit(packed: tuple[Settings, list[Path]]) -> None:
    """In tokens, sealed and not, document tables, indexes, manifests and eras; and nothing without any."""
    settings, paths = packed
    assert verified(settings, paths, processes=2).ok
    for files in DAMAGE:
        before = {name: (settings.store / name).read_bytes() for name in files}
        for name, place in files.items():
            (settings.store / name).write_bytes(flipped(before[name], place))
        found = verified(settings, paths)
        for name, data in before.items():
            (settings.store / name).write_bytes(data)
        assert {one.side for one in found.differences} == {"store"}
        places = {(one.stream, -1 if one.partition is None else one.partition) for one in found.differences}
        assert places >= {place_of(name) for name in files}


def flipped(data: bytes, place: float) -> bytes:
    """Return the data with a bit flipped at this share of it."""
    at = int(len(data) * place)
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def place_of(name: str) -> tuple[str, int]:
    """Return stream and partition of a file; -1 for eras."""
    stream, *rest = name.split("/")
    return stream, int(rest[0]) if len(rest) > 1 else -1
