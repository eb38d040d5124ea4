"""From where to where a verification goes: marks, what an earlier one left, and the eras between them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from aiokafka import TopicPartition

from tests.app.segments.mirror.memory_kafka import MemoryClient, MemoryKafka, MemoryStream
from tests.app.tools.verify.conftest import OneChain, tiny_settings
from tests.store.chains import flip, with_offsets
from tokenmill.app.segments.retiring import retire
from tokenmill.app.settings import dead_letter_topic
from tokenmill.app.tools.verify import verify_bounds
from tokenmill.app.tools.verify.era_check import END, EraCheck, EraCopy, EraEnds, EraEndsFiles
from tokenmill.app.tools.verify.verify_bounds import (
    FORMAT,
    NOTHING,
    EarlierVerification,
    EraMarks,
    StoreEras,
    StoreMark,
    VerifiedChain,
    VerifiedEras,
    load_verified,
    save_verified,
    store_mark,
    take_marks,
)
from tokenmill.app.tools.verify.verify_result import BlockRun, EraResult
from tokenmill.eras import ERA_KEY, Era, EraRange
from tokenmill.errors import InputError, TopicError
from tokenmill.store import EraReader, EraWriter, Store, StreamInfo, open_eras
from tokenmill.store.eras import COMMIT_ROWS, ROW_BYTES, EraRow, encode_row, row_seed


@pytest.fixture
def asked(stream: OneChain, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    stream.kafka.append(dead_letter_topic(stream.raw.topic), 1, b"letter")
    stream.kafka.append(dead_letter_topic(stream.raw.topic), 0, b"letter")
    asked: list[str] = []
    ends = MemoryClient.end_offsets

    async def end_offsets(client: MemoryClient, tps: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        assert set(tps) <= client._kafka.logs.keys()  # brokers do not answer for what they do not know
        asked.extend(sorted({tp.topic for tp in tps}))
        return await ends(client, tps)

    def noted(name: str, ask: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*arguments: Any) -> Any:
            asked.append(name)
            return ask(*arguments)

        return noting

    monkeypatch.setattr(MemoryClient, "topics", lambda client: Topics(tp.topic for tp in client._kafka.logs))
    monkeypatch.setattr(MemoryClient, "end_offsets", end_offsets)
    monkeypatch.setattr(StoreEras, "look", noted("the store's eras", StoreEras.look))
    monkeypatch.setattr(verify_bounds, "store_mark", noted("the store", verify_bounds.store_mark))
    return asked


class Topics(set[str]):
    """The names of all topics: to a consumer they come awaited, in a cluster's metadata at once."""

    def __await__(self) -> Any:
        yield from ()
        return set(self)


async def test_marks_are_taken_against_the_datas_way(stream: OneChain, asked: list[str]) -> None:
    """So each covers all that those before it were made of."""
    marks = await take_marks(stream.settings, [stream.settled], stream.filled(2))
    names = stream.stream
    of_topics = [names.tokens_topic, dead_letter_topic(names.raw_topic), names.raw_topic]
    assert asked == ["the store's eras", names.control_topic, "the store", *of_topics]
    (chain,) = marks.chains
    assert (chain.raw, chain.tokens, chain.store) == ((0, 12), (0, 24), StoreMark(0, 45))
    assert marks.dead_letters == {names.raw_topic: {0: (0, 1), 1: (0, 1)}}
    assert marks.eras == {names.name: EraMarks(1, StoreEras(0))}


@pytest.mark.usefixtures("asked")
async def test_a_raw_topic_that_grew_has_partitions_without_tokens(stream: OneChain) -> None:
    logs = stream.kafka.logs
    stream.publish(stream.milled(2))
    for partition, records in ((1, 3), (2, 5)):
        for _ in range(records):
            stream.kafka.append(stream.raw.topic, partition, b"text")
    stream.kafka.append(stream.tokens.topic, 1, b"message")
    for partition in (0, 1):
        del logs[TopicPartition(dead_letter_topic(stream.raw.topic), partition)]
    marks = await take_marks(stream.settings, [stream.settled], None)
    assert [(c.partition, c.raw, c.tokens, c.store) for c in marks.chains] == [
        (0, (0, 12), (0, 24), None),
        (1, (0, 3), (0, 1), None),
        (2, (0, 5), (0, 0), None),
    ]
    assert marks.dead_letters == {}
    assert marks.eras[stream.name].store is None

    for partition in (0, 1):
        del logs[TopicPartition(stream.tokens.topic, partition)]
    with pytest.raises(TopicError, match=stream.tokens.topic):
        await take_marks(stream.settings, [stream.settled], None)


