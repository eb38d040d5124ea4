"""Records that are no documents, or poison for a stage: whole in the dead letters, and harmless to their neighbours."""

import gzip
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.app.milling.decoding.opened import framed
from tests.app.milling.decoding.test_json_schema_values import BRANCHES, nested
from tests.app.milling.tokenizers.panicking import HARMFUL, panicking
from tests.bad_inputs import MAX_ID_BYTES, MAX_TEXT_BYTES, TABLE, BadInput, ExpectedOutcome
from tests.faults.altering import configure
from tests.faults.conftest import Configured
from tests.faults.feeding import UNDECODABLE, flush_all
from tests.faults.oracle import PREFIX, Expected, about, judge, message_of, read_letters, read_topic, token_messages
from tests.faults.serving import working
from tests.faults.trial import Trial
from tests.odd_batches import GZIP, ODD, batch, record, send_through
from tests.registry_servers import SmallRegistry, small_registry
from tests.service import Raw, Service, in_own_loop, send
from tokenmill.app.kafka.clients import producer
from tokenmill.app.settings import Settings, dead_letter_topic
from tokenmill.app.tools.failed_records import skip
from tokenmill.app.tools.verify import verify
from tokenmill.errors import TopicError
from tokenmill.wire.totals import Totals

pytestmark = pytest.mark.needs("minutes")

TEXT: Final = b"a neighbour, which nothing happens to; "
LARGEST: Final = 1_040_000  # bytes of a value that the raw topic just takes


@pytest.mark.fault("bad-inputs")
def test_the_whole_table_at_once_is_answered_and_harms_no_neighbour(configured: Configured, trial: Trial) -> None:
    """Each row has its answer, and its dead letter is the record itself with the reason and the place."""
    limits = {"max_text_bytes": MAX_TEXT_BYTES, "max_id_bytes": MAX_ID_BYTES}
    settings = configured(2, decode="json", session_timeout=2.0, **limits)
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
        said = about(letter)
        original = originals[int(said["offset"])]
        assert (letter.key, letter.value or b"") == (original.key, original.value or b"")
        assert int(said["timestamp"]) == original.timestamp
        assert (said["topic"].decode(), int(said["partition"])) == (raw_topic, 1)
        assert said["exception"]
        own = [header for header in letter.headers if not header[0].startswith(PREFIX)]
        assert own == [header for header in original.headers if not header[0].startswith(PREFIX)][: len(own)]
        assert sum(len(name) + len(value) for name, value in own) <= 2048
    written = {int(about(letter)["offset"]): letter.timestamp for letter in letters}
    for chain in chains:
        if chain.partition == 1:
            for record in read_topic(settings, chain.stream.tokens_topic, 1):
                passed = message_of(record).cursor.next_offset
                assert record.timestamp >= max((at for offset, at in written.items() if offset < passed), default=0)


@pytest.mark.fault("dead-letters-refused")
def test_no_message_passes_a_record_whose_dead_letter_was_refused(configured: Configured, trial: Trial) -> None:
    """A dead-letter topic that takes nothing holds up its partition before any cursor past the record, and no other."""
    settings = configured(2, session_timeout=2.0, splits={"train": 1000})
    dead_letters = dead_letter_topic(settings.raw_topics[0])
    place = f"{settings.raw_topics[0]}/0"
    send(settings, [Raw(TEXT)] * 10)
    with working(settings) as service:
        mill, _ = service.workers
        service.wait_until_complete()
        configure(settings, dead_letters, "max.message.bytes", "100")
        send(settings, [*[Raw(TEXT)] * 10, Raw(UNDECODABLE), *[Raw(TEXT)] * 10, *[Raw(TEXT, 1)] * 20])
        flush_all(settings)
        service.wait_until(lambda: mill.partitions[place]["waiting"])
        service.wait_until(lambda: mill.partitions[f"{settings.raw_topics[0]}/1"]["position"] == 21)
        assert f"topic {dead_letters} takes no letters" in mill.partitions[place]["waiting"]
        assert "MessageSizeTooLarge" in mill.log
        assert mill.running
        trial.fired("dead letter refused by its topic")
        assert all(message.cursor.next_offset <= 20 for message in token_messages(settings, settings.streams()[0]))
        assert not read_letters(settings, settings.raw_topics[0])

        (refused,) = service.mill()
        assert service.wait_until_ended(refused) == TopicError.exit_code
        assert dead_letters in (refused.beats.words or "")

        configure(settings, dead_letters, "max.message.bytes", "17000000")
        service.mill()
        account, _ = judge(service, trial)
    assert account.dead_letters == 1
    trial.held("loud")


LARGE: Final = 20_000_000  # bytes that no topic here takes, and that gzip makes a few kilobytes of
MANY: Final = 20_000  # records that no decoder takes, in a batch of some kilobytes


class Poison(NamedTuple):
    stage: str  # what it is poison for
    data: bytes  # A batch of records
    letter: str | None = None
    """The reason of each of its first `records`' dead letters; None where these are documents, or filtered out."""
    records: int = 1


def packed(value: bytes, **parts: Any) -> bytes:
    """Return a batch of a large record that is small on its way."""
    return batch([record(0, value, **parts)], GZIP, gzip.compress)


def value(content: bytes) -> bytes:
    return batch([record(0, content)])


