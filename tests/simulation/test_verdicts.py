"""Verdicts under kills, zombies, lost and repeated messages and logs that lose their ends: mills agree with one order.

Who signs, judges, and reads verdicts is a model, as docs/reliability.md has them: a document is a number, equal
documents are duplicates, and a log is a list. What a role knows, it has read; it can be killed between two steps, and
two of each kind may live side by side.

A history is a list of actions drawn from a seed. In the end all faults cease: then every document has the verdict that
a list gives it in the order of the signature log, in every mill; or a role has halted, which only a log may cause that
lost what was acknowledged.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

import pytest

from tests.simulation.broker import Log
from tokenmill.app.milling.duplicates.signatures import SLICES

PARTITIONS: Final = 3
STEPS: Final = 260
HISTORIES: Final = 60
SIZE: Final = 5
"""Kept documents of a slice."""
NOTED: Final = 8
"""Messages by which a note knows its signature log: more than a log loses at once."""
Place: TypeAlias = tuple[int, int]
"""Partition and offset."""
Chain: TypeAlias = int
"""A hash that rolls over what came before."""


class Halted(Exception):  # noqa: N818 - a person is asked for; it is no error of the simulation
    """A role stops, and says why."""


class Ended(Exception):  # noqa: N818
    """A role ends, and another one begins from the logs."""


class Signature(NamedTuple):
    """Documents of the raw offsets ``[begin, end)``."""

    partition: int
    begin: int
    end: int
    documents: tuple[tuple[int, int], ...]
    """Offset and content of each."""


class Judged(NamedTuple):
    """What became of the raw offsets ``[begin, end)``, the part of one signature message that was accepted."""

    begin: int
    end: int
    places: tuple[tuple[int, Place | None], ...]
    """Each document's offset, and the place of the one that it repeats."""
    before: Chain
    after: Chain


class Slice(NamedTuple):
    """Where a slice begins: what is known before the signature message that has its first document."""

    number: int
    offset: int
    """Of that message."""
    kept: int
    """Documents that were kept until there."""
    nexts: tuple[int, ...]
    """By partition, the raw offset that comes next."""
    chains: tuple[Chain, ...]


Message: TypeAlias = Signature | Judged | Slice


@dataclass
class Topics:
    raw: list[list[int]]
    """By partition, the content of each offset."""
    signatures: Log[Message] = field(default_factory=Log)
    control: Log[Message] = field(default_factory=Log)
    verdicts: list[Log[Message]] = field(default_factory=list)
    off: str = ""
    """The rule that nobody keeps."""


