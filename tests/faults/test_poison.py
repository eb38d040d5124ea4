"""Records that are poison for one stage each, and cheap to send: none stops a neighbour."""

import gzip
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.app.milling.decoding.registered import framed
from tests.app.milling.decoding.test_json_schema_values import BRANCHES, nested
from tests.app.milling.tokenizers.panicking import HARMFUL, panicking
from tests.faults.conftest import Configured
from tests.faults.feeding import flush_all
from tests.faults.oracle import PREFIX, read_letters
from tests.faults.trial import Trial
from tests.odd_batches import GZIP, ODD, batch, record, send_through
from tests.registry_servers import SmallRegistry, small_registry
from tests.service import Raw, Service, in_own_loop, send
from tokenmill.app.kafka.clients import producer
from tokenmill.app.settings import Settings
from tokenmill.app.tools.failed_records import skip
from tokenmill.app.tools.verify import verify

pytestmark = pytest.mark.fault("poison-record")

TEXT = b"a neighbour, which nothing happens to; "
LARGE: Final = 20_000_000
"""Bytes that no topic here takes, and that gzip makes a few kilobytes of."""
MANY: Final = 20_000
"""Records that no decoder takes, in a batch of some kilobytes."""


class Poison(NamedTuple):
    """A batch of records."""

    stage: str
    """What it is poison for."""
    data: bytes
    letter: str | None = None
    """The reason of each of its first `records`' dead letters; None where these are documents, or filtered out."""
    records: int = 1


def packed(value: bytes, **parts: Any) -> bytes:
    """Return a batch of a large record that is small on its way."""
    return batch([record(0, value, **parts)], GZIP, gzip.compress)


def value(content: bytes) -> bytes:
    """Return a batch of one record."""
    return batch([record(0, content)])


SCHEMAS: Final = ("{}", '{"not": ' * 5000 + "{}" + "}" * 5000, json.dumps({"anyOf": BRANCHES}))
"""By their ids, from 1 on: a good one, one that cannot be learned, one by which values take long."""


def plain_poisons() -> Sequence[Poison]:
    """Return those of texts as they are; they take a second to make."""
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
    """Return those of values with schemas."""
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
    """Run a registry."""
    with small_registry() as small:
        yield small


@pytest.mark.needs("minutes")
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("entry", ["tokenmill.app.cli", "tests.app.stock_aiokafka"])
def test_no_record_stops_another_whatever_stage_it_is_poison_for(  # noqa: PLR0917 - fixtures
    registry: SmallRegistry, configured: Configured, tmp_path: Path, trial: Trial, recipe: str, entry: str
) -> None:
    """No worker ends, all that is sent is milled, and each has its letter; a record that is skipped, too."""
    others, neighbour, make = RECIPES[recipe]
    poisons = make()
    (tmp_path / "tokenizer.json").write_bytes(panicking())
    for number, schema in enumerate(SCHEMAS):
        assert registry.register(f"pages-{number}", schema, "JSON") == number + 1
    own = {"tokenizer": str(tmp_path / "tokenizer.json"), "schema_registry_url": registry.url}
    settings = configured(2, **own, **others)
    send(settings, [Raw(neighbour, partition) for _ in range(20) for partition in (0, 1)])
    places = in_own_loop(lambda: send_all(settings, neighbour, poisons))
    flush_all(settings)
    mill_all(settings, tmp_path, entry)
    for stage in {poison.stage for poison in poisons}:
        trial.fired(f"{stage} poisoned", sum(poison.stage == stage for poison in poisons))
    expected = {
        place + number: poison.letter
        for place, poison in places.items()
        if poison.letter is not None
        for number in range(poison.records)
    }
    assert reasons(settings) == expected

    (place,) = in_own_loop(
        lambda: send_all(settings, neighbour, [max(poisons, key=lambda poison: poison.stage == "letter")])
    )
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
