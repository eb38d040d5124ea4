"""Eras: one on a topic, the chain of them, following it, closing, and the order inside one."""

import json
from collections import Counter
from hashlib import sha256
from itertools import pairwise
from math import factorial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.eras.histories import FINGERPRINT, chain_hash, chains, extents, log_of, look, next_era, records
from tokenmill.eras import Era, EraFollower, EraLog, LogRecord, Permutation, close_era, first_hash
from tokenmill.errors import DifferenceError
from tokenmill.recipe import canonical_json


@given(chains())
def test_era_comes_back_as_it_was(eras: list[Era]) -> None:
    for era in eras:
        assert Era.unpack(era.pack()) == era
        assert len(era.hash) == 16


def test_spelling_is_that_of_the_page() -> None:
    """Canonical JSON; readers in other languages hash the same bytes."""
    era = next_era([], [2, 0, 1], closed=5)
    assert era.pack() == canonical_json(
        {
            "before": first_hash(FINGERPRINT).hex(),
            "closed": 5,
            "end": False,
            "era": 0,
            "ranges": [[0, n, a.hex(), b.hex()] for _, n, a, b in era.ranges],
        }
    )
    assert [part.blocks for part in era.ranges] == [2, 0, 1]
    assert era.blocks == 3


@given(
    st.binary() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda v: json.dumps(v).encode())
)
def test_no_bytes_surprise_a_reader(value: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        Era.unpack(value)


GOOD = json.loads(next_era([], [2, 3]).pack())
FIRST, SECOND = GOOD["ranges"]


@pytest.mark.parametrize(
    "changed",
    [
        {"era": -1}, {"era": True}, {"era": 1.0}, {"before": "ab"}, {"closed": None}, {"end": True}, {"end": 0},
        {"ranges": []}, {"ranges": [[2, 0, *FIRST[2:]], SECOND]}, {"ranges": [[2, 2, *FIRST[2:]], SECOND]},
        {"ranges": [FIRST[:3]]}, {"ranges": 5}, {"more": 1},
    ],
    ids=str,
)  # fmt: skip
def test_records_that_no_writer_writes_are_refused(changed: dict[str, object]) -> None:
    """Each is an era but for one thing; the hash is of the bytes, so one era has one spelling."""
    good = canonical_json(GOOD)
    assert Era.unpack(good).number == 0
    for wrong in (canonical_json(GOOD | changed), good + b" "):
        with pytest.raises(ValueError, match="no era"):
            Era.unpack(wrong)


@given(chains(), st.data())
def test_records_that_continue_nothing_change_nothing(eras: list[Era], data: st.DataObject) -> None:
    stale = [next_era(eras[:n], [50 + n] * 3, branch=b"z").pack() for n in range(len(eras)) if not eras[n].end]
    log = EraLog(FINGERPRINT)
    for number, era in enumerate(eras):
        assert log.next_number == number
        assert log.add(era.pack()) == era
        for _ in range(data.draw(st.integers(0, 3))):
            past = [found.pack() for found in eras[: number + 1]] + stale[: number + 1]
            assert log.add(data.draw(st.binary() | st.sampled_from(past) | st.none())) is None
    assert log.last == (eras[-1] if eras else None)


@given(chains(), chains(), st.data())
def test_all_readers_agree_on_the_first_of_two_writers(one: list[Era], other: list[Era], data: st.DataObject) -> None:
    values = data.draw(st.permutations([era.pack() for era in [*one, *other]]))
    log, another = EraLog(FINGERPRINT), EraLog(FINGERPRINT)
    taken = [era for era in map(log.add, values) if era]
    assert all(two.before == one.hash for one, two in pairwise(taken))
    assert [era for era in map(another.add, values) if era] == taken
    assert not any(era in taken for era in map(log.add, values) if era)


def test_ranges_continue_each_partition_where_it_was_left() -> None:
    first = next_era([], [2, 5])
    log = log_of([first])
    second = next_era([first], [4, 5, 7])
    assert [part[:2] for part in second.ranges] == [(2, 4), (5, 5), (0, 7)]
    one, two, three = second.ranges
    gap = (one._replace(first=3), two, three)
    other_text = (one._replace(before=b"x" * 16), two, three)
    late_start = (one, two, three._replace(first=1))
    forgotten = (one,)
    for wrong in (Era(1, first.hash, ranges, 0) for ranges in (gap, other_text, late_start, forgotten)):
        assert Era.unpack(wrong.pack()) == wrong
        assert log.add(wrong.pack()) is None
    assert log.add(second.pack()) == second
    assert [log.end(partition)[0] for partition in range(4)] == [4, 5, 7, 0]


def test_nothing_follows_the_end() -> None:
    first = next_era([], [1])
    end = next_era([first], [1], end=True)
    assert end.end
    log = log_of([first, end])
    assert log.ended
    late = next_era([first], [9])
    assert log.add(late.pack()) is None
    assert log.add(Era(2, end.hash, late.ranges, 0).pack()) is None
    assert close_era(log, extents([9]), now=0, era_blocks=1, overdue=True) is None


def test_an_era_of_another_stream_is_ignored() -> None:
    assert first_hash(b"a" * 32) != first_hash(b"b" * 32)
    assert EraLog(b"g" * 32).add(next_era([], [1]).pack()) is None


@given(chains(), st.data())
def test_looks_bring_every_era_once(eras: list[Era], data: st.DataObject) -> None:
    log = [LogRecord(2 * record.offset, record.key, record.value) for record in records([era.pack() for era in eras])]
    log += [LogRecord(2 * number + 1, b"skip", b"{}") for number in range(len(eras))]
    log.sort()
    follower, seen = EraFollower("s", FINGERPRINT), []
    for end in [*sorted(data.draw(st.lists(st.integers(0, len(log))))), len(log)]:
        seen += look(follower, log[:end])
        if data.draw(st.booleans()):
            follower = EraFollower("s", FINGERPRINT, follower.log.last, follower.position)
    assert seen == eras


def test_lost_era_does_not_stop_a_reader_that_has_not_seen_it() -> None:
    """A live writer's next era names the lost one and is ignored; the one that is written anew counts."""
    first = next_era([], [1])
    lost = next_era([first], [2])
    orphan = next_era([first, lost], [3])
    anew = next_era([first], [3], closed=9)
    follower = EraFollower("s", FINGERPRINT)
    assert look(follower, records([first.pack()])) == [first]
    assert look(follower, records([first.pack(), orphan.pack(), anew.pack()])) == [anew]


@pytest.mark.parametrize("before", [0, 1])
def test_rewritten_log_is_noticed_and_read_from_its_start(before: int) -> None:
    first = next_era([], [1])
    second = next_era([first], [2])
    third = next_era([first, second], [3])
    follower = EraFollower("s", FINGERPRINT)
    look(follower, records([first.pack(), second.pack()]))
    values = [first.pack(), second.pack()]
    log = records([*values[:before], b"junk", *values[before:]])
    assert look(follower, log) == []
    assert follower.position == 2
    assert look(follower, [*log, *records([third.pack()], 3)]) == [third]


def test_head_that_is_on_no_chain_halts_the_reader() -> None:
    """The log lost an era that was seen, and another one took its place: nobody may go on from it as if nothing was."""
    first = next_era([], [1])
    second, other = next_era([first], [2]), next_era([first], [2], branch=b"o")
    later = next_era([first, second], [5])
    for values in ([first.pack(), other.pack()], [first.pack()], []):
        follower = EraFollower("the stream", FINGERPRINT)
        look(follower, records([first.pack(), second.pack()]))
        with pytest.raises(DifferenceError, match="era 1 of the stream is not on its control topic"):
            look(follower, records(values))
        with pytest.raises(DifferenceError):  # looking once more does not help
            look(follower, records(values))
        log = records([b"junk", first.pack(), second.pack(), later.pack()])
        assert look(follower, log) == [later]  # but it does if it comes back


def test_era_is_closed_when_it_is_full_or_overdue() -> None:
    log = log_of([next_era([], [1, 1])])
    for blocks, era_blocks, overdue, closed in [
        ([1, 1], 1, True, False),
        ([2, 2], 3, False, False),
        ([2, 3], 3, False, True),
        ([2, 1], 3, True, True),
    ]:
        era = close_era(log, extents(blocks), now=7, era_blocks=era_blocks, overdue=overdue)
        assert (era is not None) == closed
        if era:
            assert era.closed == 7
            assert [part[:2] for part in era.ranges] == [(1, stop) for stop in blocks]


@given(chains().filter(lambda eras: not eras or not eras[-1].end), st.lists(st.integers(0, 30), max_size=3))
def test_what_is_closed_continues_the_log(eras: list[Era], blocks: list[int]) -> None:
    """Partitions that reach less far than the eras, as after a lost tail, have an empty range."""
    log = log_of(eras)
    era = close_era(log, extents(blocks), now=0, era_blocks=1, overdue=False)
    behind = all(n <= log.end(partition)[0] for partition, n in enumerate(blocks))
    assert (era is None) == behind
    if era:
        assert log.continues(era)
        reached = [*blocks, *([0] * (len(era.ranges) - len(blocks)))]
        assert [part.stop for part in era.ranges] == [max(n, log.end(p)[0]) for p, n in enumerate(reached)]
        assert all(part.after == chain_hash(p, part.stop) for p, part in enumerate(era.ranges))


def test_end_comes_after_the_last_blocks() -> None:
    log = log_of([])
    last = close_era(log, extents([3]), now=0, era_blocks=100, overdue=False, end=True)
    assert last is not None
    assert (last.blocks, last.end) == (3, False)
    log.add(last.pack())
    marker = close_era(log, extents([3]), now=0, era_blocks=100, overdue=False, end=True)
    assert marker is not None
    assert (marker.blocks, marker.end) == (0, True)
    log.add(marker.pack())
    assert log.ended
    assert close_era(log, extents([3]), now=0, era_blocks=100, overdue=False, end=True) is None


seeds = st.integers(-(2**63), 2**63 - 1)
counts = st.integers(0, 2**64 - 1)


@given(st.integers(0, 5000), seeds, counts, counts)
def test_every_item_comes_once_and_the_inverse_leads_back(size: int, seed: int, passed: int, era: int) -> None:
    order, positions = Permutation(size, seed=seed, passed=passed, era=era), np.arange(size)
    items = order(positions)
    assert len(order) == size
    assert sorted(items.tolist()) == positions.tolist() == order.inverse(items).tolist()


@given(st.integers(1, 2**40), seeds, st.data())
def test_positions_can_be_asked_for_one_by_one(size: int, seed: int, data: st.DataObject) -> None:
    order = Permutation(size, seed=seed, passed=0, era=0)
    positions = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=12)), np.int64)
    items = order(positions)
    assert items.dtype == np.int64
    assert ((items >= 0) & (items < size)).all()
    assert [int(order(np.array([position]))[0]) for position in positions] == items.tolist()
    assert order(positions.reshape(1, -1)).tolist() == [items.tolist()]


