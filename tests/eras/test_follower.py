"""Following a control topic that may lose its tail: the reader's own head is where each look begins."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.eras.histories import FINGERPRINT, chains, log_of, next_era, records
from tokenmill.eras import Era, EraFollower
from tokenmill.eras.follower import LogRecord
from tokenmill.errors import DifferenceError


def _from(log: list[LogRecord], position: int | None) -> list[LogRecord]:
    return [record for record in log if position is None or record.offset >= position]


@given(chains(), st.data())
def test_looks_bring_every_era_once(eras: list[Era], data: st.DataObject) -> None:
    """However the log grows between them, and whatever else stands there."""
    values = [era.pack() for era in eras]
    log = [LogRecord(2 * r.offset, r.key, r.value) for r in records(values)]
    log += [LogRecord(2 * n + 1, b"skip", b"{}") for n in range(len(values))]
    log.sort()
    follower, seen = EraFollower(FINGERPRINT, "s"), []
    for end in [*sorted(data.draw(st.lists(st.integers(0, len(log))))), len(log)]:
        new = follower.look(_from(log[:end], follower.position))
        assert new is not None
        seen += new
    assert seen == eras == list(follower.log)


def test_lost_era_does_not_stop_a_reader_that_has_not_seen_it() -> None:
    """A live writer's next era names the lost one and is ignored; the one that is written anew counts."""
    first = next_era(log_of([]), [1])
    lost = next_era(log_of([first]), [2])
    orphan = next_era(log_of([first, lost]), [3])
    anew = next_era(log_of([first]), [3], closed=9)
    follower = EraFollower(FINGERPRINT, "s")
    assert follower.look(records([first.pack()])) == [first]
    assert follower.look(records([first.pack(), orphan.pack(), anew.pack()])) == [anew]


def test_rewritten_log_is_noticed_and_read_from_its_start() -> None:
    """The head is gone from its offset, but stands elsewhere: the chain is the same."""
    first = next_era(log_of([]), [1])
    second = next_era(log_of([first]), [2])
    follower = EraFollower(FINGERPRINT, "s")
    follower.look(records([first.pack(), second.pack()]))
    for log in (
        [LogRecord(0, None, b"junk"), *records([first.pack(), second.pack()], 1)],  # one later: an old era at its place
        [*records([first.pack(), b"junk", second.pack()])],  # something else at its place
    ):
        assert follower.look(_from(log, follower.position)) is None
        assert follower.restart(log) == []
        assert follower.position == 2
        assert follower.look(_from(log, follower.position)) == []
        follower = EraFollower(FINGERPRINT, "s")
        follower.look(records([first.pack(), second.pack()]))


def test_head_that_is_on_no_chain_halts_the_reader() -> None:
    """The log lost an era that was seen, and another one took its place: nobody may go on from it as if nothing was."""
    first = next_era(log_of([]), [1])
    second, other = next_era(log_of([first]), [2]), next_era(log_of([first]), [2], branch=b"o")
    follower = EraFollower(FINGERPRINT, "the stream")
    follower.look(records([first.pack(), second.pack()]))
    for values in ([first.pack(), other.pack()], [first.pack()], []):
        log = records(values)
        assert follower.look(_from(log, follower.position)) is None
        with pytest.raises(DifferenceError, match="era 1 of the stream is not on its control topic"):
            follower.restart(log)
        assert list(follower.log) == [first, second]
    later = next_era(log_of([first, second]), [5])
    log = records([b"junk", first.pack(), second.pack(), later.pack()])
    assert follower.look(_from(log, follower.position)) is None
    assert follower.restart(log) == [later]
