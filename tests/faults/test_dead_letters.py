"""Records that cannot be decoded: whole in the dead letters, harmless to their neighbours, never behind a message."""

import asyncio
from pathlib import Path

from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.conftest import TopicFactory
from tests.faults.feeding import UNDECODABLE, flush_all
from tests.faults.oracle import (
    PREFIX,
    expected_chains,
    judge,
    read_topic,
    token_messages,
)
from tests.service import Raw, Service, in_own_loop, send, service_settings
from tokenmill.app.broker import Broker
from tokenmill.app.kafka import admin
from tokenmill.app.settings import Settings, dead_letter_topic
from tokenmill.errors import TopicError

TEXT = b"a neighbour, which nothing happens to; "


def test_dead_letter_is_whole_and_harms_no_neighbour(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    """Original key, value and headers, with reason, topic, partition and offset; its neighbours are in the blocks."""
    settings = service_settings(broker, topic(2), tmp_path, decode="json", session_timeout=2.0)
    (raw_topic,) = settings.raw_topics
    neighbour = Raw(b'{"text": "%s"}' % TEXT, 1)
    bad = [Raw(UNDECODABLE, 1, b"key", [("mine", b"header")]), Raw(b"{}", 1), Raw(b"", 1)]
    send(settings, [neighbour, bad[0], neighbour, bad[1], bad[2], neighbour, *[neighbour] * 20])
    flush_all(settings)
    with Service(settings, tmp_path) as service:
        service.mill()
        service.segment()
        account, chains = judge(service)
    assert account.dead_letters == 3
    letters = read_topic(settings, dead_letter_topic(raw_topic), 0)
    originals = {record.offset: record for record in read_topic(settings, raw_topic, 1)}
    abouts = [dict(letter.headers) for letter in letters]
    assert [int(about[f"{PREFIX}offset"]) for about in abouts] == [1, 3, 4]
    assert [about[f"{PREFIX}reason"] for about in abouts] == [b"invalid_utf8", b"missing_text", b"malformed_json"]
    for letter, about in zip(letters, abouts, strict=True):
        original = originals[int(about[f"{PREFIX}offset"])]
        assert (letter.key, letter.value or b"") == (original.key, original.value or b"")
        assert int(about[f"{PREFIX}timestamp"]) == original.timestamp
        assert (about[f"{PREFIX}topic"].decode(), int(about[f"{PREFIX}partition"])) == (raw_topic, 1)
    assert abouts[0]["mine"] == b"header"
    for chain in chains:
        if chain.partition == 1:
            sent = [record.timestamp for record in read_topic(settings, chain.stream.tokens_topic, 1)]
            assert not sent or min(sent) >= max(letter.timestamp for letter in letters)


def test_no_message_passes_a_record_whose_dead_letter_was_refused(
    broker: Broker, topic: TopicFactory, tmp_path: Path
) -> None:
    """A dead-letter topic that takes nothing ends the mill before any cursor past the record; later all is well."""
    settings = service_settings(broker, topic(), tmp_path, session_timeout=2.0, splits={"train": 1000})
    dead_letters = dead_letter_topic(settings.raw_topics[0])
    largest = 17_000_000
    send(settings, [Raw(TEXT)] * 10)
    with Service(settings, tmp_path) as service:
        service.segment()
        (mill,) = service.mill()
        service.wait_until_complete()
        limit_messages(settings, dead_letters, 100)
        send(settings, [*[Raw(TEXT)] * 10, Raw(UNDECODABLE), *[Raw(TEXT)] * 10])
        flush_all(settings)
        assert service.wait_until_ended(mill) == 75
        chains = expected_chains(settings)
        assert all(message.cursor.next_offset <= 20 for message in token_messages(settings, chains[0]))
        assert not read_topic(settings, dead_letters, 0)

        (refused,) = service.mill()
        assert service.wait_until_ended(refused) == TopicError.exit_code
        assert dead_letters in (refused.beats.words or "")

        limit_messages(settings, dead_letters, largest)
        service.mill()
        account, _ = judge(service)
    assert account.dead_letters == 1


def limit_messages(settings: Settings, topic: str, size: int) -> None:
    """Set the largest message that a topic takes; in force on return."""
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"max.message.bytes": str(size)})

    async def run() -> None:
        async with admin(settings) as client:
            await client.alter_configs([resource])
            wanted = ConfigResource(ConfigResourceType.TOPIC, topic, {"max.message.bytes": None})
            while True:
                (answer,) = await client.describe_configs([wanted])
                if answer.resources[0][4][0][1] == str(size):
                    return
                await asyncio.sleep(0.05)

    in_own_loop(run)
