"""What is being milled can be read by another process, after the one that milled is dead."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from tokenmill.app.worker import in_flight
from tokenmill.app.worker.in_flight import KEPT_DEATHS, Board, Deaths, Note, RecordsInFlight, deadly, nameless_file


def test_every_topic_fits_and_slots_are_used_again() -> None:
    with Board.file() as file:
        board = Board(file.fileno())
    for number in range(1000):
        note = Note("t" * 249, number, board)
        note(2**62, 2**62 + 1)
        assert board.records_in_flight() == [RecordsInFlight("t" * 249, number, 2**62, 2**62 + 1)]
        note.done()
        note.close()
    hanging = [Note("raw", number, board) for number in range(300)]
    for note in hanging:
        note(0, 0)
    assert len(board.records_in_flight()) == 256


def test_a_note_hangs_where_it_does_not_change_and_names_the_command() -> None:
    note = Note("raw", 0, Board())
    assert note.hanging(0) is None
    note(4, 8)
    assert note.hanging(0) == RecordsInFlight("raw", 0, 4, 8)
    assert note.hanging(3600) is None
    note.done()
    assert note.hanging(0) is None
    assert str(RecordsInFlight("raw", 1, 5, 5)) == "offset 5 of raw[1] (`tokenmill skip raw 1 5`)"
    assert str(RecordsInFlight("raw", 1, 5, 6)) == "one of the offsets 5 to 6 of raw[1] (`tokenmill skip raw 1 OFFSET`)"


def test_slot_of_a_partition_that_is_given_up_is_free_when_its_records_are_done() -> None:
    """Until then they are noted, for a thread still has them; afterwards nothing is blamed on them."""
    with Board.file() as file:
        board = Board(file.fileno())
    note = Note("raw", 0, board)
    note(4, 8)
    note.close()
    assert board.records_in_flight() == [RecordsInFlight("raw", 0, 4, 8)]
    note.done()
    assert board.records_in_flight() == []
    assert len(set(board.free)) == 256


Spans = list[tuple[int, int]]
RANGE, NEAR, ONE, OTHER = (0, 40), (10, 50), (20, 20), (21, 21)
DEATHS: dict[str, tuple[Spans, list[int], tuple[int, int] | None]] = {
    "nobody died": ([], [], None),
    "once": ([RANGE], [], None),
    "a range, then one of it": ([RANGE, ONE], [], None),
    "a range, then one of it again and again": ([RANGE, ONE, ONE], [], ONE),
    "one, thrice": ([ONE, ONE, ONE], [], ONE),
    "one, thrice, with another between": ([ONE, OTHER, ONE, (7, 9), ONE], [], ONE),
    "three kills by somebody, each time at another": ([RANGE, ONE, OTHER], [], None),
    "three kills by somebody, elsewhere": ([RANGE, (50, 60), (70, 70)], [], None),
    "a batch that cannot be unpacked": ([RANGE, RANGE, RANGE], [], RANGE),
    "neighbours, of which nobody knows which": ([RANGE, NEAR, (15, 45)], [], None),
    "two that kill: the first, then both": ([RANGE, ONE, ONE, OTHER, OTHER], [20], OTHER),
    "skipped, and not tried yet": ([RANGE, ONE, ONE], [20], None),
    "skipped, and so it cannot be left out": ([ONE] * 6, [20], ONE),
    "others were skipped": ([ONE] * 3, [5, 19, 21, 40], ONE),
    "a batch of which two were skipped": ([RANGE] * 8, [5, 19], None),
}
"""What was in flight at deaths of a partition's owners, and what is skipped → what is deadly."""


def noted(*spans: tuple[int, int], partition: int = 0) -> list[RecordsInFlight]:
    return [RecordsInFlight("raw", partition, *span) for span in spans]


@pytest.mark.parametrize("case", DEATHS)
def test_what_workers_die_of_is_known_at_the_third_death_and_no_neighbour_is_blamed(case: str) -> None:
    """What is skipped is tried as often again."""
    deaths, skips, guilty = DEATHS[case]
    assert deadly(noted(*deaths), skips) == (None if guilty is None else noted(guilty)[0])


def test_deaths_are_known_to_all_workers_at_once() -> None:
    file = nameless_file()
    try:
        supervisor, early = Deaths(file), Deaths(file)
        assert not early.of("raw", 0)
        supervisor.add([*noted(ONE), *noted(RANGE, partition=1)])
        assert list(early.of("raw", 0)) == noted(ONE)
        supervisor.add([])
        supervisor.add(noted(*[OTHER] * 300))
        for worker in (early, Deaths(file), supervisor):
            assert list(worker.of("raw", 0)) == noted(*[OTHER] * KEPT_DEATHS)
            assert list(worker.of("raw", 1)) == noted(RANGE, partition=1)
            assert not worker.of("other", 0)
    finally:
        os.close(file)


@pytest.mark.parametrize("convicted", [True, False])
def test_whoever_ends_for_another_reason_blames_nothing_that_it_has_in_hand(*, convicted: bool) -> None:
    """Nor what threads take in hand before the end comes."""
    board = Board()
    innocent, late = (Note("raw", number, board) for number in range(2))
    innocent(1, 9)
    if convicted:
        board.convict()
    board.pardon()
    late(7, 7)
    found = [RecordsInFlight("raw", 0, 1, 9), RecordsInFlight("raw", 1, 7, 7)]
    assert board.records_in_flight() == (found if convicted else [])


def test_what_was_in_flight_at_a_death_is_in_hand_one_after_the_other_and_none_waits_for_one_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else one would be in flight at each death that another one causes."""
    board = Board()
    with ThreadPoolExecutor(1) as other:

        def take() -> str:
            with board.alone():
                return "taken"

        with board.alone():
            waiting = other.submit(take)
            with pytest.raises(TimeoutError):
                waiting.result(0.1)
        assert waiting.result(10) == "taken"
        monkeypatch.setattr(in_flight, "ALONE_SECONDS", 0.01)
        with board.alone():
            assert [other.submit(take).result(10) for _ in range(2)] == ["taken"] * 2
