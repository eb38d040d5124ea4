"""The dead letters of a raw topic: reading them, and sending records back once they are repaired.

A resent record has the key and the headers of the original, goes to its partition, and says in the header `RESENT`
where it came from; what `produce` refused goes to a partition that its place decides. A record without a value on the
dead-letter topic notes that; killed with SIGKILL in between, it may be sent twice. A letter that was cut is sent with a
value that a person gives, and without a key where that was cut.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from aiokafka import AIOKafkaProducer

from tokenmill.errors import InputError

from ..kafka.clients import consumer, producer, read_range, sending_to
from ..kafka.dead_letters import NOTE, DeadLetter, Place, RecordPlace, decode_dead_letter, letter_partition, parse_place
from ..settings import Settings, dead_letter_topic
from ..tasks import to_the_end
from .inspect.packed import packed_letters
from .kafka_reading import topic_ranges

RESENT: Final = "tokenmill.resent-from"
"""Header of a record that was sent back: the place that it had, as text (`Place`)."""


class DeadLetterCounts(NamedTuple):
    """The dead letters of a raw topic, each place counted once."""

    reasons: Counter[str]
    """Records by reason; of one that was dead-lettered for several, by different streams, the first."""
    letters: int
    """Messages on the topic: a worker that resumes may write one again."""
    resent: int


async def read_dead_letters(settings: Settings, raw_topic: str) -> AsyncGenerator[DeadLetter | Place, None]:
    """Yield letters of ``raw_topic``, some more than once, and places of records sent back; of a pack, from files."""
    if (packed := packed_letters(settings, raw_topic)) is not None:
        for one in packed:
            yield one
        return
    topic = dead_letter_topic(raw_topic)
    async with consumer(settings) as client:
        for partition, span in (await topic_ranges(client, topic)).items():
            async for record in read_range(client, partition, *span):
                letter = decode_dead_letter(record)
                note = parse_place((dict(record.headers).get(NOTE) or b"").decode(errors="replace"))
                if letter is not None:
                    yield letter
                elif note is not None:
                    yield note


async def count_dead_letters(settings: Settings, raw_topic: str) -> DeadLetterCounts:
    """Return how many records were dead-lettered, by reason."""
    reasons, resent, letters = dict[Place, str](), set[Place](), 0
    async for found in read_dead_letters(settings, raw_topic):
        if isinstance(found, DeadLetter):
            letters += 1
            reasons.setdefault(found.place, found.reason)
        else:
            resent.add(found)
    return DeadLetterCounts(Counter(reasons.values()), letters, len(resent))


async def find_dead_letter(settings: Settings, place: Place) -> DeadLetter:
    """Return the dead letter of one place; raises InputError where there is none."""
    async for found in read_dead_letters(settings, place.topic):
        if isinstance(found, DeadLetter) and found.place == place:
            return found
    raise _none_of(place)


def _none_of(place: Place) -> InputError:
    return InputError(
        f"{dead_letter_topic(place.topic)} holds no dead letter of {place}: "
        f"`tokenmill dead-letters list {place.topic}` shows which there are"
    )


@dataclass(frozen=True, slots=True)
class ResendRequest:
    """What to send back."""

    raw_topic: str
    reasons: Collection[str] = ()
    """All records of these reasons; none: those of `places` alone."""
    places: Collection[Place] = ()
    values: Mapping[Place, bytes] = field(default_factory=dict)
    again: bool = False

    def takes(self, letter: DeadLetter) -> bool:
        """Return whether a letter is meant."""
        return letter.reason in self.reasons or letter.place in self.places


@dataclass(slots=True)
class ResendOutcome:
    """What became of it."""

    sent: int = 0
    bytes: int = 0
    before: int = 0
    without_value: int = 0
    """Those of which there is nothing to send, or whose value was cut."""


async def resend(
    settings: Settings,
    request: ResendRequest,
    done: ResendOutcome | None = None,
    *,
    dry_run: bool = False,
    progress: Callable[[], None] = lambda: None,
) -> ResendOutcome:
    """Send records back to their raw topic, each once; on return all are acknowledged, or with ``dry_run`` counted.

    What was done so far is in ``done`` whenever ``progress`` is called, and after a cancellation, which waits until the
    record on its way is noted as sent: another call sends the others.

    Raises InputError where a place that was asked for has no dead letter, or nothing that could be sent, or was packed;
    and TopicError where a topic is missing, or the raw topic does not take a record.
    """
    if packed_letters(settings, request.raw_topic) is not None:
        raise InputError(
            f"{request.raw_topic} in {settings.store} was packed from files: correct what these hold, and pack them "
            "into another store"
        )
    sent_before = {
        found async for found in read_dead_letters(settings, request.raw_topic) if not isinstance(found, DeadLetter)
    }
    done, seen = ResendOutcome() if done is None else done, set[Place]()
    dead_letters = dead_letter_topic(request.raw_topic)
    async with producer(settings) as client:
        partitions = len(await client.partitions_for(request.raw_topic))
        note_partitions = len(await client.partitions_for(dead_letters))
        async for found in read_dead_letters(settings, request.raw_topic):
            if not isinstance(found, DeadLetter) or found.place in seen or not request.takes(found):
                continue
            seen.add(found.place)
            if found.place in sent_before and not request.again:
                done.before += 1
                continue
            value = request.values.get(found.place, found.value)
            if not found.has_value and found.place not in request.values:
                done.without_value += 1
                continue
            done.sent += 1
            done.bytes += len(value or b"")
            if not dry_run:
                was = found.place  # where a record goes back to, if it was anywhere
                partition = was.partition if isinstance(was, RecordPlace) else letter_partition(was, partitions)
                note_partition = letter_partition(was, note_partitions)
                await to_the_end(_send(client, found, value, partition, note_partition))
            progress()
    missing = set(request.places) - seen
    if missing:
        raise _none_of(min(missing, key=str))
    if request.places and done.without_value:
        name = str(min(request.places, key=str))
        raise InputError(f"the dead letter of {name} has no value, or its beginning alone: give one, with --value FILE")
    return done


async def _send(
    client: AIOKafkaProducer, letter: DeadLetter, value: bytes | None, partition: int, note_partition: int
) -> None:
    """Send a record back, and note that: a cancellation between them would have it sent once more."""
    raw_topic, place = letter.place.topic, str(letter.place).encode(errors="replace")
    headers = [header for header in letter.headers if header[0] != RESENT]
    headers.append((RESENT, place))
    key = letter.key if letter.whole_key is None else None
    with sending_to(raw_topic):
        await client.send_and_wait(raw_topic, value, key, partition, headers=headers)
    dead_letters = dead_letter_topic(raw_topic)
    with sending_to(dead_letters):
        await client.send_and_wait(dead_letters, None, b"", note_partition, headers=[(NOTE, place)])
