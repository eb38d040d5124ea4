"""Topics: created as the promises need them, and checked against them."""

import asyncio

import pytest
from aiokafka.admin import NewPartitions

from tests.conftest import TopicFactory
from tokenmill.app.kafka.clients import admin
from tokenmill.app.kafka.topics import (
    JOINED_BYTES,
    Existing,
    Problem,
    check_topics,
    describe_topics,
    ensure_produced,
    ensure_topics,
    find_problems,
    needed_topics,
    partition_count,
    require_topics,
    worst_message_bytes,
)
from tokenmill.app.local.broker import Broker
from tokenmill.app.mill.topic_changes import PartitionGrowth
from tokenmill.app.settings import Settings
from tokenmill.errors import TopicError


def settings_for(broker: Broker, raw_topic: str) -> Settings:
    return Settings(bootstrap_servers=broker.bootstrap_servers, raw_topics=(raw_topic,), splits={"train": 1000})


async def grow(settings: Settings, topic: str, count: int) -> None:
    async with admin(settings) as client:
        await client.create_partitions({topic: NewPartitions(count)})
        while (await describe_topics(client, [topic]))[topic].partitions < count:
            pass


async def test_needed_topics_are_created_as_promised(broker: Broker, topic: TopicFactory) -> None:
    raw = topic(3)
    settings = settings_for(broker, raw)
    created = await ensure_topics(settings)
    dead_letters, produced, tokens, control = created
    assert (dead_letters, produced) == (f"{raw}.dead-letters", f"{raw}.produced")
    assert (tokens, control) == (f"tokens.{raw}.train", f"control.{raw}.train")
    async with admin(settings) as client:
        found = await describe_topics(client, created)
    assert [found[name].partitions for name in created] == [3, 1, 3, 1]
    for name in created:
        assert found[name].configs["retention.ms"] == found[name].configs["retention.bytes"] == "-1"
        assert found[name].configs["cleanup.policy"] == ("compact" if name == produced else "delete")
    worst = worst_message_bytes(settings, settings.for_topic(raw))
    assert found[tokens].max_message_bytes == max(worst, JOINED_BYTES)
    # The raw topic that the test made takes 1 MiB records, so a dead letter of one fits.
    assert await check_topics(settings) == []
    assert await ensure_topics(settings) == []


async def test_topics_get_as_many_copies_as_are_asked_for(broker: Broker, topic: TopicFactory) -> None:
    settings = settings_for(broker, topic(1))
    with pytest.raises(TopicError, match=rf"the brokers refuse topic {settings.raw_topics[0]}.*[Rr]eplication factor"):
        await ensure_topics(settings.model_copy(update={"replication_factor": 2}))
    assert len(await ensure_topics(settings.model_copy(update={"replication_factor": 1}))) == 4


async def test_produce_makes_the_topic_of_its_notes(broker: Broker, topic: TopicFactory) -> None:
    """Where nobody has; it is the one that `ensure_topics` would make. Without it no worker stands still."""
    raw = topic(2)
    settings = settings_for(broker, raw)
    for _ in range(2):
        await ensure_produced(settings, raw)
    assert f"{raw}.produced" not in await ensure_topics(settings)
    assert await check_topics(settings) == []
    missing = {name: found for name, found in existing(settings).items() if not name.endswith(".produced")}
    (problem,) = problems_of(settings, missing)
    assert (problem.severity, problem.topic) == ("warning", f"{raw}.produced")


async def test_a_dead_letter_topic_stays_as_it_is(broker: Broker, topic: TopicFactory) -> None:
    """One that has a single partition gets no more: letters are spread over those that there are."""
    raw = topic(1)
    settings = settings_for(broker, raw)
    await ensure_topics(settings)
    await grow(settings, raw, 2)
    assert await ensure_topics(settings) == [f"tokens.{raw}.train"]


async def test_raw_topics_are_created_on_request_only(broker: Broker, topic: TopicFactory) -> None:
    """A misspelt raw topic is an error; with a number of partitions it is a wish."""
    settings = settings_for(broker, f"{topic(1)}-new")
    with pytest.raises(TopicError, match=r"does not exist: create it with `tokenmill topics create"):
        await ensure_topics(settings)
    assert settings.raw_topics[0] in await ensure_topics(settings, partitions=2)
    assert await partition_count(settings, settings.raw_topics[0]) == 2


async def test_token_topics_follow_a_raw_topic_that_grows(broker: Broker, topic: TopicFactory) -> None:
    """New partitions of a raw topic are a warning until the token topic has them as well, whoever is first to add."""
    raw = topic(1)
    settings = settings_for(broker, raw)
    await ensure_topics(settings)
    await grow(settings, raw, 3)
    problems = await check_topics(settings)
    assert [(problem.topic, problem.severity) for problem in problems] == [(f"tokens.{raw}.train", "warning")]
    added = await asyncio.gather(*(ensure_topics(settings) for _ in range(4)))
    assert [f"tokens.{raw}.train"] in added
    assert await check_topics(settings) == []


