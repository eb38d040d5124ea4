"""A partition whose records name schemas: it waits for the registry, and for nothing else does it make a difference."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from tests.app.conftest import until
from tests.app.kafka.test_control_topic import settled
from tests.app.mill.conftest import World, WorldFactory, batch, resumed
from tests.app.milling.decoding.opened import Registry, avro, framed, opened, written
from tests.app.milling.tokenizers.conftest import words
from tests.conftest import TopicFactory
from tests.marked import until as wait_until
from tests.registry_servers import SmallRegistry, small_registry
from tests.service import Raw, Service, in_own_loop, reference_blocks, send, service_settings
from tests.vocabularies import gemma_style
from tokenmill.app.kafka.control_log import skip_record
from tokenmill.app.kafka.control_topic import settle, settled_recipe, write_control
from tokenmill.app.local.broker import Broker
from tokenmill.app.mill.recipes import SchemaWait, plan_topic
from tokenmill.app.milling.decoding import FramedDecoder, RegisteredSchema
from tokenmill.app.settings import Settings
from tokenmill.app.tools.failed_records import skip, skip_schema
from tokenmill.app.tools.inspect.tracing import trace_block
from tokenmill.app.tools.verify.verification import verify
from tokenmill.documents import Record
from tokenmill.errors import InputError, RegistryError

TEXT: Any = {"type": "record", "name": "T", "fields": [{"name": "text", "type": "string"}]}
NEWER: Any = {**TEXT, "fields": [{"name": "id", "type": "long"}, *TEXT["fields"]]}


@pytest.fixture
def registry() -> Iterator[SmallRegistry]:
    with small_registry() as small:
        small.register("pages-value", json.dumps(TEXT))
        small.register("pages-value", json.dumps(NEWER))
        yield small


@pytest.fixture
def settings(registry: SmallRegistry, broker: Broker, topic: TopicFactory, tmp_path: Path) -> Settings:
    return service_settings(
        broker, topic(), tmp_path, splits={"train": 1000}, decode="avro", schema_registry_url=registry.url
    )


OLD = [framed(written(TEXT, {"text": f"old page {number}"})) for number in range(20)]
NEW = [framed(written(NEWER, {"text": f"new page {number}", "id": number}), 2) for number in range(20)]
VALUES = [*OLD, b"no frame", None, framed(b"\x09"), *NEW]
"""Of records of both schemas, and of some that are none."""
LOST = framed(b"", 77)
WITH_LOST = [LOST, *VALUES, LOST, LOST]


@pytest.mark.slow
def test_a_stream_that_was_settled_by_earlier_rules_goes_on_by_them(
    broker: Broker, topic: TopicFactory, tmp_path: Path
) -> None:
    """Where a step's rules have changed since, its fingerprint stays, and a mill that starts takes it up."""
    settings = service_settings(
        broker, topic(1), tmp_path, splits={"train": 1000}, steps=[{"name": "language", "languages": ["en"]}]
    )
    raw_topic, (stream,) = settings.raw_topics[0], settings.streams()
    newest = plan_topic(settings, raw_topic).recipes[stream]
    rules = [{**step, "version": 1} if step["name"] == "language" else step for step in newest.steps]
    before = replace(newest, steps=tuple(rules))
    assert in_own_loop(lambda: settled_recipe(settings, raw_topic)) is None
    in_own_loop(lambda: settle(settings, stream, before, None))
    assert in_own_loop(lambda: settled_recipe(settings, raw_topic)) == before
    plan = plan_topic(settings, raw_topic, before)
    assert plan.recipes[stream] == before != newest
    with Service(settings, tmp_path) as service:
        (mill,) = service.mill()
        mine = f"{raw_topic}/0"
        assert wait_until(lambda: mine in mill.partitions or not mill.running, 60), mill.log
        assert mill.running, mill.log


