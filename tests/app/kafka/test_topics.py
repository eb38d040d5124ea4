"""Topics: created with what the design promises, checked before anything starts, large enough for the worst message."""

import asyncio
from collections import Counter
from unittest.mock import AsyncMock

import pytest
from aiokafka.admin import NewPartitions

from tests.conftest import TopicFactory
from tokenmill.app.kafka import topics
from tokenmill.app.kafka.clients import admin
from tokenmill.app.kafka.topics import Existing, check_topics, ensure_topics, needed_topics, worst_message_bytes
from tokenmill.app.local.broker import Broker
from tokenmill.app.mill.topic_changes import PartitionGrowth
from tokenmill.app.milling.decoding import REASONS
from tokenmill.app.settings import Settings
from tokenmill.errors import TopicError
from tokenmill.wire.chain import Cursor
from tokenmill.wire.message import Message, encode_header
from tokenmill.wire.pieces import Piece, encode_entry
from tokenmill.wire.totals import Amount, Figures, StepFigures, Totals


@pytest.fixture
def raw(topic: TopicFactory) -> str:
    return topic(1)


@pytest.fixture
def settings(broker: Broker, raw: str) -> Settings:
    return Settings(bootstrap_servers=broker.bootstrap_servers, raw_topics=(raw,), splits={"train": 1000})


async def grow(settings: Settings, topic: str, count: int) -> None:
    async with admin(settings) as client:
        await client.create_partitions({topic: NewPartitions(count)})
        while (await topics.describe_topics(client, [topic]))[topic].partitions < count:
            pass


async def test_needed_topics_are_created_as_promised(settings: Settings, raw: str) -> None:
    await grow(settings, raw, 3)
    created = await ensure_topics(settings)
    dead_letters, produced, tokens, control = created
    assert (dead_letters, produced) == (f"{raw}.dead-letters", f"{raw}.produced")
    assert (tokens, control) == (f"tokens.{raw}.train", f"control.{raw}.train")
    async with admin(settings) as client:
        found = await topics.describe_topics(client, created)
    assert [found[name].partitions for name in created] == [3, 1, 3, 1]
    for name in created:
        assert found[name].configs["retention.ms"] == found[name].configs["retention.bytes"] == "-1"
        assert found[name].configs["cleanup.policy"] == ("compact" if name == produced else "delete")
    worst = worst_message_bytes(settings, settings.for_topic(raw))
    assert found[tokens].max_message_bytes == max(worst, topics.JOINED_BYTES)
    # The raw topic that the test made takes 1 MiB records, so a dead letter of one fits.
    assert await check_topics(settings) == []
    assert await ensure_topics(settings) == []


async def test_topics_get_as_many_copies_as_are_asked_for(settings: Settings) -> None:
    with pytest.raises(TopicError, match=rf"the brokers refuse topic {settings.raw_topics[0]}.*[Rr]eplication factor"):
        await ensure_topics(settings.model_copy(update={"replication_factor": 2}))
    assert len(await ensure_topics(settings.model_copy(update={"replication_factor": 1}))) == 4


async def test_produce_makes_the_topic_of_its_notes(settings: Settings, raw: str) -> None:
    """Where nobody has; it is the one that `ensure_topics` would make. Without it no worker stands still."""
    for _ in range(2):
        await topics.ensure_produced(settings, raw)
    assert f"{raw}.produced" not in await ensure_topics(settings)
    assert await check_topics(settings) == []
    missing = {name: found for name, found in existing(settings).items() if not name.endswith(".produced")}
    (problem,) = problems_of(settings, missing)
    assert (problem.severity, problem.topic) == ("warning", f"{raw}.produced")


async def test_a_dead_letter_topic_stays_as_it_is(settings: Settings, raw: str) -> None:
    """One that has a single partition gets no more: letters are spread over those that there are."""
    await ensure_topics(settings)
    await grow(settings, raw, 2)
    assert await ensure_topics(settings) == [f"tokens.{raw}.train"]


async def test_raw_topics_are_created_on_request_only(settings: Settings, raw: str) -> None:
    """A misspelt raw topic is an error; with a number of partitions it is a wish."""
    settings = settings.model_copy(update={"raw_topics": (f"{raw}-new",)})
    with pytest.raises(TopicError, match=r"does not exist: create it with `tokenmill topics create"):
        await ensure_topics(settings)
    assert settings.raw_topics[0] in await ensure_topics(settings, partitions=2)
    assert await topics.partition_count(settings, settings.raw_topics[0]) == 2


async def test_token_topics_follow_a_raw_topic_that_grows(settings: Settings, raw: str) -> None:
    """New partitions of a raw topic are a warning until the token topic has them as well, whoever is first to add."""
    await ensure_topics(settings)
    await grow(settings, raw, 3)
    problems = await check_topics(settings)
    assert [(problem.topic, problem.severity) for problem in problems] == [(f"tokens.{raw}.train", "warning")]
    added = await asyncio.gather(*(ensure_topics(settings) for _ in range(4)))
    assert [f"tokens.{raw}.train"] in added
    assert await check_topics(settings) == []


