"""The dead letters of a raw topic: reading them, and sending records back once somebody has repaired them.

A resent record has the key and the headers of the original, goes to its partition, and says in the header `RESENT`
where it came from. That it was sent is noted on the dead-letter topic, by a record without a value, so that it is not
sent again unless somebody asks for that; killed in between, it may be sent twice.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from aiokafka import TopicPartition

from tokenmill.errors import InputError

from .clients.control import require_topic
from .clients.kafka import consumer, offsets, producer, read_range
from .raw.dead_letters import PREFIX, DeadLetter, Place, parse_dead_letter, parse_place, place_name
from .settings import Settings, dead_letter_topic

RESENT: Final = "tokenmill.resent-from"
"""Header of a record that was sent back: the original's topic, partition and offset, with slashes between them."""
NOTE: Final = f"{PREFIX}resent"
"""Header of a note on a dead-letter topic that this record was sent back."""


@dataclass(slots=True)
class Counts:
    """The dead letters of a raw topic, each record counted once."""

    reasons: Counter[str] = field(default_factory=Counter)
    """Records by reason; of one that was dead-lettered for several, by different streams, the first."""
    letters: int = 0
    """Messages on the topic: a worker that resumes may write one again."""
    resent: int = 0
    """Records of those that were sent back."""


async def read_dead_letters(settings: Settings, raw_topic: str) -> AsyncGenerator[DeadLetter | Place, None]:
    """Yield what the dead-letter topic of ``raw_topic`` holds now: letters, and the places of records sent back.

    Letters come as they stand there, some more than once. What is neither is passed over.

    Raises:
        TopicError: there is no such topic.

    """
    topic = dead_letter_topic(raw_topic)
    partition = TopicPartition(topic, 0)
    async with consumer(settings) as client:
        await require_topic(client, topic)
        span = (await offsets(client, [partition]))[partition]
        async for record in read_range(client, partition, *span):
            letter = parse_dead_letter(record)
            if letter is not None:
                yield letter
            elif (place := parse_place((dict(record.headers).get(NOTE) or b"").decode(errors="replace"))) is not None:
                yield place


async def count_dead_letters(settings: Settings, raw_topic: str) -> Counts:
    """Return how many records were dead-lettered, by reason."""
    counts = Counts()
    reasons: dict[Place, str] = {}
    resent: set[Place] = set()
    async for found in read_dead_letters(settings, raw_topic):
        if isinstance(found, DeadLetter):
            counts.letters += 1
            reasons.setdefault(found.place, found.reason)
        else:
            resent.add(found)
    counts.reasons.update(reasons.values())
    counts.resent = len(resent)
    return counts


async def find_dead_letter(settings: Settings, place: Place) -> DeadLetter:
    """Return the dead letter of one record.

    Raises:
        InputError: there is none.
        TopicError: there is no dead-letter topic.

    """
    async for found in read_dead_letters(settings, place[0]):
        if isinstance(found, DeadLetter) and found.place == place:
            return found
    raise InputError(
        f"{dead_letter_topic(place[0])} holds no dead letter of {place_name(place)}: "
        f"`tokenmill dead-letters list {place[0]}` shows which there are"
    )


@dataclass(frozen=True, slots=True)
class Resending:
    """What to send back."""

    raw_topic: str
    reasons: Collection[str] = ()
    """All records of these reasons; none: those of `places` alone."""
    places: Collection[Place] = ()
    values: Mapping[Place, bytes] = field(default_factory=dict)
    """What to send instead of the original value."""
    again: bool = False
    """Also those that were sent before."""

    def takes(self, letter: DeadLetter) -> bool:
        """Return whether a letter is meant."""
        return letter.reason in self.reasons or letter.place in self.places


@dataclass(slots=True)
class Resent:
    """What became of it."""

    sent: int = 0
    bytes: int = 0
    before: int = 0
    """Records that had been sent back before, and were not sent again."""


async def resend(
    settings: Settings, wish: Resending, *, dry_run: bool = False, progress: Callable[[Resent], None] = lambda _: None
) -> Resent:
    """Send records back to their raw topic, each once; on return all are acknowledged, or with ``dry_run`` counted.

    Raises:
        InputError: a place that was asked for has no dead letter, or a record has another raw topic.
        TopicError: there is no dead-letter topic.

    """
    known = {found async for found in read_dead_letters(settings, wish.raw_topic) if not isinstance(found, DeadLetter)}
    done, seen = Resent(), set[Place]()
    async with producer(settings) as client:
        async for found in read_dead_letters(settings, wish.raw_topic):
            if not isinstance(found, DeadLetter) or found.place in seen or not wish.takes(found):
                continue
            seen.add(found.place)
            if found.place in known and not wish.again:
                done.before += 1
                continue
            value = wish.values.get(found.place, found.value)
            if not dry_run:
                headers = [(name, old) for name, old in found.headers if name != RESENT]
                headers.append((RESENT, place_name(found.place).encode()))
                await client.send_and_wait(found.topic, value, found.key, found.partition, headers=headers)
                note = [(NOTE, place_name(found.place).encode())]
                await client.send_and_wait(dead_letter_topic(found.topic), None, b"", 0, headers=note)
            done.sent += 1
            done.bytes += len(value or b"")
            progress(done)
    missing = set(wish.places) - seen
    if missing:
        raise InputError(
            f"{dead_letter_topic(wish.raw_topic)} holds no dead letter of {place_name(min(missing))}: "
            f"`tokenmill dead-letters list {wish.raw_topic}` shows which there are"
        )
    return done