async def test_topics_of_a_domain_follow_their_raw_topics(broker: Broker, topic: TopicFactory) -> None:
    web, code = topic(1), topic(2)
    one = settings_for(broker, web).model_copy(update={"raw_topics": (web, code)})
    settings = one.model_copy(update={"dedup": {"name": "near", "domain": f"{web}-all"}})
    names = [f"signatures.{web}-all", f"slices.{web}-all", f"verdicts.{web}", f"verdicts.{code}"]
    assert (await ensure_topics(settings))[-4:] == names
    async with admin(settings) as client:
        found = await describe_topics(client, names)
        assert [found[name].partitions for name in names] == [1, 1, 1, 2]
        assert {found[name].configs[key] for name in names for key in ("retention.ms", "retention.bytes")} == {"-1"}
        assert [found[name].max_message_bytes >> 20 for name in names] == [2, 1, 2, 2]
    await grow(settings, web, 3)
    problems = await check_topics(settings)
    assert [(p.topic, p.severity) for p in problems] == [(f"tokens.{web}.train", "warning"), (names[2], "warning")]
    known: list[tuple[str, int]] = []

    async def know(name: str, partition: int) -> None:
        known.append((name, partition))

    await PartitionGrowth(settings, [f"tokens.{web}.train", names[2]], know).require(2)
    assert known == [(f"tokens.{web}.train", 2), (names[2], 2)]
    assert await check_topics(settings) == []


async def test_missing_topics_stop_the_service(broker: Broker, topic: TopicFactory) -> None:
    settings = settings_for(broker, topic(1))
    with pytest.raises(TopicError, match=r"dead-letters is missing.*and 2 more"):
        await require_topics(settings)


def existing(settings: Settings, **changes: dict[str, str]) -> dict[str, Existing]:
    """Return all needed topics as they should be, those of the kinds in ``changes`` with other configurations."""
    return {
        topic.name: Existing(
            1, topic.configs | {"retention.ms": "-1", "retention.bytes": "-1"} | changes.get(topic.kind, {})
        )
        for topic in needed_topics(settings)
    }


def problems_of(settings: Settings, found: dict[str, Existing]) -> list[Problem]:
    return [problem for topic in needed_topics(settings) for problem in find_problems(topic, found)]


@pytest.mark.parametrize(
    ("kind", "change", "severity", "part"),
    [
        ("tokens", {"cleanup.policy": "compact,delete"}, "error", "compacted"),
        ("tokens", {"retention.ms": "604800000"}, "warning", "retention.ms=604800000"),
        ("control", {"retention.bytes": "1000"}, "error", "retention.bytes=1000"),
        ("tokens", {"max.message.bytes": "1000"}, "error", "set max.message.bytes="),
        ("signatures", {"retention.ms": "604800000"}, "warning", "hold the window"),
        ("signatures", {"max.message.bytes": "1048588"}, "error", "set max.message.bytes=2097152"),
        ("slices", {"retention.ms": "604800000"}, "error", "where the window begins"),
        ("verdicts", {"retention.bytes": "1000"}, "warning", "milled or verified again"),
        ("verdicts", {"cleanup.policy": "compact"}, "error", "compacted"),
        ("produced", {"cleanup.policy": "delete"}, "warning", "set cleanup.policy=compact"),
        ("raw", {"max.message.bytes": "99999999"}, "error", "set max.message.bytes=100004095"),
        ("raw", {"cleanup.policy": "compact"}, "error", "is compacted"),
    ],
)
def test_each_broken_promise_is_found(kind: str, change: dict[str, str], severity: str, part: str) -> None:
    settings = Settings(splits={"train": 1000}, dedup="near")
    (problem,) = problems_of(settings, existing(settings, **{kind: change}))
    assert problem.severity == severity
    assert part in problem.text


@pytest.mark.parametrize("kind", ["tokens", "control", "signatures", "slices", "verdicts"])
def test_a_partition_too_many_is_an_error(kind: str) -> None:
    """Nobody would read it, or its order would not be the one."""
    settings = Settings(splits={"train": 1000}, dedup="near")
    (needed,) = (topic for topic in needed_topics(settings) if topic.kind == kind)
    found = existing(settings)
    found[needed.name] = found[needed.name]._replace(partitions=2)
    (problem,) = find_problems(needed, found)
    assert (problem.severity, "use a new stream_suffix" in problem.text) == ("error", True)


def test_limited_retention_of_raw_topics_is_no_problem() -> None:
    """Raw text may go once it is milled; its retention is for its owner to say."""
    settings = Settings(splits={"train": 1000})
    assert problems_of(settings, existing(settings, raw={"retention.ms": "1000"})) == []


@pytest.mark.parametrize(("chains", "takes", "joined"), [(1, 1 << 30, 16), (4, 8 << 20, 8), (8, 1 << 30, 12)])
def test_messages_are_joined_as_far_as_topic_and_request_take_them(chains: int, takes: int, joined: int) -> None:
    """Those of all chains may go in one request, of which brokers take 100 MiB."""
    topic = Existing(chains, {"max.message.bytes": str(takes)})
    assert topic.joined_bytes(chains) == joined << 20


def test_worst_message_grows_with_what_decides_it() -> None:
    base = Settings()
    assert worst_message_bytes(base, base) > base.message_bytes + base.block_tokens * (4 + 24 + 128 + 256)
    for change in ({"sequence_length": 2048}, {"max_id_bytes": 129}, {"max_fields_bytes": 257}):
        changed = base.model_copy(update=change)
        assert worst_message_bytes(changed, changed) > worst_message_bytes(base, base)
