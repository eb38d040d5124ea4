"""Where a partition's time goes."""

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tokenmill.app.telemetry.stage_clock import STAGES, Stage, StageClock
from tokenmill.app.telemetry.worker_metrics import STAGE_SECONDS


class Hands:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def spent() -> dict[str, float]:
    """Return the seconds of every stage so far."""
    return {stage: STAGE_SECONDS.labels(stage)._value.get() for stage in STAGES}


def grown(before: Mapping[str, float]) -> dict[str, float]:
    """Return the stages that have grown since, and by how much."""
    return {stage: round(now - before[stage], 6) for stage, now in spent().items() if now != before[stage]}


def test_a_fetch_is_divided_among_its_stages() -> None:
    """What the steps do not claim is between them, and waiting is idle only if there is nothing to fetch."""
    before, hands = spent(), Hands()
    clock = StageClock(hands)
    clock.enter("resume")
    hands.now += 3
    clock.wait()
    hands.now += 5
    clock.look(behind=False)
    hands.now += 1
    clock.look(behind=True)
    hands.now += 2
    clock.enter("other")
    hands.now += 10
    clock.look(behind=True)
    clock.divide({"decode": 2.0, "tokenize": 6.0, "pack": 1.5})
    clock.enter("publish")
    hands.now += 4
    clock.stop()
    hands.now += 50
    clock.enter("idle")
    hands.now += 50
    clock.look(behind=False)

    assert grown(before) == {
        "resume": 3, "idle": 5, "fetch": 3, "decode": 2, "tokenize": 6, "pack": 1.5, "other": 0.5, "publish": 4
    }  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from([*STAGES, "look", "wait"]), st.floats(0, 100))))
def test_every_second_is_counted_once(history: list[tuple[Any, float]]) -> None:
    """Stages together grow as the clock does, whatever is entered and however often somebody looks."""
    before, hands = spent(), Hands()
    clock = StageClock(hands)
    clock.enter("resume")
    for what, seconds in history:
        if what == "look":
            clock.look(behind=seconds > 50)
        elif what == "wait":
            clock.wait()
        else:
            stage: Stage = what
            clock.enter(stage)
        hands.now += seconds
    clock.stop()

    assert abs(sum(grown(before).values()) - (hands.now - 100)) < 1e-3


def test_all_stages_are_known() -> None:
    """What is counted is one of the stages that the documentation lists."""
    counted = {sample.labels["stage"] for metric in STAGE_SECONDS.collect() for sample in metric.samples}
    assert counted <= set(STAGES)