async def test_topics_of_a_domain_follow_their_raw_topics(settings: Settings, raw: str, topic: TopicFactory) -> None:
    web, code, dedup = raw, topic(2), {"name": "near", "domain": f"{raw}-all"}
    settings = settings.model_copy(update={"raw_topics": (web, code), "dedup": dedup})
    names = [f"signatures.{web}-all", f"slices.{web}-all", f"verdicts.{web}", f"verdicts.{code}"]
    assert (await ensure_topics(settings))[-4:] == names
    async with admin(settings) as client:
        found = await topics.describe_topics(client, names)
        assert [found[name].partitions for name in names] == [1, 1, 1, 2]
        assert {found[name].configs[key] for name in names for key in ("retention.ms", "retention.bytes")} == {"-1"}
        assert [found[name].max_message_bytes >> 20 for name in names] == [2, 1, 2, 2]
    await grow(settings, web, 3)
    problems = await check_topics(settings)
    assert [(p.topic, p.severity) for p in problems] == [(f"tokens.{web}.train", "warning"), (names[2], "warning")]
    know = AsyncMock()
    await PartitionGrowth(settings, [f"tokens.{web}.train", names[2]], know).require(2)
    assert [call.args for call in know.await_args_list] == [(f"tokens.{web}.train", 2), (names[2], 2)]
    assert await check_topics(settings) == []


async def test_missing_topics_stop_the_service(settings: Settings) -> None:
    with pytest.raises(TopicError, match=r"dead-letters is missing.*and 2 more"):
        await topics.require_topics(settings)


PROMISED = Settings(splits={"train": 1000}, dedup="near")


def existing(settings: Settings, **changes: dict[str, str]) -> dict[str, Existing]:
    """Return all needed topics as they should be, those of the kinds in ``changes`` with other configurations."""
    kept = {"retention.ms": "-1", "retention.bytes": "-1"}
    return {
        each.name: Existing(1, each.configs | kept | changes.get(each.kind, {})) for each in needed_topics(settings)
    }


def problems_of(settings: Settings, found: dict[str, Existing]) -> list[topics.Problem]:
    return [problem for topic in needed_topics(settings) for problem in topics.find_problems(topic, found)]


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
    (problem,) = problems_of(PROMISED, existing(PROMISED, **{kind: change}))
    assert problem.severity == severity
    assert part in problem.text


def test_raw_text_may_go_once_it_is_milled() -> None:
    assert problems_of(PROMISED, existing(PROMISED, raw={"retention.ms": "1000"})) == []


@pytest.mark.parametrize("kind", ["tokens", "control", "signatures", "slices", "verdicts"])
def test_a_partition_too_many_is_an_error(kind: str) -> None:
    """Nobody would read it, or its order would not be the one."""
    (needed,) = (topic for topic in needed_topics(PROMISED) if topic.kind == kind)
    found = existing(PROMISED)
    found[needed.name] = found[needed.name]._replace(partitions=2)
    (problem,) = topics.find_problems(needed, found)
    assert (problem.severity, "use a new stream_suffix" in problem.text) == ("error", True)


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


HUGE = 10**18


def _worst(settings: Settings, blocks: int, figures: Figures | None = None) -> int:
    """Return the size of a message whose every token is a document of its own with the longest id and fields."""
    figures = figures or Figures()
    own = settings.for_topic("raw-text")
    meta = b"m" * own.limits.max_meta_bytes
    entry = encode_entry([Piece(n, HUGE, 0, meta) for n in range(own.block_tokens)])
    others = ["skipped", "function_failed", "tokenizer_failed", "normalized_too_large"]
    dead = Counter(dict.fromkeys([*REASONS, *others], HUGE))
    filtered = Counter({f"{n:032}": HUGE for n in range(68)})
    filtered |= Counter(dict.fromkeys(figures.filtered, HUGE))
    totals = Totals(HUGE, HUGE, HUGE, HUGE, HUGE, filtered, dead, HUGE, HUGE, figures)
    tokens = bytes(4 * own.block_tokens * blocks)
    message = Message(bytes(16), 0, Cursor(0, 0, blocks), bytes(16), bytes(16), totals, tokens, [entry] * blocks)
    # Kafka adds to a record: batch header (61 bytes), lengths, offset, timestamp, the header's name
    return len(encode_header(message)) + len(tokens) + 300


@pytest.mark.parametrize("sequence_length", [1, 3, 1024])
@pytest.mark.parametrize(("max_id_bytes", "max_fields_bytes"), [(1, 2), (128, 256), (5000, 5000)])
def test_the_worst_block_fits(sequence_length: int, max_id_bytes: int, max_fields_bytes: int) -> None:
    settings = Settings(sequence_length=sequence_length, max_id_bytes=max_id_bytes, max_fields_bytes=max_fields_bytes)
    assert _worst(settings, 1) <= worst_message_bytes(settings, settings.for_topic("raw-text"))


def test_the_worst_message_of_several_blocks_fits() -> None:
    """Messages are cut before they exceed `message_bytes`, their totals aside."""
    settings = Settings(message_bytes=3_000_000)
    size = _worst(settings, 2)
    assert size <= settings.message_bytes
    small = Settings(message_bytes=size)
    assert size + len(Totals().pack()) + 8192 <= worst_message_bytes(small, small.for_topic("raw-text"))


@pytest.mark.parametrize("steps", [1, 32])
def test_figures_of_every_step_and_language_fit(steps: int) -> None:
    settings = Settings(message_bytes=1, steps=({"name": "length", "min_words": 5},) * steps)
    amount = Amount(HUGE, HUGE)
    labels = [f"{number:032}" for number in range(steps)]
    reasons = {label: {f"{label}.{number:032}": amount for number in range(32)} for label in labels}
    short = ("normalize", "function", "not_empty", "min_chars", "normalized_length")
    figures = Figures(
        [StepFigures(label, amount, amount, reasons.get(label, {}), amount) for label in (*labels, *short)],
        Counter(dict.fromkeys(range(64), HUGE)),
        Counter(dict.fromkeys(range(64), HUGE)),
        {f"language-{number}": amount for number in range(200)},
    )
    assert _worst(settings, 1, figures) <= worst_message_bytes(settings, settings.for_topic("raw-text"))