@pytest.mark.parametrize("size", [1, 60, 3000, 8192, 40_000, 65_536, 70_000])
def test_all_positions_at_once_give_what_few_do(size: int) -> None:
    order = Permutation(size, seed=5, passed=1, era=2)
    parts = np.array_split(np.arange(size), 64)
    assert order(np.arange(size)).tolist() == np.concatenate([order(part) for part in parts]).tolist()


def test_seed_pass_and_era_give_orders_of_their_own() -> None:
    orders = {
        tuple(Permutation(100, seed=seed, passed=passed, era=era)(np.arange(100)).tolist())
        for seed in (0, 1, -1)
        for passed in (0, 1)
        for era in (0, 1, 2**40)
    }
    assert len(orders) == 18


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_small_orders_are_equally_likely(size: int) -> None:
    """All orders of a few items come, none more than by chance: chi squared within five standard deviations."""
    each = 20
    times = each * factorial(size)
    found = Counter(
        tuple(Permutation(size, seed=seed, passed=0, era=0)(np.arange(size)).tolist()) for seed in range(times)
    )
    assert len(found) == factorial(size)
    freedom = factorial(size) - 1
    chi_squared = sum((count - each) ** 2 / each for count in found.values())
    assert abs(chi_squared - freedom) < 5 * (2 * freedom) ** 0.5 + 5


