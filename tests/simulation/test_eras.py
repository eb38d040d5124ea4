"""Eras under competing writers and a log that loses its tail: all readers agree, and every block is in one era."""

from collections import Counter

import pytest

from tests.eras.histories import look
from tests.simulation.eras import EraHistory
from tokenmill.eras import ERA_KEY, Era, EraFollower, LogRecord

HISTORIES = 300
HISTORIES_IN_FULL = 20_000

EXPECTED = {
    "writers beside each other",
    "writers killed",
    "sends lost",
    "records lost after their acknowledgement",
    "token tails lost",
    "partitions added",
    "records ignored",
    "readers halted over an era that was lost",
    "writers ended over a log that was rewritten",
    "looks",
}


def test_all_readers_agree_on_eras_that_have_every_block_once(request: pytest.FixtureRequest) -> None:
    """Writers are killed and stopped at any step, their records land late, and the log loses what it acknowledged."""
    seen: Counter[str] = Counter()
    for seed in range(HISTORIES_IN_FULL if request.config.getoption("--full") else HISTORIES):
        history = EraHistory(seed)
        try:
            history.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        seen.update(history.seen)
    print(dict(seen))  # noqa: T201 - what the run came to
    assert {name for name, times in seen.items() if times} == EXPECTED


def test_reader_that_does_not_look_at_its_own_head_goes_wrong() -> None:
    """The rule is needed: without it, a log that was rewritten is taken for one that grew."""

    def look_blindly(follower: EraFollower, log: list[LogRecord]) -> list[Era]:
        position, last = follower.position, follower.log.last
        if position is None or last is None:
            return look(follower, log)
        return look(follower, [LogRecord(position, ERA_KEY, last.pack()), *(r for r in log if r.offset > position)])

    wrong = 0
    for seed in range(HISTORIES):
        try:
            EraHistory(seed, look=look_blindly).run()
        except AssertionError:
            wrong += 1
    assert wrong
    print(f"{wrong} of {HISTORIES}")  # noqa: T201 - what the run came to
