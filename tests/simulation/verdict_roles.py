"""Verdicts across partitions, as docs/reliability.md has them: who signs, judges, and reads verdicts, over model logs.

Everything is a model: a document is a number, equal documents are duplicates, and a log is a list. What a role knows,
it has read; it can be killed between two steps, and two of each kind may live side by side.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from tests.simulation.broker import Log
from tokenmill.app.milling.duplicates.signatures import SLICES

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

    def __init__(self, topics: Topics, note: Note | None = None) -> None:
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
