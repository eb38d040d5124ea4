"""What commands say of a packed store: all of it is from the store, and no broker is asked."""

import json
from base64 import b64decode, b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.app.commands import invoke
from tests.app.sources.files import write_jsonl
from tests.app.tools.pack.packing import pack_into, rows, small_settings
from tests.store.chains import flip
from tokenmill.app.settings import Settings
from tokenmill.app.tools.pack.packing_run import PackSummary
from tokenmill.errors import DamagedError
from tokenmill.recipe import Genesis, canonical_json
from tokenmill.store import Store, StreamInfo, open_eras, read_stream
from tokenmill.store.layout import STREAM_FILE, SegmentPaths, is_packed, partition_directory, repair_advice

TRAIN, VALIDATION = "raw-text.train", "raw-text.validation"
SHORT = [{"id": f"short {number}", "text": f"tiny {number}"} for number in range(6)]


@pytest.fixture
def packed(tmp_path: Path) -> tuple[Settings, PackSummary]:
    """Return settings and outcome of a pack that filtered some documents out, and kept these."""
    write_jsonl(tmp_path / "corpus.jsonl", [*(row for row in rows(120) if len(row["text"]) >= 8), *SHORT])
    settings = small_settings(tmp_path / "store", splits={"train": 80, "validation": 20}, min_chars=8, rejects="topic")
    return settings, pack_into(settings, [tmp_path / "corpus.jsonl"], flush=True, end=True)


def said(store: Path, *arguments: str, code: int = 0) -> tuple[str, str]:
    """Return what a command prints that has brokers which do not answer."""
    return invoke(*arguments, "--store", store, "--bootstrap-servers", "127.0.0.1:1", code=code)[1:]


def test_the_ledger_counts_every_document(packed: tuple[Settings, PackSummary]) -> None:
    """It has the totals of the pack, by stream and partition, and balances; the eras are the store's."""
    settings, summary = packed
    ledger = json.loads(said(settings.store, "ledger", "--json")[0])
    totals = {one["stream"]: one for one in ledger["streams"]}
    assert set(totals) == {TRAIN, VALIDATION}
    for name, stream in summary.streams.items():
        assert totals[name]["kept"] == stream.totals.kept > 0
        assert totals[name]["filtered"] == dict(stream.totals.filtered)
        assert totals[name]["blocks"] == stream.blocks
    assert ledger["balanced"]
    assert sum(sum(one["filtered"].values()) for one in totals.values()) == len(SHORT)
    eras = json.loads(said(settings.store, "eras", TRAIN, "--json")[0])["eras"]
    reader = open_eras(settings.store, TRAIN)
    assert [era["hash"] for era in eras] == [reader.era(n).hash.hex() for n in range(reader.eras)]
    assert eras[-1]["end"]
    assert "`tokenmill pack … --end`" in said(settings.store, "close", TRAIN, code=12)[1]


def test_of_what_ended_without_its_rest_nobody_promises_more(tmp_path: Path) -> None:
    """Neither `pack` nor `export`: the end marker lets no block come; without a block, nothing is exported."""
    write_jsonl(tmp_path / "a.jsonl", [{"id": number, "text": "x" * 100} for number in range(3)])
    store, options = tmp_path / "store", ("--tokenizer", "bytes", "--sequence-length", "63", "--partitions", "1")
    given = (str(tmp_path / "a.jsonl"), *options, "--splits", "all=1", "--processes", "1", "--end")
    assert "47 tokens are in no block, and none comes behind" in said(store, "pack", *given)[0]
    out = ("--what", "documents", "--to", "nanogpt", "--out", str(tmp_path / "out"))
    exported = said(store, "export", "raw-text.all", *out)[1]
    assert "1 document left out, whose last tokens are in no block" in exported
    empty = tmp_path / "empty"
    said(empty, "pack", *given, "--sequence-length", "1023")
    assert "has ended, and has no block" in said(empty, "export", "raw-text.all", *out, code=12)[1]


def test_what_was_filtered_out_is_shown_where_it_was_kept(packed: tuple[Settings, PackSummary], tmp_path: Path) -> None:
    """Each document in its own stream; where none was kept, what shows them is named."""
    settings, _ = packed
    found = json.loads(said(settings.store, "rejects", "--limit", "9", "--json")[0])
    assert sorted(one["text"] for one in found) == sorted(one["text"] for one in SHORT)
    ledger = json.loads(said(settings.store, "ledger", "--json")[0])
    for name in (TRAIN, VALIDATION):
        (counted,) = [sum(one["filtered"].values()) for one in ledger["streams"] if one["stream"] == name]
        assert len([one for one in found if one["stream"] == name]) == counted
    bare = small_settings(tmp_path / "bare", splits={"train": 100}, min_chars=8)
    pack_into(bare, [tmp_path / "corpus.jsonl"])
    told = said(bare.store, "rejects", code=12)[1]
    assert f"{TRAIN} filtered out 6 by min_chars" in told
    assert "--rejects topic" in told


