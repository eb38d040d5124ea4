"""Inspection: what a stream, a segment, a message and a block say of themselves is what was milled."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.app.commands import invoke
from tests.milled import Milled
from tests.store.chains import flip
from tokenmill.app.sequencer.domain_messages import TWO_HISTORIES
from tokenmill.app.settings import Settings
from tokenmill.app.tools.inspect import reports
from tokenmill.app.tools.inspect.reports import inspect_message, inspect_segments, inspect_stream
from tokenmill.app.tools.inspect.tracing import trace_block
from tokenmill.errors import DamagedError, DifferenceError, InputError, TopicError
from tokenmill.wire.pieces import decode_entry


async def test_a_stream_tells_its_settings_and_how_far_it_is(milled: Milled) -> None:
    """Blocks in topic and store, segments, positions and a sample, chain by chain."""
    report = await inspect_stream(milled.settings, milled.train, milled.settings.store)

    wanted = [len(milled.chains[milled.train, partition]) for partition in (0, 1)]
    assert [chain["blocks"] for chain in report["chains"]] == wanted
    assert [chain["store_blocks"] for chain in report["chains"]] == wanted
    assert [chain["segments"] for chain in report["chains"]] == [-(-blocks // 16) for blocks in wanted]
    assert (report["tokenizer"], report["dtype"], report["block_tokens"]) == ("bytes", "uint8", 64)
    assert report["settings"]["split"] == "train"
    assert report["blocks"] == sum(wanted)
    with pytest.raises(TopicError, match="there is no stream 'nothing'"):
        await inspect_stream(milled.settings, "nothing")


@pytest.mark.parametrize("where", ["store", "topic"])
async def test_a_block_leads_to_its_kafka_records(milled: Milled, where: str) -> None:
    """From the store or from the token topic: every piece has the text of the record that it came from."""
    number = len(milled.chains[milled.train, 1]) // 2
    store = milled.settings.store if where == "store" else None

    trace = await trace_block(milled.settings, milled.train, 1, number, store=store)

    block = milled.chains[milled.train, 1][number]
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
    """The search by number ends at the right message; padding is named as such, and a missing block as missing."""
    chain = milled.chains[milled.train, 0]
    padded = next(b.number for b in chain if any(p.position < 0 for p in decode_entry(b.entry)))
    for number in (0, 1, padded, len(chain) - 1):
        trace = await trace_block(milled.settings, milled.train, 0, number)
        assert trace.text == chain[number].tokens.decode(errors="replace")
        assert [piece.padding for piece in trace.pieces].count(True) == (number == padded)
    for place in ((0, len(chain)), (99, 0)):  # a partition that is not there is no broker that does not answer
        with pytest.raises(InputError, match="does not hold block"):
            await trace_block(milled.settings, milled.train, *place)


async def test_a_block_in_the_store_needs_no_broker(milled: Milled) -> None:
    """Without a broker its documents are told, and why the records are not."""
    nowhere = Settings(bootstrap_servers="127.0.0.1:1")

    trace = await trace_block(nowhere, milled.train, 0, 3, store=milled.settings.store)

    assert trace.text == milled.chains[milled.train, 0][3].tokens.decode(errors="replace")
    assert all(piece.record is None for piece in trace.pieces)
    assert "no broker answers" in str(trace.note)


async def test_messages_of_all_kinds_are_told(milled: Milled) -> None:
    """Blocks with their documents, carries, dead letters and raw records; what is not there is refused."""
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


async def test_a_record_is_told_also_where_its_verdicts_cannot_be_read(
    milled: Milled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a domain is halted: a note says why."""

    async def two_histories(_settings: Settings, _place: object) -> None:
        raise DifferenceError(TWO_HISTORIES)

    whole = await inspect_message(milled.settings, milled.raw_topic, 0, 0)
    assert whole.pop("seen_before") == {}, "no stream of it leaves out duplicates"
    monkeypatch.setattr(reports, "seen_before", two_histories)
    assert await inspect_message(milled.settings, milled.raw_topic, 0, 0) == {**whole, "note": TWO_HISTORIES}


def test_a_segment_is_told_from_its_files_alone(milled: Milled, tmp_path: Path) -> None:
    """A sealed segment and a whole partition; a changed byte and a path that is none are refused."""
    directory = milled.settings.store / milled.train / "0"
    chain = milled.chains[milled.train, 0]

    (sealed,) = inspect_segments(directory / "000000000016.bin")
    assert (sealed["first"], sealed["blocks"], sealed["sealed"]) == (16, 16, True)
    assert (sealed["chain_before"], sealed["chain_after"]) == (chain[15].chain.hex(), chain[31].chain.hex())
    begun = [p for block in chain[16:32] for p in decode_entry(block.entry) if p.position == 0]
    assert sealed["documents"] == len(begun)
    assert sum(report["blocks"] for report in inspect_segments(directory)) == len(chain)

    copied = tmp_path / "store" / milled.train / "0"
    copied.mkdir(parents=True)
    for path in (directory.parent / "stream.json", *directory.glob("000000000016.*")):
        (copied.parent if path.name == "stream.json" else copied).joinpath(path.name).write_bytes(path.read_bytes())
    flip(copied / "000000000016.bin", 100)
    with pytest.raises(DamagedError, match="block 17, at byte 64, is not what was committed"):
        inspect_segments(copied / "000000000016.bin")
    with pytest.raises(InputError, match=r"name <store>/<stream>/<partition>/<first block>\.bin"):
        inspect_segments(tmp_path / "any.bin")


def test_the_commands_speak_to_people_and_to_pipes(milled: Milled) -> None:
    """Each command prints what it finds, and as one JSON document with --json."""

    def run(*arguments: str, settings: bool = True) -> str:
        store = ("--store", str(milled.settings.store))
        place = ("--bootstrap-servers", milled.settings.bootstrap_servers, *store) if settings else ()
        return invoke("inspect", *arguments, *place, code=0).out

    def load(*arguments: str, settings: bool = True) -> Any:
        return json.loads(run(*arguments, "--json", settings=settings))

    segment = str(milled.settings.store / milled.train / "0")
    assert f"{milled.train}/0 block {len(milled.chains[milled.train, 0]) - 1}: " in run("stream", milled.train)
    assert load("stream", milled.train)["name"] == milled.train
    assert "blocks        0 to 15" in run("segment", segment, settings=False)
    assert load("segment", segment, settings=False)[1]["first"] == 16
    assert "from token 0: " in run("message", f"tokens.{milled.train}", "0", "0")
    assert load("message", f"tokens.{milled.train}", "0", "0")["offset"] == 0
    assert f"{milled.raw_topic}[1] offset " in run("block", milled.train, "1", "2")
    assert load("block", milled.train, "1", "2")["pieces"][0]["record"]["text"]


def test_as_many_eras_are_shown_as_were_asked_for(milled: Milled) -> None:
    """The newest ones; as JSON and as a table."""
    servers = ("--bootstrap-servers", milled.settings.bootstrap_servers)

    def shown(*flags: str) -> str:
        return invoke("eras", milled.train, *servers, *flags, code=0).out

    every = [era["era"] for era in json.loads(shown("--json"))["eras"]]
    assert every == list(range(len(every)))
    assert len(every) >= 3
    assert [era["era"] for era in json.loads(shown("--json", "--last", "2"))["eras"]] == every[-2:]
    (head, row) = shown("--last", "1").splitlines()
    assert (head.split()[0], row.split()[0]) == ("era", str(every[-1]))
