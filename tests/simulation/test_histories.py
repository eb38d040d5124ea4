"""Thousands of random histories: no block is lost, none is other, and nothing halts that need not."""

from collections import Counter
from typing import Final

import pytest

from tests.faults.trial import Trial
from tests.simulation.history import WEIGHTS, History, Plan, draw_plan
from tests.simulation.shrinking import shrink

HISTORIES: Final = 800
"""Enough that each of `SIGNS` is missing in fewer than one run of ten thousand."""
HISTORIES_IN_FULL: Final = 100_000

FAULTS: Final = tuple(name for name in WEIGHTS if name not in {"mill", "store", "land", "produce", "start", "carry"})
SIGNS: Final = (
    "second owners", "landed late", "gaps", "looks", "duplicates", "cut messages", "carries", "blocks",
    "predecessors read again", "noticed: acknowledged", "noticed: holds", "refused: out of sequence",
    "ended: the leader changed", "ended: out of range", "ended: not acknowledged",
    "mill halted: retention (SourceError)", "mill halted: rewritten (SourceError)", "store halted: GapError",
)  # fmt: skip
"""What shows that the protocol's rules were needed: each happens in every few hundred histories."""
RARE: Final = (
    "store halted: DifferenceError",
    "log moved while read",
    "resumed after a gap",
    "mill halted: rewritten (DifferenceError)",
)
"""What is too seldom for that."""


@pytest.mark.fault("simulated")
@pytest.mark.timeout(3600)
@pytest.mark.slow
def test_every_store_gets_the_chain_of_the_log_that_stands(trial: Trial) -> None:
    """Whatever is killed, lost, rewritten, refused or late; a halt has its reason, and once faults end all arrives."""
    first = trial.rng.randrange(1 << 32)
    rounds = trial.rounds(HISTORIES, HISTORIES_IN_FULL)
    counts: Counter[str] = Counter()
    for seed in range(first, first + rounds):
        history = History(draw_plan(seed))
        if history.run():
            pytest.fail(explain(seed))
        counts += history.counts
    for name in FAULTS:
        trial.fired(name, counts[name])
    signs = SIGNS + (RARE if trial.full else ())
    missing = [name for name in (*FAULTS, *signs) if not counts[name]]
    assert not missing, f"in {rounds} histories from seed {first} on, nothing tried {missing}"
    figures = {name: counts[name] for name in ("blocks", "messages", "duplicates", "gaps", "landed late")}
    trial.held("exact", "complete", "conserved", "dead letters", "topic", "loud", histories=rounds, **figures)
    print(f"seeds {first} to {first + rounds - 1}: {dict(sorted(counts.items()))}")  # noqa: T201 - the run's evidence


def explain(seed: int) -> str:
    """Return the shortest history that violates what that of the seed does, ready to be run again."""
    plan = draw_plan(seed)
    shortest = shrink(plan, lambda smaller: bool(History(smaller).run()))
    return f"seed {seed}: {History(plan).run()}\nshortest: {shortest}\n{History(shortest).run()}"


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
