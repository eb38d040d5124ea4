"""Verification: it says so when all is well, and names the first difference when something is not."""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.app.commands import invoke
from tests.conftest import TopicFactory
from tests.milled import SPLITS, Milled, all_in_eras, head, is_carry
from tests.service import Raw, Service, in_own_loop, send, service_settings
from tests.store.chains import flip, make_chain, make_info
from tokenmill.app.kafka.control_topic import settle
from tokenmill.app.local.broker import Broker
from tokenmill.app.mill.recipes import plan_topic
from tokenmill.app.settings import Settings
from tokenmill.app.tools import verify as verifying
from tokenmill.app.tools.verify import VerifyResult
from tokenmill.app.tools.verify.verify_result import BlockBytes, compare_blocks
from tokenmill.errors import FingerprintError, InputError, StoreError, TopicError
from tokenmill.wire.message import HEADER_NAME, Message, encode_header
from tokenmill.wire.pieces import decode_entry, encode_entry

verify = partial(verifying.verify, processes=1)
"""Each process imports all that it needs, and what is verified here is little."""


def bare(milled: Milled) -> Settings:
    """Return settings that know nothing but where the brokers are and what the raw topic is called."""
    return Settings(bootstrap_servers=milled.settings.bootstrap_servers, raw_topics=(milled.raw_topic,))


def test_what_the_service_made_is_equal_to_the_reference(milled: Milled) -> None:
    """All blocks of topic and store are equal; records are all accounted for, and what waits is told."""
    result = verifying.verify(bare(milled), store=milled.settings.store, processes=2)

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
    """A changed token, a changed document table and a missing segment are each found, in the block where they are."""
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
    """Blocks that have yet to reach the store are counted; a store of other topics is refused."""
    store = tmp_path / "store"
    shutil.copytree(milled.settings.store, store)
    for file in (store / milled.train / "0").glob("*"):
        if file.name.startswith("0000") and int(file.name[:12]) >= 32:
            file.unlink()

    result = verify(bare(milled), [milled.train], store=store)

    assert result.ok
    assert not result.complete
    assert result.chains[0].store_equal == 32
    assert result.chains[0].store_behind == len(milled.chains[milled.train, 0]) - 32
    with pytest.raises(StoreError, match="there is no store"):
        verify(bare(milled), store=tmp_path / "nowhere")
    with pytest.raises(TopicError, match="there is no stream 'nothing'"):
        verify(bare(milled), ["nothing"])


