"""Dead letters that a verification asks for, on brokers in memory: which are there, and what is said of the others."""

from collections.abc import Collection, Mapping, Sequence

import pytest

from tests.app.segments.mirror.memory_kafka import MemoryKafka
from tokenmill.app.settings import Settings, dead_letter_topic
from tokenmill.app.tools.verify.dead_letters import check_dead_letters
from tokenmill.app.tools.verify.result import ChainResult
from tokenmill.wire.dead_letters import Place, RecordPlace, SourcePlace, encode_dead_letter

RAW = "raw"
TOPIC = dead_letter_topic(RAW)


def chain(stream: str, partition: int, offsets: Collection[int]) -> ChainResult:
    """Return a chain that wants these records dead-lettered."""
    result = ChainResult(stream, partition, RAW, (0, 99), (0, 99))
    result.dead_letters.extend(offsets)
    return result


def written(kafka: MemoryKafka, places: Sequence[tuple[int, Place]]) -> None:
    """Write dead letters to partitions of the topic."""
    for partition, place in places:
        headers = encode_dead_letter(place, reason="invalid_utf8", detail="", timestamp=0)
        kafka.append(TOPIC, partition, b"", headers=headers)


def record(offset: int, partition: int = 0, topic: str = RAW) -> RecordPlace:
    """Return where a record stood."""
    return RecordPlace(topic, partition, offset)


CHAINS = [chain("raw.train", 0, {3, 8}), chain("raw.train", 1, {8}), chain("raw.held", 0, {5})]
ALL = [(0, record(3)), (1, record(8)), (0, record(8, 1)), (1, record(5))]
"""All that these want, on whichever partition."""


@pytest.mark.parametrize(
    ("places", "missing"),
    [
        (ALL, []),
        ([*ALL, *ALL, (0, record(77)), (0, SourcePlace(RAW, "ab", "file:8"))], []),
        (ALL[1:], [("raw.train", 0, 3)]),
        (ALL[:3], [("raw.held", 0, 5)]),
        ([*ALL[:2], ALL[3]], [("raw.train", 1, 8)]),
        ([*ALL[1:], (0, record(3, topic="another"))], [("raw.train", 0, 3)]),
        ([*ALL[1:], (0, record(3, partition=1))], [("raw.train", 0, 3)]),
        ([*ALL[1:], (0, SourcePlace(RAW, "ab", "3"))], [("raw.train", 0, 3)]),
        ([], [("raw.train", 0, 3), ("raw.train", 1, 8)]),
    ],
)
async def test_what_is_not_there_is_named_by_partition(
    kafka: MemoryKafka, places: Sequence[tuple[int, Place]], missing: Sequence[tuple[str, int, int]]
) -> None:
    """Letters of other topics, partitions or of no record at all stand for none; one stands for all streams."""
    kafka.append(TOPIC, 0, b"no letter")
    kafka.append(TOPIC, 1, b"no letter")
    written(kafka, places)
    spans = {tp.partition: (0, len(log)) for tp, log in kafka.logs.items()}
    differences, notes = await check_dead_letters(Settings(), RAW, CHAINS, spans)
    assert [(found.stream, found.partition, found.offset) for found in differences] == missing
    assert notes == []


@pytest.mark.parametrize(
    ("spans", "noted"), [({0: (2, 3), 1: (0, 1)}, True), ({0: (0, 3), 1: (0, 1)}, False), ({0: (0, 1)}, False)]
)
async def test_what_retention_may_have_removed_is_a_note(
    kafka: MemoryKafka, spans: Mapping[int, tuple[int, int]], *, noted: bool
) -> None:
    """Only where a partition of the topic begins later; letters above the mark do not count."""
    written(
        kafka, [(0, record(77)), (0, record(3)), (0, record(77)), (1, record(8)), (1, record(8, 1)), (1, record(5))]
    )
    differences, notes = await check_dead_letters(Settings(), RAW, CHAINS, spans)
    assert bool(notes) == noted
    assert bool(differences) != noted
    if noted:
        assert notes[0].startswith(f"{TOPIC}[0] starts at offset 2: 3 dead letters are not there")


async def test_nothing_is_noted_where_nothing_is_missing(kafka: MemoryKafka) -> None:
    """Whatever retention has removed."""
    written(kafka, [(0, record(77)), *[(0, place) for _, place in ALL]])
    assert await check_dead_letters(Settings(), RAW, CHAINS, {0: (1, 5)}) == ([], [])


@pytest.mark.parametrize("spans", [None, {0: (0, 5)}])
async def test_nobody_is_asked_where_there_is_nothing_to_find(spans: Mapping[int, tuple[int, int]] | None) -> None:
    """No dead letter is wanted, or the topic is missing: no broker is needed, and there is none here."""
    wanted = [] if spans else CHAINS
    differences, _ = await check_dead_letters(Settings(bootstrap_servers="127.0.0.1:1"), RAW, wanted, spans)
    assert len(differences) == (0 if spans else 2)
