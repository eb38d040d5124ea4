"""Thousands of random histories: no block is lost, none is other, and nothing halts that need not."""

from collections import Counter
from collections.abc import Callable
from typing import Final

import pytest

from tests.faults.trial import Trial
from tests.simulation.history import WEIGHTS, History, Plan, draw_plan, shrink

HISTORIES: Final = 400
"""Enough that each of `SIGNS` is missing in fewer than one run of ten thousand."""
HISTORIES_OF_FIT: Final = 330
"""As many for `FIT_SIGNS`; what the packings share is in the others."""
HISTORIES_IN_FULL: Final = 100_000

FAULTS: Final = tuple(name for name in WEIGHTS if name not in {"mill", "store", "land", "produce", "start", "carry"})
RARE_FAULTS: Final = frozenset({"raw recreated"})
"""Those that a short run may miss."""
SIGNS: Final = (
    "second owners", "landed late", "gaps", "looks", "duplicates", "cut messages", "carries", "blocks",
    "predecessors read again", "noticed: acknowledged",
    "ended: the leader changed", "ended: out of range", "ended: not acknowledged",
    "mill halted: retention (SourceError)", "mill halted: rewritten (SourceError)", "store halted: GapError",
)  # fmt: skip
"""What shows that the protocol's rules were needed: each happens in one history of fifty, or more often."""
RARE: Final = (
    "store halted: DifferenceError",
    "log moved while read",
    "resumed after a gap",
    "mill halted: rewritten (DifferenceError)",
    "noticed: holds",
    "refused: out of sequence",
)
"""What is too seldom for that."""
FIT_SIGNS: Final = (
    "second owners", "landed late", "carries", "duplicates", "records read again", "resumed in the middle of a record",
    "mill halted: rewritten (SourceError)", "mill halted: retention (SourceError)",
)  # fmt: skip
"""The same of several open blocks: these are read again, and a resume finds a document or a flush half done."""
FIT_RARE: Final = ("resumed by value", "resumed before the furthest cursor")


@pytest.mark.fault("simulated")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("fit", [False, True], ids=["concat", "fit"])
@pytest.mark.slow
@pytest.mark.cases(1)
def test_every_store_gets_the_chain_of_the_log_that_stands(trial: Trial, *, fit: bool) -> None:
    """Whatever is killed, lost, rewritten, refused or late; a halt has its reason, and once faults end all arrives."""
    rounds = trial.rounds(HISTORIES_OF_FIT if fit else HISTORIES, HISTORIES_IN_FULL)
    counts = explored(trial, rounds, lambda seed: draw_plan(seed, fit=fit))
    signs = SIGNS + (RARE if trial.full else ())
    signs = FIT_SIGNS + (signs + FIT_RARE if trial.full else ()) if fit else signs
    faults = [name for name in FAULTS if trial.full or (not fit and name not in RARE_FAULTS)]
    missing = [name for name in (*faults, *signs) if not counts[name]]
    assert not missing, f"in {rounds} histories nothing tried {missing}"
    figures = {name: counts[name] for name in ("blocks", "messages", "duplicates", "gaps", "landed late")}
    trial.held("exact", "complete", "conserved", "dead letters", "topic", "loud", histories=rounds, **figures)


def explored(trial: Trial, rounds: int, plan_of: Callable[[int], Plan]) -> Counter[str]:
    """Run so many histories; fail with the shortest plan by which one goes wrong, else return what all of them met."""
    first = trial.rng.randrange(1 << 32)
    counts: Counter[str] = Counter()
    for seed in range(first, first + rounds):
        history = History(plan_of(seed))
        if history.run():
            pytest.fail(explain(plan_of(seed), seed))
        counts += history.counts
        counts["within a document"] += sum(m.cursor.taken > 0 for some in history.broker.landed.values() for m in some)
    for name in FAULTS:
        trial.fired(name, counts[name])
    print(f"seeds {first} to {first + rounds - 1}: {dict(sorted(counts.items()))}")  # noqa: T201 - the run's evidence
    return counts


def explain(plan: Plan, seed: int) -> str:
    shortest = shrink(plan, lambda smaller: bool(History(smaller).run()))
    return f"seed {seed}: {History(plan).run()}\nshortest: {shortest}\n{History(shortest).run()}"


@pytest.mark.slow
def test_the_same_seed_gives_the_same_history() -> None:
    """So a printed seed is enough to see a failure again."""
    for seed in range(20):
        runs = [History(draw_plan(seed)) for _ in range(2)]
        for history in runs:
            history.run()
        assert runs[0].counts == runs[1].counts
        assert runs[0].broker.landed == runs[1].broker.landed


def test_any_part_of_a_history_is_one() -> None:
    """What was found is shrunk by leaving actions out, so each action must be possible at any time."""
    plan = draw_plan(7)
    for at in range(len(plan.actions)):
        part = Plan(plan.splits, plan.block_tokens, plan.start, plan.first_tail, plan.actions[at:])
        assert not History(part).run()
