"""The ledger: what the last messages say is what the reference counts, and sums that do not balance are called so."""

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

from tests.app.commands import invoke
from tests.app.tools.verify.published import settle_streams
from tests.conftest import TopicFactory
from tests.milled import SPLITS, Milled
from tests.mills import RECIPE
from tests.service import Raw, raw_records, send, service_settings
from tokenmill.app.kafka.control_log import ControlLog
from tokenmill.app.kafka.control_topic import Settled, unsettled
from tokenmill.app.local.broker import Broker
from tokenmill.app.mill.recipes import plan_topic
from tokenmill.app.milling.reference import Reference
from tokenmill.app.settings import Settings, Stream
from tokenmill.app.tools.inspect.record_ledger import (
    ChainLedger,
    RawPartitionAccount,
    RecordLedger,
    raw_partition_accounts,
    read_ledger,
)
from tokenmill.app.tools.inspect.tracing import passing_records
from tokenmill.recipe import Genesis
from tokenmill.wire.totals import Totals


async def test_the_ledger_is_what_the_reference_counts(milled: Milled) -> None:
    """Of each chain up to its offset: records, tokens in blocks and in the open block, and padding."""
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


def test_the_tail_says_why_a_document_is_left_out_and_which_tokens_a_kept_one_became(
    broker: Broker, topic: TopicFactory, tmp_path: Path
) -> None:
    """Before any mill has come to it: of a kept document, a filtered one and a dead letter; with --json the same."""
    raw, steps = topic(), ({"name": "length", "min_words": 3},)
    settings = service_settings(broker, raw, tmp_path, splits={"train": 1000}, steps=steps)
    settle_streams(settings)
    send(settings, [Raw(b"a text of five words"), Raw(b"two words"), Raw(b"\xff no UTF-8"), Raw(b'{"text": 1}')])
    command = ("tail", raw, "--bootstrap-servers", settings.bootstrap_servers)
    said = [line.partition(f"{raw}/0/")[2] or line for line in invoke(*command).out.splitlines()]
    ids = list(b"a text of five words")
    assert said[:3] == [
        f"0  kept (train), {len(ids)} tokens, 20 B",
        "  'a text of five words'",
        f"  {' '.join(map(str, ids[:12]))} …",
    ]
    assert said[3].startswith("1  filtered out (train): length.min_words")
    assert said[4] == "  'two words'"
    assert said[5].startswith("2  dead letter (train): invalid_utf8")
    assert said[-2].startswith("3  dead letter (train): wrong_type")
    assert invoke(*command, "--follow", "--limit", "2").out.splitlines()[-1] == "  'two words'"
    outcomes = [json.loads(line)["outcome"] for line in invoke(*command, "--json").out.splitlines()]
    assert [outcome["kind"] for outcome in outcomes] == ["kept", "filtered", "dead_lettered", "dead_lettered"]
    assert [outcome["tokens"] for outcome in outcomes] == [ids, [], [], []]
    assert [outcome["reason"].split(":")[0] for outcome in outcomes] == [
        "", "length.min_words", "invalid_utf8", "wrong_type",
    ]  # fmt: skip


