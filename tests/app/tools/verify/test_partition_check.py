"""Partitions that are verified: chain by chain, in processes of which each is answered once."""

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from tests.app.segments.mirror.memory_kafka import MemoryClient, MemoryKafka
from tests.app.tools.verify.conftest import TEXTS, OneChain, miscounted, new_chain, tiny_settings
from tests.commands import die_while_starting
from tests.store.chains import flip
from tokenmill.app import processes
from tokenmill.app.milling.partition_mill import PartitionMill
from tokenmill.app.tools.verify import partition_check
from tokenmill.app.tools.verify.era_check import EraEndsFiles
from tokenmill.app.tools.verify.partition_check import ChainCheck, PartitionTask, check_partitions
from tokenmill.app.tools.verify.verify_bounds import StoreMark, VerifiedChain
from tokenmill.app.tools.verify.verify_result import Advance, ChainResult
from tokenmill.documents import FLUSH_HEADER
from tokenmill.eras import Era, EraRange
from tokenmill.errors import SourceError, TokenMillError
from tokenmill.samples.sequence import Position, SequenceId
from tokenmill.samples.tracing import Tracer
from tokenmill.wire.chain import roll
from tokenmill.wire.message import Message
from tokenmill.wire.pieces import PADDING, join_references, split_references


class Crew:
    """In the place of a verification's processes; what one does with a partition is in ``script``."""

    def __init__(self, script: dict[int, Sequence[Advance] | Exception]) -> None:
        self.script = script
        self.opened: list[bytes] = []
        self.sizes: list[int] = []
        self._threads: list[threading.Thread] = []

    async def check(self, task: Any, stages: Any, report: Any) -> list[ChainResult]:
        """Do what the script says; `partition_check._work` calls it for each partition."""
        stages(task)
        said = self.script[task.partition]
        if isinstance(said, Exception):
            raise said
        for advance in said:
            report(advance)
        return [ChainResult("raw.train", task.partition, "raw", (0, 1), (0, 1))]

    @contextmanager
    def workers(self, count: int) -> Iterator[dict[Any, Any]]:
        """Start so many; they end when their pipes close, and one whose script says so ends without a word."""
        self.sizes.append(count)
        mine = {}
        for _ in range(count):
            here, there = multiprocessing.Pipe()
            here.send(1)
            thread = threading.Thread(target=self._work, args=(there,))
            thread.start()
            self._threads.append(thread)
            mine[here] = SimpleNamespace(join=thread.join, exitcode=-9)
        try:
            yield mine
        finally:
            for here in mine:
                here.close()
            for thread in self._threads:
                thread.join()

    def _work(self, pipe: Any) -> None:
        try:
            partition_check._work(pipe)
        except (KeyboardInterrupt, EOFError, BrokenPipeError, ConnectionResetError):
            pass  # it died: the pipe closes, and nothing was said; or who started it is gone
        finally:
            pipe.close()


def task(partition: int, key: bytes = b"one") -> PartitionTask:
    """Return a partition, as far as a process looks at it."""
    genesis = SimpleNamespace(recipe=SimpleNamespace(decode="auto", division=key))
    chains = [SimpleNamespace(tokens_topic="tokens", genesis=genesis)]
    asked = {"partition": partition, "raw_topic": "raw", "chains": chains, "tokenizer": None}
    return cast("PartitionTask", SimpleNamespace(**asked, settings=SimpleNamespace(engine="auto"), lists={}))


@pytest.fixture
def crew(monkeypatch: pytest.MonkeyPatch) -> Crew:
    crew = Crew({})
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")
    monkeypatch.setattr(partition_check, "_workers", crew.workers)
    monkeypatch.setattr(partition_check, "check_partition", crew.check)
    monkeypatch.setattr(partition_check, "schemas_for_command", lambda *_: None)
    monkeypatch.setattr(partition_check, "reopen_stages", lambda recipe, *_: crew.opened.append(recipe.division))
    monkeypatch.setattr(partition_check, "keep_loaded", lambda: None)
    return crew


