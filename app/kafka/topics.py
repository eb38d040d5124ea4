"""The topics that the settings need: made where they are missing, checked where they are there."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    InvalidPartitionsError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)

from tokenmill.errors import MissingTopicError, TopicError

from ..settings import Settings
from .clients import admin
from .retry import retry
from .topic_needs import (
    CONFIGS,
    LETTERS,
    Existing,
    NeededTopic,
    Problem,
    find_problems,
    missing_raw,
    needed_topics,
    produced_need,
)

VISIBLE_SECONDS: Final = 15.0
"""How long a new topic may take until the brokers say that it has leaders; takes milliseconds."""


async def ensure_topics(settings: Settings, *, partitions: int | None = None) -> list[str]:
    """Create what is missing, and return the names of the topics that were created or given more partitions.

    On return every needed topic exists and can be used. A raw topic is created only where ``partitions`` is given; a
    token topic gets as many partitions as its raw topic has, also when that has grown, and a new dead-letter topic
    does. What exists is changed in no other way: `check_topics` says what is wrong with it. Waits as `retry` does.

    Raises:
        MissingTopicError: a raw topic is missing, and ``partitions`` is None.
        TopicError: the brokers refuse a topic.
        BrokerError: no broker answers.

    """
    return await retry(settings, lambda: _ensure(settings, partitions))


async def _ensure(settings: Settings, partitions: int | None) -> list[str]:
    needed = needed_topics(settings)
    async with admin(settings) as client:
        existing = await describe_topics(client, [topic.name for topic in needed])
        counts = {name: existing[name].partitions if name in existing else partitions for name in settings.raw_topics}
        missing = [name for name, count in counts.items() if count is None]
        if missing:
            raise MissingTopicError(f"topic {missing[0]} {missing_raw(missing[0])}")
        wanted = {topic.name: _partitions(topic, counts) for topic in needed}
        new = [topic for topic in needed if topic.name not in existing]
        grown = {
            topic.name: wanted[topic.name]
            for topic in needed
            if topic.kind not in LETTERS
            and topic.name in existing
            and existing[topic.name].partitions < wanted[topic.name]
        }
        await _create(client, settings, new, wanted)
        for name, count in grown.items():
            await _grow(client, name, count)
        await _until_visible(client, {name: wanted[name] for name in [*grown, *(topic.name for topic in new)]})
        return [topic.name for topic in new] + list(grown)


async def ensure_produced(settings: Settings, raw_topic: str) -> None:
    """Create the topic on which runs of `produce` over a raw topic are noted, if it is missing; then it can be used.

    Raises:
        TopicError: the brokers refuse it; says what else can be done.
        BrokerError: no broker answers.

    """
    needed = produced_need(raw_topic)

    async def ensure() -> None:
        async with admin(settings) as client:
            if needed.name in await _counts(client, [needed.name]):
                return
            await _create(client, settings, [needed], {needed.name: 1})
            await _until_visible(client, {needed.name: 1})

    try:
        await retry(settings, ensure)
    except TopicError as error:
        raise TopicError(
            f"{error}; let somebody run `tokenmill topics create` who may, or do without: --no-resume"
        ) from error


async def check_topics(settings: Settings) -> list[Problem]:
    """Return what is wrong with the topics that the settings need; nothing is changed.

    Raises:
        BrokerError: no broker answers.

    """
    return await _problems(settings, needed_topics(settings))


async def _problems(settings: Settings, needed: list[NeededTopic]) -> list[Problem]:
    existing = await described(settings, [topic.name for topic in needed])
    return [problem for topic in needed for problem in find_problems(topic, existing)]


async def require_topics(settings: Settings) -> list[Problem]:
    """Return the warnings about the topics that workers need. Waits as `retry` does.

    What `produce` notes is none of their business: their logins need not see its topic.

    Raises:
        MissingTopicError: at least one is not there, and nothing else is wrong.
        TopicError: something is wrong that breaks a promise; names the first and how many more there are.
        BrokerError: no broker answers.

    """
    return await retry(settings, lambda: _require(settings))


async def _require(settings: Settings) -> list[Problem]:
    needed = [topic for topic in needed_topics(settings) if topic.kind != "produced"]
    problems = await _problems(settings, needed)
    errors = [problem for problem in problems if problem.severity == "error"]
    if errors:
        more = f" (and {len(errors) - 1} more: see `tokenmill topics check`)" if len(errors) > 1 else ""
        kind = MissingTopicError if all(problem.missing for problem in errors) else TopicError
        raise kind(f"topic {errors[0].topic} {errors[0].text}{more}")
    return problems


async def described(settings: Settings, topics: Iterable[str]) -> dict[str, Existing]:
    """Return those of the topics that exist, as the brokers describe them.

    Raises:
        TopicError: the brokers do not describe one of them to us.
        BrokerError: no broker answers.

    """
    async with admin(settings) as client:
        return await describe_topics(client, topics)


async def partition_count(settings: Settings, topic: str) -> int:
    """Return the number of partitions of a topic. Waits as `retry` does.

    Raises:
        MissingTopicError: there is no such topic.
        BrokerError: no broker answers.

    """
    return await retry(settings, lambda: _partition_count(settings, topic))


async def _partition_count(settings: Settings, topic: str) -> int:
    async with admin(settings) as client:
        described = await client.describe_topics([topic])
    count = len(described[0]["partitions"])
    if not count:
        raise MissingTopicError(f"topic {topic} {missing_raw(topic)}")
    return count


async def describe_topics(client: AIOKafkaAdminClient, names: Iterable[str]) -> dict[str, Existing]:
    """Return those of the topics that exist, with the configuration values that matter here (`CONFIGS`)."""
    counts = await _counts(client, names)
    if not counts:
        return {}
    resources = [ConfigResource(ConfigResourceType.TOPIC, name, dict.fromkeys(CONFIGS)) for name in counts]
    configs: dict[str, dict[str, str]] = {}
    for answer in await client.describe_configs(resources):
        for code, message, _, name, entries in answer.resources:
            if code:
                raise TopicError(f"the brokers do not describe topic {name}: {message or for_code(code).__name__}")
            configs[name] = {entry[0]: entry[1] for entry in entries}
    return {name: Existing(count, configs[name]) for name, count in counts.items()}


async def _counts(client: AIOKafkaAdminClient, names: Iterable[str]) -> dict[str, int]:
    """Return the number of partitions, with a leader each, of those of the topics that exist."""
    counts: dict[str, int] = {}
    for described in await client.describe_topics(list(names)):
        if described["error_code"] == UnknownTopicOrPartitionError.errno:
            continue
        counts[described["topic"]] = len(described["partitions"])
    return counts


def _partitions(topic: NeededTopic, counts: Mapping[str, int | None]) -> int:
    return 1 if topic.kind in ("control", "produced") else counts[topic.raw_topic] or 0


async def _create(
    client: AIOKafkaAdminClient, settings: Settings, topics: list[NeededTopic], partitions: Mapping[str, int]
) -> None:
    if not topics:
        return
    factor = settings.replication_factor
    # An empty assignment is what lets NewTopic pass with the brokers' default factor, -1.
    assignments: dict[int, list[int]] | None = {} if factor == -1 else None
    answer = await client.create_topics(
        [NewTopic(topic.name, partitions[topic.name], factor, assignments, topic.configs) for topic in topics]
    )
    for name, code, message in answer.topic_errors:
        # Somebody else may have been faster, another worker for example: that is as good.
        if code and code != TopicAlreadyExistsError.errno:
            raise TopicError(f"the brokers refuse topic {name}: {message or for_code(code).__name__}")


async def _grow(client: AIOKafkaAdminClient, topic: str, partitions: int) -> None:
    try:
        await client.create_partitions({topic: NewPartitions(partitions)})
    except InvalidPartitionsError:
        return  # somebody else was faster; whether they are there is looked at next
    except TopicAuthorizationFailedError as error:
        raise TopicError(
            f"topic {topic} lacks partitions, and the brokers do not let us add them: grant Alter on it, or run "
            "`tokenmill topics create` as somebody who may"
        ) from error


async def _until_visible(client: AIOKafkaAdminClient, wanted: Mapping[str, int]) -> None:
    if not wanted:
        return
    try:
        async with asyncio.timeout(VISIBLE_SECONDS):
            while True:
                counts = await _counts(client, wanted)
                if all(counts.get(name, 0) >= count for name, count in wanted.items()):
                    return
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise TopicError(
            f"the new topics {', '.join(wanted)} have no leaders after {VISIBLE_SECONDS:.0f} s: see the brokers' logs"
        ) from None
