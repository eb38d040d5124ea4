"""Verdicts under kills, zombies, lost and repeated messages and logs that lose their ends: mills agree with one order.

A history is a list of actions drawn from a seed. In the end all faults cease: then every document has the verdict that
a list gives it in the order of the signature log, in every mill; or a role has halted, which only a log may cause that
lost what was acknowledged.
"""

import random
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.simulation import verdict_roles as roles
from tests.simulation.broker import Log
from tests.simulation.verdict_roles import Halted, Message, Place, Sequencer, Signer, Topics, VerdictReader, Window

PARTITIONS = 3
STEPS = 260
HISTORIES = 60


class Send(NamedTuple):
    """A message on its way from one role: it lands, or is lost, and its sender may hear of neither."""

    log: Log[Message]
    message: Message
    told: Callable[[int | None], None]


class History:
    def __init__(self, seed: int, off: str = "", *, losses: bool = False) -> None:
        self.rng, self.losses, self.seen = random.Random(seed), losses, Counter[str]()
        contents = self.rng.choice([12, 40, 90])
        raw = [[self.rng.randrange(contents) for _ in range(self.rng.randrange(10, 45))] for _ in range(PARTITIONS)]
        self.topics = Topics(raw, verdicts=[Log() for _ in range(PARTITIONS)], off=off)
        self.mills = [VerdictReader(log, off) for log in self.topics.verdicts]
        self.signers: list[Signer] = []
        self.judges: list[tuple[Sequencer, dict[int, int], set[int]]] = []
        self.sends: list[Send] = []
        self.disk: roles.Note | None = None
        """Of the host on which sequencers run."""
        self.halted = ""

    def run(self) -> None:
        actions = [self.sign] * 5 + [self.judge] * 8 + [self.publish] * 6 + [self.land] * 12 + [self.mill, self.kill]
        actions += [self.note] * 8
        actions += [self.repeat, self.lose_verdicts] + ([self.lose_signatures] if self.losses else [])
        for _ in range(STEPS):
            self.rng.choice(actions)()
            self.record_slices()
        if self.rng.random() < 0.5:
            self.signers, self.judges = [], []
        for _ in range(400):
            for action in (self.sign, self.judge, self.publish, self.land_all, self.record_slices, self.mill):
                action()

    def sign(self) -> None:
        """Let an owner of a partition, or a zombie, sign some records; now and then one looks where to go on."""
        number = self.rng.randrange(PARTITIONS)
        own = [one for one in self.signers if one.partition == number]
        if len(own) < 1 + (self.rng.random() < 0.1) or not own:
            own.append(Signer(self.topics, number))
            self.signers.append(own[-1])
            self.attempt(own[-1].begin)
        signer = self.rng.choice(own)
        if self.rng.random() < 0.15:
            self.attempt(signer.begin)
        message = signer.sign(self.rng.randrange(1, 7))
        if message is not None:
            self.sends.append(Send(self.topics.signatures, message, lambda offset: self.end(signer, offset)))

    def end(self, signer: Signer, offset: int | None) -> None:
        if offset is None and signer in self.signers:
            self.signers.remove(signer)

    def judge(self) -> None:
        """Let a sequencer, or a zombie, judge; none begins where one has halted."""
        if self.halted:
            self.judges.clear()
            return
        if not self.judges or (len(self.judges) < 2 and self.rng.random() < 0.05):
            disk = self.disk if self.rng.random() < 0.5 else None  # or it begins on another host
            self.attempt(lambda: self.judges.append((Sequencer(self.topics, disk), {}, set())))
        if self.judges:
            one = self.rng.choice(self.judges)
            for _ in range(self.rng.randrange(1, 5)):
                if not self.attempt(one[0].step):
                    break

    def publish(self) -> None:
        """Let a sequencer send a verdict, if none is on its way to that partition."""
        if not self.judges:
            return
        one = self.rng.choice(self.judges)
        sequencer, acknowledged, flying = one
        number = self.rng.randrange(PARTITIONS)
        log = self.topics.verdicts[number]
        if log.end <= acknowledged.get(number, sequencer.ends[number] - 1) and self.topics.off != roles.TAIL_SEEN:
            self.judges.remove(one)
            return
        if number in flying or not sequencer.pending[number] or not sequencer.may_send:
            return

        def told(offset: int | None) -> None:
            flying.discard(number)
            known = acknowledged.get(number, sequencer.ends[number] - 1)
            if offset is None or (offset <= known and self.topics.off != roles.TAIL_SEEN):
                self.judges[:] = [other for other in self.judges if other is not one]
            else:
                acknowledged[number] = offset
                sequencer.pending[number].pop(0)

        flying.add(number)
        self.sends.append(Send(log, sequencer.pending[number][0], told))

    def record_slices(self) -> None:
        for sequencer, _, _ in self.judges:
            while sequencer.slices and sequencer.is_sent(sequencer.slices[0]):
                self.topics.control.append(sequencer.slices.pop(0))

    def note(self) -> None:
        for sequencer, _, flying in self.judges:
            if not flying and (note := sequencer.note()) is not None:
                self.disk = note
                self.seen["note"] += 1

    def land(self) -> None:
        """Let the next message of a sender land, be lost, or land without that its sender hears of it."""
        if not self.sends:
            return
        send = self.sends.pop(0 if self.rng.random() < 0.8 else self.rng.randrange(len(self.sends)))
        fate = self.rng.random()
        if fate < 0.07:
            send.told(None)
        else:
            offset = send.log.append(send.message)
            send.told(None if fate < 0.12 else offset)

    def land_all(self) -> None:
        for send in self.sends:
            send.told(send.log.append(send.message))
        self.sends = []

    def mill(self) -> None:
        for one in self.mills:
            self.attempt(one.read)

    def kill(self) -> None:
        roles: list[list[object]] = [self.signers, self.judges]  # type: ignore[list-item]
        chosen = self.rng.choice(roles)
        if chosen:
            chosen.pop(self.rng.randrange(len(chosen)))
            self.seen["kill"] += 1

    def repeat(self) -> None:
        log = self.rng.choice([self.topics.signatures, *self.topics.verdicts])
        if log.entries:
            log.append(self.rng.choice([*log.entries.values()]))

    def lose_verdicts(self) -> None:
        log = self.rng.choice(self.topics.verdicts)
        if self.rng.random() < 0.4 and log.entries:
            log.lose_tail(log.end - self.rng.randrange(1, 4))
            self.seen["verdicts lost"] += 1

    def lose_signatures(self) -> None:
        log = self.topics.signatures
        if self.rng.random() < 0.3 and log.entries:
            log.lose_tail(log.end - self.rng.randrange(1, 4))
            self.seen["signatures lost"] += 1

    def attempt(self, act: Callable[[], object]) -> bool:
        try:
            return bool(act())
        except roles.Ended:
            self.judges.clear()
        except Halted as halted:
            self.halted = str(halted)
        return False

    def in_order(self) -> list[dict[int, Place | None]]:
        window, found = Window(0), [dict[int, Place | None]() for _ in range(PARTITIONS)]
        nexts = [0] * PARTITIONS
        for message in self.topics.signatures.entries.values():
            if isinstance(message, roles.Signature) and message.begin <= nexts[message.partition] < message.end:
                for offset, content in message.documents:
                    if offset >= nexts[message.partition]:
                        place = window.place_of(content)
                        if place is None:
                            window.keep(content, (message.partition, offset))
                        found[message.partition][offset] = place
                nexts[message.partition] = message.end
        return found

    def is_right(self) -> bool:
        whole = all(len(mill.places) == len(raw) for mill, raw in zip(self.mills, self.topics.raw, strict=True))
        return whole and [mill.places for mill in self.mills] == self.in_order()


