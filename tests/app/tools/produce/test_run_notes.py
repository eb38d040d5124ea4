"""What makes two calls the same run, and where it stands, by the marks at the ends of a topic's partitions."""

import os
import random
import zlib
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import orjson
import pytest
from aiokafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from tests.app.sources.reading import peak_of, reading_of
from tests.app.tools.produce.scripted_kafka import RAW, ScriptedKafka
from tests.conftest import TopicFactory
from tokenmill.app.kafka.clients import producer
from tokenmill.app.kafka.topics import ensure_produced
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings, produced_topic
from tokenmill.app.sources.items import Place
from tokenmill.app.sources.mapping import Mapping
from tokenmill.app.sources.reading_order import LaneState, OrderState
from tokenmill.app.sources.source_changes import KnownSource
from tokenmill.app.tools.produce import run_notes
from tokenmill.app.tools.produce.run_notes import (
    FIRST_TAIL,
    MARK_HEADER,
    BatchMark,
    RunCheckpoint,
    RunEnd,
    RunPosition,
    RunStart,
    SentBefore,
    deciding_options,
    encode_mark,
    has_marks,
    is_complete,
    partition_ends,
    produced_runs,
    read_note,
    read_position,
    run_identity,
    write_note,
)
from tokenmill.errors import SourceError

file_names = st.binary(min_size=1, max_size=4).filter(lambda name: b"/" not in name and name != b".")


@given(names=st.lists(file_names, min_size=2, max_size=2))
def test_any_name_of_a_file_makes_a_run_of_its_own(names: list[bytes]) -> None:
    """Names are bytes; the same ones make the same run, and others another one."""
    runs = [run_identity("raw", {}, [os.fsdecode(b"/in/" + name)]) for name in names]
    assert (runs[0] == runs[1]) == (names[0] == names[1])
    assert runs[0] == run_identity("raw", {}, [os.fsdecode(b"/in/" + names[0])])


def test_runs_are_known_again_by_later_versions() -> None:
    """How a run is called must not change, or what was begun before an update would be sent twice."""
    options = {"plain": True, "where": [["language", "Python"]]}
    assert run_identity("raw", options, ["/in/a.txt", "hf://a/b"]) == "ccef24a8991aeead"
    first, second, other = (run_identity("raw", {"where": [["name", n]]}, ["/in"]) for n in ("\udce9", "\udce9", "e"))
    assert first == second != other, "of an option that is no UTF-8"


BOMB = zlib.compress(b" " * (64 << 20))
START = RunStart(5, {0: 1}, (KnownSource("a", 3, 4, "d"),))


def decoded(sources: bytes, **head: object) -> RunStart | None:
    written, parts = run_notes.encode_start("r", START)
    told = orjson.dumps(orjson.loads(written) | head)
    return run_notes.decode_start(b"r", {b"r": told, **dict.fromkeys(parts, sources)})