SCHEMAS: Final = ("{}", '{"not": ' * 5000 + "{}" + "}" * 5000, json.dumps({"anyOf": BRANCHES}))
"""By their ids, from 1 on: a good one, one that cannot be learned, one by which values take long."""


def plain_poisons() -> Sequence[Poison]:
    return (
        Poison("decode", value(b'{"a":' * 5000), "too_deep"),
        Poison("steps", packed(b"a" + "\u0323\u0301".encode() * 100_000)),
        Poison("tokenizer", value(HARMFUL.encode()), "tokenizer_failed"),
        *(Poison("fetch", data) for data in ODD.values()),
        Poison("letter", packed(b"word " * (LARGE // 5)), "too_large"),
        Poison("letter", packed(b"\xff", key=b"k" * LARGE), "invalid_utf8"),
        Poison("letter", packed(b"\xff" * LARGE, key=b"k" * LARGE), "invalid_utf8"),
        Poison("letter", packed(b"\xff", headers=[(b"n" * LARGE, b"v" * LARGE), (b"\xe9", b"1")]), "invalid_utf8"),
        Poison("letter", packed(b"\xff", headers=[(b"", None)] * 1_000_000), "invalid_utf8"),
        Poison("letter", packed(b" " * 1_000_000, key=b"k" * LARGE)),
        Poison("letter", batch([record(n, b"\xff") for n in range(MANY)], GZIP, gzip.compress), "invalid_utf8", MANY),
    )


def framed_poisons() -> Sequence[Poison]:
    return (
        Poison("learn", value(framed(b'{"text": "a"}', 2)), "unusable_schema"),
        Poison("decode", value(nested(300).replace(b"\1", b"\3", 1)), "schema_mismatch"),
        Poison("decode", packed(framed(b'{"text": "a", "b": ' + b"[" * 1_000_000)), "too_many_values"),
    )


RECIPES: Final[Mapping[str, tuple[dict[str, Any], bytes, Callable[[], Sequence[Poison]]]]] = {
    "plain text": ({"rejects": "topic", "normalize": "NFC"}, TEXT, plain_poisons),
    "schemas": ({"decode": "json_schema"}, framed(json.dumps({"text": TEXT.decode()}).encode()), framed_poisons),
}
"""Settings, a value that is harmless by them, and what makes poisons."""


async def send_all(settings: Settings, neighbour: bytes, poisons: Sequence[Poison]) -> dict[int, Poison]:
    """Send each between neighbours, to partition 0; return where each is."""
    (topic,) = settings.raw_topics
    places = {}
    async with producer(settings) as client:
        for poison in poisons:
            await client.send_and_wait(topic, neighbour, partition=0)
            places[await send_through(client, topic, poison.data)] = poison
        await client.send_and_wait(topic, neighbour, partition=0)
    return places


@pytest.fixture
def registry() -> Iterator[SmallRegistry]:
    with small_registry() as small:
        yield small


@pytest.mark.fault("poison-record")
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("entry", ["tokenmill.app.cli", "tests.app.stock_aiokafka"])
def test_no_record_stops_another_whatever_stage_it_is_poison_for(  # noqa: PLR0917 - fixtures
    registry: SmallRegistry, configured: Configured, tmp_path: Path, trial: Trial, recipe: str, entry: str
) -> None:
    """No worker ends, all that is sent is milled, and each has its letter; a record that is skipped, too."""
    others, neighbour, make = RECIPES[recipe]
    poisons = make()  # takes a second
    (tmp_path / "tokenizer.json").write_bytes(panicking())
    for number, schema in enumerate(SCHEMAS):
        assert registry.register(f"pages-{number}", schema, "JSON") == number + 1
    own = {"tokenizer": str(tmp_path / "tokenizer.json"), "schema_registry_url": registry.url}
    settings = configured(2, **own, **others)
    send(settings, [Raw(neighbour, partition) for _ in range(20) for partition in (0, 1)])
    places = in_own_loop(lambda: send_all(settings, neighbour, poisons))
    flush_all(settings)
    mill_all(settings, tmp_path, entry)
    for poison in poisons:
        trial.fired(f"{poison.stage} poisoned")
    expected = {
        place + number: poison.letter
        for place, poison in places.items()
        if poison.letter is not None
        for number in range(poison.records)
    }
    assert reasons(settings) == expected

    skipped = max(poisons, key=lambda poison: poison.stage == "letter")
    (place,) = in_own_loop(lambda: send_all(settings, neighbour, [skipped]))
    in_own_loop(lambda: skip(settings, settings.raw_topics[0], 0, place))
    flush_all(settings)
    mill_all(settings, tmp_path, entry, skips=[place])
    assert reasons(settings) == {**expected, place: "skipped"}
    assert verify(settings, store=settings.store, reference=True, processes=1).ok
    trial.held("exact", "complete", "dead letters")


def mill_all(settings: Settings, directory: Path, entry: str, skips: Collection[int] = ()) -> None:
    """Mill and store all that the raw topic holds, with workers none of which ends."""
    with Service(settings, directory) as service:
        service.entry = entry
        workers = [service.segment(), *service.mill(2)]
        service.wait_until_complete(skips=skips)
        assert all(worker.running for worker in workers)
        service.stop()


def reasons(settings: Settings) -> dict[int, str]:
    """Return why each record of partition 0 was dead-lettered, by offset."""
    letters = map(about, read_letters(settings, settings.raw_topics[0]))
    return {int(said["offset"]): said["reason"].decode() for said in letters}