def test_lists_of_steps_are_read_from_the_control_topic(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    """Who verifies needs no file; a worker with another content is refused."""
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


@pytest.mark.needs("minutes")
def test_an_ever_growing_topic_is_verified_up_to_a_mark(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    """While documents flow, what stands in topic and store is a prefix of the reference; the end is told."""
    settings = service_settings(broker, topic(), tmp_path)
    with Service(settings, tmp_path) as service:
        service.mill()
        service.segment()
        results: list[VerifyResult] = []
        for number in range(2):
            send(settings, [Raw(f"a text of the flood {number} {n}".encode()) for n in range(400)])
            service.wait_until(lambda: head(settings, settings.streams()[0].name, 0) is not None)
            results.append(verify(settings, store=settings.store))
        chains = service.wait_until_complete()
        service.wait_until(lambda: all_in_eras(settings, chains))
    results.append(verify(settings, store=settings.store))

    assert [result.differences for result in results] == [[], [], []]
    assert [result.chains[0].raw_range[1] for result in results] == [400, 800, 800]
    assert results[-1].complete


def test_a_verification_goes_on_where_the_last_one_ended(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    """It looks at what is new, finds what is wrong there, and leaves its place alone if anything is."""
    settings = service_settings(broker, topic(), tmp_path, splits=SPLITS, carry_seconds=0.5, era_max_seconds=0.5)
    place, store = tmp_path / "verified.json", settings.store
    with Service(settings, tmp_path) as service:
        service.mill()
        service.segment()
        blocks = []
        results = []
        for part in range(2):
            send(settings, [Raw(f"a text that is number {part} {n}".encode()) for n in range(200)])
            blocks.append(sum(map(len, service.wait_until_complete().values())))
            results.append(verify(settings, store=store, since=place))
        names = [stream.name for stream in settings.streams()]
        service.wait_until(lambda: all(is_carry(head(settings, name, 0)) for name in names))
        service.stop()
    results.append(verify(settings, store=store, since=place))
    # Not `complete`: an era may have been written a moment ago, and the store have yet to get it.
    assert all(chain.complete for result in results for chain in result.chains)
    assert results[0].blocks == results[0].store_blocks == blocks[0]
    assert blocks[1] - blocks[0] <= results[1].blocks < blocks[1]
    assert results[2].blocks < 20
    assert {chain.since for chain in results[0].chains} == {0}
    assert all(200 < chain.since <= 400 for chain in results[2].chains)
    assert results[2].totals.records == 2 * 400
    assert [eras.since for eras in results[0].eras] == [0, 0]
    assert all(0 < eras.since <= eras.eras for eras in results[2].eras)  # equal: the last had come to the one before
    assert all(difference == [] for difference in (result.differences for result in results))
    known = place.read_bytes()

    flip(store / names[0] / "0" / "000000000000.bin", 7)
    assert verify(settings, store=store, since=place).ok
    assert not verify(settings, store=store).ok
    publish(settings, names[0], 0, false_carry(settings, names[0]))
    found = verify(settings, store=store, since=place)
    assert [(d.side, d.kind, d.stream) for d in found.differences] == [("topic", "account", names[0])]
    assert "counts" in found.differences[0].text
    assert place.read_bytes() == known
    publish(settings, names[0], 0, false_carry(settings, names[0], further=1))
    servers = ("--bootstrap-servers", broker.bootstrap_servers)
    invoke("ledger", *servers, "--raw-topics", settings.raw_topics[0], code=8)

    with pytest.raises(InputError, match="and now it is the topics alone: give each a file of its own"):
        verify(settings, since=place)
    place.write_text(place.read_text().replace('"carry": "', '"carry": "AAAA'))
    with pytest.raises(InputError, match="is not what a verification left"):
        verify(settings, store=store, since=place)


def test_the_place_of_another_stream_is_refused(milled: Milled, tmp_path: Path) -> None:
    """Tokens of another making are not what was verified."""
    place = tmp_path / "verified.json"
    assert verify(bare(milled), [milled.train], since=place).ok
    other = milled.settings.streams()[1].name
    place.write_text(place.read_text().replace(milled.train, other))
    with pytest.raises(InputError, match=f"is about another stream {other}"):
        verify(bare(milled), [other], since=place)


def test_the_first_difference_of_a_block_is_named_by_its_document() -> None:
    """Another token, a document that came twice or was left out, another id: each is told apart."""
    info = make_info(block_tokens=8)
    chain = make_chain(info, 1)
    expected = BlockBytes(bytes(chain.tokens), chain.entries[0], chain.chains[0])
    pieces = decode_entry(expected.entry)

    tokens = np.frombuffer(expected.tokens, info.dtype).copy()
    tokens[pieces[1].start] ^= 1
    changed = compare_blocks(expected, expected._replace(tokens=tokens.tobytes()), info.dtype)
    assert changed is not None
    assert (changed.kind, changed.offset) == ("different", pieces[1].offset)

    for step, kind in ((-1, "repeated"), (1, "skipped")):
        moved = [pieces[0], replace(pieces[1], offset=pieces[1].offset + step), *pieces[2:]]
        found = compare_blocks(expected, expected._replace(entry=encode_entry(moved)), info.dtype)
        assert found is not None
        assert (found.kind, found.offset) == (kind, pieces[1].offset)

    renamed = [replace(pieces[0], meta=b'{"id":"another"}'), *pieces[1:]]
    found = compare_blocks(expected, expected._replace(entry=encode_entry(renamed)), info.dtype)
    assert found is not None
    assert found.kind == "different"
    assert compare_blocks(expected, expected, info.dtype) is None


def publish(settings: Settings, stream: str, partition: int, message: Message) -> None:
    """Put a message on a token topic."""
    headers = [(HEADER_NAME, encode_header(message))]
    send(settings, [Raw(bytes(message.tokens), partition, None, headers)], f"tokens.{stream}")


def false_carry(settings: Settings, stream: str, further: int = 0) -> Message:
    """Return a carry for the end of partition 0, or ``further`` on, that counts a tombstone too many."""
    last = head(settings, stream, 0)
    assert last is not None
    assert last.is_carry
    totals = last.totals.copy()
    totals.tombstones += 1
    cursor = replace(last.cursor, next_offset=last.cursor.next_offset + further)
    return replace(last, totals=totals, cursor=cursor)