def test_dead_letters_are_those_of_the_pack(tmp_path: Path) -> None:
    """What sources refused and what the mill could not use, each with its place; they are corrected in the files."""
    lines = [json.dumps(row) for row in rows(30)] + ["no object", json.dumps({"id": "number", "text": 7})]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
    settings = small_settings(tmp_path / "store", splits={"train": 80, "validation": 20})
    pack_into(settings, [tmp_path / "corpus.jsonl"], on_error="dead-letter")
    found = json.loads(said(settings.store, "dead-letters", "list", "raw-text", "--json")[0])
    assert len(found) == len({one["place"] for one in found}) == 2
    assert all(one["reason"] and one["detail"] for one in found)
    assert said(settings.store, "dead-letters", "list", "raw-text")[0].count(found[0]["place"]) == 1
    none = said(settings.store, "dead-letters", "list", "raw-text", "--reason", "empty_value")
    assert "no record of raw-text is a dead letter of that kind" in none[1]
    counted = json.loads(said(settings.store, "dead-letters", "count", "raw-text", "--json")[0])
    assert (counted["records"], counted["resent"]) == (2, 0)
    shown = json.loads(said(settings.store, "dead-letters", "show", found[1]["place"], "--json")[0])
    assert {**shown, "value": None} == {**found[1], "key": shown["key"], "value": None}
    told = said(settings.store, "dead-letters", "resend", found[0]["place"], code=12)[1]
    assert "was packed from files" in told


def test_a_stream_is_inspected_and_described(packed: tuple[Settings, PackSummary], tmp_path: Path) -> None:
    """The recipe, the chains, and the files with what tells that they are the same."""
    settings, summary = packed
    stream = json.loads(said(settings.store, "inspect", "stream", TRAIN, "--json")[0])
    assert [chain["blocks"] for chain in stream["chains"]] == [chain["store_blocks"] for chain in stream["chains"]]
    assert stream["blocks"] == summary.streams[TRAIN].blocks
    assert all(chain["sample"] for chain in stream["chains"])
    assert said(settings.store, "inspect", "stream", TRAIN)[0]
    facts: dict[str, Any] = json.loads(said(settings.store, "describe", TRAIN, "--format", "json")[0])
    assert facts["counts"]["kept"] == summary.streams[TRAIN].totals.kept
    (source,) = facts["produced"][0]["sources"]
    assert source["name"] == str(tmp_path / "corpus.jsonl")
    assert source["bytes"] == (tmp_path / "corpus.jsonl").stat().st_size
    assert len(source["digest"]) > 8
    card = said(settings.store, "describe", TRAIN)[0]
    assert (", in 1 era." in card) == (facts["eras"]["eras"] == 1)
    assert "files that were packed as raw-text" in card
    assert "corpus.jsonl" in card
    block = said(settings.store, "inspect", "block", TRAIN, "0", "0")
    assert "document" in block[0]
    assert "was packed" in block[1]


def test_a_packed_store_is_compared_with_itself(packed: tuple[Settings, PackSummary]) -> None:
    """It is equal; a byte that was changed is named, and the exit code says it; what reads the files is named."""
    settings, summary = packed
    out, err = said(settings.store, "verify")
    assert out.count("are as they were packed") == 2
    assert f"{summary.streams[TRAIN].blocks:,} blocks" in out
    assert "`tokenmill pack` command with --verify" in err
    assert "--since" in said(settings.store, "verify", "--since", "verified.json", code=12)[1]
    flip(SegmentPaths(partition_directory(settings.store, TRAIN, 0), 0).tokens, 5)
    out, err = said(settings.store, "verify", code=1)
    assert "DIFFERENT: 1 difference, the first: partition 0: " in out
    assert f"{TRAIN}: partition 0: " in err


def test_a_data_sets_own_splits_are_streams_of_one_store(tmp_path: Path) -> None:
    """Each has a raw topic of its own, all of which is one split; the ledger has both."""
    topics = {"books-train": rows(40, 1), "books-validation": rows(9, 2)}
    settings = small_settings(tmp_path / "store", raw_topics=list(topics), splits={"all": 1})
    for topic, held in topics.items():
        write_jsonl(tmp_path / f"{topic}.jsonl", held)
        pack_into(settings, [tmp_path / f"{topic}.jsonl"], topic=topic, flush=True, end=True)
    ledger = json.loads(said(settings.store, "ledger", "--json")[0])
    kept = {one["stream"]: one["kept"] for one in ledger["streams"]}
    assert kept == {f"{topic}.all": len(held) for topic, held in topics.items()}


