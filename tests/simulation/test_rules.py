"""Every rule of the protocol is needed: without it, the simulation finds histories that end wrongly.

Each `Rule` has a way to switch it off.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import pytest

from tests.faults.trial import Trial
from tests.simulation import worker
from tests.simulation.history import History, Plan, draw_plan, plan_of
from tests.simulation.worker import Rules
from tokenmill import reading
from tokenmill.app.mill import publisher
from tokenmill.app.mill.publisher import LogEnd, ReadMessages
from tokenmill.app.milling.packing import fit_packing
from tokenmill.app.segments import following
from tokenmill.errors import SourceError
from tokenmill.reading import Acceptor, ChainLogs, Dropped, Gap, ResumePoint, Run, Taken, genesis_point
from tokenmill.wire.chain import roll
from tokenmill.wire.message import Message

_choose = reading.choose
_offer = Acceptor.offer
_runs = reading._runs
_acknowledged = LogEnd.acknowledged


class Rule(NamedTuple):
    name: str
    off: Callable[[pytest.MonkeyPatch], Rules]
    needing: Plan | int
    """A plan, or the seed of one, that ends wrongly without the rule, and well with it."""


def _shell(**rules: bool) -> Callable[[pytest.MonkeyPatch], Rules]:
    return lambda _: Rules(**rules)


def _patched(owner: object, name: str, value: object, **rules: bool) -> Callable[[pytest.MonkeyPatch], Rules]:
    def off(patch: pytest.MonkeyPatch) -> Rules:
        patch.setattr(owner, name, value)
        return Rules(**rules)

    return off


def _from_earliest(found: list[Run], logs: ChainLogs, source_first: int) -> Run:
    try:
        return _choose(found, logs, source_first)
    except SourceError:
        if found[0].point.cursor.block or len(found) > 1:
            raise
        begin = genesis_point(source_first, found[0].point.chain)
        return Run(begin, 0, begin.cursor)


async def _never_whole(*arguments: object, **keywords: object) -> tuple[list[Run], bool, Sequence[Message]]:
    found, _, last = await _runs(*arguments, **keywords)  # type: ignore[arg-type]
    return found, False, last


async def _one_run(*arguments: object, **_: object) -> tuple[list[Run], bool, Sequence[Message]]:
    return await _runs(*arguments)  # type: ignore[arg-type]


def _drop_whole(self: Acceptor, message: Message) -> Taken | Dropped | Gap:
    if message.first < self.next_block < message.end:
        return Dropped(message.count, checked=False)
    return _offer(self, message)


def _without_hashes(self: Acceptor, message: Message) -> Taken | Dropped | Gap:
    if message.first > self.next_block:
        return Gap(self.next_block, message.first)
    if message.end < self.next_block or (message.end == self.next_block and not message.is_carry):
        return Dropped(message.count, checked=False)
    dropped = self.next_block - message.first
    chains = roll(message.before, message.tokens, message.entries)
    return Taken(self._take(message, chains, dropped), dropped)


async def _floor_ignored(self: LogEnd, offset: int, leader: object, message: Message, at: ReadMessages) -> str | None:
    self._offset = min(self._offset, offset)
    return await _acknowledged(self, offset, self._leader, message, at)


async def _end_unwatched(self: LogEnd, offset: int, leader: object, message: Message, _: ReadMessages) -> str | None:
    known, self._offset = self._offset, offset + 1
    return f"acknowledged offset {offset}, below {known}" if offset < known else None


def _last_alone(self: LogEnd, found: Sequence[publisher._Known]) -> bool:
    return bool(found) and found[-1][::2] == self._last[-1][::2]  # whatever the cursors are


async def _leader_unwatched(
    self: LogEnd, offset: int, leader: object, message: Message, at: ReadMessages
) -> str | None:
    return await _acknowledged(self, offset, self._leader, message, at)


MOVING: Final = ("token retention", "raw retention", "token tail")
REMADE: Final = plan_of(
    4, 8, "8*produce:3", "start:0", "40*mill:88 land:0", "6*store:88", "kill:0 raw_recreated:0 tokens_recreated:0"
)
"""A store has all; then both topics are made again, and the new chain stays shorter than the old one."""
SAME_AGAIN: Final = plan_of(
    8, 8,
    "produce:425806857 mill:0 start:160924186 produce:787729894 mill:814692429 land:0 mill:591146620",
    "start:710479384 mill:133849345 mill:501133546 mill:455973714 mill:44833724 token_tail:790002318",
    "mill:744643011 store:86147421",
)  # fmt: skip
"""After a lost tail two other writers fill the partition, and an equal message lands where a writer's last one lay."""
SLOW_OWNER: Final = plan_of(
    8, 8, "3*produce:3", "2*start:0", "mill:1073", "7*mill:1144 land:0", "token_retention:8", "store:32",
    "3*mill:1145 land:0", "3*store:88",
)  # fmt: skip
"""Retention removes the first blocks of the faster of two owners; the slower one writes them again, further up."""
THREE_STRAYS: Final = plan_of(
    16, 2, "mill:0 produce:154834221 mill:971216630", "2*start:0", "mill:88351742 produce:601135027 mill:707862514",
    "token_tail:0 mill:937154928 produce:394471857",
)  # fmt: skip
"""Three owners write one message each after the token topic lost its tail."""
GAP_LOST: Final = plan_of(
    16, 2,
    "mill:0 raw_gap:181711174 carry:0 mill:313820334 both_tails:796451074 produce:690775865", splits=2, start=2,
)  # fmt: skip
"""A carry stands behind a gap; the source loses the gap, and gets records in its place."""
ZOMBIE_LAST: Final = plan_of(
    4, 4,
    "produce:971509987 mill:0 produce:1042243069 start:477898448 produce:501619666 mill:950205299 mill:623100840",
    "produce:960492825 raw_retention:557706106", splits=2,
)  # fmt: skip
"""The last message of a token partition is a zombie's first one; what it lies behind reaches further."""
FAR_BEHIND: Final = plan_of(
    8, 3,
    "produce:1034955711 produce:748748274 produce:959925096 mill:174761224 produce:368275134 mill:1006017550",
    "land:0 mill:578185949 land:0 start:916547939 mill:932068387 raw_recreated:320667938 raw_retention:975534173",
)  # fmt: skip
"""A message that goes furthest lies behind more of a slower owner's than a tail has; then retention passes those."""