def test_a_note_that_anybody_wrote_is_read_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much it would be decompressed; nor does what is of another kind end who reads it."""
    monkeypatch.setattr(run_notes, "MOST_BYTES", 1 << 20)
    good = zlib.compress(b'[["a", 3, 4, "d"]]')
    assert decoded(good) == START
    found, peak = peak_of(lambda: decoded(BOMB))
    assert (found, peak < 8 << 20) == (None, True)
    for sources in (b'[["a", "3", 4, "d"]]', b'[[1, 3, 4, "d"]]', b"[7]", b"{}", b"[[]]", b"[" * 9999, b"null"):
        assert decoded(zlib.compress(sources)) in (None, START._replace(sources=()))
    for head in ({"begun": "x"}, {"begun": None}, {"offsets": ["x"]}, {"before": ["x"]}, {"settled": [["x"], [], []]}):
        assert decoded(good, **head) is None
    for odd in (b"7", b"[]", b"nonsense", b"\xff", b"[" * 9999):
        assert run_notes.decode_start(b"r", {b"r": odd, b"r/5/0": good}) is None


def test_options_make_another_run_where_they_are_given_alone() -> None:
    """So what was begun before they existed goes on; how many processes there are makes no other run."""
    plain = deciding_options(reading_of(), None, 0, 0)
    assert not {"delimiter", "encoding", "map_lists"} & set(plain)
    own: dict[str, Any] = {"delimiter": ";", "encoding": "utf-16"}
    assert deciding_options(reading_of(**own), None, 0, 0) == {**plain, **own}
    mapped = []
    for batch, processes in ((None, 1), (None, 2), (8, 1), (9, 1)):
        with closing(Mapping("json:dumps", processes, batch)) as mapping:
            mapped.append(deciding_options(reading_of(mapping=mapping), None, 0, 0))
    assert mapped == [{**plain, "map": "json:dumps"}] * 2 + [{**plain, "map": "json:dumps", "map_lists": True}] * 2


NOTE = RunStart(7, {0: 5, 1: 6}, (KnownSource("a.txt", 1, 2, "f"),))
STRAYS = [
    *((key, value) for key in (b"\xff\xfe", b"", b"/", b"run/x/0") for value in (b"\xff", b"{}", None)),
    *((b"other", head) for head in (b"{}", b"[]", b"7", b'{"begun": "x", "parts": 0}', b'{"begun": 1, "parts": "x"}')),
    (b"other", orjson.dumps({"begun": None, "order": "x", "offsets": [0], "before": [0], "parts": 1, "settled": None})),
    (b"other/None/0", zlib.compress(b"[]")),
]


async def test_stray_records_among_the_notes_of_runs_are_no_runs(broker: Broker, topic: TopicFactory) -> None:
    raw = topic()
    settings = Settings(bootstrap_servers=broker.bootstrap_servers, raw_topics=(raw,))
    await ensure_produced(settings, raw)
    async with producer(settings) as client:
        await write_note(client, raw, "run", NOTE)
        for key, value in STRAYS:
            await client.send_and_wait(produced_topic(raw), value, key, 0)
    assert await produced_runs(settings, raw) == {"run": NOTE}
    assert await read_note(settings, raw, "run") == NOTE


RUN = "ab"
WHEN = 17
SETTINGS = Settings()


class Topic:
    """A topic of three partitions, to which a run writes that began behind five records of others."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kafka = ScriptedKafka(3, random.Random(0))
        self.kafka.install(monkeypatch)
        for number in range(3):
            self.others(number, 5)
        self.run_start = RunStart(WHEN, {0: 5, 1: 5, 2: 5}, ())

    def others(self, partition: int, count: int) -> None:
        """Write as others do; some of their headers have our name."""
        headers: Sequence[tuple[str, bytes]] = [(MARK_HEADER, b"no mark")]
        self.kafka.logs[TopicPartition(RAW, partition)].append([(None, b"", tuple(headers))] * count)

    def mark(self, partition: int, number: int, checkpoint: int = 0, *, run: str = RUN, when: int = WHEN) -> None:
        """Write a batch of the run: two records, of which the last has the mark."""
        value = encode_mark(BatchMark(run, when, number, checkpoint_of(checkpoint)))
        records = [(None, b"", ()), (None, b"", ((MARK_HEADER, value),))]
        self.kafka.logs[TopicPartition(RAW, partition)].append(records)

    async def position(self) -> RunPosition:
        return await read_position(SETTINGS, RAW, RUN, self.run_start, 2)

    async def run_end(self, numbers: dict[int, int], ends: dict[int, int]) -> bool:
        return await is_complete(SETTINGS, RAW, RUN, self.run_start, RunEnd(numbers, ends, SentBefore()))


def checkpoint_of(number: int) -> RunCheckpoint:
    return RunCheckpoint(number, OrderState(0, (LaneState(number, Place(1, 2)),)), number + 1, number + 2)


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> Topic:
    return Topic(monkeypatch)


