"""Packed stores: what the command and others say of them, all of it without a broker, and how they are repaired."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from base64 import b64decode, b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from tests import commands
from tests.app.commands import invoke
from tests.app.sources.files import as_lines, write_jsonl
from tests.app.tools.pack.packing import content, corpus, pack_into, require_equal, rows, small_settings
from tests.marked import until
from tests.store.chains import flip
from tokenmill.app.settings import Settings
from tokenmill.app.tools.pack.packing_run import PackSummary
from tokenmill.app.tools.repair import examine_store, repair_store
from tokenmill.errors import DamagedError, InputError
from tokenmill.recipe import Genesis, canonical_json
from tokenmill.store import Store, StreamInfo, open_eras, open_partition, read_stream
from tokenmill.store.layout import STREAM_FILE, SegmentPaths, is_packed, partition_directory, repair_advice

TRAIN, VALIDATION = "raw-text.train", "raw-text.validation"
SHORT = [{"id": f"short {number}", "text": f"tiny {number}"} for number in range(6)]


class Packed(NamedTuple):
    """A store with documents that were kept, and those that were filtered out; nobody knows of brokers."""

    settings: Settings
    paths: list[Path]
    summary: PackSummary

    @property
    def store(self) -> Path:
        return self.settings.store

    def content(self) -> dict[str, bytes]:
        return content(self.store, eras=True)

    def pack(self) -> PackSummary:
        """Call the same command (again)."""
        return pack_into(self.settings, self.paths, flush=True, end=True)


@pytest.fixture
def packed(tmp_path: Path) -> Packed:
    paths = corpus(tmp_path, [*(row for row in rows(120) if len(row["text"]) >= 8), *SHORT])
    kept: dict[str, Any] = {"splits": {"train": 80, "validation": 20}, "min_chars": 8, "rejects": "topic"}
    settings = small_settings(tmp_path / "store", bootstrap_servers="127.0.0.1:1", **kept)
    return Packed(settings, paths, pack_into(settings, paths, flush=True, end=True))


def said(store: Path, *arguments: str, code: int = 0) -> tuple[str, str]:
    """Return what a command prints that has brokers which do not answer."""
    return invoke(*arguments, "--store", store, "--bootstrap-servers", "127.0.0.1:1", code=code)[1:]


def listed(store: Path, *arguments: str) -> Any:
    return json.loads(said(store, *arguments, "--json")[0])


def test_the_ledger_counts_every_document(packed: Packed) -> None:
    ledger = listed(packed.store, "ledger")
    totals = {one["stream"]: one for one in ledger["streams"]}
    assert set(totals) == {TRAIN, VALIDATION}
    for name, stream in packed.summary.streams.items():
        told, found = totals[name], stream.totals
        assert (told["kept"], told["filtered"], told["blocks"]) == (found.kept, dict(found.filtered), stream.blocks)
        assert found.kept > 0
    assert ledger["balanced"]
    assert sum(sum(one["filtered"].values()) for one in totals.values()) == len(SHORT)
    eras = listed(packed.store, "eras", TRAIN)["eras"]
    reader = open_eras(packed.store, TRAIN)
    assert [era["hash"] for era in eras] == [reader.era(n).hash.hex() for n in range(reader.eras)]
    assert eras[-1]["end"]
    assert "`tokenmill pack … --end`" in said(packed.store, "close", TRAIN, code=12)[1]


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


def test_what_was_filtered_out_is_shown_where_it_was_kept(packed: Packed, tmp_path: Path) -> None:
    found = listed(packed.store, "rejects", "--limit", "9")
    assert sorted(one["text"] for one in found) == sorted(one["text"] for one in SHORT)
    ledger = listed(packed.store, "ledger")
    for name in (TRAIN, VALIDATION):
        (counted,) = [sum(one["filtered"].values()) for one in ledger["streams"] if one["stream"] == name]
        assert len([one for one in found if one["stream"] == name]) == counted
    bare = small_settings(tmp_path / "bare", splits={"train": 100}, min_chars=8)
    pack_into(bare, packed.paths)
    told = said(bare.store, "rejects", code=12)[1]
    assert f"{TRAIN} filtered out 6 by min_chars" in told
    assert "--rejects topic" in told


def test_dead_letters_are_those_of_the_pack(tmp_path: Path) -> None:
    lines = [json.dumps(row) for row in rows(30)] + ["no object", json.dumps({"id": "number", "text": 7})]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
    settings = small_settings(tmp_path / "store", splits={"train": 80, "validation": 20})
    pack_into(settings, [tmp_path / "corpus.jsonl"], on_error="dead-letter")
    found = listed(settings.store, "dead-letters", "list", "raw-text")
    assert len(found) == len({one["place"] for one in found}) == 2
    assert all(one["reason"] and one["detail"] for one in found)
    assert said(settings.store, "dead-letters", "list", "raw-text")[0].count(found[0]["place"]) == 1
    none = said(settings.store, "dead-letters", "list", "raw-text", "--reason", "empty_value")[1]
    assert "no record of raw-text is a dead letter of that kind" in none
    counted = listed(settings.store, "dead-letters", "count", "raw-text")
    assert (counted["records"], counted["resent"]) == (2, 0)
    shown = listed(settings.store, "dead-letters", "show", found[1]["place"])
    assert {**shown, "value": None} == {**found[1], "key": shown["key"], "value": None}
    told = said(settings.store, "dead-letters", "resend", found[0]["place"], code=12)[1]
    assert "was packed from files" in told


def test_a_stream_is_inspected_and_described(packed: Packed) -> None:
    stream = listed(packed.store, "inspect", "stream", TRAIN)
    assert all(chain["sample"] and chain["blocks"] == chain["store_blocks"] for chain in stream["chains"])
    assert stream["blocks"] == packed.summary.streams[TRAIN].blocks
    assert said(packed.store, "inspect", "stream", TRAIN)[0]
    facts = json.loads(said(packed.store, "describe", TRAIN, "--format", "json")[0])
    assert facts["counts"]["kept"] == packed.summary.streams[TRAIN].totals.kept
    (source,) = facts["produced"][0]["sources"]
    assert (source["name"], source["bytes"]) == (str(packed.paths[0]), packed.paths[0].stat().st_size)
    assert len(source["digest"]) > 8
    card = said(packed.store, "describe", TRAIN)[0]
    assert (", in 1 era." in card) == (facts["eras"]["eras"] == 1)
    assert "files that were packed as raw-text" in card
    assert packed.paths[0].name in card
    block = said(packed.store, "inspect", "block", TRAIN, "0", "0")
    assert "document" in block[0]
    assert "was packed" in block[1]


def test_a_packed_store_is_compared_with_itself(packed: Packed) -> None:
    out, err = said(packed.store, "verify")
    assert out.count("are as they were packed") == 2
    assert f"{packed.summary.streams[TRAIN].blocks:,} blocks" in out
    assert "`tokenmill pack` command with --verify" in err
    assert "--since" in said(packed.store, "verify", "--since", "verified.json", code=12)[1]
    tokens = [SegmentPaths(partition_directory(packed.store, TRAIN, number), 0).tokens for number in (0, 1)]
    flip(tokens[0], 5)
    out, err = said(packed.store, "verify", code=1)
    assert "DIFFERENT: 1 difference, the first: partition 0: " in out
    assert f"{TRAIN}: partition 0: " in err
    flip(tokens[1])
    told = said(packed.store, "repair", TRAIN, "--check", code=8)[1]
    assert f"`tokenmill repair {TRAIN} 0 1 --store {packed.store}`, which rebuilds" in told
    assert "from its own undamaged bytes" in told


def test_a_data_sets_own_splits_are_streams_of_one_store(tmp_path: Path) -> None:
    topics = {"books-train": rows(40, 1), "books-validation": rows(9, 2)}
    settings = small_settings(tmp_path / "store", raw_topics=list(topics), splits={"all": 1})
    for topic, held in topics.items():
        write_jsonl(tmp_path / f"{topic}.jsonl", held)
        pack_into(settings, [tmp_path / f"{topic}.jsonl"], topic=topic, flush=True, end=True)
    ledger = listed(settings.store, "ledger")
    kept = {one["stream"]: one["kept"] for one in ledger["streams"]}
    assert kept == {f"{topic}.all": len(held) for topic, held in topics.items()}


def test_what_a_packed_stream_lacks_is_no_matter_of_brokers(packed: Packed) -> None:
    told = said(packed.store, "ledger", "--stream", TRAIN, "--stream", "other.train", code=12)[1]
    assert "was packed, and other.train was not" in told
    for place in (("0", "99999"), ("9", "0")):
        told = said(packed.store, "inspect", "block", TRAIN, *place, code=12)[1]
        assert f"does not hold block {place[1]} of {TRAIN}/{place[0]}, which was packed" in told
    told = said(packed.store / TRAIN, "inspect", "block", TRAIN, "0", "0", code=6)[1]
    assert f"and no store: give {packed.store}" in told
    told = said(packed.store, "flush", "raw-text", code=12)[1]
    assert "`tokenmill pack … --flush` fills" in told
    for words in (("dedup", "counts"), ("tail", "raw-text"), ("skip", "raw-text", "0", "3")):
        told = said(packed.store, *words, code=3)[1]
        assert f"{TRAIN}, {VALIDATION} in {packed.store} was packed from files, and is in no topic" in told


def test_a_stream_from_kafka_beside_packed_ones_is_none_of_them(packed: Packed) -> None:
    """A stream with a suffix of its own, or of a topic with a longer name: a repair asks the brokers for its blocks."""
    genesis = Genesis.from_dict(read_stream(packed.store, TRAIN).values["genesis"])
    others = [replace(genesis, stream=f"{TRAIN}-v2")]
    others += [replace(genesis, stream="raw-text.de.train", recipe=replace(genesis.recipe, raw_topic="raw-text.de"))]
    for other in others:
        Store.open(packed.store).add_stream(StreamInfo.from_genesis(other, 4), None)
    assert all(is_packed(packed.store, stream) for stream in (TRAIN, VALIDATION))
    assert not any(is_packed(packed.store, other.stream) for other in others)
    assert "from the token topic" in repair_advice(partition_directory(packed.store, others[0].stream, 0))
    (packed.store / TRAIN / STREAM_FILE).write_bytes(b"damaged")
    assert is_packed(packed.store, TRAIN), "its name says so as well"


def test_a_damaged_state_is_named(packed: Packed, tmp_path: Path) -> None:
    path = packed.store / "pack" / "raw-text" / "0.json"
    state = json.loads(path.read_bytes())
    state["carries"]["train"] = b64encode(b64decode(state["carries"]["train"])[:-1] + b"!").decode()
    path.write_bytes(canonical_json(state) + b"\n")
    with pytest.raises(DamagedError, match=r"0\.json is not what was written there.*pack into another store"):
        packed.pack()


@pytest.mark.parametrize("name", ["", "pack", "pack/raw-text/0.json"])
def test_what_may_not_be_read_of_a_packed_store_is_named(packed: Packed, name: str) -> None:
    """And neither taken for a store that brokers know more of, nor for a disk that a worker waits for."""
    path = packed.store / name
    path.rename(packed.store.with_name("elsewhere"))
    path.symlink_to(path)  # a loop, which even root cannot read
    for command in (["verify"], ["inspect", "stream", TRAIN], ["describe", TRAIN], ["ledger"]):
        told = said(packed.store, *command, code=75)[1]
        assert f"{path}" in told
        assert "cannot be read (Too many levels of symbolic links): let this user read it" in told
        assert "broker" not in told
        assert "segment worker" not in told


SERVICE = re.compile(r"worker|topic|broker|Kafka|tokenmill verify")


@pytest.fixture
def whole(tmp_path: Path) -> Packed:
    """Return a store of which nothing was filtered out."""
    settings, paths = small_settings(tmp_path / "store", bootstrap_servers="127.0.0.1:1"), corpus(tmp_path, rows(120))
    return Packed(settings, paths, pack_into(settings, paths, flush=True, end=True))


def test_lost_records_are_made_again_from_the_blocks_that_the_eras_name(whole: Packed) -> None:
    """Before that, pack refuses the store, and takes nothing away that a repair needs."""
    before = whole.content()
    (log,) = [log for log in (whole.store / TRAIN / "0").glob("*.commits") if not log.with_suffix(".json").exists()]
    flip(log, -1)
    with pytest.raises(DamagedError, match=r"blocks, and \d+ were packed. To repair it, run `tokenmill repair") as told:
        whole.pack()
    assert not SERVICE.search(str(told.value))
    assert [len(partition.segments) for partition in examine_store(whole.store, TRAIN)] == [1, 0]
    found, _ = repair_store(whole.settings, TRAIN)
    assert [(segment.given, segment.lost) for one in found for segment in one.segments] == [(0, ())]
    log.with_name(f"{log.name}.broken").unlink()
    require_equal(whole.content(), before)
    whole.pack()
    require_equal(whole.content(), before)


def test_a_lost_partition_comes_from_another_store(whole: Packed, tmp_path: Path) -> None:
    before = whole.content()
    shutil.rmtree(whole.store / TRAIN / "1")
    assert [bool(partition.segments) for partition in examine_store(whole.store, TRAIN)] == [False, True]
    found, _ = repair_store(whole.settings, TRAIN, [1])
    assert found[0].lost
    other = whole.settings.model_copy(update={"store": tmp_path / "other"})
    pack_into(other, whole.paths, flush=True, end=True)
    found, _ = repair_store(whole.settings, TRAIN, donor=other.store)
    assert not any(one.lost for one in found)
    require_equal(whole.content(), before)


@pytest.mark.parametrize("name", ["eras.jsonl", "eras.index"])
def test_eras_are_written_again_by_the_same_command(whole: Packed, name: str) -> None:
    before = whole.content()
    flip(whole.store / TRAIN / name, -1)
    if name == "eras.jsonl":
        with pytest.raises(DamagedError, match="call the same `tokenmill pack` command again: it writes both") as told:
            examine_store(whole.store, TRAIN)
        assert not SERVICE.search(str(told.value))
    for file in ("eras.jsonl", "eras.index"):
        (whole.store / TRAIN / file).unlink()
    whole.pack()
    require_equal(whole.content(), before)


def test_a_damaged_description_comes_from_another_store(whole: Packed) -> None:
    (whole.store / TRAIN / "stream.json").write_bytes(b"{")
    with pytest.raises(DamagedError, match=r"/stream\.json: it is not JSON .*`tokenmill repair .* --from DIR") as told:
        repair_store(whole.settings, TRAIN)
    assert not SERVICE.search(str(told.value))


OPTIONS = ("--store", "store", "--tokenizer", "bytes", "--sequence-length", "63", "--partitions", "2")


def pack_command(directory: Path, *arguments: str, data: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-m", "tokenmill.app.cli", "pack", *arguments, *OPTIONS]
    return subprocess.run(command, cwd=directory, input=data, capture_output=True, check=False)


@pytest.mark.slow
def test_documents_are_packed_told_and_verified(tmp_path: Path) -> None:
    corpus(tmp_path, rows(100))
    packed = pack_command(tmp_path, "a.jsonl", "--processes", "2", "--json")
    verified = pack_command(tmp_path, "a.jsonl", "--verify")
    again = pack_command(tmp_path, "a.jsonl")
    assert b" wait until their blocks are full; the same command with --flush" in again.stdout
    assert packed.returncode == 0, packed.stderr
    said: dict[str, Any] = json.loads(packed.stdout)
    assert (said["documents"], said["before"], said["refused"]) == (100, 0, 0)
    totals = [stream["totals"] for stream in said["streams"].values()]
    assert [one["records"] for one in totals] == [100, 100]
    assert sum(one["kept"] for one in totals) == 100
    assert sum(one["documents"] for one in said["partitions"]) == 100
    assert b"wait until their blocks are full" not in packed.stdout + packed.stderr
    blocks = sum(stream["blocks"] for stream in said["streams"].values())
    assert verified.stdout.startswith(f"equal: {blocks} blocks as packed again, ".encode()), verified


@pytest.mark.slow
def test_what_is_piped_in_is_packed_once(tmp_path: Path) -> None:
    options = ("--flush", "--metadata-fields", "lang", "--packing", "rows")
    first = pack_command(tmp_path, "-", "--format", "jsonl", *options, data=as_lines(rows(50)))
    second = pack_command(tmp_path, "-", "--format", "jsonl", *options[1:], data=as_lines(rows(50)))
    assert first.returncode == 0, first.stderr
    assert b"50 documents, " in first.stdout
    assert open_partition(tmp_path / "store", TRAIN, 0).documents(0)[0].fields in ({"lang": "de"}, {"lang": "en"})
    assert b"Left out: " in first.stdout
    assert second.returncode == InputError.exit_code
    assert b"what is piped in cannot be continued" in second.stderr


@pytest.mark.slow
@pytest.mark.needs("minutes")
def test_a_run_of_which_all_is_refused_ends_and_binds_nobody(tmp_path: Path) -> None:
    corpus(tmp_path, rows(3000))
    (tmp_path / "own.py").write_text("def wrong(row): return row['body'].strip()\ndef right(row): return row\n")
    wrong = pack_command(tmp_path, "a.jsonl", "--map", "own:wrong")
    few = pack_command(tmp_path, "a.jsonl", "--map", "own:wrong", "--limit", "5", "--on-error", "dead-letter", "--end")
    right = pack_command(tmp_path, "a.jsonl", "--map", "own:right", "--min-chars", "9")
    assert wrong.returncode == InputError.exit_code
    assert b"the first 1,000 rows were all refused" in wrong.stderr
    assert b"a.jsonl:1: --map: KeyError" in wrong.stderr
    assert b"there are no documents" in few.stderr
    assert right.returncode == 0, right.stderr
    assert b"3,000 documents" in right.stdout


@pytest.mark.needs("minutes")
def test_an_interrupted_pack_and_one_that_lost_a_process_go_on(tmp_path: Path) -> None:
    corpus(tmp_path, rows(50))
    (tmp_path / "waiting.py").write_text("import time\n\ndef wait(row):\n    time.sleep(0.5)\n    return row\n")
    words = ["pack", "a.jsonl", *OPTIONS, "--map", "waiting:wait"]
    place: Any = {"log": tmp_path / "log", "environment": {"PYTHONPATH": str(tmp_path)}, "directory": tmp_path}
    for process_itself, code, said in (
        (True, 130, "interrupted: what was committed is in store"),
        (False, 1, "ended with code -9"),
    ):
        process = commands.command(words, **place)
        assert until(lambda: millers_of(process) != [], 30)  # noqa: B023 - called at once
        time.sleep(1.0)
        if process_itself:
            process.send_signal(signal.SIGINT)
        else:
            millers_of(process)[0].kill()
        assert (process.wait(60), said in process.said) == (code, True), process.said
    assert "50 documents" in commands.run(words, **place).said


def millers_of(process: commands.Command) -> list[psutil.Process]:
    return [child for child in psutil.Process(process.pid).children() if "spawn_main" in " ".join(child.cmdline())]
