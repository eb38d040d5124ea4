"""The eras in a verification: every way in which a store's can be wrong is named, and how far one came is kept."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from aiokafka import TopicPartition

from tests.milled import Milled
from tests.store.chains import flip
from tests.store.eras import with_offsets
from tokenmill.app.kafka.clients import consumer, offsets
from tokenmill.app.kafka.control_topic import settled_stream
from tokenmill.app.tools.verify import EraResult
from tokenmill.app.tools.verify.era_check import EraCheck, EraEnds, EraEndsFiles, OtherHashes
from tokenmill.app.tools.verify.verify_bounds import EraMarks, StoreEras, VerifiedEras
from tokenmill.app.tools.verify.verify_result import BlockRun
from tokenmill.eras import Era, EraRange
from tokenmill.store import EraWriter, Store, StreamInfo, open_eras
from tokenmill.store.eras import ROW_BYTES


@pytest.fixture
def copy(milled: Milled, tmp_path: Path) -> Path:
    """Return a copy of the store, to be damaged."""
    shutil.copytree(milled.settings.store, tmp_path / "store")
    return tmp_path / "store"


async def check(milled: Milled, store: Path | None, since: VerifiedEras | None = None, end: int = 0) -> EraResult:
    """Verify the eras of the first stream; ``end``: offsets at the end of the control topic that are left out."""
    settled = await settled_stream(milled.settings, milled.train)
    control = TopicPartition(settled.stream.control_topic, 0)
    async with consumer(milled.settings) as client:
        stop = (await offsets(client, [control]))[control][1]
    marks = EraMarks(stop - end, StoreEras.look(store, milled.train))
    room = milled.settings.store.parent / f"ends-{len(list(milled.settings.store.parent.iterdir()))}"
    return await EraCheck(settled, marks, store, since, EraEndsFiles(room)).run(milled.settings)


def change(store: Path, milled: Milled, name: str, at: int) -> None:
    """Change one byte of a file of the first stream's eras."""
    flip(store / milled.train / name, at)


def change_line(store: Path, milled: Milled) -> None:
    """Change what era 1 says."""
    change(store, milled, "eras.jsonl", open_eras(store, milled.train).row(0).stop + 20)


def change_row(store: Path, milled: Milled) -> None:
    """Change the row of era 1, which others follow."""
    change(store, milled, "eras.index", ROW_BYTES + 9)


def change_last_row(store: Path, milled: Milled) -> None:
    """Change a row that none follows."""
    change(store, milled, "eras.index", (open_eras(store, milled.train).eras - 1) * ROW_BYTES + 9)


def remove_one(store: Path, milled: Milled) -> None:
    """Take line and row of era 1 away, as though it had never been."""
    eras, directory = open_eras(store, milled.train), store / milled.train
    lines, rows = (directory / "eras.jsonl").read_bytes(), (directory / "eras.index").read_bytes()
    (directory / "eras.jsonl").write_bytes(lines[: eras.row(0).stop] + lines[eras.row(1).stop :])
    (directory / "eras.index").write_bytes(rows[:ROW_BYTES] + rows[2 * ROW_BYTES :])


def remove_line(store: Path, milled: Milled) -> None:
    """Take the line of era 1 away alone."""
    eras, path = open_eras(store, milled.train), store / milled.train / "eras.jsonl"
    lines = path.read_bytes()
    path.write_bytes(lines[: eras.row(0).stop] + lines[eras.row(1).stop :] + b" " * 2000)


def other_eras(store: Path, milled: Milled) -> None:
    """Write a chain of eras that is another from era 1 on."""
    reader = open_eras(store, milled.train)
    eras = [reader.era(number) for number in range(reader.eras)]
    offsets = [reader.row(number).offset for number in range(reader.eras)]
    for name in ("eras.jsonl", "eras.index"):
        (store / milled.train / name).unlink()
    for number in range(1, len(eras)):
        eras[number] = replace(eras[number], closed=eras[number].closed + 1, before=eras[number - 1].hash)
    with EraWriter.open(Store.adopt(store), milled.train) as writer:
        writer.append(list(zip(eras, offsets, strict=True)))


def other_offset(store: Path, milled: Milled) -> None:
    """Write the same eras with other offsets."""
    reader = open_eras(store, milled.train)
    eras = [reader.era(number) for number in range(reader.eras)]
    for name in ("eras.jsonl", "eras.index"):
        (store / milled.train / name).unlink()
    with EraWriter.open(Store.adopt(store), milled.train) as writer:
        writer.append(with_offsets(eras))