@pytest.mark.slow  # one process begins a report between any two results: seconds, on a machine that does other things
@pytest.mark.parametrize("count", [1, 2, 9])
def test_every_partition_is_answered_once_with_all_its_advances(crew: Crew, count: int) -> None:
    numbers = [4, 7, 1, 2, 3]
    crew.script = {number: [Advance(number, 1, 10)] * 3 for number in numbers}
    answers = list(check_partitions([task(n, b"odd" if n % 2 else b"even") for n in numbers], count))
    assert crew.sizes == [min(count, len(numbers))]
    results = [(index, answer[0].partition) for index, answer in answers if isinstance(answer, list)]
    assert sorted(results) == list(enumerate(numbers))
    for index, number in enumerate(numbers):
        own = [answer for at, answer in answers if at == index]
        assert isinstance(own[-1], list)
        advances = [answer for answer in own if isinstance(answer, Advance)]
        assert Advance(*map(sum, zip(*advances, strict=True))) == Advance(3 * number, 3, 30)
    assert set(crew.opened) == {b"odd", b"even"}
    assert len(crew.opened) <= 2 * min(count, len(numbers))


def test_what_a_check_raised_is_raised_here(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ended without an answer is named."""
    crew.script = {0: [], 1: SourceError("retention removed it"), 2: []}
    with pytest.raises(SourceError, match="retention removed it"):
        list(check_partitions([task(0), task(1), task(2)], 1))
    monkeypatch.setattr(partition_check, "check_partition", AsyncMock(side_effect=KeyboardInterrupt))
    with pytest.raises(TokenMillError, match=r"verified raw partition 5 ended with code -9 .*fewer processes"):
        list(check_partitions([task(5)], 1))


def test_a_process_that_ends_while_it_starts_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    die_while_starting(monkeypatch)
    with pytest.raises(TokenMillError, match=r"verified raw partition 5 ended with code 0 .*fewer processes"):
        list(check_partitions([task(5, b"x" * (1 << 20))], 1))


def test_processes_that_are_started_never_see_ctrl_c() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with processes._shielded():
        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_no_process_is_waited_for_in_the_middle_of_a_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever leaves kills them all, and then waits for their ends; each has its share of the cores."""
    done: list[str] = []

    class Process:
        def __init__(self, *, name: str, **_: Any) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            return lambda: done.append(f"{name} {self._name}")

    context = SimpleNamespace(Pipe=multiprocessing.Pipe, Process=Process)
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: context)
    with partition_check._workers(2) as workers:
        assert len(workers) == 2
        assert done == ["start verify 0", "start verify 1"]
        done.clear()
    assert done == ["kill verify 0", "kill verify 1", "join verify 0", "join verify 1"]
    assert all(pipe.closed for pipe in workers)


BLOCKS = len(TEXTS) * 15 // 4


def named(result: ChainResult) -> list[tuple[str, str, int | None]]:
    return [(found.side, found.kind, found.block) for found in result.differences]


def moved(message: Message, records: int) -> Message:
    return replace(message, cursor=replace(message.cursor, next_offset=message.cursor.next_offset + records))


def opened(message: Message) -> Message:
    return replace(message, open_tokens=bytes([message.open_tokens[0] ^ 1]) + bytes(message.open_tokens[1:]))


async def test_a_chain_that_is_right_is_equal_and_remembered(stream: OneChain) -> None:
    store = stream.filled(3)
    result = await stream.check(store)
    assert (result.differences, result.notes) == ([], [])
    assert result.topic_equal == result.store_equal == result.reference_blocks == result.sampled_blocks == BLOCKS
    assert (result.carries, result.carries_equal, result.topic_blocks) == (1, 1, (0, BLOCKS))
    assert result.sampled == [(0, len(TEXTS))]
    assert (result.totals.records, result.open_tokens) == (len(TEXTS), len(TEXTS) * 15 % 4)
    assert result.verified is not None
    assert result.verified.carry.cursor.next_offset == len(TEXTS)
    assert result.verified.token_offset == len(stream.kafka.logs[stream.tokens])


async def test_what_stands_around_documents_is_compared(kafka: MemoryKafka, tmp_path: Path) -> None:
    """Also what a flush fills a block with, where no token ends a document; another padding is a difference."""
    settings = tiny_settings(tmp_path, begin_of_document=2, end_of_document="none", padding=3)
    stream = OneChain(kafka, settings, [b"abcd"])
    kafka.append(stream.raw.topic, 0, None, headers=[FLUSH_HEADER])
    first, last = stream.milled(1)[:2]
    assert (bytes(first.tokens), bytes(last.tokens)) == (b"\2abc", b"d\3\3\3")

    stream.publish([first, last])
    assert not (await stream.check()).differences

    stream.kafka.logs[stream.tokens].clear()
    tokens = b"d\0\0\0"
    after = roll(last.before, tokens, last.entries)[-1]
    stream.publish([first, replace(last, tokens=tokens, chains=[after], after=after)])
    assert [difference.block for difference in (await stream.check()).differences] == [1]