def test_what_a_store_holds_of_a_partition_is_told(stream: OneChain, tmp_path: Path) -> None:
    store, name = stream.filled(2), stream.name
    assert store_mark(None, name, 0) is None
    assert store_mark(tmp_path, name, 0) == StoreMark(0, 0), "it has no such stream"
    assert store_mark(store, name, 0) == StoreMark(0, 45)
    retire(store, name, 0, 20)
    assert store_mark(store, name, 0) == StoreMark(20, 45)
    (store / name / "stream.json").write_text("{}")
    damaged = store_mark(store, name, 0)
    assert damaged is not None
    assert (damaged.first, damaged.end, bool(damaged.damage)) == (0, 0, True)


def test_what_is_saved_is_loaded(stream: OneChain, tmp_path: Path) -> None:
    """One stream is verified every day, another every week, with one file: what was not looked at keeps its place."""
    path, store = tmp_path / "verified.json", tmp_path / "store"
    saved, later = (VerifiedChain(stream.carry_after(records), 7) for records in (5, 9))
    assert load_verified(path, None) == NOTHING
    earlier = EarlierVerification({("raw.train", 0): saved, ("raw.held", 0): saved}, {})
    save_verified(path, tmp_path / "a" / ".." / "store", earlier, EarlierVerification({("raw.train", 0): later}, {}))
    loaded = load_verified(path, store).chains
    offsets = {key: value.carry.cursor.next_offset for key, value in loaded.items()}
    assert offsets == {("raw.train", 0): 9, ("raw.held", 0): 5}
    held = loaded["raw.held", 0]
    assert (held.token_offset, held.carry.cursor, held.carry.after) == (7, saved.carry.cursor, saved.carry.after)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("no JSON", "is not what a verification left"),
        ("{}", "is not what a verification left"),
        (f'{{"format": {FORMAT + 1}, "store": null, "chains": {{}}, "eras": {{}}}}', f"knows format {FORMAT}"),
        (f'{{"format": {FORMAT}, "store": "/x", "chains": {{}}, "eras": {{}}}}', "is about a verification of /x"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, content: str, why: str) -> None:
    path = tmp_path / "verified.json"
    path.write_text(content)
    with pytest.raises(InputError, match=why):
        load_verified(path, None)
    assert path.read_text() == content


ERAS = 5


class Scene(MemoryStream):
    """A stream with eras on its control topic, of two blocks each, and a store that holds some of them."""

    def __init__(self, kafka: MemoryKafka, directory: Path) -> None:
        super().__init__(kafka, tiny_settings(directory), [2 * ERAS, ERAS])
        self.directory, self.files = directory, self.settings.store / self.name
        for number in range(ERAS):
            self.send(0, 2 * number + 2)
            if number % 2:
                self.send(1, number)
            self.close_era()
        log = [record for record in kafka.logs[self.control] if record.key == ERA_KEY]
        self.eras: list[tuple[Era, int]] = [(Era.unpack(record.value), record.offset) for record in log]

    def store(self, eras: int) -> Path:
        store = Store.open_or_create(self.settings.store)
        genesis = self.settled.genesis
        store.add_stream(StreamInfo.from_genesis(genesis, genesis.segment_blocks), b"{}")
        with EraWriter.open(store, self.name) as writer:
            for first in range(writer.next_number, eras, 2):
                writer.append(self.eras[first : min(first + 2, eras)])
        return store.path

    @property
    def reader(self) -> EraReader:
        return open_eras(self.settings.store, self.name)

    async def check(
        self, store: Path | None, *, since: VerifiedEras | None = None, lost: int = 0
    ) -> tuple[EraResult, Mapping[int, list[tuple[int, int]]]]:
        """Verify, without so many records at the topic's end; return as well the ends laid down by partition."""
        marks = EraMarks(len(self.kafka.logs[self.control]) - lost, StoreEras.look(store, self.name))
        files = EraEndsFiles(self.directory / f"ends {len(list(self.directory.iterdir()))}")
        result = await EraCheck(self.settled, marks, store, since, files).run(self.settings)
        ends = {n: np.fromfile(path, END)[["block", "era"]].tolist() for n, path in files.close().items()}
        return result, ends


