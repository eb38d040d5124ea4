"""Whatever arrives when, and whenever a call is killed: each document is in the topic once, in order.

The real run, sender, marks, fence and register, on a Kafka in memory that lets batches arrive by chance.
"""

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import RecordListTooLargeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.app.sources.reading import reading_of
from tests.app.tools.produce.scripted_kafka import DEAD, PRODUCED, RAW, Log, ScriptedKafka
from tokenmill.app.kafka.dead_letters import SourcePlace, decode_dead_letter
from tokenmill.app.settings import Settings
from tokenmill.app.sources import find_sources
from tokenmill.app.tools.produce.producing import RunPlan, produce
from tokenmill.app.tools.produce.run_notes import MARK_HEADER, BatchMark, decode_mark, run_identity
from tokenmill.app.tools.produce.sending import Summary
from tokenmill.errors import InputError, SourceError, TopicError

SETTINGS = Settings()
BAD = b"no object"
UNWELCOME = "u"
"""In the text of a document that the brokers refuse."""


def is_refused(line: bytes) -> bool:
    return line == BAD or json.loads(line)["text"].endswith(UNWELCOME)


class World:
    """A folder that grows, calls that send what is in it, and a Kafka that refuses some of that."""

    def __init__(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, *, key: str | None = None, **options: Any
    ) -> None:
        self.path, self.rng, self.number = Path(mkdtemp(dir=tmp_path)), random.Random(seed), 0
        self.kafka = ScriptedKafka(self.rng.choice([1, 2, 3]), self.rng)
        self.kafka.slow = self.rng.choice([None, DEAD])
        self.kafka.refuse_value = lambda value: RecordListTooLargeError() if value and is_refused(value) else None
        self.kafka.install(monkeypatch)
        self.bad = self.rng.choice([0.0, 0.1, 0.5])
        self.unwelcome = self.rng.choice([0.0, 0.0, 0.1, 0.9])
        self.key, self.options = key, options

    def grow(self, files: int, lines: int) -> None:
        for name in range(files):
            with (self.path / f"{name}.jsonl").open("ab") as file:
                for _ in range(self.rng.randint(0, lines)):
                    self.number += 1
                    long = "x" * self.rng.choice([0, 0, 0, 30, 200])
                    long += UNWELCOME if self.rng.random() < self.unwelcome else ""
                    line = json.dumps({"id": self.number, "text": f"{self.number}{long}", "lang": self.number % 5})
                    file.write((BAD if self.rng.random() < self.bad else line.encode()) + b"\n")

    def lines(self) -> list[bytes]:
        return [line for path in sorted(self.path.iterdir()) for line in path.read_bytes().splitlines()]

    def documents(self) -> list[bytes]:
        return [line for line in self.lines() if not is_refused(line)]

    def call(self, **options: Any) -> Summary:
        summary = self.killed(None, **options)
        assert summary is not None
        return summary

    def killed(self, after: int | None, **options: Any) -> Summary | None:
        """Call it; killed after so many batches have arrived, it returns None. What is under way then may arrive."""
        return asyncio.run(self._call(after, options))

    async def start(self, **options: Any) -> Summary:
        """Call it; what it sends arrives when somebody lets it arrive."""
        paths = [str(self.path)]
        sources = find_sources(paths, reading_of(key=self.key))
        plan = RunPlan(identity=run_identity(RAW, {}, paths), **self.options, **options)
        return await produce(SETTINGS, RAW, sources, plan)

    async def _call(self, after: int | None, options: dict[str, Any]) -> Summary | None:
        delivering = asyncio.create_task(self.kafka.deliver())
        enough = self.kafka.delivered + after if after is not None else None
        working = asyncio.create_task(self.start(**options))
        while not working.done() and (enough is None or self.kafka.delivered < enough):
            await asyncio.wait([working], timeout=0)
        working.cancel()
        delivering.cancel()
        try:
            return await working
        except asyncio.CancelledError:
            return None

    def assert_once(self) -> None:
        found = [value for part in self.kafka.values(RAW) for value in part]
        assert Counter(found) == Counter(self.documents())
        if self.options.get("on_error") == "dead-letter":
            records: Any = [record for number in (0, 1) for record in self.log(number, DEAD).records]
            letters = [letter.place for record in records if (letter := decode_dead_letter(record)) is not None]
            assert all(isinstance(place, SourcePlace) for place in letters)
            assert len(set(letters)) == sum(map(is_refused, self.lines()))

    def marks(self) -> list[BatchMark]:
        records = [record for number in range(self.kafka.counts[RAW]) for record in self.log(number).records]
        found = [decode_mark(value) for record in records for name, value in record.headers if name == MARK_HEADER]
        return [mark for mark in found if mark is not None]

    def log(self, number: int, topic: str = RAW) -> Log:
        return self.kafka.logs[TopicPartition(topic, number)]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr("tokenmill.app.sources.file_sources.CHUNK_ENTRIES", 3)
    monkeypatch.setattr("tokenmill.app.tools.produce.sending.BATCH_BYTES", 300)
    monkeypatch.setattr("tokenmill.app.tools.produce.producing.MOST_CHECKPOINTS", 4)
    monkeypatch.setattr("tokenmill.app.sources.reading_order.WAIT_SECONDS", 0.001)
    return monkeypatch


several = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@several
@given(
    seed=st.integers(0, 2**32),
    kills=st.lists(st.integers(0, 30), max_size=4),
    key=st.sampled_from([None, "lang"]),
    on_error=st.sampled_from(["skip", "dead-letter"]),
)
@pytest.mark.slow
@pytest.mark.needs("minutes")
def test_killed_calls_send_each_document_once_and_in_order(
    tmp_path: Path, small: pytest.MonkeyPatch, *, seed: int, kills: list[int], key: str | None, on_error: str
) -> None:
    """Whatever was under way arrives or does not; the partitions hold what an undisturbed call would have put there."""
    all_of = World(tmp_path, small, seed, key=key, on_error=on_error)
    all_of.grow(files=6, lines=20)

    for after in kills:
        all_of.killed(after)
    summary = all_of.call()

    assert_counted(all_of, summary, exactly=not kills)
    all_of.assert_once()
    quiet = World(tmp_path, small, seed, key=key)
    quiet.path = all_of.path
    quiet.kafka.counts = all_of.kafka.counts
    quiet.call()
    assert all_of.kafka.values(RAW) == quiet.kafka.values(RAW)
    all_of.kafka.install(small)
    with small.context() as watched:
        watched.setattr("tokenmill.app.tools.produce.run_notes.read_position", None)
        again = all_of.call()
    # That all is there is noted, and still believed.
    assert (again.before, again.documents, again.refused) == (summary.before + summary.documents, 0, summary.refused)


@several
@given(seed=st.integers(0, 2**32), steps=st.lists(st.tuples(st.none() | st.integers(0, 20), st.booleans()), max_size=5))
@pytest.mark.slow
def test_what_was_added_is_sent_once_however_often_calls_are_killed(
    tmp_path: Path, small: pytest.MonkeyPatch, seed: int, steps: list[tuple[int | None, bool]]
) -> None:
    some = World(tmp_path, small, seed, on_error="dead-letter")
    some.grow(files=3, lines=12)
    for after, grows in steps:
        some.killed(after, only_new=True)
        if grows:
            some.grow(files=6, lines=8)
    last = some.call(only_new=True)

    assert_counted(some, last, exactly=all(after is None for after, _ in steps))
    some.assert_once()
    for name in range(3):
        path = some.path / f"{name}.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        for values in some.kafka.values(RAW):
            own = [value for value in values if value in set(lines)]
            assert own == [line for line in lines if line in set(own)], "each file's lines keep their order"
    quiet = some.call()
    assert (quiet.documents, quiet.before) == (0, last.before + last.documents)


def assert_counted(some: World, summary: Summary, *, exactly: bool) -> None:
    """Fail unless each line is counted once; after a kill, what the brokers refused may count as what was before."""
    lines, documents = some.lines(), len(some.documents())
    assert summary.before + summary.documents + summary.refused == len(lines)
    assert lines.count(BAD) <= summary.refused <= len(lines) - documents
    assert summary.refused == len(lines) - documents or not exactly


def done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int = 2) -> World:
    some = World(tmp_path, monkeypatch, seed=5)
    some.kafka.counts[RAW] = partitions
    some.grow(files=3, lines=60)
    some.call()
    some.assert_once()
    return some


def test_what_retention_removed_was_there(tmp_path: Path, small: pytest.MonkeyPatch) -> None:
    some = done(tmp_path, small)
    total = len(some.documents())
    for removed in (20, 10**6):
        for number in range(2):
            name = TopicPartition(RAW, number)
            some.kafka.forget(name, min(removed, some.kafka.logs[name].end))
        summary = some.call()
        assert (summary.before, summary.documents) == (total, 0)
    some.grow(files=1, lines=9)
    new = some.call(only_new=True)
    assert (new.before, new.documents) == (total, len(some.documents()) - total)