async def test_a_schema_that_another_partition_learns_meanwhile_is_learned() -> None:
    """Both meet it in the same moment, and have one decoder."""
    source, worked = Registry({3: avro(TEXT)}), []
    decoder, schema = opened("avro", schemas=source), source.schema

    def while_another_learns(number: int) -> RegisteredSchema:
        source.schema = schema  # type: ignore[method-assign]
        decoder.learn(number)  # type: ignore[attr-defined]
        return schema(number)

    source.schema = while_another_learns  # type: ignore[method-assign]
    wait = SchemaWait(
        cast("FramedDecoder", decoder),
        *("raw[0]", lambda _: None, lambda first, last, learn: worked.append((first, last, learn()))),
    )
    value = framed(written(TEXT, {"text": "a page"}), 3)
    await wait.learn([Record(7, 0, None, b"no frame"), Record(8, 0, None, value)], 0)
    assert (worked, decoder(value).text) == ([(8, 8, None)], "a page")


@pytest.fixture
def world(registry: SmallRegistry, make_world: WorldFactory) -> World:
    return make_world({"train": 1000}, decode="avro", schema_registry_url=registry.url)


async def test_partition_waits_for_a_registry_that_is_away(
    registry: SmallRegistry, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenmill.app.mill.raw_partition.HANG_SECONDS", 0.05)
    registry.stop()
    with capture_logs() as logs:
        async with resumed(world) as partition:
            fed = asyncio.create_task(partition.feed(batch(*VALUES)))
            await until(lambda: "offset 0 of " in str(partition.waiting))
            await until(lambda: "does not answer" in str(partition.waiting))
            registry.start()
            registry.status = 503
            await until(lambda: "503" in str(partition.waiting))
            await partition.tick()
            assert (partition.halted, partition.position) == (None, 0)
            assert partition.progress().state == "waiting"
            registry.status = 0
            await fed
            assert (partition.waiting, partition.position) == (None, len(VALUES))
            assert partition._mill is not None
            totals = partition._mill.chains["train"].totals
            assert (totals.kept, totals.tombstones) == (40, 1)
            assert totals.dead_lettered == {"not_framed": 1, "schema_mismatch": 1}
    said = [line["reason"] for line in logs if line["event"] == "waiting for the schema registry"]
    assert len(said) == len(set(said)) == 2  # once for each state, however often it was tried
    assert [line["schema"] for line in logs if line["event"] == "the schema registry has answered"] == [1]


async def test_schema_that_is_lost_waits_for_a_person(world: World) -> None:
    async with resumed(world) as partition:
        fed = asyncio.create_task(partition.feed(batch(*WITH_LOST)))
        await until(lambda: "offset 0 of " in str(partition.waiting))
        await until(lambda: "schema 77 is not in the schema registry" in str(partition.waiting))
        await until(lambda: "tokenmill skip TOPIC --schema-id" in str(partition.waiting))
        fed.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fed
        assert partition.waiting is None
    world.skipped = frozenset(at for at, value in enumerate(WITH_LOST) if value == LOST)
    async with resumed(world) as partition:  # the next owner, who takes the wish over
        await partition.feed(batch(*WITH_LOST))
        assert partition._mill is not None
        assert partition._mill.chains["train"].totals.dead_lettered["skipped"] == 3


async def test_all_records_that_name_a_schema_can_be_skipped(settings: Settings) -> None:
    raw_topic, (stream,) = settings.raw_topics[0], settings.streams()
    send(settings, map(Raw, WITH_LOST))
    settled(settings)
    await skip(settings, raw_topic, 0, len(WITH_LOST) - 1)
    assert await skip_schema(settings, raw_topic, 77) == {0: 3}
    skips = [skip_record(0, at) for at, value in enumerate(WITH_LOST) if value == LOST]
    await write_control(settings, stream.control_topic, skips)  # as a mill does
    for wanted in ((78,), (77, 1), (77,)):  # none, of another partition, and all are skipped already
        with pytest.raises(InputError, match="holds no record of schema"):
            await skip_schema(settings, raw_topic, *wanted)


async def test_partition_that_is_given_up_while_it_waits_mills_nothing(registry: SmallRegistry, world: World) -> None:
    """Another worker has it then, or another object here: what waits for this one would keep all from that."""
    registry.status = 500
    async with resumed(world) as partition:
        fed = asyncio.create_task(partition.feed(batch(*VALUES)))
        await until(lambda: "500" in str(partition.waiting))
        partition.stop()
        await fed  # though the registry is still away: Faust's actor is needed for the next assignment
        assert partition.position == 0


@pytest.mark.needs("minutes")
def test_mill_whose_registry_comes_and_goes_makes_the_blocks_of_the_reference(
    registry: SmallRegistry, settings: Settings, tmp_path: Path
) -> None:
    sent = [Raw(value) for value in VALUES]
    registry.stop()
    send(settings, sent[:10])
    with Service(settings, tmp_path) as service:
        (mill,) = service.mill()
        service.segment()
        service.wait_until(lambda: "does not answer" in str(mill.partitions))
        registry.start()
        send(settings, sent[10:])
        service.wait_until_complete()
        registry.stop()
        send(settings, sent)  # of known schemas: nothing is asked any more
        registry.start()
        expected = service.wait_until_complete()
        assert mill.running
        service.stop()
    assert sum(map(len, expected.values())) > 10
    result = verify(settings, store=settings.store, processes=1, reference=True)
    assert result.ok
    (chain,) = result.chains
    assert chain.reference_blocks == len(next(iter(expected.values())))
    _shows_texts(settings)
    _differs_with_another_registry(settings)


def _shows_texts(settings: Settings) -> None:
    (stream,) = settings.streams()
    shown = asyncio.run(trace_block(settings, stream.name, 0, 0))
    assert shown.pieces[0].record is not None
    assert shown.pieces[0].record.text == "old page 0"
    without = settings.model_copy(update={"schema_registry_url": None})
    alone = asyncio.run(trace_block(without, stream.name, 0, 0, store=settings.store))
    assert alone.pieces[0].record is None
    assert "set schema_registry_url" in str(alone.note)


def _differs_with_another_registry(settings: Settings) -> None:
    with small_registry() as other:
        longer = {**NEWER, "fields": [*NEWER["fields"], {"name": "more", "type": "int"}]}
        other.register("pages-value", json.dumps(longer))
        other.register("pages-value", json.dumps(TEXT))
        elsewhere = settings.model_copy(update={"schema_registry_url": other.url})
        result = verify(elsewhere, store=settings.store, processes=1)
        assert not result.ok
        assert any(other.url in note for note in result.notes)


def test_reference_refuses_to_guess(registry: SmallRegistry, settings: Settings) -> None:
    send(settings, map(Raw, VALUES))
    registry.stop()
    with pytest.raises(RegistryError):
        reference_blocks(settings)


BEGUN = "begins with <bos> (id 2), as the settings say, ends with no token"
AT_ITS_END = "padding is the token at its end"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, f"begins with no token, ends with <eos> (id 1), the special token with a usual name; {AT_ITS_END}"),
        (
            {"begin_of_document": "<bos>", "end_of_document": "none"},
            f"{BEGUN}; padding is <pad> (id 0), the special token with a usual name",
        ),
        ({"end_of_document": 5}, f"begins with no token, ends with id 5, as the settings say; {AT_ITS_END}"),
        ({"template": "tokenizer", "padding": "<unk>"}, f"{BEGUN}; padding is <unk> (id 3), as the settings say"),
    ],
)
def test_what_stands_around_documents_is_said_with_why(tmp_path: Path, values: dict[str, Any], expected: str) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_bytes(gemma_style())
    settings = Settings(tokenizer=str(file), sequence_length=16, splits={"all": 1}, **values)
    assert plan_topic(settings, settings.raw_topics[0]).marks == f"a document {expected}"


def test_ids_that_are_others_than_in_the_file_are_said(tmp_path: Path) -> None:
    """As of a file whose model lacks ids: `tokenizers` counts added tokens from the number of its words on."""
    file = tmp_path / "tokenizer.json"
    content = json.loads(words())
    content["added_tokens"].append({**content["added_tokens"][0], "content": "<late>", "id": 9})
    file.write_text(json.dumps(content))
    settings = Settings(tokenizer=str(file), sequence_length=16, splits={"all": 1})
    assert "; tokenizers gives <late> the id 4, and its file 9: " in plan_topic(settings, settings.raw_topics[0]).marks
    settings = settings.model_copy(update={"tokenizer": "bytes"})
    assert plan_topic(settings, settings.raw_topics[0]).marks.endswith("; padding is the token at its end")
