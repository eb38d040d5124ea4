"""What the supervisor remembers of its workers' words."""

from typing import Any

from tokenmill.app.supervisor.supervisor import WorkerLedger


def mill(*partitions: str, blocks: int = 0) -> dict[str, Any]:
    chains = {"train": {"block": blocks, "documents": blocks, "bytes": blocks, "tokens": blocks, "open_tokens": 3}}
    return {
        "role": "mill",
        "ready": True,
        "partitions": {name: {"position": blocks, "chains": chains if blocks else {}} for name in partitions},
    }


def test_a_takeover_names_the_worker_that_ended() -> None:
    """A partition that comes to another worker is an orphan's if its last owner has ended."""
    ledger = WorkerLedger()
    assert ledger.heard("mill-1", mill("t/0", "t/1")) == {}
    ledger.ended("mill-1")
    assert ledger.owners == {}
    assert ledger.heard("mill-2", mill("t/0")) == {("mill-1", True): ["t/0"]}
    ledger.heard("mill-2", mill())
    assert ledger.heard("mill-1", mill("t/0")) == {("mill-2", False): ["t/0"]}
    assert ledger.owners == {"t/0": "mill-1"}


def test_progress_is_kept_while_another_worker_resumes() -> None:
    """A new owner knows nothing at first and then begins a little earlier; what was there before is still there."""
    ledger = WorkerLedger()
    ledger.heard("mill-1", mill("t/0", blocks=9))
    ledger.ended("mill-1")
    for blocks, expected in ((0, 9), (7, 9), (11, 11)):
        ledger.heard("mill-2", mill("t/0", blocks=blocks))
        chain = ledger.partitions["t/0"]["chains"]["train"]
        assert (chain["block"], chain["documents"], chain["open_tokens"]) == (expected, expected, 3)


def test_the_newest_dead_letter_outlives_its_worker() -> None:
    """The next owner knows of none, and people still want to read why."""
    ledger, letter = WorkerLedger(), {"offset": 3, "reason": "invalid_utf8", "at": 5.0}
    told = mill("t/0", blocks=1)
    told["partitions"]["t/0"]["dead_letter"] = letter
    ledger.heard("a", told)
    ledger.ended("a")
    ledger.heard("b", mill("t/0", blocks=1))
    assert ledger.partitions["t/0"]["dead_letter"] == letter


def test_eras_are_kept() -> None:
    ledger = WorkerLedger()
    ledger.heard("segment", {**mill("t/0"), "eras": {"t.train": 7}})
    ledger.ended("segment")
    assert ledger.eras == {"t.train": 7}


def test_each_heartbeat_says_what_its_worker_has_and_nothing_of_the_others() -> None:
    """Who goes on has moved nothing; what one gives up is nobody's until another says so."""
    ledger = WorkerLedger()
    for _ in range(2):
        assert ledger.heard("a", mill("t/0", "t/1")) == {}
        assert ledger.heard("b", mill("t/2")) == {}
        assert ledger.owners == {"t/0": "a", "t/1": "a", "t/2": "b"}
    ledger.heard("a", mill("t/0"))
    assert ledger.owners == {"t/0": "a", "t/2": "b"}
    assert ledger.heard("b", mill("t/1", "t/2")) == {("a", False): ["t/1"]}
    ledger.ended("b")
    assert ledger.owners == {"t/0": "a"}


def test_a_stores_block_never_falls_and_the_newest_dead_letter_wins() -> None:
    """A new owner begins a little earlier, or knows of none; what it says later counts."""
    ledger = WorkerLedger()
    for said, kept in ((9, 9), (None, 9), (7, 9), (12, 12)):
        ledger.heard("segment", {"partitions": {"t/0": {"block": said, "dead_letter": {"offset": said}}}})
        assert ledger.partitions["t/0"]["block"] == kept
        assert ledger.partitions["t/0"]["dead_letter"] == {"offset": said}