def test_a_run_that_is_not_done_needs_its_marks(tmp_path: Path, small: pytest.MonkeyPatch) -> None:
    some = World(tmp_path, small, seed=5)
    some.grow(files=3, lines=60)
    some.call(limit=10)
    for number in range(some.kafka.counts[RAW]):
        name = TopicPartition(RAW, number)
        some.kafka.forget(name, some.kafka.logs[name].end)
    with pytest.raises(SourceError, match=r"no longer holds what this run wrote.*--restart"):
        some.call()


def test_a_tail_that_was_lost_is_sent_again(tmp_path: Path, small: pytest.MonkeyPatch) -> None:
    """Of a run that was done: what a partition lacks is found by its marks, also where others wrote there since."""
    for others in (0, 500):
        some = done(tmp_path, small, partitions=1)
        values = some.kafka.values(RAW)
        log = some.log(0)
        last = next(n for n in reversed(range(len(log.records) - 1)) if log.records[n].headers)
        lost = len(log.records) - 1 - last
        del log.records[last + 1 :]
        log.end = log.records[-1].offset + 1
        log.append([(None, b"others", ())] * others)

        summary = some.call()

        assert summary.documents == lost > 0
        assert [[value for value in part if value != b"others"] for part in some.kafka.values(RAW)] == values


def test_a_topic_that_was_created_again_gets_all_again(tmp_path: Path, small: pytest.MonkeyPatch) -> None:
    for others in (0, 500):
        some = done(tmp_path, small)
        for number in range(2):
            log = some.log(number)
            log.records, log.end, log.first = [], 0, 0
            log.append([(None, b"others", ())] * others)

        some.call()
        found = Counter(value for part in some.kafka.values(RAW) for value in part if value != b"others")
        assert found == Counter(some.documents())


def test_a_run_of_which_nothing_is_noted_is_refused(tmp_path: Path, small: pytest.MonkeyPatch) -> None:
    some = done(tmp_path, small)
    total = len(some.documents())
    run = run_identity(RAW, {}, [str(some.path)]).encode()
    some.log(0, PRODUCED).append([(run, None, ())])
    with pytest.raises(SourceError, match=r"raw\.produced does not say when this run began.*--restart"):
        some.call()
    some.killed(3, restart=True)
    summary = some.call()
    assert 0 < summary.before + summary.documents == total
    assert Counter(v for part in some.kafka.values(RAW) for v in part) >= Counter(some.documents() * 2)


def test_notes_of_earlier_parts_are_forgotten_and_half_ones_refused(tmp_path: Path, small: pytest.MonkeyPatch) -> None:
    """A compacted topic holds one head and one list of sources for each run."""
    some = done(tmp_path, small)
    for _ in range(3):
        some.grow(files=3, lines=5)
        some.call(only_new=True)
    log = some.log(0, PRODUCED)
    compacted = {record.key: record.value for record in log.records}
    assert sorted(b"/" in (key or b"") for key, value in compacted.items() if value is not None) == [False, True]
    log.records = [record for record in log.records if b"/" not in (record.key or b"")]
    with pytest.raises(SourceError, match="does not hold all of what was noted"):
        some.call()


def test_another_version_does_not_go_on(tmp_path: Path, small: pytest.MonkeyPatch) -> None:
    some = World(tmp_path, small, seed=5)
    some.kafka.counts[RAW] = 3
    some.grow(files=3, lines=60)
    some.call(limit=10)
    other = Settings(tokenizer="tokenizer.json")
    for name, value in (("tokenmill.app.tools.produce.producing.ORDER", "another"), (f"{__name__}.SETTINGS", other)):
        with small.context() as changed:
            changed.setattr(name, value)
            with pytest.raises(InputError, match=r"limit of texts \(max_text_bytes, .*in another way: .*--restart"):
                some.call()
    some.kafka.counts[RAW] = 2
    with pytest.raises(SourceError, match="fewer partitions"):
        some.call()


def test_places_are_ids_in_all_parts_of_a_run(tmp_path: Path, small: pytest.MonkeyPatch) -> None:
    some = World(tmp_path, small, seed=5)
    some.kafka.counts[RAW] = 1
    file, lines = some.path / "a.jsonl", [b'{"text":"text %d"}' % number for number in range(40)]
    file.write_bytes(b"".join(line + b"\n" for line in lines[:30]))
    some.killed(2)
    some.call()
    file.write_bytes(b"".join(line + b"\n" for line in lines))
    some.call(only_new=True)
    ends = [b',"id":"%s:%d"}' % (str(file).encode(), number) for number in range(1, 41)]
    assert some.kafka.values(RAW) == [[line[:-1] + end for line, end in zip(lines, ends, strict=True)]]