def played(seed: int, off: str = "", *, losses: bool = False) -> History:
    history = History(seed, off, losses=losses)
    history.run()
    return history


@pytest.mark.slow
def test_every_history_ends_as_the_recorded_order_says() -> None:
    seen = Counter[str]()
    for seed in range(HISTORIES):
        history = played(seed)
        assert history.is_right(), seed
        assert not history.halted, (seed, history.halted)
        seen += history.seen
    assert min(seen["kill"], seen["verdicts lost"], seen["note"]) > HISTORIES


@pytest.mark.slow
def test_a_signature_log_that_loses_its_end_halts_or_changes_nothing() -> None:
    """No mill ends with verdicts of a log that is gone, unless the sequencer has said that it is gone."""
    halts = Counter[str]()
    for seed in range(HISTORIES):
        history = played(seed, losses=True)
        assert history.is_right() or history.halted, seed
        halts[history.halted] += 1
    assert halts[""] > HISTORIES // 10
    assert halts["the signature log lost what verdicts are of"] > 0


NEEDED = [
    (roles.KNOWN_DROPPED, False, 0),
    (roles.NO_HOLE, True, 0),
    (roles.WHOLE_SLICE, False, 93),
    (roles.TAKEN, False, 0),
    (roles.FIRST_AGAIN, True, 22),
    (roles.READ_BY_RANGE, False, 15),
    (roles.READ_BY_CHAIN, True, 123),
    (roles.TAIL_SEEN, False, 349),
    (roles.LEADER, True, 439),
    (roles.NOTE_OUT, False, 60),
    (roles.NOTE_THERE, True, 660),
]
"""Each rule, whether it takes a signature log that loses its end to need it, and the seed of a history that does."""


@pytest.mark.parametrize(("off", "losses", "seed"), NEEDED, ids=[rule for rule, *_ in NEEDED])
def test_a_history_needs_each_rule(off: str, seed: int, *, losses: bool) -> None:
    """With all rules it ends well; without this one mills have other verdicts, or it halts without a reason."""
    with_all, without = played(seed, losses=losses), played(seed, off, losses=losses)
    assert with_all.is_right() or with_all.halted
    assert not without.is_right()
    assert not (losses and without.halted), "it halts, which a log may cause that lost messages"
