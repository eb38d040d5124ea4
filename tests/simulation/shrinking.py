"""Making a history that violates something as short as it can be."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.simulation.history import Action, Plan


def shrink(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """Return a plan that still fails, of which no part can be left out and no number made 0."""
    while True:
        for smaller in _smaller(plan):
            if fails(smaller):
                plan = smaller
                break
        else:
            return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Yield plans with a run of actions left out, long runs first, then with a number made 0."""
    actions = list(plan.actions)
    size = len(actions) // 2
    while size:
        for low in range(0, len(actions), size):
            yield replace(plan, actions=actions[:low] + actions[low + size :])
        size //= 2
    for at, action in enumerate(actions):
        if action.number:
            yield replace(plan, actions=[*actions[:at], Action(action.name, 0), *actions[at + 1 :]])