REPLACED: Final = plan_of(8, 8, "12*produce:3", "start:0", "20*mill:88 land:0", "kill:0 raw_replaced:0")
"""A text whose rest is in an open block is replaced by another one of its length, while no worker is alive."""

RULES: Final = (
    Rule("one message in flight for a token partition", _shell(one_in_flight=False), 158),
    Rule("a send that fails ends the process", _shell(end_when_refused=False), 5),
    Rule(
        "an acknowledgement below a known offset ends the process", _patched(LogEnd, "acknowledged", _floor_ignored), 94
    ),
    Rule("in doubt the last messages are read again", _patched(LogEnd, "acknowledged", _end_unwatched), 355),
    Rule("in doubt the last message alone is not enough", _patched(LogEnd, "_are_as_known", _last_alone), SAME_AGAIN),
    Rule(
        "a new leader of the token partition counts as doubt", _patched(LogEnd, "acknowledged", _leader_unwatched), 355
    ),
    Rule("dead letters are acknowledged before messages that are past them", _shell(dead_letters_first=False), 6),
    Rule("messages are cut where blocks were taken before", _patched(Acceptor, "offer", _drop_whole), 54),
    Rule("hashes must continue", _patched(Acceptor, "offer", _without_hashes), 79),
    Rule("duplicates are compared", _patched(Acceptor, "_check_dropped", lambda *_: False), REMADE),
    Rule("a reader that misses a block looks from the start again", _shell(look_again=False), 67),
    Rule("a halt over a gap needs all retained messages", _shell(whole_look=False), SLOW_OWNER),
    Rule(
        "a halt over a source's retention needs all retained messages", _patched(reading, "_runs", _one_run), FAR_BEHIND
    ),
    Rule(
        "the run before a gap is continued, not the last one",
        _patched(reading, "choose", lambda found, *_: found[-1]),
        1,
    ),
    Rule("a partition that was never cut begins at block 0", _patched(reading, "_runs", _never_whole), 36),
    Rule("a tail is longer than there are writers", _shell(tail_above_writers=False), THREE_STRAYS),
    Rule(
        "what moved while it was read is read again",
        _patched(worker, "find_tail", reading._find_tail),
        draw_plan(13, MOVING),
    ),
    Rule(
        "the remembered record is looked for",
        _patched(reading, "is_remembered", lambda *_: True),
        draw_plan(91, ("raw tail", "kill")),
    ),
    Rule(
        "a source beyond the cursor halts",
        _patched(reading, "choose", lambda found, *_: found[0], never_jump=False),
        draw_plan(2, ("raw retention", "kill")),
    ),
    Rule(
        "a chain begins at its genesis, not at the earliest record",
        _patched(reading, "choose", _from_earliest),
        draw_plan(3, ("raw retention", "tokens recreated", "kill")),
    ),
    Rule(
        "a chain goes on behind the last record, not behind offsets without records",
        _patched(reading, "before_gap", lambda point, _: point),
        GAP_LOST,
    ),
    Rule(
        "what open blocks refer to is compared",
        _patched(fit_packing, "is_referenced", lambda *_: True),
        replace(REPLACED, fit=(3, 100)),
    ),
    Rule(
        "a chain goes on where the source still holds what its open blocks refer to",
        _patched(ResumePoint, "needs_from", property(lambda point: point.cursor.next_offset)),
        draw_plan(25, ("raw retention", "kill"), fit=True),
    ),
    Rule(  # the next carry would show what is missing, and until then nothing does
        "a reader begins no higher than the tail",
        _patched(following, "FIRST_TAIL", 1, carries_in_time=False),
        ZOMBIE_LAST,
    ),
    Rule("a change of the source's leader ends the process", _shell(leader_changes_end=False), 43),
)


@pytest.mark.fault("simulated")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.slow
@pytest.mark.cases(8)
def test_without_the_rule_histories_end_wrongly(rule: Rule, trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """The history that is known to need the rule ends well with it; a full run counts those among thousands."""
    plan = draw_plan(rule.needing) if isinstance(rule.needing, int) else rule.needing
    assert not History(plan).run()
    rules = rule.off(monkeypatch)
    assert ends_wrongly(plan, rules), "the plans that seeds give have changed: look for another seed (`make faults`)"
    rounds = trial.rounds(0, 1_000)
    found = [seed for seed in range(rounds) if ends_wrongly(draw_plan(seed, fit=plan.fit is not None), rules)]
    trial.fired(f"without the rule: {rule.name}", 1 + len(found))
    trial.held("exact", "complete")
    print(f"| {rule.name} | {len(found)} of {rounds:,} | {found[:3]} |")  # noqa: T201 - a line of docs/reliability.md


def ends_wrongly(plan: Plan, rules: Rules) -> bool:
    """Return whether a history violates something; without a rule the code may also fail outright."""
    try:
        return bool(History(plan, rules).run())
    except (AssertionError, LookupError, ValueError):
        return True
