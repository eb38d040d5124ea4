"""Whole verifications: all is well, or the first difference is named; what of an earlier one counts; the command."""

import asyncio
import json
import multiprocessing
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiokafka import TopicPartition

from tests.app.commands import invoke
from tests.app.segments.mirror.memory_kafka import MemoryKafka
from tests.app.tools.verify.conftest import Published, delete_before, miscounted, settled
from tests.conftest import TopicFactory
from tests.faults.altering import recreate
from tests.milled import SPLITS, Milled, all_in_eras, head, is_carry
from tests.service import Raw, Service, in_own_loop, send, service_settings
from tests.store.chains import flip, make_chain, make_info
from tokenmill.app.kafka.clients import consumer, offsets
from tokenmill.app.kafka.control_topic import settle
from tokenmill.app.kafka.dead_letters import Place, RecordPlace, SourcePlace, encode_dead_letter
from tokenmill.app.local.broker import Broker
from tokenmill.app.mill.recipes import plan_topic
from tokenmill.app.settings import Settings, dead_letter_topic
from tokenmill.app.tools import verify as verifying
from tokenmill.app.tools.verify import Advance, verification
from tokenmill.app.tools.verify.partition_check import PartitionTask, check_partitions
from tokenmill.app.tools.verify.verification import check_dead_letters
from tokenmill.app.tools.verify.verify_bounds import holds_last_block, load_verified
from tokenmill.app.tools.verify.verify_result import BlockBytes, ChainResult, compare_blocks
from tokenmill.errors import DifferenceError, FingerprintError, InputError, StoreError, TopicError
from tokenmill.reading import Acceptor, Taken
from tokenmill.wire.chain import roll
from tokenmill.wire.message import HEADER_NAME, Message, encode_header
from tokenmill.wire.pieces import decode_entry, encode_entry

verify = partial(verifying.verify, processes=1)
"""Each process imports all that it needs, and what is verified here is little."""


def bare(settings: Settings) -> Settings:
    """Return settings that know nothing but where the brokers are and what the raw topic is called."""
    return Settings(bootstrap_servers=settings.bootstrap_servers, raw_topics=settings.raw_topics)


def test_streams_that_differ_in_their_suffix_alone_are_equal_each(
    published: Published, broker: Broker, topic: TopicFactory, tmp_path: Path
) -> None:
    """They have the same splits of the same text, so each takes a pass of its own."""
    second = settled(broker, topic, tmp_path, "-v2", published.settings.raw_topics[0])
    for each, message_bytes in ((published, 256), (second, 1024)):
        for name in each.names:
            each.publish(name, each.messages(name, message_bytes))

    result = verify(bare(published.settings))

    assert result.differences == []
    assert sorted(chain.stream for chain in result.chains) == sorted([*published.names, *second.names])
    assert all(chain.topic_equal == chain.reference_blocks > 5 for chain in result.chains)
    assert all(chain.carries_equal == 1 for chain in result.chains)


def test_a_tail_that_was_cut_and_filled_again_is_verified_anew(published: Published, tmp_path: Path) -> None:
    """In fewer messages than before, all of it lies below where the last verification ended."""
    name, other = published.names
    sent = {stream: published.messages(stream, 128) for stream in published.names}
    for stream in published.names:
        published.publish(stream, sent[stream])
    store, place = published.store(sent), tmp_path / "verified.json"
    assert all(chain.complete for chain in verify(published.settings, store=store, since=place).chains)
    recreate(published.settings, f"tokens.{name}", 1)
    published.publish(name, published.messages(name, 1024))
    result = verify(published.settings, store=store, since=place)
    assert result.differences == []
    assert {chain.stream: chain.since > 0 for chain in result.chains} == {name: False, other: True}
    cut = next(chain for chain in result.chains if chain.stream == name)
    assert cut.topic_equal == cut.store_equal == cut.reference_blocks > 5
    assert any(f"{name} partition 0 was verified from its beginning" in note for note in result.notes)
    assert all(chain.since > 0 for chain in verify(published.settings, store=store, since=place).chains)


