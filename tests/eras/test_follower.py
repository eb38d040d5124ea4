"""Following a control topic that may lose its tail: the reader's own head is where each look begins."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.eras.histories import FINGERPRINT, chains, look, next_era, records
from tokenmill.eras import Era, EraFollower, LogRecord
from tokenmill.errors import DifferenceError


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