async def test_the_last_mark_of_each_partition_counts_and_the_furthest_place(marked: Topic) -> None:
    """Not those of another run, of one that was started again since, or of this one before it began."""
    marked.mark(1, 100, 100, run="cd")
    marked.mark(2, 100, 100, when=WHEN - 1)
    assert await marked.position() == RunPosition.nothing(2, 3)
    marked.mark(0, 0, 0)
    marked.mark(0, 6, 2)
    marked.mark(1, 4, 4)
    assert await marked.position() == RunPosition(checkpoint_of(4), {0: 6, 1: 4, 2: -1})
    marked.run_start = marked.run_start._replace(offsets={0: 9, 1: 9, 2: 7})
    assert await marked.position() == RunPosition.nothing(2, 3)
    marked.run_start = marked.run_start._replace(before=SentBefore(8, 2, 1))
    assert await marked.position() == RunPosition(RunCheckpoint(8, OrderState.start(2), 2, 1), {0: 7, 1: 7, 2: 7})
    marked.mark(1, 10, 9)
    assert (await marked.position()).sent == {0: 7, 1: 10, 2: 7}


@pytest.mark.parametrize("others", [1, FIRST_TAIL - 1, FIRST_TAIL, FIRST_TAIL + 1, 9 * FIRST_TAIL, 100 * FIRST_TAIL])
async def test_marks_are_found_behind_any_number_of_others(marked: Topic, others: int) -> None:
    marked.mark(0, 3, 1)
    marked.mark(0, 6, 4)
    marked.others(0, others)
    assert await marked.position() == RunPosition(checkpoint_of(4), {0: 6, 1: -1, 2: -1})
    marked.run_start = marked.run_start._replace(offsets={0: 9, 1: 5, 2: 5})
    assert (await marked.position()).sent[0] == -1, "before the run began"


async def test_a_mark_that_was_removed_may_have_been_there(marked: Topic) -> None:
    """What retention removed since the run began tells nothing; what it removed before does no harm."""
    marked.others(1, 50)
    marked.kafka.forget(TopicPartition(RAW, 1), 5)
    assert await marked.position() == RunPosition.nothing(2, 3)
    marked.kafka.forget(TopicPartition(RAW, 1), 6)
    with pytest.raises(SourceError, match=r"raw\[1\] no longer holds .*--restart"):
        await marked.position()
    marked.mark(1, 3, 1)
    assert (await marked.position()).sent[1] == 3
    marked.run_start = marked.run_start._replace(offsets={0: 5, 1: 5, 2: 6})
    with pytest.raises(SourceError, match=r"raw was created again .*--restart"):  # it ends earlier
        await marked.position()


async def test_what_is_settled_is_still_there(marked: Topic) -> None:
    marked.mark(0, 6)
    marked.mark(1, 4)
    numbers, ends = {0: 6, 1: 4, 2: -1}, {0: 7, 1: 7, 2: 5}
    assert await marked.run_end(numbers, ends)
    for number in range(3):
        marked.others(number, 1000)
    assert await marked.run_end(numbers, ends)
    assert not await marked.run_end({**numbers, 1: 7}, ends), "a tail was lost, and others filled it"
    assert not await marked.run_end(numbers, {**ends, 1: 6}), "the mark is not below the end"
    assert not await marked.run_end(numbers, {**ends, 2: 10_000}), "a tail was lost"
    for partition, first in ((0, 6), (1, 6), (1, 7), (1, 900), (0, 900)):
        marked.kafka.forget(TopicPartition(RAW, partition), first)
        assert await marked.run_end(numbers, ends), "retention removed some of it"


async def test_marks_among_the_last_records_are_seen(marked: Topic) -> None:
    ends = await partition_ends(SETTINGS, RAW, 3)
    assert ends == {0: 5, 1: 5, 2: 5}
    marked.mark(2, 100, run="cd")
    assert not await has_marks(SETTINGS, RAW, await partition_ends(SETTINGS, RAW, 3), RUN)
    marked.mark(2, 3, when=1)
    marked.others(2, FIRST_TAIL - 1)
    assert await has_marks(SETTINGS, RAW, await partition_ends(SETTINGS, RAW, 3), RUN)
    marked.others(2, 1)
    assert not await has_marks(SETTINGS, RAW, await partition_ends(SETTINGS, RAW, 3), RUN)
