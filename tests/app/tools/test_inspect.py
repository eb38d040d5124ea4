"""Inspection: what a stream, a block or a record says of itself is what was milled; ledger, tail and rejects."""

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import AsyncMock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.commands import invoke
from tests.app.sources.reading import peak_of
from tests.app.tools.verify.conftest import settle_streams
from tests.conftest import TopicFactory, topics_on
from tests.faults.oracle import read_topic
from tests.milled import SPLITS, Milled, all_in_eras, head, records
from tests.mills import RECIPE
from tests.service import Raw, Service, equal_files, in_own_loop, mirror_once, raw_records, send, service_settings
from tests.store.chains import flip
from tokenmill.app.kafka.control_log import ControlLog
from tokenmill.app.kafka.control_topic import Settled, settle, unsettled
from tokenmill.app.kafka.dead_letters import RecordPlace, decode_dead_letter
from tokenmill.app.local.broker import Broker
from tokenmill.app.mill.recipes import plan_topic
from tokenmill.app.milling.reference import Reference
from tokenmill.app.sequencer.domain_messages import TWO_HISTORIES
from tokenmill.app.settings import Settings, Stream, rejected_topic
from tokenmill.app.tools.failed_records import skip
from tokenmill.app.tools.inspect import duplicates, reports
from tokenmill.app.tools.inspect.duplicates import TimesAgain
from tokenmill.app.tools.inspect.record_ledger import (
    ChainLedger,
    RawPartitionAccount,
    RecordLedger,
    raw_partition_accounts,
    read_ledger,
)
from tokenmill.app.tools.inspect.reports import inspect_message, inspect_segments, inspect_stream
from tokenmill.app.tools.inspect.tracing import RejectedDocument, passing_records, read_rejected, trace_block
from tokenmill.app.tools.verify import verify
from tokenmill.errors import DamagedError, DifferenceError, FingerprintError, InputError, TopicError
from tokenmill.recipe import Genesis
from tokenmill.samples.sequence import Position, SequenceId
from tokenmill.store import open_partition, read_stream
from tokenmill.wire.pieces import decode_entry, split_references
from tokenmill.wire.totals import Totals