def test_what_retention_removed_is_told_and_the_rest_is_verified(published: Published) -> None:
    name, settings = published.names[0], published.settings
    sent = published.messages(name, 128)
    published.publish(name, sent)
    store, first, blocks = published.store({name: sent}), sent[3].first, sent[-1].end

    delete_before(settings, TopicPartition(f"tokens.{name}", 0), 3)
    (cut,) = verify(settings, [name], store=store).chains
    assert (cut.differences, cut.reference, cut.topic_blocks) == ([], True, (first, blocks))
    assert (cut.topic_equal, cut.store_equal) == (blocks - first, blocks)
    assert f"starts at offset 3 with block {first}" in cut.notes[0]

    delete_before(settings, TopicPartition(settings.raw_topics[0], 0), 7)
    (unread,) = verify(settings, [name], store=store).chains
    assert (unread.differences, unread.reference, unread.store_equal) == ([], False, blocks - first)
    assert "records 0 to 6 are gone" in unread.notes[0]


async def test_an_earlier_place_counts_while_its_last_block_stands_below(published: Published, tmp_path: Path) -> None:
    """Not where the topic ends before it, nor where other blocks stand there; retention may have taken all."""
    name = published.names[0]
    messages = published.messages(name, 128)
    published.publish(name, [*messages, messages[1]])  # a late writer's: the last message is not the last block
    await asyncio.to_thread(verify, published.settings, [name], since=tmp_path / "verified.json")
    verified = load_verified(tmp_path / "verified.json", None).chains[name, 0]
    tokens = TopicPartition(f"tokens.{name}", 0)
    async with consumer(published.settings) as client:
        first, end = (await offsets(client, [tokens]))[tokens]
        assert (first, end) == (0, len(messages) + 1) == (0, verified.token_offset)
        assert await holds_last_block(client, tokens, (0, end), verified)
        assert not await holds_last_block(client, tokens, (0, end - 1), verified)
        assert await holds_last_block(client, tokens, (end, end), verified)


def test_what_the_service_made_is_equal_to_the_reference(milled: Milled) -> None:
    result = verifying.verify(bare(milled.settings), store=milled.settings.store, processes=2)

    assert result.differences == []
    assert result.complete
    assert (result.lost, result.duplicated, result.behind) == (0, 0, 0)
    wanted = {chain: len(blocks) for chain, blocks in milled.chains.items()}
    assert {(c.stream, c.partition): c.topic_equal for c in result.chains} == wanted
    assert {(c.stream, c.partition): c.store_equal for c in result.chains} == wanted
    assert result.totals.balanced
    assert result.totals.records == 2 * 248  # each stream counts each record
    assert result.totals.dead_lettered.total() == 3  # each in one split
    assert {offset for c in result.chains if c.partition == 1 for offset in c.dead_letters} == {10, 11}
    assert sum(c.carries for c in result.chains) > 0
    assert sum(c.open_tokens for c in result.chains) > 0
    assert all(e.eras == e.store_eras == e.store_equal >= 3 for e in result.eras)
    assert sum(e.blocks for e in result.eras) == result.blocks
    assert all(c.era_ends >= 3 for c in result.chains)


