"""Eras under competing writers and a log that loses its tail: all readers agree, and every block is in one era."""

from collections import Counter
from typing import Final

import pytest

from tests.faults.trial import Trial
from tests.simulation.era_rules import ERA_RULES, EraRule
from tests.simulation.eras import EraHistory
from tokenmill.errors import TokenMillError

HISTORIES: Final = 250
HISTORIES_IN_FULL: Final = 20_000
RULE_HISTORIES: Final = 1_000

SIGNS: Final = (
    "mills beside each other", "mills killed", "bringers beside each other", "bringers killed", "sends lost",
    "written, and told that it was not", "eras lost after their acknowledgement", "control topics recreated", "junk",
    "token tails lost", "token retention", "messages behind a hole", "zombies' messages",
    "partitions that contradict themselves", "partition 0 halted", "partitions added",
    "partition 0 revoked or assigned", "requests not answered", "disks that fail",
)  # fmt: skip
"""What was done."""
ANSWERS: Final = (
    "eras", "records ignored", "looks", "looks broken off", "log moved while read", "streams closed",
    "mills halted over an era that was lost", "stores halted over an era that was lost",
    "readers halted over an era that was lost", "said: no era takes blocks of this partition",
    "said: waiting for the eras' files", "eras ahead of their blocks", "blocks ahead of their eras",
)  # fmt: skip
"""What came of it: each rule was needed."""
RARE: Final = ("end markers written again",)
"""What happens in every few thousand."""


@pytest.mark.fault("simulated", "eras-contested", "eras-lost")
@pytest.mark.timeout(3600)
@pytest.mark.slow
def test_all_who_read_eras_agree_and_every_block_is_in_one(trial: Trial) -> None:
    """Whatever is killed, doubled, lost, late or refused: mills, stores and readers see the topic's eras or halt."""
    first = trial.rng.randrange(1 << 32)
    rounds = trial.rounds(HISTORIES, HISTORIES_IN_FULL)
    seen: Counter[str] = Counter()
    for seed in range(first, first + rounds):
        history = EraHistory(seed)
        try:
            history.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        seen.update(history.seen)
    for name in SIGNS:
        trial.fired(name, seen[name])
    missing = [name for name in (*SIGNS, *ANSWERS, *(RARE if trial.full else ())) if not seen[name]]
    assert not missing, f"in {rounds} histories from seed {first} on, nothing tried {missing}"
    trial.held("eras", "loud", era_histories=rounds)
    print(f"seeds {first} to {first + rounds - 1}: {dict(sorted(seen.items()))}")  # noqa: T201 - the run's evidence


@pytest.mark.fault("simulated")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rule", ERA_RULES, ids=lambda rule: rule.name)
def test_without_the_rule_eras_go_wrong(rule: EraRule, trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """The history that is known to need the rule ends well with it; a full run counts those among a thousand."""
    EraHistory(rule.seed).run()
    rule.off(monkeypatch)
    assert goes_wrong(rule.seed), "the histories that seeds give have changed: look for another seed (`make faults`)"
    rounds = trial.rounds(0, RULE_HISTORIES)
    found = [seed for seed in range(rounds) if goes_wrong(seed)]
    trial.fired(f"without the rule: {rule.name}", 1 + len(found))
    trial.held("eras")
    print(f"| {rule.name} | {len(found)} of {rounds:,} | {found[:3]} |")  # noqa: T201 - a line of docs/reliability.md


def test_the_same_seed_gives_the_same_history() -> None:
    """So a printed seed is enough to see a failure again."""
    for seed in range(10):
        runs = [EraHistory(seed) for _ in range(2)]
        for history in runs:
            history.run()
        assert runs[0].seen == runs[1].seen


def goes_wrong(seed: int) -> bool:
    """Return whether a history violates something; without a rule the code may also fail outright."""
    try:
        EraHistory(seed).run()
    except (AssertionError, LookupError, ValueError, TokenMillError):
        return True
    return False