def test_the_tail_goes_by_the_stream_of_the_settings(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    """Where a raw topic has streams of several suffixes; without one of ours, by the first."""
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


def test_the_command_prints_the_equation(milled: Milled) -> None:
    """For people a row each and the reasons; with --json the same for pipes."""
    place = ["--bootstrap-servers", milled.settings.bootstrap_servers, "--raw-topics", milled.raw_topic]
    table = invoke("ledger", *place, code=0).out
    found = json.loads(invoke("ledger", *place, "--json", "--stream", milled.train).out)
    assert f"{milled.train} in all" in table
    assert re.search(r"^dead letter +invalid_utf8 +\d+$", table, re.MULTILINE)
    assert table.count("Data retention: ") == 1  # of all streams; --all has each
    assert found["balanced"]
    assert [chain["stream"] for chain in found["chains"]] == [milled.train] * 2
    for chain in found["chains"]:
        parts = chain["kept"] + chain["tombstones"] + chain["flushes"] + chain["other_split"]
        assert chain["records"] == parts + sum(chain["filtered"].values()) + sum(chain["dead_lettered"].values())


def test_a_record_or_a_token_too_many_does_not_balance() -> None:
    """Padding without a flush, more tokens than there are, a record in no column."""
    good = ChainLedger("s", "raw", 0, 9, blocks=2, block_tokens=20, open_tokens=3, totals=Totals(3, 3, tokens=23))
    assert good.balanced
    assert good.padding == 0
    for totals in (Totals(3, 3, tokens=22), Totals(3, 3, tokens=24), Totals(4, 3, tokens=23)):
        assert not replace(good, totals=totals).balanced
    flushed = replace(good, totals=Totals(4, 3, flushes=1, tokens=20))
    assert flushed.balanced
    assert flushed.padding == 3
    assert replace(good, taken=2, totals=Totals(2, 2, tokens=21)).balanced
    assert not RecordLedger([replace(good, totals=Totals(4, 3))], []).balanced


def test_sums_over_streams_are_made_at_equal_offsets_alone() -> None:
    """There each record is one stream's, all streams', or nobody's; elsewhere nothing is said."""
    settled = [_settled(split) for split in ("train", "validation")]
    train = ChainLedger("raw.train", "raw", 0, 10, totals=Totals(10, 5, tombstones=1, other_split=4))
    other = ChainLedger("raw.validation", "raw", 0, 10, totals=Totals(10, 2, tombstones=1, other_split=7))

    (raw_account,) = raw_partition_accounts(settled, [train, other])
    assert (raw_account.records, raw_account.owned, raw_account.shared, raw_account.unowned) == (10, 7, 1, 2)
    assert raw_account.balanced

    (apart,) = raw_partition_accounts(settled, [train, replace(other, offset=11)])
    assert apart == RawPartitionAccount("raw", 0, {"raw.train": 10, "raw.validation": 11}, None)
    assert apart.balanced

    (claimed,) = raw_partition_accounts(settled, [train, replace(other, totals=Totals(10, 9, tombstones=1))])
    assert not claimed.balanced


def test_streams_of_another_suffix_divide_the_records_once_more() -> None:
    """Two pairs of streams with equal settings are two divisions; as one, they would claim each record twice."""
    settled = [_settled(split, suffix) for suffix in ("", "-v2") for split in ("train", "validation")]
    chains = [
        ChainLedger(f"raw.{split}{suffix}", "raw-text", 0, 10, totals=totals)
        for suffix in ("", "-v2")
        for split, totals in (("train", Totals(10, 6, other_split=4)), ("validation", Totals(10, 4, other_split=6)))
    ]

    found = raw_partition_accounts(settled, chains)

    assert [sorted(raw_account.offsets) for raw_account in found] == [
        ["raw.train", "raw.validation"],
        ["raw.train-v2", "raw.validation-v2"],
    ]
    assert [(raw_account.records, raw_account.owned, raw_account.unowned) for raw_account in found] == [(10, 10, 0)] * 2


def test_a_first_use_is_answered_in_one_line(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    """Streams are settled, and nothing is milled yet: no table of zeros; for pipes, all zeros are there."""
    settings = service_settings(broker, topic(2), tmp_path, splits=SPLITS)
    settle_streams(settings)
    place = ["--bootstrap-servers", settings.bootstrap_servers, "--raw-topics", settings.raw_topics[0]]
    said = invoke("ledger", *place, code=0)
    found = json.loads(invoke("ledger", *place, "--json").out)
    assert said.out == ""
    assert said.err == (
        f"tokenmill: no block holds a record of {settings.raw_topics[0]} yet (2 streams); tokenmill flush fills the "
        "open ones with padding\n"
    )
    assert [(chain["partition"], chain["offset"]) for chain in found["chains"]] == [(0, 0), (1, 0)] * 2


def test_nothing_settled_at_all_is_one_line_on_a_small_terminal() -> None:
    """Other streams there are named instead, for the name may be misspelt."""
    line = unsettled(["raw-text"], [], ["raw-text.train"])
    assert line == "no stream of raw-text is settled yet: start a mill, `tokenmill serve`"
    assert len(f"tokenmill: {line}") <= 80
    assert "(streams there: other.train): set raw_topics" in unsettled(["raw-text"], ["other.train"], ["other.train"])


def _settled(split: str, suffix: str = "") -> Settled:
    recipe = replace(RECIPE, split=split, splits=tuple(SPLITS.items()))
    return Settled(Stream(f"raw.{split}{suffix}", "raw", split), Genesis("x", recipe, (0,), 16), ControlLog())
