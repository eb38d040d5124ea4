"""Records that are poison for one stage each, and cheap to send: none stops a neighbour."""

import gzip
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.conftest import TopicFactory
from tests.faults.feeding import flush_all
from tests.faults.oracle import PREFIX, read_letters
from tests.faults.trial import Trial
from tests.odd_batches import GZIP, ODD, batch, record, send_through
from tests.service import Raw, Service, in_own_loop, send, service_settings
from tokenmill.app.kafka.clients import producer
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.app.tools.skip_and_ignore import skip
from tokenmill.app.tools.verify import verify

pytestmark = pytest.mark.fault("poison-record")

TEXT = b"a neighbour, which nothing happens to; "
LARGE: Final = 20_000_000
"""Bytes that no topic here takes, and that gzip makes a few kilobytes of."""


class Poison(NamedTuple):
    """A batch of records."""

    stage: str
    """What it is poison for."""
    data: bytes
    letter: str | None = None
    """The reason of its first record's dead letter; None where that is a document, or filtered out."""


def packed(value: bytes, **parts: Any) -> bytes:
    """Return a batch of a large record that is small on its way."""
    return batch([record(0, value, **parts)], GZIP, gzip.compress)


PLAIN: Final = (
    *(Poison("fetch", data) for data in ODD.values()),
    Poison("letter", packed(b"word " * (LARGE // 5)), "too_large"),
    Poison("letter", packed(b"\xff", key=b"k" * LARGE), "invalid_utf8"),
    Poison("letter", packed(b"\xff" * LARGE, key=b"k" * LARGE), "invalid_utf8"),
    Poison("letter", packed(b"\xff", headers=[(b"n" * LARGE, b"v" * LARGE), (b"\xe9", b"1")]), "invalid_utf8"),
    Poison("letter", packed(b"\xff", headers=[(b"", None)] * 1_000_000), "invalid_utf8"),
    Poison("letter", packed(b" " * 1_000_000, key=b"k" * LARGE)),
)
RECIPES: Final[Mapping[str, tuple[dict[str, Any], Sequence[Poison]]]] = {
    "plain text": ({"rejects": "topic"}, PLAIN),
}


async def send_all(settings: Settings, poisons: Sequence[Poison]) -> dict[int, Poison]:
    """Send each between neighbours, to partition 0; return where each is."""
    (topic,) = settings.raw_topics
    places = {}
    async with producer(settings) as client:
        for poison in poisons:
            await client.send_and_wait(topic, TEXT, partition=0)
            places[await send_through(client, topic, poison.data)] = poison
        await client.send_and_wait(topic, TEXT, partition=0)
    return places


@pytest.mark.parametrize(
    ("recipe", "entry"),
    [
        *((recipe, "tokenmill.app.cli") for recipe in RECIPES),
        *(pytest.param(recipe, "tests.app.stock_aiokafka", marks=pytest.mark.needs("minutes")) for recipe in RECIPES),
    ],
)
def test_no_record_stops_another_whatever_stage_it_is_poison_for(  # noqa: PLR0917 - fixtures
    broker: Broker, topic: TopicFactory, tmp_path: Path, trial: Trial, recipe: str, entry: str
) -> None:
    """No worker ends, all that is sent is milled, and each has its letter; a record that is skipped, too."""
    others, poisons = RECIPES[recipe]
    settings = service_settings(broker, topic(2), tmp_path, **others)
    send(settings, [Raw(TEXT, 1)] * 20)
    places = in_own_loop(lambda: send_all(settings, poisons))
    flush_all(settings)
    mill_all(settings, tmp_path, entry)
    for stage in {poison.stage for poison in poisons}:
        trial.fired(f"{stage} poisoned", sum(poison.stage == stage for poison in poisons))
    expected = {place: poison.letter for place, poison in places.items() if poison.letter is not None}
    assert reasons(settings) == expected

    (place,) = in_own_loop(lambda: send_all(settings, [max(poisons, key=lambda poison: poison.stage == "letter")]))
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
    letters = [dict(reversed(letter.headers)) for letter in read_letters(settings, settings.raw_topics[0])]
    return {int(about[f"{PREFIX}offset"]): about[f"{PREFIX}reason"].decode() for about in letters}