@pytest.fixture
def scene(kafka: MemoryKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(verify_bounds, "LOOK_SECONDS", 0.0)
    return Scene(kafka, tmp_path)


@pytest.mark.parametrize("held", [None, 0, 1, 2, 3, ERAS])
async def test_eras_are_equal_as_far_as_the_store_has_them(scene: Scene, held: int | None) -> None:
    store = scene.store(held) if held is not None else None
    result, ends = await scene.check(store)
    assert (result.differences, result.eras, result.store_eras, result.store_equal) == ([], ERAS, held, held or 0)
    assert result.store_behind == (0 if held is None else ERAS - held)
    assert result.blocks == sum(era.blocks for era, _ in scene.eras)
    assert ends == {0: [(2 * n + 2, n) for n in range(ERAS)], 1: [(1, 1), (3, 3)]}
    known = ERAS if held is None else held
    if not known:
        assert result.verified is None
        return
    era, offset = scene.eras[known - 1]
    scene.store(ERAS)
    stop = scene.reader.row(known - 1).stop
    blocks = sum(era.blocks for era, _ in scene.eras[:known])
    assert result.verified == VerifiedEras(era, offset, stop, blocks)


@pytest.mark.parametrize("first", range(1, ERAS))
async def test_what_was_verified_before_is_left_out(scene: Scene, first: int) -> None:
    earlier, _ = await scene.check(scene.store(first))
    store = scene.store(ERAS)
    flip(scene.files / "eras.jsonl", 20)
    result, ends = await scene.check(store, since=earlier.verified)
    assert (result.differences, result.since, result.eras, result.store_equal) == ([], first, ERAS, ERAS - first)
    assert sorted(era for found in ends.values() for _, era in found) == sorted(
        n for n in range(first, ERAS) for part in scene.eras[n][0].ranges if part.blocks
    )
    assert result.verified is not None
    assert result.verified.stop == scene.reader.row(ERAS - 1).stop
    again, none = await scene.check(store, since=result.verified)
    assert (again.differences, again.blocks, again.verified, none) == ([], 0, result.verified, {})


async def test_a_store_that_had_more_is_named(scene: Scene) -> None:
    earlier, _ = await scene.check(scene.store(ERAS))
    index = scene.files / "eras.index"
    index.write_bytes(index.read_bytes()[: 2 * ROW_BYTES])
    result, _ = await scene.check(scene.settings.store, since=earlier.verified)
    (found,) = result.differences
    assert (found.side, found.kind, found.era) == ("store", "missing", 2)
    assert f"it had {ERAS} eras" in found.text


@pytest.mark.parametrize("lost", [1, 3])
async def test_a_topic_that_lost_its_end_is_named(scene: Scene, lost: int) -> None:
    store = scene.store(ERAS)
    earlier, _ = await scene.check(store)
    result, _ = await scene.check(store, lost=lost)
    seen, _ = await scene.check(None, since=earlier.verified, lost=lost)
    for found in (result, seen):
        (one,) = found.differences
        assert (one.side, one.kind) == ("control topic", "missing")
    assert (result.differences[0].era, result.eras) == (ERAS - lost, ERAS - lost)
    assert (seen.differences[0].era, seen.eras) == (ERAS - 1, ERAS - 1)
    assert "not on its control topic any more" in seen.differences[0].text
    assert (await scene.check(None, lost=lost))[0].differences == []


async def test_what_is_no_era_is_counted(scene: Scene) -> None:
    """It is no difference: readers ignore it."""
    scene.kafka.append(scene.control.topic, scene.control.partition, b"none", key=ERA_KEY)
    scene.kafka.append(scene.control.topic, scene.control.partition, scene.eras[2][0].pack(), key=ERA_KEY)
    result, _ = await scene.check(scene.store(ERAS))
    assert (result.ignored, result.eras, result.differences) == (2, ERAS, [])


async def test_a_commit_that_a_writer_is_at_is_waited_for(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are there before they count; a moment later it is whole."""
    store = scene.store(4)
    index = scene.files / "eras.index"
    whole = index.read_bytes()
    index.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    monkeypatch.setattr(verify_bounds, "time", SimpleNamespace(sleep=lambda _: index.write_bytes(whole)))
    assert StoreEras.look(store, scene.name) == StoreEras(4)


@pytest.mark.parametrize("wrong", [2, COMMIT_ROWS, 255])
async def test_a_row_that_names_a_commit_which_nobody_wrote_is_damage(scene: Scene, wrong: int) -> None:
    """It is whole in itself: its place in the commit is not the one after the row before."""
    store = scene.store(4)
    genesis = scene.settled.genesis
    info = StreamInfo.from_genesis(genesis, genesis.segment_blocks)
    index = scene.files / "eras.index"
    rows = index.read_bytes()
    before = EraRow.decode(rows[:ROW_BYTES])
    line = scene.eras[1][0].pack() + b"\n"
    row = encode_row(scene.eras[1], line, row_seed(info.fingerprint), before, wrong)
    index.write_bytes(rows[:ROW_BYTES] + row + rows[2 * ROW_BYTES :])
    copy = EraCopy(store, genesis, StoreEras(4), EraRow())
    with copy.opened(0):
        found = [copy.compare(*era) for era in scene.eras[:2]]
    assert found[0] is None
    assert found[1] is not None
    assert "the row of era 1 is wrong (its checksum or place)" in found[1].text


def without(path: Path, first: int, end: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:first] + data[end:])


def remove_line(scene: Scene) -> None:
    eras, path = scene.reader, scene.files / "eras.jsonl"
    without(path, eras.row(0).stop, eras.row(1).stop)
    with path.open("ab") as file:
        file.write(b" " * 2000)


def remove_one(scene: Scene) -> None:
    eras = scene.reader
    without(scene.files / "eras.jsonl", eras.row(0).stop, eras.row(1).stop)
    without(scene.files / "eras.index", ROW_BYTES, 2 * ROW_BYTES)


def rewrite(scene: Scene, eras: Sequence[tuple[Era, int]]) -> None:
    for name in ("eras.jsonl", "eras.index"):
        (scene.files / name).unlink()
    with EraWriter.open(Store.open(scene.settings.store), scene.name) as writer:
        writer.append(eras)


def other_eras(scene: Scene) -> None:
    eras = scene.eras[:1]
    for era, offset in scene.eras[1:]:
        eras.append((replace(era, closed=era.closed + 1, before=eras[-1][0].hash), offset))
    rewrite(scene, eras)


@pytest.mark.parametrize(
    ("damage", "kind", "era", "text"),
    [
        (
            lambda scene: flip(scene.files / "eras.jsonl", scene.reader.row(0).stop + 20),
            *("damaged", 1, "era 1, at byte .* is not what was committed.*Stop the segment worker"),
        ),
        (
            lambda scene: flip(scene.files / "eras.index", ROW_BYTES + 9),
            *("damaged", None, "row of era 1 is damaged.*Stop the segment worker"),
        ),
        (
            lambda scene: flip(scene.files / "eras.index", (ERAS - 1) * ROW_BYTES + 9),
            *("damaged", ERAS - 1, "1 rows of .* are not whole. A segment worker that is started"),
        ),
        (remove_one, "damaged", 1, "rows of .* from era 1 on are not whole"),
        (remove_line, "damaged", 1, "era 1, at byte .* is not what was committed"),
        (other_eras, "different", 1, "era 1 differs from the one on the control topic.*move eras.jsonl and eras.index"),
        (
            lambda scene: rewrite(scene, with_offsets([era for era, _ in scene.eras])),
            *("damaged", 0, r"row of era 0 is wrong \(offset\)"),
        ),
    ],
    ids=["line", "row", "last row", "one too few", "line too few", "other eras", "other offsets"],
)
async def test_eras_that_are_wrong_in_the_store_are_named(
    scene: Scene, damage: Callable[[Scene], None], kind: str, era: int | None, text: str
) -> None:
    store = scene.store(ERAS)
    damage(scene)
    result, _ = await scene.check(store)
    (found,) = result.differences
    assert (found.side, found.stream, found.partition, found.kind, found.era) == ("store", scene.name, None, kind, era)
    assert re.search(text, str(found))
    assert result.store_equal == (era or 0), "those before it are equal"


def test_ends_of_eras_are_held_against_the_blocks_that_pass(tmp_path: Path) -> None:
    hashes = [bytes([n]) * 16 for n in range(1, 60)]
    stops = [4, 5, 9, 30, 40, 58]
    bounds = list(zip([0, *stops], stops, strict=False))
    eras = [
        Era(n, bytes(16), (EraRange(0, 0, bytes(16), bytes(16)), EraRange(low, high, bytes(16), hashes[high - 1])), 0)
        for n, (low, high) in enumerate(bounds)
    ]
    files = EraEndsFiles(tmp_path / "ends")
    for era in eras:
        files.add(era)
    paths = files.close()
    assert list(paths) == [1]

    def run(first: int, end: int) -> BlockRun:
        return BlockRun(first, memoryview(b""), [b""] * (end - first), hashes[first:end], None)

    ends = EraEnds(paths[1])
    assert [ends.first_wrong(run(*span)) for span in ((4, 8), (8, 30), (30, 41))] == [None] * 3
    assert ends.checked == 4
    assert ends.rest() == [(4, 0, hashes[3]), (58, 5, hashes[57])]
    hashes[29] = bytes(16)
    ends = EraEnds(paths[1])
    assert ends.first_wrong(run(0, 59)) == (3, 30)
    assert (ends.wrong, ends.checked) == (True, 3)
    assert EraEnds(None).rest() == []
