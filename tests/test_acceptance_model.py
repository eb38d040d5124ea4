"""Acceptance and resume against a list: writers that overlap, die and leave holes, a reader that looks again."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.histories import BLOCK_BYTES, FINGERPRINT, PARTITION, make_history, runs
from tokenmill.reading import Acceptor, Taken
from tokenmill.wire.message import Message

LENGTH = 24
TRUE = make_history(LENGTH)


def _acceptor(block: int, chain: bytes | None) -> Acceptor:
    return Acceptor(FINGERPRINT, PARTITION, BLOCK_BYTES, block=block, chain=chain)


class LogModel(RuleBasedStateMachine):
    """One token partition, its writers with the block that each writes next, and one reader of it."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[Message] = []
        self.writers: list[int] = []
        self.reader = TRUE.acceptor()
        self.position = 0
        self.taken: list[bytes] = []
        self.held: set[int] = set()
        """All blocks that the log ever held."""

    @rule()
    def start_a_writer(self) -> None:
        """Resume from the whole log: after the furthest block of the run that begins at block 0."""
        found = runs(self.log, _acceptor, whole=True)
        start = found[0].point.cursor.block if found and not found[0].first else 0
        assert start == min(set(range(LENGTH + 1)) - {n for m in self.log for n in range(m.first, m.end)})
        self.writers.append(start)

    @rule(which=st.integers(0, 9), count=st.integers(0, 5), is_lost=st.sampled_from([False, False, False, True]))
    def write(self, *, which: int, count: int, is_lost: bool) -> None:
        """Let a writer send its next message, or a carry; one that is lost leaves a hole before what it sends next."""
        if self.writers:
            at = which % len(self.writers)
            first, end = self.writers[at], min(LENGTH, self.writers[at] + count)
            self.writers[at] = end
            if not is_lost:
                self.log.append(TRUE.message(first, end))
                self.held.update(range(first, end))

    @rule(which=st.integers(0, 9))
    def end_a_writer(self, which: int) -> None:
        """Let a writer die."""
        if self.writers:
            self.writers.pop(which % len(self.writers))

    @rule(count=st.integers(1, 4))
    def lose_the_tail(self, count: int) -> None:
        """Forget the last messages; readers that were beyond begin anew."""
        del self.log[len(self.log) - min(count, len(self.log)) :]
        if self.position > len(self.log):
            self.position = 0

    @rule(count=st.integers(1, 6))
    def read_on(self, count: int) -> None:
        """Read the next messages."""
        for message in self.log[self.position : self.position + count]:
            verdict = self.reader.offer(message)
            if isinstance(verdict, Taken):
                tokens = bytes(verdict.blocks.tokens)
                self.taken += [tokens[at : at + BLOCK_BYTES] for at in range(0, len(tokens), BLOCK_BYTES)]
        self.position = min(len(self.log), self.position + count)

    @rule()
    def look_again(self) -> None:
        """Begin anew from the partition's start."""
        self.position = 0

    @rule()
    def repair(self) -> None:
        """Let a new owner write all that is missing; whoever then looks through the log has everything."""
        self.start_a_writer()
        while self.writers[-1] < LENGTH:
            self.write(which=len(self.writers) - 1, count=3, is_lost=False)
        for _ in range(2):
            self.look_again()
            self.read_on(len(self.log))
        assert self.reader.next_block == LENGTH

    @invariant()
    def what_was_taken_is_a_prefix(self) -> None:
        """Each block once, in order, and none that no message held."""
        assert self.taken == list(TRUE.blocks[: len(self.taken)])
        assert self.reader.next_block == len(self.taken)
        assert self.reader.chain == TRUE.chains[len(self.taken)]
        assert set(range(len(self.taken))) <= self.held


LogModel.TestCase.settings = settings(stateful_step_count=40)
TestLogModel = LogModel.TestCase