def test_progress_is_told_while_nothing_moves(tmp_path: Path, small: pytest.MonkeyPatch) -> None:
    """Brokers that do not answer for long are no reason to be silent."""
    small.setattr("tokenmill.app.tools.produce.sending.PROGRESS_SECONDS", 0.001)
    some = World(tmp_path, small, seed=5)
    some.grow(files=1, lines=9)
    told: list[int] = []

    async def call() -> None:
        sources = find_sources([str(some.path)], reading_of())
        running = asyncio.create_task(
            produce(SETTINGS, RAW, sources, RunPlan(), lambda now: told.append(now.documents))
        )
        while len(told) < 5:
            await asyncio.wait([running], timeout=0.01)
        assert set(told) == {0}
        while not running.done():
            some.kafka.deliver_one()
            await asyncio.wait([running], timeout=0)
        await running

    asyncio.run(call())
    assert told[-1] == len(some.documents())


def test_no_mark_passes_a_dead_letter_that_is_not_acknowledged(tmp_path: Path, small: pytest.MonkeyPatch) -> None:
    """Were the call killed then, nobody would send it again."""
    small.setattr("tests.app.tools.produce.scripted_kafka.SELDOM", 0)
    some = World(tmp_path, small, seed=5, on_error="dead-letter")
    some.bad = 0.0
    for _ in range(10):
        some.grow(files=1, lines=60)
    file = some.path / "0.jsonl"
    file.write_bytes(BAD + b"\n" + file.read_bytes())
    some.kafka.slow = DEAD

    async def call() -> None:
        running = asyncio.create_task(some.start())
        for _ in range(300):
            some.kafka.deliver_one()
            await asyncio.wait([running], timeout=0.001)
        assert some.kafka.under_way[TopicPartition(DEAD, 0)] or some.kafka.under_way[TopicPartition(DEAD, 1)]
        assert not any(mark.checkpoint.refused for mark in some.marks())
        some.kafka.slow = None
        while not running.done():
            some.kafka.deliver_one()
            await asyncio.wait([running], timeout=0)
        await running

    asyncio.run(call())
    some.assert_once()
    assert any(mark.checkpoint.refused for mark in some.marks())


def test_no_mark_passes_a_dead_letter_that_was_refused(tmp_path: Path, small: pytest.MonkeyPatch) -> None:
    """A dead-letter topic that takes nothing ends the run before any place behind the bad line; then that is sent."""
    some = World(tmp_path, small, seed=5, on_error="dead-letter")
    some.bad = 0.5
    some.grow(files=3, lines=60)
    some.kafka.refuse = lambda name: RecordListTooLargeError() if name.topic == DEAD else None
    with pytest.raises(TopicError, match=f"{DEAD} refuses a record"):
        some.call()
    assert not any(mark.checkpoint.refused for mark in some.marks())
    some.kafka.refuse = lambda _: None
    some.call()
    some.assert_once()


@pytest.mark.parametrize("seed", range(4))
def test_a_late_note_of_a_killed_call_is_refused(tmp_path: Path, small: pytest.MonkeyPatch, seed: int) -> None:
    """Else the next call would believe that the run began where the killed one saw it begin, and send all again."""
    small.setattr("tests.app.tools.produce.scripted_kafka.SELDOM", 0)
    some = World(tmp_path, small, seed)
    some.grow(files=3, lines=60)
    some.kafka.slow = PRODUCED
    run = run_identity(RAW, {}, [str(some.path)]).encode()

    async def killed() -> None:
        running = asyncio.create_task(some.start())
        note = TopicPartition(PRODUCED, 0)
        while not (some.kafka.under_way[note] and some.kafka.under_way[note][0].records[0][0] == run):
            if some.kafka.under_way[note]:
                some.kafka.arrive(note)  # the sources, which come before the head
            await asyncio.wait([running], timeout=0)
        some.kafka.stale[note].extend(some.kafka.under_way[note])
        some.kafka.under_way[note].clear()
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(killed())
    some.kafka.slow = None
    some.call()
    some.kafka.arrive_late()
    summary = some.call()

    assert (summary.before, summary.documents) == (len(some.documents()), 0)
    some.assert_once()