@pytest.mark.parametrize("records", [1, 2, 5, 11])
async def test_a_carry_in_the_middle_is_compared(stream: OneChain, records: int) -> None:
    stream.publish(stream.milled(1, slice(records)))
    stream.publish(stream.milled(1)[records * 15 // 4 :])
    result = await stream.check()
    assert (result.differences, result.carries, result.carries_equal) == ([], 2, 2)
    assert result.topic_equal == BLOCKS


CHANGES: Sequence[tuple[str, int, Callable[[Message], Message], tuple[str, int]]] = (
    ("a carry's account", -1, miscounted, ("account", BLOCKS)),
    ("a carry past the source", -1, lambda message: moved(message, 1), ("account", BLOCKS)),
    ("a carry's open block", -1, opened, ("account", BLOCKS)),
    ("a message's account", 3, miscounted, ("account", 7)),
    ("a message's cursor", 3, lambda message: moved(message, 1), ("account", 7)),
    ("the last message's account", -2, miscounted, ("account", BLOCKS - 1)),
)


@pytest.mark.parametrize(("which", "change", "wanted"), [c[1:] for c in CHANGES], ids=[c[0] for c in CHANGES])
async def test_an_account_that_is_wrong_is_named_and_not_remembered(
    stream: OneChain, which: int, change: Callable[[Message], Message], wanted: tuple[str, int]
) -> None:
    """Of carries as of messages, whose blocks are right all the same."""
    stream.kafka.append(stream.raw.topic, stream.raw.partition, b"ab")  # so that a block is open at the end
    sent = stream.milled(2)
    sent[which] = change(sent[which])
    stream.publish(sent)
    result = await stream.check()
    assert named(result) == [("topic", *wanted)]
    assert result.verified is None or result.verified.carry.first <= wanted[1]


async def test_what_stands_wrongly_in_the_topic_is_named(stream: OneChain) -> None:
    sent = stream.milled(2)[:4]
    stream.publish([*sent, *sent[1:3]])
    result = await stream.check()
    assert (result.differences, result.dropped, result.topic_equal) == ([], 4, 8)
    stream.kafka.append(stream.tokens.topic, stream.tokens.partition, b"hello")
    assert named(await stream.check()) == [("topic", "foreign", 8)]
    stream.kafka.logs[stream.tokens].clear()
    stream.publish([sent[0], sent[3]])
    result = await stream.check()
    assert (named(result), result.lost) == ([("topic", "missing", 2)], 4)


async def test_another_history_is_different(stream: OneChain) -> None:
    """It hashes to what it says, message after message; the first block that the records do not make is named."""
    records = stream.kafka.logs[stream.raw]
    right = records[5]
    records[5] = replace(right, value=b"next 05 of all")
    stream.publish(stream.milled(2)[:-1])
    records[5] = right
    result = await stream.check()
    block = 5 * 15 // 4
    assert [(d.side, d.kind, d.block, d.offset) for d in result.differences] == [("topic", "different", block, 5)]
    assert result.topic_equal == block


@pytest.mark.parametrize("where", ["topic", "store"])
async def test_blocks_that_the_source_does_not_make_are_extra(stream: OneChain, where: str) -> None:
    sent = stream.milled(1)[:BLOCKS]
    own = stream.milled(1, slice(5))[:-1]
    stream.publish(sent if where == "topic" else own)
    store = stream.store(sent if where == "store" else own)
    result = await stream.check(store, raw=(0, 5))
    assert [found for found in named(result) if found[1] == "extra"] == [(where, "extra", len(own))]
    assert result.topic_equal == result.store_equal == len(own)


@pytest.mark.parametrize("behind", ["topic", "store", "neither"])
async def test_no_more_is_remembered_than_both_sides_hold(stream: OneChain, behind: str) -> None:
    """What has yet to come must be looked at the next time."""
    sent = stream.milled(1)[:BLOCKS]
    held = {side: 20 if side == behind else BLOCKS for side in ("topic", "store")}
    stream.publish(sent[: held["topic"]])
    # A store that holds more than its topic is a difference.
    store = stream.store(sent[: held["store"]]) if behind != "topic" else None
    result = await stream.check(store)
    assert result.differences == []
    assert result.verified is not None
    assert result.verified.carry.first <= min(held.values())
    assert (result.verified.carry.first == BLOCKS) == (behind == "neither")
    assert (result.behind, result.store_behind) == (BLOCKS - held["topic"], BLOCKS - held["store"])


def damage(stream: OneChain, block: int) -> None:
    """Flip a bit of a block in the store, whose segments have four each."""
    path = stream.settings.store / stream.name / "0" / f"{block - block % 4:012}.bin"
    flip(path, block % 4 * stream.recipe.block_bytes)


@pytest.mark.parametrize("damaged", [3, BLOCKS - 1])
async def test_a_store_that_is_damaged_is_not_remembered(stream: OneChain, damaged: int) -> None:
    store = stream.filled(2)
    damage(stream, damaged)
    result = await stream.check(store)
    assert named(result) == [("store", "damaged", damaged)]
    assert (result.topic_equal, result.store_equal) == (BLOCKS, damaged)
    assert result.verified is None or result.verified.carry.first <= damaged


async def test_a_store_that_cannot_be_read_is_named_and_left(stream: OneChain) -> None:
    stream.publish(stream.milled(2))
    result = await stream.check(stream.settings.store, mark=StoreMark(0, 0, "it is no store"))
    assert [(found.side, found.kind, found.text) for found in result.differences] == [
        ("store", "damaged", "it is no store")
    ]
    assert (result.topic_equal, result.verified) == (BLOCKS, None)


async def test_a_topic_that_lost_its_end_is_named(stream: OneChain) -> None:
    sent = stream.milled(1)[:BLOCKS]
    stream.publish(sent[:-1])
    store = stream.store(sent)
    result = await stream.check(store)
    assert (named(result), result.lost) == ([("topic", "missing", BLOCKS - 1)], 1)
    emptied = await stream.check(store, tokens=(40, 40))
    assert (emptied.differences, emptied.store_equal, emptied.lost) == ([], BLOCKS, 0)


@pytest.mark.parametrize("damaged", [None, 21])
async def test_topic_and_store_are_compared_where_the_source_is_gone(stream: OneChain, damaged: int | None) -> None:
    """Block for block; the note says which records are gone."""
    store = stream.filled(2)
    if damaged is not None:
        damage(stream, damaged)
    ends = ends_of(stream, [6, BLOCKS], wrong=BLOCKS)
    result = await stream.check(store, raw=(3, len(TEXTS)), ends=ends)
    era = ("control topic", "different", BLOCKS)
    assert named(result) == [era] if damaged is None else [era, ("store", "damaged", damaged)]
    assert (result.reference, result.store_equal) == (False, BLOCKS if damaged is None else damaged)
    assert "records 0 to 2 are gone" in result.notes[0]
    assert result.totals.records == len(TEXTS)
    assert result.era_ends == 1


async def test_dead_letters_are_asked_for_up_to_what_was_published(kafka: MemoryKafka, stream: OneChain) -> None:
    """From where the verification begins; a record behind the last cursor may have none yet."""
    kafka.logs[stream.raw] = []
    bad = b"\xff\xfe"
    for text in (bad, b"good text", b"more text of it", bad, b"yet more text of it", bad):
        kafka.append(stream.raw.topic, stream.raw.partition, text)
    stream.publish(stream.milled(1, slice(5))[:-1])
    whole = await stream.check()
    assert list(whole.dead_letters) == [0, 3]
    assert whole.totals.dead_lettered.total() == 3
    rest = await stream.check(since=VerifiedChain(stream.carry_after(2), 0))
    assert (list(rest.dead_letters), rest.since, rest.differences) == ([3], 2, [])


async def test_a_late_carry_from_before_the_beginning_is_passed_over(stream: OneChain) -> None:
    """A writer that resumed wrote it; what stands where the verification begins counts."""
    stream.publish([*stream.milled(1, slice(4))[:-1], stream.carry_after(2), stream.carry_after(4)])
    stream.publish(stream.milled(1)[15:])
    result = await stream.check(since=VerifiedChain(stream.carry_after(4), 0))
    assert result.differences == []
    assert result.topic_equal == BLOCKS - 15
    assert result.verified is not None
    assert result.verified.carry.first == BLOCKS


def ends_of(stream: OneChain, stops: Sequence[int], wrong: int | None = None) -> Path:
    """Lay down eras that end before these blocks; one of them with another hash."""
    hashes = {message.end: message.after for message in stream.milled(1)}
    files = EraEndsFiles(stream.settings.store.parent / f"ends {wrong}")
    for number, stop in enumerate(stops):
        after = bytes(16) if stop == wrong else hashes.get(stop, bytes(16))
        files.add(Era(number, bytes(16), (EraRange(0, stop, bytes(16), after),), 0))
    return files.close()[0]


@pytest.mark.parametrize("wrong", [None, 4, 8, 20, BLOCKS])
@pytest.mark.parametrize("store", [False, True])
async def test_ends_of_eras_are_held_against_every_block(stream: OneChain, wrong: int | None, *, store: bool) -> None:
    """Those that pass, and those below where the verification began: by the store, or by one message."""
    path = stream.filled(3)
    stops = [4, 8, 20, BLOCKS]
    ends, since = ends_of(stream, stops, wrong), VerifiedChain(stream.carry_after(4), 5)
    result = await stream.check(path if store else None, ends=ends, since=since)
    assert named(result) == ([] if wrong is None else [("control topic", "different", wrong)])
    assert [found.era for found in result.differences] == ([] if wrong is None else [stops.index(wrong)])
    if wrong is None:
        assert result.era_ends == len(stops)


@pytest.mark.parametrize(("stop", "missing"), [(20, False), (21, True), (22, True)])
async def test_an_era_of_blocks_that_the_topic_lacks_is_named(stream: OneChain, stop: int, *, missing: bool) -> None:
    sent = stream.milled(1)[:BLOCKS]
    stream.publish(sent[:20])
    result = await stream.check(ends=ends_of(stream, [8, stop]))
    assert named(result) == ([("control topic", "missing", 20)] if missing else [])
    assert [found.era for found in result.differences] == ([1] if missing else [])
    assert result.era_ends == (1 if missing else 2)


async def test_ends_of_which_nobody_knows_the_hash_are_noted(stream: OneChain) -> None:
    sent = stream.milled(3)
    stream.publish(sent)
    ends = ends_of(stream, [3, 6, 9, 20])
    result = await stream.check(ends=ends, tokens=(3, len(sent)))
    assert (result.differences, result.era_ends) == ([], 1)
    assert any(note.startswith("3 eras end in partition 0") for note in result.notes)
    emptied = await stream.check(ends=ends, tokens=(40, 40))
    assert emptied.differences == []
    assert any(note.startswith("4 eras end in partition 0") for note in emptied.notes)


async def test_an_end_where_the_last_verification_ended_is_checked_without_a_block(stream: OneChain) -> None:
    """Nothing came since: the carry that was kept knows the hash."""
    stream.publish(stream.milled(1, slice(4)))
    since = VerifiedChain(stream.carry_after(4), 15)
    for wrong, found in ((None, []), (15, [("control topic", "different", 15)])):
        result = await stream.check(raw=(0, 4), since=since, ends=ends_of(stream, [15], wrong))
        assert (named(result), result.era_ends) == (found, 0 if found else 1)


async def test_ends_below_what_is_left_of_both_topics_are_checked_by_the_store(stream: OneChain) -> None:
    store = stream.filled(2)
    for wrong, found in ((None, []), (6, [("control topic", "different", 6)])):
        ends = ends_of(stream, [6, 20], wrong)
        result = await stream.check(store, raw=(3, len(TEXTS)), tokens=(5, 24), ends=ends)
        assert (named(result), result.era_ends) == (found, 1 if found else 2)


async def test_dead_letters_below_the_beginning_are_another_chains(stream: OneChain) -> None:
    """One that is verified in the same pass, from further down."""
    stream.publish(stream.milled(1, slice(5)))
    task = stream.task(since=VerifiedChain(stream.carry_after(2), 0))
    check = ChainCheck(task, MemoryClient(stream.kafka), None)
    await check.start()
    await check.read_to(len(TEXTS))
    await check.finish([0, 1, 2, 4, 5])
    assert list(check.result.dead_letters) == [2, 4]


FIT_TEXTS = [bytes([97 + n]) * (1 + n * 7 % 23) for n in range(26)] * 3


@pytest.fixture
def fit(kafka: MemoryKafka, tmp_path: Path) -> OneChain:
    """Return a stream of blocks of 16 tokens, three of them open: their messages refer to records."""
    packing = {"name": "fit", "open_blocks": 3, "max_age_offsets": 20}
    settings = tiny_settings(tmp_path, sequence_length=15, packing=packing)
    made = OneChain(kafka, settings, FIT_TEXTS)
    kafka.append(made.raw.topic, 0, None, headers=[FLUSH_HEADER])
    kafka.append(made.raw.topic, 0, b"the last words")
    return made


def fit_messages(fit: OneChain, sizes: Sequence[int] = (9, 4, 30), *, by_value: bool = False) -> list[Message]:
    """Return messages of a few blocks, with a carry after each fetch."""
    chain = new_chain(fit.recipe, message_bytes=700)
    mill, log, found, at = PartitionMill(fit.plan.stages, [chain]), fit.kafka.logs[fit.raw], list[Message](), 0
    for size in [*sizes, len(log)]:
        found += mill.feed(log[at : at + size]).messages[fit.recipe.split]
        at = min(at + size, len(log))
        carry = chain.carry(at, by_value=by_value)
        assert carry is not None
        found.append(carry)
    return found


@pytest.mark.parametrize("by_value", [False, True])
async def test_a_chain_that_is_right_is_equal(fit: OneChain, *, by_value: bool) -> None:
    messages = fit_messages(fit, by_value=by_value)
    store = fit.store(messages)
    fit.publish(messages[:4])
    blocks = messages[-1].first
    assert (await fit.check()).differences == []
    fit.publish(messages[4:])
    result = await fit.check(store)
    assert (result.differences, result.notes) == ([], [])
    assert result.topic_equal == result.store_equal == result.sampled_blocks == blocks
    assert result.carries == result.carries_equal == 4
    assert result.verified is not None
    assert result.verified.carry.references
    assert result.verified.carry.open_tokens
    if by_value:
        place = next(n for n, message in enumerate(messages) if message.is_carry and n > 2)
        rest = await fit.check(since=VerifiedChain(messages[place], place + 1))
        assert (rest.differences, rest.topic_equal) == ([], blocks - messages[place].first)


def other_crc(message: Message) -> Message:
    counts, rows = split_references(message.references)
    rows = rows.copy()
    rows["crc"][0] ^= 1
    return replace(message, references=join_references(counts, rows))


@pytest.mark.parametrize("wrong", [other_crc, lambda message: replace(message, references=b"")], ids=["crc", "none"])
@pytest.mark.parametrize("at", [0, -1])
async def test_other_references_are_a_difference(fit: OneChain, wrong: Callable[[Message], Message], at: int) -> None:
    """Of a message and of a carry: a mill that resumed there would go on with other blocks."""
    messages = fit_messages(fit)
    messages[at] = wrong(messages[at])
    fit.publish(messages)
    (found,) = (await fit.check()).differences
    assert (found.side, found.kind) == ("topic", "account")


def test_every_record_is_traced_to_its_blocks(fit: OneChain) -> None:
    """Its offset may come after higher ones: what the search finds is what all document tables say."""
    messages = fit_messages(fit)
    store = fit.store(messages)
    name, fingerprint = fit.name, fit.recipe.fingerprint.hex()
    sequence = SequenceId(name, fingerprint, 15, 1, shuffle=True, eras=(0, None), passes=1)
    tracer = Tracer(store, Position.beginning(sequence, 2))
    reader = tracer._reader(0)
    held: dict[int, list[int]] = {}
    for block in range(reader.blocks):
        for offset, position in reader.pieces(block)[["offset", "position"]].tolist():
            if position != PADDING:
                held.setdefault(offset, []).append(block)
    offsets = [offset for blocks in held.values() for offset in blocks]
    assert offsets != sorted(offsets)  # or there is nothing to this test
    for offset in range(len(FIT_TEXTS) + 5):
        traced = tracer.record(0, offset)
        assert [view.block for view in traced.views] == held.get(offset, [])
        if offset == len(FIT_TEXTS) + 1:
            assert "milled or stored yet" in traced.verdict
    assert "open block" in replace(tracer.record(0, len(FIT_TEXTS)), offset=len(FIT_TEXTS)).verdict