def test_streams_of_a_store_and_of_brokers_are_asked_for_one_after_the_other(
    packed: tuple[Settings, PackSummary],
) -> None:
    """Neither is left out in silence."""
    settings, _ = packed
    told = said(settings.store, "ledger", "--stream", TRAIN, "--stream", "other.train", code=12)[1]
    assert "was packed, and other.train was not" in told


def test_what_a_packed_stream_lacks_is_no_matter_of_brokers(packed: tuple[Settings, PackSummary]) -> None:
    """A block that was not packed, a store that is none, and a flush, which only `pack` can do."""
    settings, _ = packed
    for place in (("0", "99999"), ("9", "0")):
        told = said(settings.store, "inspect", "block", TRAIN, *place, code=12)[1]
        assert f"does not hold block {place[1]} of {TRAIN}/{place[0]}, which was packed" in told
    told = said(settings.store / TRAIN, "inspect", "block", TRAIN, "0", "0", code=6)[1]
    assert f"and no store: give {settings.store}" in told
    told = said(settings.store, "flush", "raw-text", code=12)[1]
    assert "`tokenmill pack … --flush` fills" in told
    for words in (("dedup", "counts"), ("tail", "raw-text"), ("skip", "raw-text", "0", "3")):
        told = said(settings.store, *words, code=3)[1]
        assert f"{TRAIN}, {VALIDATION} in {settings.store} was packed from files, and is in no topic" in told


def test_what_a_check_advises_repairs_this_store_and_all_that_is_damaged(packed: tuple[Settings, PackSummary]) -> None:
    """With the store, and each damaged partition."""
    settings, _ = packed
    for partition in (0, 1):
        paths = SegmentPaths(partition_directory(settings.store, TRAIN, partition), 0)
        paths.tokens.write_bytes(b"\1" + paths.tokens.read_bytes()[1:])
    told = said(settings.store, "repair", TRAIN, "--check", code=8)[1]
    assert f"`tokenmill repair {TRAIN} 0 1 --store {settings.store}`, which rebuilds" in told
    assert "from its own undamaged bytes" in told


def test_a_stream_from_kafka_beside_packed_ones_is_none_of_them(packed: tuple[Settings, PackSummary]) -> None:
    """A stream with a suffix of its own, or of a topic with a longer name: a repair asks the brokers for its blocks."""
    settings, _ = packed
    genesis = Genesis.from_dict(read_stream(settings.store, TRAIN).values["genesis"])
    others = [replace(genesis, stream=f"{TRAIN}-v2")]
    others += [replace(genesis, stream="raw-text.de.train", recipe=replace(genesis.recipe, raw_topic="raw-text.de"))]
    for other in others:
        Store.open(settings.store).add_stream(StreamInfo.from_genesis(other, 4), None)
    assert is_packed(settings.store, TRAIN)
    assert is_packed(settings.store, VALIDATION)
    assert not any(is_packed(settings.store, other.stream) for other in others)
    assert "from the token topic" in repair_advice(partition_directory(settings.store, others[0].stream, 0))

    (settings.store / TRAIN / STREAM_FILE).write_bytes(b"damaged")
    assert is_packed(settings.store, TRAIN), "its name says so as well"


def test_a_damaged_state_is_named(packed: tuple[Settings, PackSummary], tmp_path: Path) -> None:
    """With the file in which a chain cannot be continued, and what helps."""
    settings, _ = packed
    path = settings.store / "pack" / "raw-text" / "0.json"
    state = json.loads(path.read_bytes())
    state["carries"]["train"] = b64encode(b64decode(state["carries"]["train"])[:-1] + b"!").decode()
    path.write_bytes(canonical_json(state) + b"\n")
    with pytest.raises(DamagedError, match=r"0\.json is not what was written there.*pack into another store"):
        pack_into(settings, [tmp_path / "corpus.jsonl"], flush=True, end=True)


@pytest.mark.parametrize("name", ["", "pack", "pack/raw-text/0.json"])
def test_what_may_not_be_read_of_a_packed_store_is_named(packed: tuple[Settings, PackSummary], name: str) -> None:
    """And neither taken for a store that brokers know more of, nor for a disk that a worker waits for."""
    store = packed[0].store
    path = store / name
    path.rename(store.with_name("elsewhere"))
    path.symlink_to(path)  # a loop, which even root cannot read
    for command in (["verify"], ["inspect", "stream", TRAIN], ["describe", TRAIN], ["ledger"]):
        told = said(store, *command, code=75)[1]
        assert f"{path}" in told
        assert "cannot be read (Too many levels of symbolic links): let this user read it" in told
        assert "broker" not in told
        assert "segment worker" not in told