def test_a_damaged_store_is_different_and_the_command_exits_with_1(milled: Milled, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(milled.settings.store, store)
    train, other = (store / stream.name for stream in milled.settings.streams())
    flip(train / "0" / "000000000016.bin", 64 * 3 + 5)
    flip(train / "1" / "000000000000.docs", 3)
    (other / "0" / "000000000016.bin").unlink()
    command = ["verify", "--bootstrap-servers", milled.settings.bootstrap_servers, "--raw-topics", milled.raw_topic]

    told = invoke(*command, "--store", store, code=1).out
    found = json.loads(invoke(*command, "--store", store, "--json", code=1).out)

    assert f"DIFFERENT: 3 differences, the first: store: {milled.train} partition 0, block 19, " in told
    assert [(d["side"], d["kind"], d["stream"], d["partition"], d["block"]) for d in found["differences"]] == [
        ("store", "damaged", milled.train, 0, 19),
        ("store", "damaged", milled.train, 1, 0),
        ("store", "damaged", other.name, 0, 16),
    ]
    first = found["differences"][0]
    assert first["offset"] in {p.offset for p in decode_entry(milled.chains[milled.train, 0][19].entry)}
    assert first["text"].startswith("token 5 is")
    # The topic is as it was, and was compared to its end.
    assert found["blocks"] == sum(map(len, milled.chains.values()))
    assert json.loads(invoke(*command, "--no-store", "--json", code=0).out)["blocks"] == found["blocks"]


def test_a_store_that_is_behind_is_no_difference(milled: Milled, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(milled.settings.store, store)
    for file in (store / milled.train / "0").glob("*"):
        if file.name.startswith("0000") and int(file.name[:12]) >= 32:
            file.unlink()

    result = verify(bare(milled.settings), [milled.train], store=store)

    assert (result.ok, result.complete) == (True, False)
    assert result.chains[0].store_equal == 32
    assert result.chains[0].store_behind == len(milled.chains[milled.train, 0]) - 32
    with pytest.raises(StoreError, match="there is no store"):
        verify(bare(milled.settings), store=tmp_path / "nowhere")
    with pytest.raises(TopicError, match="there is no stream 'nothing'"):
        verify(bare(milled.settings), ["nothing"])


def test_lists_of_steps_are_read_from_the_control_topic(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("bad\n")
    steps = ({"name": "words", "words": str(words)},)
    settings = service_settings(broker, topic(), tmp_path, splits={"train": 1000}, steps=steps)
    send(settings, [Raw(b"a bad text" if n % 3 == 0 else b"a good text") for n in range(90)])
    with Service(settings, tmp_path) as service:
        service.mill()
        service.wait_until(lambda: head(settings, settings.streams()[0].name, 0) is not None)
        service.wait_until(lambda: verify(settings).chains[0].behind == 0)
    words.unlink()
    (chain,) = verify(settings).chains
    assert chain.differences == []
    assert chain.totals.filtered == {"words.document_removed_with_badwords": 30}
    words.write_text("worse\n")
    plan = plan_topic(settings, settings.raw_topics[0])
    ((stream, recipe),) = plan.recipes.items()
    with pytest.raises(FingerprintError, match=r"steps: the stream has words\(words = .*, here words\("):
        in_own_loop(lambda: settle(settings, stream, recipe, plan.tokenizer.content, plan.lists))


def test_a_verification_goes_on_where_the_last_one_ended(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    """While a topic grows, each is of what is there when it begins."""
    settings = service_settings(broker, topic(), tmp_path, splits=SPLITS, carry_seconds=0.5, era_max_seconds=0.5)
    place, store = tmp_path / "verified.json", settings.store
    with Service(settings, tmp_path) as service:
        service.mill()
        service.segment()
        blocks, results, names = [], [], [stream.name for stream in settings.streams()]
        for part in (1, 2):
            send(settings, [Raw(f"a text that is number {part} {n}".encode()) for n in range(200)])
            service.wait_until(lambda: head(settings, names[0], 0) is not None)
            growing = verify(settings, store=store)
            assert (growing.differences, growing.chains[0].raw_range) == ([], (0, 200 * part))
            chains = service.wait_until_complete()
            blocks.append(sum(map(len, chains.values())))
            results.append(verify(settings, store=store, since=place))
        service.wait_until(lambda: all(is_carry(head(settings, name, 0)) for name in names))
        service.wait_until(lambda: all_in_eras(settings, chains))
        service.stop()
    results.append(verify(settings, store=store, since=place))
    assert all(chain.complete for result in results for chain in result.chains)
    assert results[2].complete  # of the others, an era may have been written a moment ago, and not be in the store yet
    assert results[0].blocks == results[0].store_blocks == blocks[0]
    assert blocks[1] - blocks[0] <= results[1].blocks < blocks[1]
    assert results[2].blocks < 20
    assert {chain.since for chain in results[0].chains} == {0}
    assert all(200 < chain.since <= 400 for chain in results[2].chains)
    assert results[2].totals.records == 2 * 400
    assert [eras.since for eras in results[0].eras] == [0, 0]
    assert all(0 < eras.since <= eras.eras for eras in results[2].eras)  # equal: the last had come to the one before
    assert [result.differences for result in results] == [[], [], []]
    known = place.read_bytes()

    flip(store / names[0] / "0" / "000000000000.bin", 7)
    assert verify(settings, store=store, since=place).ok
    assert not verify(settings, store=store).ok
    publish_false_carry(settings, names[0])
    found = verify(settings, store=store, since=place)
    assert [(d.side, d.kind, d.stream) for d in found.differences] == [("topic", "account", names[0])]
    assert "counts" in found.differences[0].text
    assert place.read_bytes() == known
    publish_false_carry(settings, names[0], further=1)
    invoke(*("ledger", "--bootstrap-servers", broker.bootstrap_servers, "--raw-topics", settings.raw_topics[0]), code=8)

    with pytest.raises(InputError, match="and now it is the topics alone: give each a file of its own"):
        verify(settings, since=place)
    place.write_text(place.read_text().replace('"carry": "', '"carry": "AAAA'))
    with pytest.raises(InputError, match="is not what a verification left"):
        verify(settings, store=store, since=place)


def test_the_first_difference_of_a_block_is_named_by_its_document() -> None:
    info = make_info(block_tokens=8)
    chain = make_chain(info, 1)
    expected = BlockBytes(bytes(chain.tokens), chain.entries[0], chain.chains[0])
    pieces = decode_entry(expected.entry)
    tokens = np.frombuffer(expected.tokens, info.dtype).copy()
    tokens[pieces[1].start] ^= 1

    def with_offset(step: int) -> BlockBytes:
        moved = [pieces[0], replace(pieces[1], offset=pieces[1].offset + step), *pieces[2:]]
        return expected._replace(entry=encode_entry(moved))

    renamed = encode_entry([replace(pieces[0], meta=b'{"id":"another"}'), *pieces[1:]])
    for other, kind, offset in (
        (expected._replace(tokens=tokens.tobytes()), "different", pieces[1].offset),
        (with_offset(-1), "repeated", pieces[1].offset),
        (with_offset(1), "skipped", pieces[1].offset),
        (expected._replace(entry=renamed), "different", pieces[0].offset),
    ):
        found = compare_blocks(expected, other, info.dtype)
        assert found is not None
        assert (found.kind, found.offset) == (kind, offset)
    assert compare_blocks(expected, expected, info.dtype) is None


def publish_false_carry(settings: Settings, stream: str, further: int = 0) -> None:
    """Publish a carry for the end of partition 0, or ``further`` on, that counts a tombstone too many."""
    last = head(settings, stream, 0)
    assert last is not None
    assert last.is_carry
    false = miscounted(replace(last, cursor=replace(last.cursor, next_offset=last.cursor.next_offset + further)))
    send(settings, [Raw(b"", 0, None, [(HEADER_NAME, encode_header(false))])], f"tokens.{stream}")


def verified(milled: Milled, *flags: str) -> dict[str, Any]:
    place = ["--bootstrap-servers", milled.settings.bootstrap_servers, "--raw-topics", milled.raw_topic]
    told = invoke("verify", *place, "--stream", milled.train, "--no-store", "--json", *flags, code=0)
    found: dict[str, Any] = json.loads(told.out)
    return found


def test_since_begins_where_the_last_one_ended_and_never_that_of_another_stream(milled: Milled, tmp_path: Path) -> None:
    place = tmp_path / "verified.json"
    first = verified(milled, "--since", str(place))
    assert place.exists()
    again = verified(milled, "--since", str(place))
    chains = [(chain["stream"], chain["partition"], chain["since"], chain["store_blocks"]) for chain in first["chains"]]
    assert chains == [(milled.train, 0, 0, None), (milled.train, 1, 0, None)]
    assert all(chain["since"] == chain["raw_range"][1] for chain in again["chains"])
    assert first["blocks"] > again["blocks"]
    other = milled.settings.streams()[1].name
    place.write_text(place.read_text().replace(milled.train, other))
    with pytest.raises(InputError, match=f"is about another stream {other}"):
        verify(bare(milled.settings), [other], since=place)


def test_reference_computes_every_record_and_a_sample_does_not(published: Published) -> None:
    """Of more text than the first run of a sample is long."""
    send(published.settings, [Raw(f"{number} ".encode() * 1000) for number in range(150)])
    name = published.names[0]
    messages = published.messages(name, 1 << 14)
    for first in range(0, len(messages), 2):  # one batch may not be larger than one message may be
        published.publish(name, messages[first : first + 2])

    sample = verify(published.settings, [name], seed=5)
    full = verify(published.settings, [name], reference=True)

    (sampled,), (whole,) = sample.chains, full.chains
    assert (whole.sampled, whole.sampled_blocks) == ([(0, whole.raw_range[1])], full.blocks)
    assert sampled.sampled[0][0] == 0
    assert sampled.sampled[0][1] < whole.raw_range[1]
    assert 0 < sampled.sampled_blocks < sample.blocks == full.blocks


def test_reference_processes_and_seed_are_as_asked_for(milled: Milled, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[set[bool], int]] = []  # whether everything is computed again, and by how many processes

    def check(tasks: Sequence[PartitionTask], processes: int) -> Iterator[tuple[int, Advance | list[ChainResult]]]:
        before, most = len(multiprocessing.active_children()), 0
        for answer in check_partitions(tasks, processes):
            most = max(most, len(multiprocessing.active_children()) - before)
            yield answer
        seen.append(({task.sample.everything for task in tasks}, most))

    monkeypatch.setattr(verification, "check_partitions", check)
    asked = verified(milled, "--reference", "--processes", "1", "--sample-seed", "5")
    plain = verified(milled, "--processes", "9")
    assert seen == [({True}, 1), ({False}, 2)]
    assert asked["sample_seed"] == 5 != plain["sample_seed"]


def forged(message: Message, block_bytes: int) -> Message:
    """Return a message in place of another one, as somebody makes it who knows docs/format.md and may write."""
    tokens = (b"of nobody " * block_bytes)[: block_bytes * message.count]
    return replace(message, tokens=tokens, after=roll(message.before, tokens, message.entries)[-1])


@pytest.mark.parametrize("since", [False, True], ids=["whole", "since"])
@pytest.mark.cases(1)
def test_verify_finds_a_forged_message_that_readers_take(published: Published, tmp_path: Path, *, since: bool) -> None:
    name, other = published.names
    honest, others = published.messages(name, 128), published.messages(other, 128)
    at = len(honest) // 2
    published.publish(other, others)
    published.publish(name, honest[:at])
    place = tmp_path / "verified.json" if since else None  # of the topics alone; a store has a file of its own
    assert verify(published.settings, since=place).differences == []
    recipe = next(recipe for stream, recipe in published.plan.recipes.items() if stream.name == name)
    rogue = forged(honest[at], recipe.block_bytes)

    published.publish(name, [rogue])
    store = published.store({name: [*honest[:at], rogue], other: others})
    halted = Acceptor(recipe.fingerprint, 0, recipe.block_bytes, block=rogue.first, chain=rogue.before)
    assert isinstance(halted.offer(rogue), Taken)
    with pytest.raises(DifferenceError):
        halted.offer(honest[at])

    result = verify(published.settings, store=None if since else store, since=place)

    wanted = [(side, "different", name, rogue.first) for side in (["topic"] if since else ["topic", "store"])]
    assert [(found.side, found.kind, found.stream, found.block) for found in result.differences] == wanted
    assert any(chain.since > 0 for chain in result.chains) == since


RAW = "raw"
TOPIC = dead_letter_topic(RAW)


def chain(stream: str, partition: int, offsets: Collection[int]) -> ChainResult:
    result = ChainResult(stream, partition, RAW, (0, 99), (0, 99))
    result.dead_letters.extend(offsets)
    return result


def written(kafka: MemoryKafka, places: Sequence[tuple[int, Place]]) -> None:
    for partition, place in places:
        headers = encode_dead_letter(place, reason="invalid_utf8", detail="", timestamp=0)
        kafka.append(TOPIC, partition, b"", headers=headers)


def record(offset: int, partition: int = 0, topic: str = RAW) -> RecordPlace:
    return RecordPlace(topic, partition, offset)


CHAINS = [chain("raw.train", 0, {3, 8}), chain("raw.train", 1, {8}), chain("raw.held", 0, {5})]
ALL = [(0, record(3)), (1, record(8)), (0, record(8, 1)), (1, record(5))]
"""All that these want, on whichever partition."""


@pytest.mark.parametrize(
    ("places", "missing"),
    [
        (ALL, []),
        ([*ALL, *ALL, (0, record(77)), (0, SourcePlace(RAW, "ab", "file:8"))], []),
        (ALL[1:], [("raw.train", 0, 3)]),
        (ALL[:3], [("raw.held", 0, 5)]),
        ([*ALL[:2], ALL[3]], [("raw.train", 1, 8)]),
        ([*ALL[1:], (0, record(3, topic="another"))], [("raw.train", 0, 3)]),
        ([*ALL[1:], (0, record(3, partition=1))], [("raw.train", 0, 3)]),
        ([*ALL[1:], (0, SourcePlace(RAW, "ab", "3"))], [("raw.train", 0, 3)]),
        ([], [("raw.train", 0, 3), ("raw.train", 1, 8)]),
    ],
)
async def test_what_is_not_there_is_named_by_partition(
    kafka: MemoryKafka, places: Sequence[tuple[int, Place]], missing: Sequence[tuple[str, int, int]]
) -> None:
    kafka.append(TOPIC, 0, b"no letter")
    kafka.append(TOPIC, 1, b"no letter")
    written(kafka, places)
    spans = {tp.partition: (0, len(log)) for tp, log in kafka.logs.items()}
    differences, notes = await check_dead_letters(Settings(), RAW, CHAINS, spans)
    assert [(found.stream, found.partition, found.offset) for found in differences] == missing
    assert notes == []


@pytest.mark.parametrize(
    ("spans", "noted"), [({0: (2, 3), 1: (0, 1)}, True), ({0: (0, 3), 1: (0, 1)}, False), ({0: (0, 1)}, False)]
)
async def test_what_retention_may_have_removed_is_a_note(
    kafka: MemoryKafka, spans: Mapping[int, tuple[int, int]], *, noted: bool
) -> None:
    """Only where a partition of the topic begins later, and something is missing; letters above the mark are none."""
    written(kafka, [*((0, record(offset)) for offset in (77, 3, 77)), *((1, place) for _, place in ALL[1:])])
    differences, notes = await check_dead_letters(Settings(), RAW, CHAINS, spans)
    assert (bool(notes), bool(differences)) == (noted, not noted)
    if noted:
        assert notes[0].startswith("3 dead letters could not be found")
        assert notes[0].endswith(f"{TOPIC}[0] starts at offset 2")
    assert await check_dead_letters(Settings(), RAW, CHAINS, {0: (1, 3), 1: (0, 3)}) == ([], [])


@pytest.mark.parametrize(("wanted", "spans", "count"), [(CHAINS, None, 2), ([], {0: (0, 5)}, 0)])
async def test_nobody_is_asked_where_there_is_nothing_to_find(wanted: Any, spans: Any, count: int) -> None:
    differences, _ = await check_dead_letters(Settings(bootstrap_servers="127.0.0.1:1"), RAW, wanted, spans)
    assert len(differences) == count


@pytest.mark.parametrize(
    ("offsets", "end"), [({5}, "dead-lettered"), ({5, 9}, "(nor 1 more of the partition)"), ({7, 5, 9}, "(nor 2 more ")]
)
async def test_the_first_missing_one_is_named_and_the_others_counted(offsets: set[int], end: str) -> None:
    differences, notes = await check_dead_letters(Settings(), RAW, [chain("raw.train", 0, offsets)], None)
    assert not notes
    assert [(found.offset, found.partition) for found in differences] == [(5, 0)]
    assert end in differences[0].text
    assert "nor 0" not in differences[0].text
