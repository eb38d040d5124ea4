"""Records that cannot be decoded: whole in the dead letters, harmless to their neighbours, never behind a message."""

from collections.abc import Collection

import pytest

from tests.bad_inputs import MAX_ID_BYTES, MAX_TEXT_BYTES, TABLE, BadInput, ExpectedOutcome
from tests.faults.configuring import configure
from tests.faults.conftest import Configured
from tests.faults.feeding import UNDECODABLE, flush_all
from tests.faults.oracle import (
    PREFIX,
    Expected,
    expected_chains,
    judge,
    read_letters,
    read_topic,
    token_messages,
)
from tests.faults.trial import Trial
from tests.faults.working import working
from tests.service import Raw, send
from tokenmill.app.settings import Settings, dead_letter_topic
from tokenmill.errors import TopicError
from tokenmill.wire.message import HEADER_NAME, decode_message
from tokenmill.wire.totals import Totals

TEXT = b"a neighbour, which nothing happens to; "
LARGEST = 1_040_000
"""Bytes of a value that the raw topic just takes."""


@pytest.mark.fault("bad-inputs")
@pytest.mark.needs("minutes")
def test_the_whole_table_at_once_is_answered_and_harms_no_neighbour(configured: Configured, trial: Trial) -> None:
    """Each row has its answer, and its dead letter is the record itself with the reason and the place."""
    settings = configured(
        2,
        decode="json",
        session_timeout=2.0,
        max_text_bytes=MAX_TEXT_BYTES,
        max_id_bytes=MAX_ID_BYTES,
    )
    (raw_topic,) = settings.raw_topics
    large = ExpectedOutcome("dead_lettered", "invalid_utf8")
    rows = [*TABLE, BadInput("as large as it gets", b"\xff" * LARGEST, large, large)]
    trial.rng.shuffle(rows)
    neighbour = Raw(b'{"text": "%s"}' % TEXT, 1)
    send(settings, [raw for row in rows for raw in (neighbour, Raw(row.value, 1, row.key, row.headers))])
    send(settings, [neighbour] * 20)
    flush_all(settings)
    with working(settings) as service:
        account, chains = judge(service, trial)
    wanted = {2 * n + 1: row.json.what for n, row in enumerate(rows) if row.json.kind == "dead_lettered"}
    assert [chain.dead for chain in chains if chain.partition == 1] == [wanted] * 2
    assert account.dead_letters == len(wanted)
    trial.fired("records that are no documents", account.dead_letters)
    totals = sum((chain.totals for chain in chains if chain.partition == 1), Totals())
    assert totals.kept == len(rows) + 20 + sum(row.json.kind == "kept" for row in rows)
    assert_whole(settings, raw_topic, chains)


def assert_whole(settings: Settings, raw_topic: str, chains: Collection[Expected]) -> None:
    """Hold every dead letter of partition 1 against its record, and against what was sent before it."""
    letters = read_letters(settings, raw_topic)
    originals = {record.offset: record for record in read_topic(settings, raw_topic, 1)}
    for letter in letters:
        about = dict(reversed(letter.headers))  # the first of a name counts: a record's own may be called the same
        original = originals[int(about[f"{PREFIX}offset"])]
        assert (letter.key, letter.value or b"") == (original.key, original.value or b"")
        assert int(about[f"{PREFIX}timestamp"]) == original.timestamp
        assert (about[f"{PREFIX}topic"].decode(), int(about[f"{PREFIX}partition"])) == (raw_topic, 1)
        assert about[f"{PREFIX}exception"]
        own = [header for header in letter.headers if not header[0].startswith(PREFIX)]
        assert own == [header for header in original.headers if not header[0].startswith(PREFIX)][: len(own)]
        assert sum(len(name) + len(value) for name, value in own) <= 2048
    written = {int(dict(reversed(letter.headers))[f"{PREFIX}offset"]): letter.timestamp for letter in letters}
    for chain in chains:
        if chain.partition == 1:
            for record in read_topic(settings, chain.stream.tokens_topic, 1):
                passed = decode_message(dict(record.headers)[HEADER_NAME], record.value).cursor.next_offset
                assert record.timestamp >= max((at for offset, at in written.items() if offset < passed), default=0)


@pytest.mark.fault("dead-letters-refused")
@pytest.mark.needs("minutes")
def test_no_message_passes_a_record_whose_dead_letter_was_refused(configured: Configured, trial: Trial) -> None:
    """A dead-letter topic that takes nothing holds up its partition before any cursor past the record, and no other."""
    settings = configured(2, session_timeout=2.0, splits={"train": 1000})
    dead_letters = dead_letter_topic(settings.raw_topics[0])
    place = f"{settings.raw_topics[0]}/0"
    largest = 17_000_000
    send(settings, [Raw(TEXT)] * 10)
    with working(settings) as service:
        mill, _ = service.workers
        service.wait_until_complete()
        limit_messages(settings, dead_letters, 100)
        send(settings, [*[Raw(TEXT)] * 10, Raw(UNDECODABLE), *[Raw(TEXT)] * 10, *[Raw(TEXT, 1)] * 20])
        flush_all(settings)
        service.wait_until(lambda: mill.partitions[place]["waiting"])
        service.wait_until(lambda: mill.partitions[f"{settings.raw_topics[0]}/1"]["position"] == 21)
        assert f"topic {dead_letters} takes no letters" in mill.partitions[place]["waiting"]
        assert "MessageSizeTooLarge" in mill.log
        assert mill.running
        trial.fired("dead letter refused by its topic")
        chains = expected_chains(settings)
        assert all(message.cursor.next_offset <= 20 for message in token_messages(settings, chains[0]))
        assert not read_letters(settings, settings.raw_topics[0])

        (refused,) = service.mill()
        assert service.wait_until_ended(refused) == TopicError.exit_code
        assert dead_letters in (refused.beats.words or "")

        limit_messages(settings, dead_letters, largest)
        service.mill()
        account, _ = judge(service, trial)
    assert account.dead_letters == 1
    trial.held("loud")


def limit_messages(settings: Settings, topic: str, size: int) -> None:
    """Set the largest message that a topic takes; in force on return."""
    configure(settings, topic, "max.message.bytes", str(size))
