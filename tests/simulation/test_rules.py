"""Every rule of the protocol is needed: without it, the simulation finds histories that end wrongly."""

import pytest

from tests.faults.trial import Trial
from tests.simulation.history import History, Plan, draw_plan
from tests.simulation.rules import RULES, Rule
from tests.simulation.worker import Rules


@pytest.mark.fault("simulated")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.slow
def test_without_the_rule_histories_end_wrongly(rule: Rule, trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """The history that is known to need the rule ends well with it; a full run counts those among thousands."""
    assert not History(rule.plan).run()
    rules = rule.off(monkeypatch)
    assert ends_wrongly(rule.plan, rules), (
        "the plans that seeds give have changed: look for another seed (`make faults`)"
    )
    rounds = trial.rounds(0, 1_000)
    fit = rule.plan.fit is not None
    found = [seed for seed in range(rounds) if ends_wrongly(draw_plan(seed, fit=fit), rules)]
    trial.fired(f"without the rule: {rule.name}", 1 + len(found))
    trial.held("exact", "complete")
    print(f"| {rule.name} | {len(found)} of {rounds:,} | {found[:3]} |")  # noqa: T201 - a line of docs/reliability.md


def ends_wrongly(plan: Plan, rules: Rules) -> bool:
    """Return whether a history violates something; without a rule the code may also fail outright."""
    try:
        return bool(History(plan, rules).run())
    except (AssertionError, LookupError, ValueError):
        return True
