"""Schemas of what a fetch brought, learned before it is milled: waiting for a registry is no part of milling."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Final

import structlog

from tokenmill.errors import RegistryError
from tokenmill.milling.outcomes import Stages
from tokenmill.records import SourceRecord
from tokenmill.stages.decoding import FramedDecoder

from ..kafka.retry import Backoff
from ..kafka.schema_registry import FIRST_PAUSE, LONGEST_PAUSE

NOTHING: Final[frozenset[int]] = frozenset()

log = structlog.get_logger(__name__)


class SchemaWait:
    """Sees to it that one raw partition's decoder knows the schemas of all records that it is about to get."""

    def __init__(self, stages: Stages, where: str, tell: Callable[[str | None], None]) -> None:
        """``where`` names the partition; ``tell`` is told what is waited for, and None when nothing is."""
        decoder = stages.decoder
        self._decoder = decoder if isinstance(decoder, FramedDecoder) else None
        self._where = where
        self._tell = tell

    async def learn(self, records: Sequence[SourceRecord], first: int, skips: Collection[int] = NOTHING) -> None:
        """Return when every schema is known that a record from offset ``first`` on names, but for those in ``skips``.

        However long that takes: what a record is that names an unknown schema depends on what the schema says. A
        registry that does not answer, refuses, or lacks the schema is asked again and again.
        """
        if self._decoder is None:
            return
        wanted = [r for r in records if r.value is not None and r.offset >= first and r.offset not in skips]
        for number in self._decoder.unknown([record.value for record in wanted if record.value is not None]):
            await self._learn_one(number, wanted)

    async def _learn_one(self, number: int, records: Sequence[SourceRecord]) -> None:
        backoff, said, decoder = Backoff(FIRST_PAUSE, LONGEST_PAUSE), "", self._decoder
        try:
            while decoder is not None:
                try:
                    await asyncio.to_thread(decoder.learn, number)
                except RegistryError as error:
                    reason = f"offset {self._first(number, records)} of {self._where} waits: {error}"
                    if reason != said:
                        log.warning("waiting for the schema registry", reason=reason)
                    said = reason
                    self._tell(reason)
                    await asyncio.sleep(backoff.next())
                else:
                    break
        finally:
            self._tell(None)
        if said:
            log.warning("the schema registry has answered", schema=number, partition=self._where)

    def _first(self, number: int, records: Sequence[SourceRecord]) -> int:
        """Return the offset of the first record that names the schema."""
        decoder = self._decoder
        named = (r.offset for r in records if decoder is not None and decoder.unknown([r.value or b""]) == [number])
        return next(named)