class Window:
    """The newest kept documents, those that were kept since the beginning."""

    def __init__(self, kept: int) -> None:
        self.kept = kept
        self._held: dict[int, tuple[int, Place]] = {}

    def place_of(self, content: int) -> Place | None:
        number, place = self._held.get(content, (-1, None))
        return place if number >= max(0, self.kept // SIZE - SLICES + 1) * SIZE else None

    def keep(self, content: int, place: Place) -> None:
        self._held[content] = self.kept, place
        self.kept += 1

    def copy(self) -> "Window":
        other = Window(self.kept)
        other._held = dict(self._held)
        return other


class Note(NamedTuple):
    """What a sequencer leaves on its disk, where all is out that it has judged."""

    position: int
    nexts: tuple[int, ...]
    chains: tuple[Chain, ...]
    window: Window
    last: tuple[Message, ...]
    """The newest signatures before the position."""


@dataclass
class VerdictReader:
    """Accepts the verdicts of one partition: by range and chain."""

    log: Log[Message]
    off: str = ""
    next: int = 0
    chain: Chain = 0
    places: dict[int, Place | None] = field(default_factory=dict)
    ends: dict[int, Chain] = field(default_factory=dict)
    """The chain at the end of each range."""

    def read(self) -> None:
        """Take all that continues what is there. Raises Halted where another history stands there."""
        while any(self._take(message) for message in self.log.entries.values() if isinstance(message, Judged)):
            pass

    def _take(self, message: Judged) -> bool:
        if message.begin > self.next and self.off != READ_BY_RANGE:
            return False
        is_known = message.end <= self.next
        continues = (message.begin, message.before) == (self.next, self.chain)
        is_checked = self.off != READ_BY_CHAIN and not (self.off == READ_BY_RANGE and message.begin > self.next)
        if is_checked and not (self.ends.get(message.end) == message.after if is_known else continues):
            raise Halted("the verdicts hold two histories")
        if is_known:
            return False
        self.places.update(message.places)
        self.next, self.chain = message.end, message.after
        self.ends[self.next] = self.chain
        return True


def rolled(chain: Chain, *values: object) -> Chain:
    return hash((chain, *values))


@dataclass
class Signer:
    """Signs a raw partition, from the end of its verdicts on."""

    topics: Topics
    partition: int
    next: int = 0

    def begin(self) -> None:
        """Look where to begin: again where no verdict comes."""
        reader = VerdictReader(self.topics.verdicts[self.partition])
        reader.read()
        self.next = reader.next

    def sign(self, count: int) -> Signature | None:
        raw = self.topics.raw[self.partition]
        begin, self.next = self.next, min(len(raw), self.next + count)
        documents = tuple((offset, raw[offset]) for offset in range(begin, self.next))
        return Signature(self.partition, begin, self.next, documents) if documents else None


class Sequencer:
    """Judges what is signed, in the order of the signature log."""

    def __init__(self, topics: Topics, note: Note | None) -> None:
        """Begin at a note that holds, or a window before the newest slice before which all is out.

        Raises Halted where verdicts hold two histories.
        """
        self._topics, self._leader = topics, topics.signatures.leader
        self._out = [VerdictReader(log) for log in topics.verdicts]
        for reader in self._out:
            reader.read()
        self.ends = [log.end for log in topics.verdicts]
        self.pending: list[list[Judged]] = [[] for _ in self._out]
        """By partition, verdicts that are not out."""
        self.slices: list[Slice] = []
        self._last: tuple[Message, ...] = note.last if note is not None else ()
        if note is not None and self._holds(note):
            self._whole = self.position = note.position
            self.nexts, self.chains = list(note.nexts), list(note.chains)
            self._window = note.window.copy()
            return
        self._last = ()
        nothing = (0,) * len(self._out)
        known = {one.number: one for one in topics.control.entries.values() if isinstance(one, Slice)}
        known[0] = Slice(0, 0, 0, nothing, nothing)
        newest = max(one.number for one in known.values() if self._is_out(one))
        base = known[max(0, newest - SLICES)]  # a message with a slice's first document has the end of the one before
        self._whole = known[newest].offset
        """From here on the window is whole."""
        self.position = base.offset
        self.nexts, self.chains = list(base.nexts), list(base.chains)
        self._window = Window(base.kept)

    def note(self) -> Note | None:
        if not self.is_level or any(self.pending) or self.slices:
            return None
        return Note(self.position, tuple(self.nexts), tuple(self.chains), self._window.copy(), self._last)

    def _holds(self, note: Note) -> bool:
        is_out = all(
            reader.ends.get(next_, 0) == chain
            for reader, next_, chain in zip(self._out, note.nexts, note.chains, strict=True)
        )
        signatures = self._topics.signatures
        there = [signatures.entries.get(at) for at in range(note.position - len(note.last), note.position)]
        is_there = note.position <= signatures.end and there == [*note.last]
        off = self._topics.off
        return (is_out or off == NOTE_OUT) and (is_there or off == NOTE_THERE)

    @property
    def may_send(self) -> bool:
        return self.is_level or self._topics.off == FIRST_AGAIN

    def is_sent(self, one: Slice) -> bool:
        """Whether all verdicts before a slice are out, which this sequencer has computed."""
        waiting = [
            pending[0].begin if pending else next_ for pending, next_ in zip(self.pending, self.nexts, strict=True)
        ]
        return self.is_level and all(next_ <= begin for next_, begin in zip(one.nexts, waiting, strict=True))

    def _is_out(self, one: Slice) -> bool:
        if self._topics.off == WHOLE_SLICE:
            return True
        return all(next_ <= reader.next for next_, reader in zip(one.nexts, self._out, strict=True))

    def step(self) -> bool:
        """Judge the next message; return whether there was one.

        Raises Ended where the signature log has another leader, Halted where it is not the one from which what is
        out was computed.
        """
        log = self._topics.signatures
        if log.leader != self._leader and self._topics.off != LEADER:
            raise Ended("the signature log has another leader")
        if self.position >= log.end:
            if not self.is_level and self._topics.off != FIRST_AGAIN:
                raise Halted("the signature log lost what verdicts are of")
            return False
        message = log.entries[self.position]
        if isinstance(message, Signature):
            self._accept(message)
        self._last = (*self._last, message)[-NOTED:]
        self.position += 1
        return True

    @property
    def is_level(self) -> bool:
        """Whether all that was out at the beginning has been computed again: nothing is sent before."""
        return all(next_ >= reader.next for next_, reader in zip(self.nexts, self._out, strict=True))

    def _accept(self, message: Signature) -> None:
        number, off = message.partition, self._topics.off
        known = self.nexts[number] if off != KNOWN_DROPPED else message.begin
        if message.end <= known or (message.begin > known and off != NO_HOLE):
            return
        here = Slice(0, self.position, self._window.kept, tuple(self.nexts), tuple(self.chains))
        places, begin, out = [], max(known, message.begin), self._out[number]
        for offset, content in message.documents:
            if offset >= known:
                places.append((offset, self._judge(number, offset, content, here)))
        before = self.chains[number]
        after = rolled(before, begin, message.end, tuple(places))
        self.nexts[number], self.chains[number] = message.end, after
        if message.end > out.next:
            if begin < out.next:
                raise Halted("what is out was cut otherwise")
            judged = Judged(begin, message.end, tuple(places), before, after)
            self.pending[number].append(judged)
        elif message.end == out.next and after != out.chain:
            raise Halted("what is out was judged otherwise")

    def _judge(self, number: int, offset: int, content: int, here: Slice) -> Place | None:
        place, out = self._window.place_of(content), self._out[number]
        if offset < out.next and self._topics.off != TAKEN:
            if self.position >= self._whole and place != out.places[offset]:
                raise Halted("what is out was judged otherwise")
            place = out.places[offset]
        if place is None:
            if self._window.kept and self._window.kept % SIZE == 0:
                self.slices.append(here._replace(number=self._window.kept // SIZE))
            self._window.keep(content, (number, offset))
        return place


KNOWN_DROPPED: Final = "what is known of a signature message is dropped"
NO_HOLE: Final = "a signature message behind a hole is ignored"
WHOLE_SLICE: Final = "the state begins a window before the newest slice before which all is out"
TAKEN: Final = "a document whose verdict is out has that verdict, also where the window is not whole"
FIRST_AGAIN: Final = "nothing is sent before all that is out has been computed again"
READ_BY_RANGE: Final = "verdicts behind a hole wait"
READ_BY_CHAIN: Final = "verdicts are accepted by their chain"
LEADER: Final = "another leader of the signature log ends the sequencer"
NOTE_OUT: Final = "a note on the disk counts where all verdicts before it are out"
NOTE_THERE: Final = "a note on the disk counts where the signature log has the messages before it"
TAIL_SEEN: Final = "a verdict log that ends before what was acknowledged ends its sender"


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
        self.disk: Note | None = None
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
        if log.end <= acknowledged.get(number, sequencer.ends[number] - 1) and self.topics.off != TAIL_SEEN:
            self.judges.remove(one)
            return
        if number in flying or not sequencer.pending[number] or not sequencer.may_send:
            return

        def told(offset: int | None) -> None:
            flying.discard(number)
            known = acknowledged.get(number, sequencer.ends[number] - 1)
            if offset is None or (offset <= known and self.topics.off != TAIL_SEEN):
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
        except Ended:
            self.judges.clear()
        except Halted as halted:
            self.halted = str(halted)
        return False

    def in_order(self) -> list[dict[int, Place | None]]:
        window, found = Window(0), [dict[int, Place | None]() for _ in range(PARTITIONS)]
        nexts = [0] * PARTITIONS
        for message in self.topics.signatures.entries.values():
            if isinstance(message, Signature) and message.begin <= nexts[message.partition] < message.end:
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
    (KNOWN_DROPPED, False, 0),
    (NO_HOLE, True, 0),
    (WHOLE_SLICE, False, 93),
    (TAKEN, False, 0),
    (FIRST_AGAIN, True, 22),
    (READ_BY_RANGE, False, 15),
    (READ_BY_CHAIN, True, 123),
    (TAIL_SEEN, False, 349),
    (LEADER, True, 439),
    (NOTE_OUT, False, 60),
    (NOTE_THERE, True, 660),
]
"""Each rule, whether it takes a signature log that loses its end to need it, and the seed of a history that does."""


@pytest.mark.parametrize(("off", "losses", "seed"), NEEDED, ids=[rule for rule, *_ in NEEDED])
def test_a_history_needs_each_rule(off: str, seed: int, *, losses: bool) -> None:
    """With all rules it ends well; without this one mills have other verdicts, or it halts without a reason."""
    with_all, without = played(seed, losses=losses), played(seed, off, losses=losses)
    assert with_all.is_right() or with_all.halted
    assert not without.is_right()
    assert not (losses and without.halted), "it halts, which a log may cause that lost messages"
