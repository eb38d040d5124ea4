"""One death is no proof; two over the same record are."""

from tokenmill.app.supervisor.in_flight import Suspects
from tokenmill.app.supervisor.suspicion import Suspicion


def test_a_record_is_suspected_at_the_second_death() -> None:
    """Whichever worker dies; where the fetches differ, by what they have in common."""
    suspicion = Suspicion()
    assert suspicion.died([Suspects("raw", 0, 1, 50), Suspects("raw", 1, 7, 7)]) == []
    assert suspicion.died([Suspects("raw", 0, 40, 90)]) == [Suspects("raw", 0, 40, 50)]
    assert suspicion.died([Suspects("raw", 1, 7, 7)]) == [Suspects("raw", 1, 7, 7)]
    assert suspicion.died([Suspects("raw", 0, 44, 44)]) == [Suspects("raw", 0, 44, 44)]


def test_deaths_elsewhere_are_nobodys_fault() -> None:
    """A partition that has gone on since, and a worker that was milling nothing."""
    suspicion = Suspicion()
    suspicion.died([Suspects("raw", 0, 1, 50)])
    assert suspicion.died([]) == []
    assert suspicion.died([Suspects("raw", 0, 51, 90)]) == []
    assert suspicion.died([Suspects("other", 0, 51, 90)]) == []


def test_suspicion_narrows_down_and_begins_anew_elsewhere() -> None:
    """What two deaths have in common is compared with the third; where that is nothing, the third stands alone."""
    suspicion = Suspicion()
    deaths = [(1, 50), (40, 90), (60, 60), (40, 50), (45, 70), (50, 80), (70, 90)]
    found = [suspicion.died([Suspects("raw", 0, *span)]) for span in deaths]
    assert found == [
        [],
        [Suspects("raw", 0, 40, 50)],
        [],
        [],
        [Suspects("raw", 0, 45, 50)],
        [Suspects("raw", 0, 50, 50)],
        [],
    ]