def test_neighbours_do_not_stay_together() -> None:
    order = Permutation(8192, seed=1, passed=0, era=0)(np.arange(8192))
    assert np.count_nonzero(np.abs(np.diff(order)) == 1) < 12
    assert abs(np.corrcoef(order, np.arange(8192))[0, 1]) < 0.05


def test_order_is_the_same_for_ever() -> None:
    """Checkpoints of years ago continue: these numbers never change."""
    assert Permutation(10, seed=42, passed=1, era=7)(np.arange(10)).tolist() == [9, 5, 6, 2, 3, 0, 1, 7, 4, 8]
    digest = sha256()
    for size in range(300):
        order = Permutation(size, seed=size - 150, passed=size % 3, era=11 * size)
        digest.update(order(np.arange(size)).astype("<i8").tobytes())
    assert digest.hexdigest() == "ae886f98853d10b87516a296b6d0eb41394dd9e86634ea598216fd3af73ada38"


def test_small_orders_are_not_walked_through_as_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two items in a square of 64 values that takes dozens of steps, each as dear as one for thousands of values."""

    def walked(*_: object) -> None:
        pytest.fail("the network was computed value by value")

    expected = [Permutation(size, seed=3, passed=0, era=1)(np.arange(size)).tolist() for size in range(65)]
    for name in ("_encipher", "_decipher", "_walk"):
        monkeypatch.setattr(Permutation, name, walked)
    for size, items in enumerate(expected):
        order = Permutation(size, seed=3, passed=0, era=1)
        assert [int(order(np.array([position]))[0]) for position in range(size)] == items
        assert order.inverse(np.array(items, np.int64)).tolist() == list(range(size))