async def test_a_stream_tells_its_settings_and_how_far_it_is(milled: Milled) -> None:
    report = await inspect_stream(milled.settings, milled.train, milled.settings.store)
    wanted = [len(milled.chains[milled.train, partition]) for partition in (0, 1)]
    assert [(chain["blocks"], chain["store_blocks"], chain["segments"]) for chain in report["chains"]] == [
        (blocks, blocks, -(-blocks // 16)) for blocks in wanted
    ]
    assert (report["tokenizer"], report["dtype"], report["block_tokens"]) == ("bytes", "uint8", 64)
    assert (report["settings"]["split"], report["blocks"]) == ("train", sum(wanted))
    with pytest.raises(TopicError, match="there is no stream 'nothing'"):
        await inspect_stream(milled.settings, "nothing")


@pytest.mark.parametrize("where", ["store", "topic"])
async def test_a_block_leads_to_its_kafka_records(milled: Milled, where: str) -> None:
    number = len(milled.chains[milled.train, 1]) // 2
    block = milled.chains[milled.train, 1][number]
    store = milled.settings.store if where == "store" else None
    trace = await trace_block(milled.settings, milled.train, 1, number, store=store)
    assert trace.text == block.tokens.decode(errors="replace")
    assert ("tokens." in trace.where) == (where == "topic")
    assert [piece.offset for piece in trace.pieces] == [piece.offset for piece in decode_entry(block.entry)]
    assert [trace.pieces[0].start, trace.pieces[-1].stop] == [0, 64]
    for piece in trace.pieces:
        assert piece.record is not None
        text = piece.record.text.encode() + b"\0"
        wanted = text[piece.position : piece.position + piece.stop - piece.start]
        assert wanted == block.tokens[piece.start : piece.stop]


async def test_every_block_of_the_topic_is_found_by_its_number(milled: Milled) -> None:
    """In the store without a broker, where documents are told, and why their records are not."""
    chain = milled.chains[milled.train, 0]
    padded = next(b.number for b in chain if any(p.position < 0 for p in decode_entry(b.entry)))
    for number in (0, 1, padded, len(chain) - 1):
        trace = await trace_block(milled.settings, milled.train, 0, number)
        assert trace.text == chain[number].tokens.decode(errors="replace")
        assert [piece.padding for piece in trace.pieces].count(True) == (number == padded)
    for place in ((0, len(chain)), (99, 0)):  # a partition that is not there is no broker that does not answer
        with pytest.raises(InputError, match="does not hold block"):
            await trace_block(milled.settings, milled.train, *place)
    nowhere = Settings(bootstrap_servers="127.0.0.1:1")
    trace = await trace_block(nowhere, milled.train, 0, 3, store=milled.settings.store)
    assert trace.text == chain[3].tokens.decode(errors="replace")
    assert all(piece.record is None for piece in trace.pieces)
    assert "no broker answers" in str(trace.note)


async def test_messages_of_all_kinds_are_told(milled: Milled) -> None:
    topic = f"tokens.{milled.train}"
    first = await inspect_message(milled.settings, topic, 0, 0)
    blocks = first["message"]["blocks"]
    chain = milled.chains[milled.train, 0]
    assert [found["sample"] for found in blocks] == [b.tokens.decode(errors="replace") for b in chain[: len(blocks)]]
    assert first["message"]["chain_after"] == chain[len(blocks) - 1].chain.hex()

    end = (await inspect_stream(milled.settings, milled.train))["chains"][0]["token_range"]
    last = await inspect_message(milled.settings, topic, 0, end[1] - 1 if end is not None else -1)
    assert (last["message"]["kind"], last["message"]["first"]) == ("carry", len(chain))

    dead = await inspect_message(milled.settings, f"{milled.raw_topic}.dead-letters", 0, 0)
    assert ["tokenmill.dead-letter.reason", "invalid_utf8"] in dead["headers"]
    raw = await inspect_message(milled.settings, milled.raw_topic, 0, 0)
    assert raw["value_bytes"] > 0
    with pytest.raises(InputError, match="holds no record at offset 5000"):
        await inspect_message(milled.settings, topic, 0, 5000)


async def test_a_record_is_told_where_verdicts_cannot_be_read(milled: Milled, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a domain is halted: a note says why."""
    whole = await inspect_message(milled.settings, milled.raw_topic, 0, 0)
    assert whole.pop("seen_before") == {}, "no stream of it leaves out duplicates"
    monkeypatch.setattr(reports, "seen_before", AsyncMock(side_effect=DifferenceError(TWO_HISTORIES)))
    assert await inspect_message(milled.settings, milled.raw_topic, 0, 0) == {**whole, "note": TWO_HISTORIES}


def test_a_segment_is_told_from_its_files_alone(milled: Milled, tmp_path: Path) -> None:
    directory = milled.settings.store / milled.train / "0"
    chain = milled.chains[milled.train, 0]
    (sealed,) = inspect_segments(directory / "000000000016.bin")
    assert (sealed["first"], sealed["blocks"], sealed["sealed"]) == (16, 16, True)
    assert (sealed["chain_before"], sealed["chain_after"]) == (chain[15].chain.hex(), chain[31].chain.hex())
    begun = [p for block in chain[16:32] for p in decode_entry(block.entry) if p.position == 0]
    assert sealed["documents"] == len(begun)
    assert sum(report["blocks"] for report in inspect_segments(directory)) == len(chain)

    copied = tmp_path / "store" / milled.train / "0"
    shutil.copytree(directory.parent, copied.parent)
    flip(copied / "000000000016.bin", 100)
    with pytest.raises(DamagedError, match="block 17, at byte 64, is not what was committed"):
        inspect_segments(copied / "000000000016.bin")
    with pytest.raises(InputError, match=r"name <store>/<stream>/<partition>/<first block>\.bin"):
        inspect_segments(tmp_path / "any.bin")


def test_the_commands_speak_to_people_and_to_pipes(milled: Milled) -> None:
    servers, store = ("--bootstrap-servers", milled.settings.bootstrap_servers), ("--store", milled.settings.store)

    def run(*arguments: object) -> str:
        return invoke(*arguments, *servers, code=0).out

    def inspect(*arguments: str) -> tuple[str, Any]:
        """Return what is shown to people, and as JSON."""
        of_files = arguments[0] == "segment"
        command = ("inspect", *arguments, *(() if of_files else (*servers, *store)))
        return invoke(*command, code=0).out, json.loads(invoke(*command, "--json", code=0).out)

    table, found = inspect("stream", milled.train)
    assert f"{milled.train}/0 block {len(milled.chains[milled.train, 0]) - 1}: " in table
    assert found["name"] == milled.train
    table, found = inspect("segment", str(milled.settings.store / milled.train / "0"))
    assert "blocks        0 to 15" in table
    assert found[1]["first"] == 16
    table, found = inspect("message", f"tokens.{milled.train}", "0", "0")
    assert "from token 0: " in table
    assert found["offset"] == 0
    table, found = inspect("block", milled.train, "1", "2")
    assert f"{milled.raw_topic}[1] offset " in table
    assert found["pieces"][0]["record"]["text"]

    every = [era["era"] for era in json.loads(run("eras", milled.train, "--json"))["eras"]]
    assert every == list(range(len(every)))
    assert len(every) >= 3
    newest = json.loads(run("eras", milled.train, "--json", "--last", "2"))["eras"]
    assert [era["era"] for era in newest] == every[-2:]
    (head, row) = run("eras", milled.train, "--last", "1").splitlines()
    assert (head.split()[0], row.split()[0]) == ("era", str(every[-1]))


async def test_the_ledger_is_what_the_reference_counts(milled: Milled) -> None:
    settings = Settings(bootstrap_servers=milled.settings.bootstrap_servers, raw_topics=(milled.raw_topic,))
    ledger = await read_ledger(settings)

    assert ledger.balanced
    assert [(chain.stream, chain.partition) for chain in ledger.chains] == sorted(milled.chains)
    plan = plan_topic(milled.settings, milled.raw_topic)
    records = raw_records(milled.settings, milled.raw_topic)
    for chain in ledger.chains:
        assert chain.partition is not None
        assert chain.offset is not None
        (recipe,) = (recipe for stream, recipe in plan.recipes.items() if stream.name == chain.stream)
        reference = Reference(recipe, plan.stages, chain.partition, 0)
        below = [record for record in records[chain.partition] if record.offset < chain.offset]
        blocks = list(reference.blocks(below))
        assert chain.totals == reference.totals
        if not chain.taken:
            waiting = len(reference.open_block[0]) // recipe.token_dtype.itemsize
            assert (chain.blocks, chain.open_tokens) == (len(blocks), waiting)
            assert chain.block_tokens == 64 * len(blocks)
    assert sum(stream.padding for stream in ledger.streams) > 0
    assert [stream.totals.flushes for stream in ledger.streams] == [2, 2]
    assert sum((stream.totals.dead_lettered for stream in ledger.streams), Counter[str]()) == {"invalid_utf8": 3}


def test_the_tail_says_what_becomes_of_documents(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    """Before any mill has come to it: of a kept document, a filtered one and a dead letter; with --json the same."""
    raw, steps = topic(), ({"name": "length", "min_words": 3},)
    settings = service_settings(broker, raw, tmp_path, splits={"train": 1000}, steps=steps)
    settle_streams(settings)
    send(settings, [Raw(b"a text of five words"), Raw(b"two words"), Raw(b"\xff no UTF-8"), Raw(b'{"text": 1}')])
    command = ("tail", raw, "--bootstrap-servers", settings.bootstrap_servers)
    said = [line.partition(f"{raw}/0/")[2] or line for line in invoke(*command).out.splitlines()]
    ids = list(b"a text of five words")
    kept = [f"0  kept (train), {len(ids)} tokens, 20 B", "  'a text of five words'"]
    assert said[:3] == [*kept, f"  {' '.join(map(str, ids[:12]))} …"]
    assert said[3].startswith("1  filtered out (train): length.min_words")
    assert said[4] == "  'two words'"
    assert said[5].startswith("2  dead letter (train): invalid_utf8")
    assert said[-2].startswith("3  dead letter (train): wrong_type")
    assert invoke(*command, "--follow", "--limit", "2").out.splitlines()[-1] == "  'two words'"
    outcomes = [json.loads(line)["outcome"] for line in invoke(*command, "--json").out.splitlines()]
    assert [(outcome["kind"], outcome["tokens"], outcome["reason"].split(":")[0]) for outcome in outcomes] == [
        ("kept", ids, ""),
        ("filtered", [], "length.min_words"),
        ("dead_lettered", [], "invalid_utf8"),
        ("dead_lettered", [], "wrong_type"),
    ]


def test_the_tail_goes_by_the_stream_of_the_settings(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    raw = topic()
    for others in ({}, {"stream_suffix": "-v2", "decode": "text"}):
        settings = service_settings(broker, raw, tmp_path, splits={"train": 1000}, **others)
        settle_streams(settings)
    send(settings, [Raw(b'{"text": 1}')])
    command = ("tail", raw, "--bootstrap-servers", settings.bootstrap_servers, "--json", "--stream-suffix")
    kinds = [json.loads(invoke(*command, suffix).out)["outcome"]["kind"] for suffix in ("", "-v2", "-v3")]
    assert kinds == ["dead_lettered", "kept", "dead_lettered"]


async def test_what_passes_is_shown_with_what_becomes_of_it(milled: Milled) -> None:
    """As many records of each outcome, up to where a chain is, as the ledger counts of it; and the ids of the kept."""
    ledger = await read_ledger(milled.settings)
    ends = {(chain.stream, chain.partition): chain.offset or 0 for chain in ledger.chains}
    found = [one async for one in passing_records(milled.settings, milled.raw_topic, 10**6, follow=False)]
    for stream in ledger.streams:
        split = stream.stream.removeprefix(f"{milled.raw_topic}.")
        passed = [one for one in found if one.place.offset < ends[stream.stream, one.place.partition]]
        counted = Counter(one.outcome.kind for one in passed if one.outcome.split in {split, ""})
        totals = stream.totals
        wanted = {"kept": totals.kept, "filtered": totals.filtered.total()}
        wanted |= {"dead_lettered": totals.dead_lettered.total(), "tombstone": totals.tombstones}
        assert counted == Counter(wanted | {"flush": totals.flushes})
        ids = sum(len(one.outcome.tokens) + 1 for one in passed if one.outcome.split == split and one.outcome.tokens)
        assert ids == totals.tokens
    newest = [one async for one in passing_records(milled.settings, milled.raw_topic, 2, follow=False)]
    assert newest == [one for n in (0, 1) for one in [o for o in found if o.place.partition == n][-2:]]


def at(settings: Settings) -> list[str]:
    """Return options that tell a command nothing else than where the brokers are, and the raw topic."""
    return ["--bootstrap-servers", settings.bootstrap_servers, "--raw-topics", settings.raw_topics[0]]


def test_the_command_prints_the_equation(milled: Milled) -> None:
    table = invoke("ledger", *at(milled.settings), code=0).out
    found = json.loads(invoke("ledger", *at(milled.settings), "--json", "--stream", milled.train).out)
    assert f"{milled.train} in all" in table
    assert re.search(r"^dead letter +invalid_utf8 +\d+$", table, re.MULTILINE)
    assert table.count("Data retention: ") == 1  # of all streams; --all has each
    assert found["balanced"]
    assert [chain["stream"] for chain in found["chains"]] == [milled.train] * 2
    for chain in found["chains"]:
        parts = chain["kept"] + chain["tombstones"] + chain["flushes"] + chain["other_split"]
        assert chain["records"] == parts + sum(chain["filtered"].values()) + sum(chain["dead_lettered"].values())


def test_a_record_or_a_token_too_many_does_not_balance() -> None:
    good = ChainLedger("s", "raw", 0, 9, blocks=2, block_tokens=20, open_tokens=3, totals=Totals(3, 3, tokens=23))
    assert (good.balanced, good.padding) == (True, 0)
    for totals in (Totals(3, 3, tokens=22), Totals(3, 3, tokens=24), Totals(4, 3, tokens=23)):
        assert not replace(good, totals=totals).balanced
    flushed = replace(good, totals=Totals(4, 3, flushes=1, tokens=20))
    assert (flushed.balanced, flushed.padding) == (True, 3)
    assert replace(good, taken=2, totals=Totals(2, 2, tokens=21)).balanced
    assert not RecordLedger([replace(good, totals=Totals(4, 3))], []).balanced


def test_sums_over_streams_are_made_at_equal_offsets_alone() -> None:
    """There each record is one stream's, all streams', or nobody's; elsewhere nothing is said."""
    settled = [_settled(split) for split in ("train", "validation")]
    train = ChainLedger("raw.train", "raw", 0, 10, totals=Totals(10, 5, tombstones=1, other_split=4))
    other = ChainLedger("raw.validation", "raw", 0, 10, totals=Totals(10, 2, tombstones=1, other_split=7))
    (account,) = raw_partition_accounts(settled, [train, other])
    assert (account.records, account.owned, account.shared, account.unowned) == (10, 7, 1, 2)
    (apart,) = raw_partition_accounts(settled, [train, replace(other, offset=11)])
    assert apart == RawPartitionAccount("raw", 0, {"raw.train": 10, "raw.validation": 11}, None)
    (claimed,) = raw_partition_accounts(settled, [train, replace(other, totals=Totals(10, 9, tombstones=1))])
    assert [account.balanced, apart.balanced, claimed.balanced] == [True, True, False]


def test_streams_of_another_suffix_divide_the_records_once_more() -> None:
    """Two pairs of streams with equal settings are two divisions; as one, they would claim each record twice."""
    totals = {"train": Totals(10, 6, other_split=4), "validation": Totals(10, 4, other_split=6)}
    streams = [(split, suffix) for suffix in ("", "-v2") for split in totals]
    chains = [ChainLedger(f"raw.{split}{suffix}", "raw-text", 0, 10, totals=totals[split]) for split, suffix in streams]
    found = raw_partition_accounts([_settled(*stream) for stream in streams], chains)
    names = [["raw.train", "raw.validation"], ["raw.train-v2", "raw.validation-v2"]]
    assert [sorted(account.offsets) for account in found] == names
    assert [(account.records, account.owned, account.unowned) for account in found] == [(10, 10, 0)] * 2


def test_a_first_use_is_answered_in_one_line(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    """Streams are settled, and nothing is milled yet: no table of zeros; for pipes, all zeros are there."""
    settings = service_settings(broker, topic(2), tmp_path, splits=SPLITS)
    settle_streams(settings)
    said = invoke("ledger", *at(settings), code=0)
    found = json.loads(invoke("ledger", *at(settings), "--json").out)
    waiting = f"tokenmill: no block holds a record of {settings.raw_topics[0]} yet (2 streams); "
    assert (said.out, said.err) == ("", f"{waiting}tokenmill flush fills the open ones with padding\n")
    assert [(chain["partition"], chain["offset"]) for chain in found["chains"]] == [(0, 0), (1, 0)] * 2
    line = unsettled(["raw-text"], [], ["raw-text.train"])
    assert line == "no stream of raw-text is settled yet: start a mill, `tokenmill serve`"
    assert len(f"tokenmill: {line}") <= 80
    assert "(streams there: other.train): set raw_topics" in unsettled(["raw-text"], ["other.train"], ["other.train"])


def _settled(split: str, suffix: str = "") -> Settled:
    recipe = replace(RECIPE, split=split, splits=tuple(SPLITS.items()))
    return Settled(Stream(f"raw.{split}{suffix}", "raw", split), Genesis("x", recipe, (0,), 16), ControlLog())


PARTITIONS = 2
FEWEST_WORDS, MOST_CHARS = 5, 90
NASTY = "\x1b[31mred\x00"


class Filtered(NamedTuple):
    """A raw topic that was milled by a worker that was killed, and by its successor."""

    settings: Settings
    texts: dict[tuple[int, int], str]
    """By partition and offset."""

    @property
    def reasons(self) -> dict[tuple[int, int], str]:
        """Why each document that is filtered out is: a count that shares no code with the mill."""
        short = {place: "length.min_words" for place, text in self.texts.items() if len(text.split()) < FEWEST_WORDS}
        return short | {place: "length.max_chars" for place, text in self.texts.items() if len(text) > MOST_CHARS}


@pytest.fixture(scope="module")
def filtered(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Filtered:
    """Kill the mill once it has sent something that it filtered out."""
    directory, raw = tmp_path_factory.mktemp("filtered"), topics_on(broker, "filtered")(PARTITIONS)
    steps = [{"name": "length", "min_words": FEWEST_WORDS, "max_chars": MOST_CHARS}]
    own: dict[str, Any] = {"splits": {"train": 1000}, "steps": steps, "rejects": "topic", "carry_seconds": 0.5}
    settings = service_settings(broker, raw, directory, **own)
    texts = [f"{NASTY if n % 40 == 3 else ''}{'word ' * (n * 7 % 23)}" for n in range(400)]
    sent = [Raw(json.dumps({"id": f"d{n}", "text": text}).encode(), n % PARTITIONS) for n, text in enumerate(texts)]

    def all_published() -> bool:
        ledger = in_own_loop(lambda: read_ledger(settings))
        return sum(chain.totals.records for chain in ledger.chains) == 400

    with Service(settings, directory) as service:
        send(settings, sent[:200])
        (mill,) = service.mill()
        service.wait_until(lambda: bool(letters(settings)))
        mill.kill()
        send(settings, sent[200:])
        service.mill()
        service.wait_until(all_published)
    return Filtered(settings, {(n % PARTITIONS, n // PARTITIONS): text for n, text in enumerate(texts)})


def letters(settings: Settings) -> list[tuple[RecordPlace, str, bytes | None]]:
    found = []
    for partition in range(PARTITIONS):
        for record in read_topic(settings, rejected_topic(settings.raw_topics[0]), partition):
            letter = decode_dead_letter(record)
            assert letter is not None
            assert isinstance(letter.place, RecordPlace)
            found.append((letter.place, letter.reason, letter.value))
    return found


@pytest.mark.needs("minutes")
def test_the_rejected_topic_has_each_record_after_a_kill(filtered: Filtered) -> None:
    """Whole, with its place and the reason that the totals count; some may be there twice, and nothing else is."""
    found = letters(filtered.settings)
    assert {(place.partition, place.offset): reason for place, reason, _ in found} == filtered.reasons
    for place, _, value in found:
        assert json.loads(value or b"")["text"] == filtered.texts[place.partition, place.offset]


def test_the_ledger_counts_as_a_count_over_the_raw_topic(filtered: Filtered) -> None:
    ledger = in_own_loop(lambda: read_ledger(filtered.settings))
    (stream,) = ledger.streams
    assert stream.totals.filtered == Counter(filtered.reasons.values())
    retention = stream.retention
    assert (retention.documents, retention.totals.kept) == (400, 400 - len(filtered.reasons))
    assert {row.reason: row.documents for row in retention.funnel()} == Counter(filtered.reasons.values())
    kept = [text for place, text in filtered.texts.items() if place not in filtered.reasons]
    figures, sizes = stream.totals.figures, {place: len(text.encode()) for place, text in filtered.texts.items()}
    assert figures.entered == (400, sum(sizes.values()))
    assert [step.step for step in figures.steps] == ["length", "not_empty"]
    for reason, amount in figures.filtered.items():
        places = [place for place, why in filtered.reasons.items() if why == reason]
        assert amount == (len(places), sum(sizes[place] for place in places))
    assert figures.steps[-1].passed == (len(kept), sum(len(text.encode()) for text in kept))
    assert figures.text_lengths == Counter(len(text.encode()).bit_length() - 1 for text in kept)
    assert figures.token_lengths == Counter((len(text.encode()) + 1).bit_length() - 1 for text in kept)
    assert retention.tokens_per_second is None or retention.tokens_per_second > 0
    assert ledger.balanced


def found(filtered: Filtered, reasons: Sequence[str] = (), limit: int = 3) -> list[RejectedDocument]:
    async def read() -> list[RejectedDocument]:
        return [one async for one in read_rejected(filtered.settings, reasons=reasons, limit=limit)]

    return in_own_loop(read)


def test_the_first_documents_of_each_reason_are_shown(filtered: Filtered) -> None:
    for reasons in ((), ("length.max_chars",)):
        wanted: dict[str, list[tuple[int, int]]] = {}
        for place, reason in sorted(filtered.reasons.items()):
            if not reasons or reason in reasons:
                wanted.setdefault(reason, []).append(place)
        shown = found(filtered, reasons)
        assert {(one.place.partition, one.place.offset): one.reason for one in shown} == {
            place: reason for reason, places in wanted.items() for place in places[:3]
        }
        for one in shown:
            text = filtered.texts[one.place.partition, one.place.offset]
            number = f"{len(text)} chars" if one.reason == "length.max_chars" else f"{len(text.split())} words"
            assert (one.document.text, one.detail.partition(",")[0]) == (text, number)
    with pytest.raises(InputError, match=r"'emtpy'; reasons here: length\.max_chars, length\.min_words"):
        found(filtered, ["emtpy"])


def test_a_text_cannot_write_to_the_terminal(filtered: Filtered) -> None:
    command = ["rejects", *at(filtered.settings), "--reason", "length.min_words", "--limit", "100"]
    shown = invoke(*command).out
    texts = [one["text"] for one in json.loads(invoke(*command, "--json").out)]
    assert "\x1b" not in shown
    assert "\\x1b[31mred" in shown or "\\u001b[31mred" in shown
    assert any(text.startswith(NASTY) for text in texts)


def test_the_command_prints_what_people_quote_and_draws_it(filtered: Filtered, tmp_path: Path) -> None:
    kept = 400 - len(filtered.reasons)
    for plot in (str(tmp_path / "funnel.png"), "-"):
        said = invoke("ledger", *at(filtered.settings), "--plot", plot, code=0).out
        assert f"Data retention: {kept / 400:.1%}".replace("%", " %") + f" ({kept} of 400 documents)" in said
    assert "█" in said
    assert (tmp_path / "funnel.png").read_bytes().startswith(b"\x89PNG")


PLACES = st.lists(st.tuples(st.sampled_from([0, 1, 1 << 32]), st.integers(0, 9)), max_size=40)
DUPLICATES = 2_000_000


def plainly(times: Mapping[Any, int]) -> list[int]:
    """Return how many came again once, twice, 3 to 4 times, and so on."""
    found = Counter((number - 1).bit_length() for number in times.values())
    return [found[row] for row in range(max(found, default=-1) + 1)]


@given(st.lists(PLACES, max_size=12))
def test_the_histogram_is_that_of_a_plain_count(messages: list[list[tuple[int, int]]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "PART", 8)
        again = TimesAgain()
        for places in messages:
            again.add(np.array(places, np.uint64).reshape(len(places), 2))
        wanted = plainly(Counter(place for places in messages for place in places))
        assert again.histogram() == wanted
        assert again.histogram() == wanted


def test_it_takes_the_memory_that_it_says() -> None:
    """Where each duplicate is of another document of one partition, which is the worst."""
    offsets = np.random.default_rng(1).permutation(DUPLICATES).astype(np.uint64)

    def histogram() -> list[int]:
        again = TimesAgain()
        for part in np.split(offsets, 1000):
            again.add(np.stack([np.full_like(part, 7), part], axis=1))
        return again.histogram()

    found, peak = peak_of(histogram)
    assert (found, peak < 100 * DUPLICATES) == ([DUPLICATES], True)


SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "rows": ({"sequence_length": 64, "begin_of_document": 2}, {"long": "split", "short": "drop"}),
    "fit": ({"sequence_length": 63}, {"open_blocks": 4, "max_age_offsets": 50}),
    "chunks": ({"sequence_length": 8}, {"chunk_tokens": 96, "rest": "pad"}),
}
"""By packing: settings, and its parameters."""


@pytest.mark.needs("minutes")
@pytest.mark.parametrize("name", SHAPES)
def test_streams_of_other_packings_are_like_any(name: str, broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    shape, parameters = SHAPES[name]
    shape = {**shape, "packing": {"name": name, **parameters}}
    settings = service_settings(broker, topic(2), tmp_path, splits={"train": 1}, **shape)
    with Service(settings, tmp_path) as service:
        service.mill()
        service.segment()
        send(settings, records()[:120])
        chains = service.wait_until_complete()
        service.wait_until(partial(all_in_eras, settings, chains))
        service.stop()
    (stream,) = settings.streams()
    bare = Settings(bootstrap_servers=settings.bootstrap_servers, raw_topics=settings.raw_topics)

    result = verify(bare, store=settings.store, processes=1, reference=True)
    assert (result.differences, result.complete, result.totals.balanced) == ([], True, True)
    assert result.blocks == sum(map(len, chains.values())) > 0
    assert name != "rows" or "too_short" in result.totals.filtered

    ledger = in_own_loop(partial(read_ledger, bare))
    assert ledger.balanced
    (account,) = ledger.streams
    assert account.padding == account.totals.packing["padding"]
    assert (account.open_tokens == 0) == (name != "fit")
    assert account.retention.packing is not None
    assert account.totals.flushes == result.totals.flushes == 2

    def shown(*arguments: str) -> str:
        return invoke(*arguments, "--bootstrap-servers", settings.bootstrap_servers, code=0).out

    words = ", ".join(f"{parameter} = {value}" for parameter, value in parameters.items())
    assert f"{name} ({words})" in shown("inspect", "stream", stream.name)
    block = open_partition(settings.store, stream.name, 0).blocks - 1
    place = (stream.name, "0", str(block), "--store", str(settings.store))
    found = json.loads(shown("inspect", "block", *place, "--json"))
    assert len({piece["offset"] for piece in found["pieces"]}) == 1 or name == "fit"

    other = settings.model_copy(update={"packing": "concat"})
    plan = plan_topic(other, settings.raw_topics[0])
    with pytest.raises(FingerprintError, match=rf"packing: the stream has {name} \(.*\), here concat"):
        in_own_loop(lambda: settle(other, stream, plan.recipes[stream], plan.tokenizer.content))

    require_traced(settings, tmp_path / "state.json", shown)
    published = head(settings, stream.name, 1)
    assert published is not None
    waiting = split_references(published.references)
    assert bool(waiting.counts) == (name == "fit")
    offset = waiting.rows["offset"].max() if waiting.counts else published.cursor.last_offset
    with pytest.raises(InputError, match=f"offset {offset} of .* or is past it"):
        in_own_loop(lambda: skip(settings, settings.raw_topics[0], 1, int(offset)))
    require_restored(settings, tmp_path, shown)


def require_traced(settings: Settings, state: Path, shown: Callable[..., str]) -> None:
    (stream,), length = settings.streams(), min(settings.sequence_length, 21)
    fingerprint = read_stream(settings.store, stream.name).fingerprint.hex()
    sequence = SequenceId(stream.name, fingerprint, length, 5, shuffle=True, eras=(0, 1), passes=1)
    state.write_text(json.dumps(Position.beginning(sequence, 4).after(2).to_dict()))
    place = ("--store", str(settings.store), "--state", str(state), "--json")
    samples = json.loads(shown("trace", *place, "--step", "1"))["samples"]
    sources = [(sample, source) for sample in samples for source in sample["sources"]]
    assert sources
    for sample, source in sources[:2]:
        where = (str(source["partition"]), str(source["offset"]))
        (record,) = json.loads(shown("trace", *place, "--record", *where))["records"]
        assert sample["use"] in [use for view in record["views"] for use in view["uses"]]
        if source["id"] is not None:
            assert json.loads(shown("trace", *place, "--document", source["id"]))["records"] == [record]


def require_restored(settings: Settings, directory: Path, shown: Callable[..., str]) -> None:
    (stream,), copy = settings.streams(), directory / "mirror"
    code, said = mirror_once(settings, copy)
    assert code == 0, said
    wanted = equal_files(settings.store, stream.name)
    assert equal_files(copy, stream.name) == wanted
    for more in ((), ("--from", str(settings.store))):
        for suffix in ("bin", "docs"):
            flip(copy / stream.name / "0" / f"000000000000.{suffix}")
        for file in (copy / stream.name / "1").glob("000000000000.*"):
            file.unlink()
        shown("repair", stream.name, "--store", str(copy), *more)
        assert equal_files(copy, stream.name) == wanted
    shown("retire", stream.name, "--store", str(copy), "--below", "16")
    assert equal_files(copy, stream.name) == equal_files(settings.store, stream.name, first=16)
    bare = Settings(bootstrap_servers=settings.bootstrap_servers, raw_topics=settings.raw_topics)
    assert verify(bare, store=copy, processes=1).ok
