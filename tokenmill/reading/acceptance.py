"""Which blocks of a message continue a chain: the one implementation for every reader of a token topic.

With ``n`` the next wanted block and ``h`` the chain hash before it:

1. A message that begins after ``n`` is a gap. Most gaps heal, for the next owner writes the missing block again, and
   possibly below the reader's position: the reader looks again from the partition's start, then waits.
2. Blocks below ``n`` are dropped, the rest is taken. Writers cut messages differently, so a message may be cut here.
3. The hash before the message, rolled over the dropped blocks, must be ``h``; rolled on over the taken ones, it must be
   the hash after the message. A message that is dropped whole is held against what the reader remembers.
   A difference is loud: after a broker lost the tails of both logs, other text can be at the same offsets.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tokenmill.errors import DamagedError, DifferenceError, FingerprintError
from tokenmill.wire.chain import genesis_hash, roll
from tokenmill.wire.message import Message

MEMORY: Final = 4096
"""Chain hashes remembered for checking duplicates: what zombies write again is seldom older, and it costs 0.5 MB."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Consecutive blocks of one chain that a reader has accepted."""

    first: int
    tokens: bytes | memoryview
    """The blocks' token ids back to back, as they are on the wire and on disk."""
    entries: Sequence[bytes]
    chains: Sequence[bytes]

    @property
    def end(self) -> int:
        """Number of the block after the last one."""
        return self.first + len(self.entries)


@dataclass(frozen=True, slots=True)
class Taken:
    """The message continues the chain."""

    blocks: Blocks
    """What is new; nothing in a carry."""
    dropped: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """Every block of the message had been taken before, or the message is an old carry."""

    dropped: int
    checked: bool
    """False where the blocks are older than the reader's memory, so that they could not be compared."""


@dataclass(frozen=True, slots=True)
class Gap:
    """The message begins after the wanted block; nothing was taken."""

    wanted: int
    found: int


class Acceptor:
    """A reader's place in one chain; `offer` moves it on."""

    def __init__(
        self,
        fingerprint: bytes,
        partition: int,
        block_bytes: int,
        *,
        block: int = 0,
        chain: bytes | None = None,
        recall: Callable[[int], bytes | None] = lambda _: None,
    ) -> None:
        """Begin before ``block`` with the hash ``chain``; without these, at the chain's beginning.

        ``recall(block)`` gives the chain hash before an older block where the reader's own bytes still hold it.
        """
        self.next_block = block
        self.chain = chain if chain is not None else genesis_hash(fingerprint, partition)
        self._fingerprint = fingerprint
        self._partition = partition
        self._block_bytes = block_bytes
        self._recall = recall
        self._remembered = deque((self.chain,), MEMORY)

    def offer(self, message: Message) -> Taken | Dropped | Gap:
        """Take what is new in the message.

        Raises FingerprintError where it belongs to another stream; DamagedError where it contradicts itself;
        DifferenceError where it holds other blocks than those that the reader took.
        """
        self._check_form(message)
        if message.first > self.next_block:
            return Gap(self.next_block, message.first)
        chains = roll(message.before, message.tokens, message.entries)
        if (chains[-1] if chains else message.before) != message.after:
            raise DamagedError(f"{self._name(message)} does not hash to what its header says; look at what wrote it")
        if message.end < self.next_block or (message.end == self.next_block and not message.is_carry):
            return Dropped(message.count, checked=self._check_dropped(message, chains))
        dropped = self.next_block - message.first
        if (chains[dropped - 1] if dropped else message.before) != self.chain:
            raise DifferenceError(self._difference(message, self.next_block))
        return Taken(self._take(message, chains, dropped), dropped)

    def chain_at(self, block: int) -> bytes | None:
        """Return the chain hash before a block that was taken, or None where it is known no more."""
        at = block - self.next_block - 1
        return self._remembered[at] if -len(self._remembered) <= at < 0 else self._recall(block)

    def require_hash(self, block: int, chain: bytes) -> None:
        """Raise DifferenceError where the hash before a block that was taken is known, and another one."""
        known = self.chain_at(block)
        if known is not None and known != chain:
            raise DifferenceError(
                f"the token topic holds two histories of partition {self._partition} before block {block}: it or the "
                "raw topic lost its tail and other text came; `tokenmill verify` finds the first block that differs"
            )

    def _check_form(self, message: Message) -> None:
        if message.fingerprint != self._fingerprint:
            raise FingerprintError(
                f"{self._name(message)} has the fingerprint {message.fingerprint.hex()}, the stream's is "
                f"{self._fingerprint.hex()}: something with other settings writes to this topic; end it, "
                "and give it a stream name of its own"
            )
        if len(message.tokens) != message.count * self._block_bytes:
            raise DamagedError(
                f"{self._name(message)} holds {len(message.tokens)} bytes of tokens, "
                f"{message.count} blocks of {self._block_bytes} bytes were announced"
            )
        if message.cursor.block != message.end:
            raise DamagedError(
                f"{self._name(message)} ends before block {message.end}, and its cursor says {message.cursor.block}; "
                "look at what wrote it"
            )

    def _take(self, message: Message, chains: list[bytes], dropped: int) -> Blocks:
        blocks = Blocks(
            first=self.next_block,
            tokens=memoryview(message.tokens)[dropped * self._block_bytes :] if dropped else message.tokens,
            entries=message.entries[dropped:],
            chains=chains[dropped:],
        )
        self._remembered += blocks.chains
        self.next_block, self.chain = blocks.end, self._remembered[-1]
        return blocks

    def _check_dropped(self, message: Message, chains: list[bytes]) -> bool:
        hashes = [message.before, *chains]
        for block in range(message.end, message.first - 1, -1):
            known = self.chain_at(block)
            if known is not None:
                if known != hashes[block - message.first]:
                    raise DifferenceError(self._difference(message, block))
                return True
        return False

    def _difference(self, message: Message, block: int) -> str:
        return (
            f"{self._name(message)} continues other blocks than those taken before block {block}: the token topic or "
            "the raw topic lost its tail and other text came; `tokenmill verify` finds the first block that differs"
        )

    def _name(self, message: Message) -> str:
        kind = "the carry before block" if message.is_carry else "the message with first block"
        return f"{kind} {message.first} (partition {self._partition})"