@pytest.mark.parametrize(
    ("damage", "named", "text"),
    [
        (change_line, ("damaged", 1), "era 1, at byte .* is not what was committed.*Stop the segment worker"),
        (change_row, ("damaged", None), "row of era 1 is damaged.*Stop the segment worker"),
        (change_last_row, ("damaged", -1), "1 rows of .* are not whole. A segment worker that is started"),
        (remove_one, ("damaged", 1), "rows of .* from era 1 on are not whole"),
        (remove_line, ("damaged", 1), "era 1, at byte .* is not what was committed"),
        (
            other_eras,
            ("different", 1),
            "era 1 differs from the one on the control topic.*move eras.jsonl and eras.index",
        ),
        (other_offset, ("damaged", 0), r"row of era 0 is wrong \(offset\)"),
    ],
)
async def test_eras_that_are_wrong_in_the_store_are_named(
    milled: Milled, copy: Path, damage: Callable[[Path, Milled], None], named: tuple[str, int | None], text: str
) -> None:
    """The first one, once, with its number, and what to do."""
    count = open_eras(copy, milled.train).eras
    damage(copy, milled)
    result = await check(milled, copy)
    (found,) = result.differences
    wanted = (named[0], count - 1 if named[1] == -1 else named[1])
    assert (found.side, found.stream, found.partition, (found.kind, found.era)) == ("store", milled.train, None, wanted)
    assert re.search(text, str(found))
    assert result.store_equal == (wanted[1] or 0), "those before it are equal"


async def test_a_store_may_be_behind_and_the_topic_may_not(milled: Milled, copy: Path) -> None:
    """What the store lacks at the end will come; what the control topic lacks is lost."""
    whole = await check(milled, milled.settings.store)
    assert (whole.differences, whole.store_behind, whole.store_equal) == ([], 0, whole.eras)
    index = copy / milled.train / "eras.index"
    index.write_bytes(index.read_bytes()[:-ROW_BYTES])
    behind = await check(milled, copy)
    assert (behind.differences, behind.store_behind, behind.store_equal) == ([], 1, whole.eras - 1)

    (lost,) = (await check(milled, milled.settings.store, end=1)).differences
    assert (lost.side, lost.kind, lost.era) == ("control topic", "missing", whole.eras - 1)
    assert (await check(milled, None, end=1)).differences == []


async def test_what_was_verified_before_is_not_looked_at_again(milled: Milled, copy: Path) -> None:
    """Unless it is not there any more: then the topic is read from its beginning, and what is lost is named."""
    first = await check(milled, copy, end=1)
    part = (await check(milled, None, end=1)).verified
    assert part is not None
    change_line(copy, milled)
    rest = await check(milled, copy, part)
    assert (rest.since, rest.eras, rest.store_equal, rest.differences) == (first.eras, first.eras + 1, 1, [])
    assert rest.verified is not None
    again = await check(milled, copy, rest.verified)
    assert (again.blocks, again.verified) == (0, rest.verified)
    (lost,) = (await check(milled, None, rest.verified, end=1)).differences
    assert (lost.side, lost.kind, lost.era) == ("control topic", "missing", part.era.number + 1)
    assert "not on its control topic any more" in lost.text


@pytest.mark.parametrize("where", ["store", "topic"])
async def test_the_hash_before_any_block_is_known(milled: Milled, where: str) -> None:
    """Where no block passes: by the store, or by one message."""
    settled = await settled_stream(milled.settings, milled.train)
    info = StreamInfo.from_genesis(settled.genesis, settled.genesis.segment_blocks)
    tokens = TopicPartition(settled.stream.tokens_topic, 1)
    chain = milled.chains[milled.train, 1]
    numbers = [1, 2, len(chain) // 2, len(chain)]
    async with consumer(milled.settings) as client:
        span = (await offsets(client, [tokens]))[tokens]
        store = milled.settings.store if where == "store" else None
        hashes = OtherHashes(client, tokens, span, None, store, info)
        found = [await hashes.chain_before(number, use_store=True) for number in numbers]
        beyond = await hashes.chain_before(len(chain) + 1, use_store=True)
    assert found == [chain[number - 1].chain for number in numbers]
    assert beyond is None


def test_ends_of_eras_are_held_against_the_blocks_that_pass(tmp_path: Path) -> None:
    """In runs of any length; the first wrong one is named, and what no run passed is told."""
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
