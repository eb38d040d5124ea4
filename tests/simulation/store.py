"""A store's partition as a coroutine: what `tokenmill.app.segments.token_partition` does, a step at a time."""

from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tests.mills import PARTITION
from tests.simulation.broker import Stored
from tests.simulation.logs import Log, step
from tests.simulation.worker import ResumeError, Rules
from tokenmill.app.segments.following import GapSearch, find_start
from tokenmill.app.segments.token_partition import HALTING
from tokenmill.errors import GapError
from tokenmill.reading import Acceptor, Blocks, Gap, Taken
from tokenmill.recipe import Recipe
from tokenmill.wire.chain import genesis_hash
from tokenmill.wire.message import Message

LONGEST_PATIENCE: Final = 8
"""Steps between two looks that found nothing, at most."""
FRUITLESS_LOOKS: Final = 2
"""Looks that found nothing, after which looking is rest, for the scheduler."""


class Kept(NamedTuple):
    tokens: bytes
    entry: bytes
    chain: bytes


@dataclass
class Store:
    """What is on the disk of one store, and the process that adds to it."""

    recipe: Recipe
    log: Log[Stored]
    rules: Rules
    fetch_messages: int = 3
    commit_blocks: int = 2
    """Appended blocks that share a commit."""
    committed: list[Kept] = field(default_factory=list)
    halt: Exception | None = None
    looks: int = 0
    duplicates: int = 0
    gaps: int = 0
    cut_messages: int = 0
    _hint: int = -1
    _appended: list[Kept] = field(default_factory=list)
    _appended_hint: int = -1
    _task: Coroutine[Any, Any, None] | None = None

    def step(self) -> str:
        """Go on for a step, with a new process where there is none; return what was done."""
        if self.halt is not None:
            return "idle"
        if self._task is None:
            self._task = self._main()
        try:
            return str(self._task.send(None))
        except HALTING as error:
            self._commit()
            self.halt, self._task = error, None
        except ResumeError:
            self.kill()
        return "works"

    def kill(self) -> None:
        if self._task is not None:
            self._task.close()
        self._task = None
        self._appended.clear()

    def _commit(self) -> None:
        if self._appended:
            self.committed += self._appended
            self._hint = self._appended_hint
            self._appended.clear()

    def _chain_before(self, block: int) -> bytes | None:
        """Return the hash before a block that is on the disk or appended; None for others."""
        kept = len(self.committed)
        if not block:
            return genesis_hash(self.recipe.fingerprint, PARTITION)
        if block > kept + len(self._appended):
            return None
        return (self.committed[block - 1] if block <= kept else self._appended[block - 1 - kept]).chain

    async def _main(self) -> None:
        log, block = self.log, len(self.committed)
        chain = self._chain_before(block)
        assert chain is not None
        fingerprint, block_bytes = self.recipe.fingerprint, self.recipe.block_bytes
        acceptor = Acceptor(
            fingerprint, PARTITION, block_bytes, block=block, chain=chain, recall=self._chain_before
        )  # fmt: skip
        held = (log.first, log.end)
        await step()

        async def first_message(offset: int) -> Message | None:
            await step()
            if offset < log.first or held[1] > log.end:
                raise ResumeError("the log moved")
            return next((log.entries[at].message() for at in range(offset, held[1]) if at in log.entries), None)

        position, _ = await find_start(held, block, chain, self._hint, first_message)
        await self._follow(acceptor, position, log.leader)

    async def _follow(self, acceptor: Acceptor, position: int, leader: int) -> None:
        log, search, patience, in_vain = self.log, GapSearch(), 1, 0
        while True:
            if self.rules.leader_changes_end and log.leader != leader:
                raise ResumeError("the leader changed")
            end = min(log.end, position + self.fetch_messages)
            if not log.first <= position <= end:
                raise ResumeError("out of range")
            works = self._read(acceptor, search, position, end)
            position = end
            missing = search.missing if self.rules.look_again and search.is_over(position) else None
            if missing is None:
                await step("works" if works and in_vain <= FRUITLESS_LOOKS else "idle")
                continue
            self.looks += 1
            self._commit()  # a look takes longer than the time between two commits
            if self._is_hopeless(search, acceptor.next_block):
                raise GapError(f"no longer holds block {acceptor.next_block}")
            found_some = acceptor.next_block > missing.wanted
            in_vain = 0 if found_some else in_vain + 1
            patience = 1 if found_some else min(2 * patience, LONGEST_PATIENCE)
            for _ in range(patience):
                await step("idle")
            position = log.first
            search.began(cut=log.first > 0)

    def _is_hopeless(self, search: GapSearch, block: int) -> bool:
        if self.rules.whole_look:
            return search.is_hopeless(block)
        oldest = min(self.log.entries, default=None)
        return self.log.first > 0 and oldest is not None and self.log.entries[oldest].sent.first > block

    def _read(self, acceptor: Acceptor, search: GapSearch, position: int, end: int) -> bool:
        gap = None
        for offset, entry in self.log.read(position, end):
            gap = self._take(acceptor, search, entry.message(), offset) or gap
        if len(self._appended) >= self.commit_blocks or end == position:
            self._commit()
        if gap is not None:
            search.miss(gap, max(end, self.log.end))
        return end > position

    def _take(self, acceptor: Acceptor, search: GapSearch, message: Message, offset: int) -> Gap | None:
        search.saw(message)
        verdict = acceptor.offer(message)
        if isinstance(verdict, Gap):
            self.gaps += 1
            return verdict
        self.duplicates += verdict.dropped
        if isinstance(verdict, Taken) and verdict.blocks.entries:
            self.cut_messages += verdict.dropped > 0
            self._append(verdict.blocks, offset)
        return None

    def _append(self, blocks: Blocks, offset: int) -> None:
        size = self.recipe.block_bytes
        tokens = bytes(blocks.tokens)
        for at, (entry, chain) in enumerate(zip(blocks.entries, blocks.chains, strict=True)):
            self._appended.append(Kept(tokens[at * size : (at + 1) * size], entry, chain))
        self._appended_hint = offset
