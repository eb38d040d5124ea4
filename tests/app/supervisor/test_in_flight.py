"""What is being milled can be read by another process, after the one that milled is dead."""

import os
import subprocess
import sys

import pytest

from tokenmill.app.supervisor.in_flight import BOARD_VARIABLE, Board, DeadlyRecords, Note, RecordsInFlight

LONGEST_TOPIC = "t" * 249


@pytest.mark.slow
def test_notes_outlive_the_process_that_wrote_them() -> None:
    """A killed process has said what it was milling; what it had done is not among it."""
    code = (
        "import os, signal\n"
        "from tokenmill.app.supervisor.in_flight import Board, Note\n"
        "board = Board.inherited()\n"
        "done, at_work = Note('raw', 1, board), Note('raw', 2, board)\n"
        "done(1, 9); at_work(3, 7); at_work(5, 5); done.done()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with Board.file() as file:
        board = Board(file.fileno())
        environment = {**os.environ, BOARD_VARIABLE: str(file.fileno())}
        done = subprocess.run([sys.executable, "-c", code], env=environment, pass_fds=[file.fileno()], check=False)
    assert done.returncode == -9
    assert list(board.records_in_flight()) == [RecordsInFlight("raw", 2, 5, 5)]
    board.close()


def test_every_topic_fits_and_slots_are_used_again() -> None:
    """Kafka's longest name; a partition that was given up gives its slot to another; without one nothing is noted."""
    with Board.file() as file:
        board = Board(file.fileno())
    for number in range(1000):
        note = Note(LONGEST_TOPIC, number, board)
        note(2**62, 2**62 + 1)
        assert list(board.records_in_flight()) == [RecordsInFlight(LONGEST_TOPIC, number, 2**62, 2**62 + 1)]
        note.done()
        note.close()
    hanging = [Note("raw", number, board) for number in range(300)]
    for note in hanging:
        note(0, 0)
    assert len(list(board.records_in_flight())) == 256
    board.close()


def test_a_note_hangs_where_it_does_not_change() -> None:
    """What is done hangs no more; what goes on begins anew."""
    note = Note("raw", 0, None)
    assert note.hanging(0) is None
    note(4, 8)
    assert note.hanging(0) == RecordsInFlight("raw", 0, 4, 8)
    assert note.hanging(3600) is None
    note.done()
    assert note.hanging(0) is None


def test_the_command_is_named() -> None:
    """For one record it can be run as it stands."""
    assert str(RecordsInFlight("raw", 1, 5, 5)) == "offset 5 of raw[1] (`tokenmill skip raw 1 5`)"
    assert str(RecordsInFlight("raw", 1, 5, 6)) == "one of the offsets 5 to 6 of raw[1] (`tokenmill skip raw 1 OFFSET`)"


def test_slot_of_a_partition_that_is_given_up_is_free_when_its_records_are_done() -> None:
    """Until then they are noted, for a thread still has them; afterwards nothing is blamed on them."""
    with Board.file() as file:
        board = Board(file.fileno())
    note = Note("raw", 0, board)
    note(4, 8)
    note.close()
    assert list(board.records_in_flight()) == [RecordsInFlight("raw", 0, 4, 8)]
    note.done()
    assert list(board.records_in_flight()) == []
    slots = {board.take() for _ in range(256)}
    assert len(slots) == 256
    assert None not in slots
    board.close()


def test_a_record_is_called_deadly_at_the_second_death() -> None:
    """Whichever worker dies; where the fetches differ, by what they have in common."""
    deadly_records = DeadlyRecords()
    assert deadly_records.died([RecordsInFlight("raw", 0, 1, 50), RecordsInFlight("raw", 1, 7, 7)]) == []
    assert deadly_records.died([RecordsInFlight("raw", 0, 40, 90)]) == [RecordsInFlight("raw", 0, 40, 50)]
    assert deadly_records.died([RecordsInFlight("raw", 1, 7, 7)]) == [RecordsInFlight("raw", 1, 7, 7)]
    assert deadly_records.died([RecordsInFlight("raw", 0, 44, 44)]) == [RecordsInFlight("raw", 0, 44, 44)]


def test_deaths_elsewhere_are_nobodys_fault() -> None:
    """A partition that has gone on since, and a worker that was milling nothing."""
    deadly_records = DeadlyRecords()
    deadly_records.died([RecordsInFlight("raw", 0, 1, 50)])
    assert deadly_records.died([]) == []
    assert deadly_records.died([RecordsInFlight("raw", 0, 51, 90)]) == []
    assert deadly_records.died([RecordsInFlight("other", 0, 51, 90)]) == []


def test_deadly_records_narrow_down_and_start_again_elsewhere() -> None:
    """What two deaths have in common is compared with the third; where that is nothing, the third stands alone."""
    deadly_records = DeadlyRecords()
    deaths = [(1, 50), (40, 90), (60, 60), (40, 50), (45, 70), (50, 80), (70, 90)]
    found = [deadly_records.died([RecordsInFlight("raw", 0, *span)]) for span in deaths]
    assert found == [
        [],
        [RecordsInFlight("raw", 0, 40, 50)],
        [],
        [],
        [RecordsInFlight("raw", 0, 45, 50)],
        [RecordsInFlight("raw", 0, 50, 50)],
        [],
    ]
