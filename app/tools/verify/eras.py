"""The eras of a stream: the chain of records on its control topic, and what the store holds of it.

The chain is what every reader takes it for (`tokenmill.eras.EraLog`): whatever does not continue it is ignored, and
counted here. That the eras speak of the blocks that are there is checked where the blocks are read (`era_ends`).
"""

from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from tokenmill.eras import Era, EraFollower
from tokenmill.errors import DifferenceError
from tokenmill.store import StreamInfo
from tokenmill.store.era_rows import EraRow

from ...kafka.clients import consumer
from ...kafka.control_topic import Settled, read_eras
from ...settings import Settings
from .era_ends import EraEndsFiles
from .marks import EraMarks
from .result import Difference, EraResult, Kind, Side
from .store_eras import EraCopy
from .verified import VerifiedEras


@dataclass(slots=True)
class EraCheck:
    """Reads the eras of one stream, once."""

    settled: Settled
    marks: EraMarks
    store: Path | None
    since: VerifiedEras | None
    ends: EraEndsFiles
    result: EraResult = field(init=False)

    def __post_init__(self) -> None:
        held = self.marks.store
        since = self.since.era.number + 1 if self.since is not None else 0
        self.result = EraResult(self.settled.stream.name, since=since, store_eras=held.eras if held else None)

    async def run(self, settings: Settings) -> EraResult:
        """Compare topic and store up to the marks; the ends of the new eras are laid down for who reads the blocks.

        Raises:
            SourceError: the control topic is not what it was a moment ago.

        """
        name, recipe = self.settled.stream.name, self.settled.genesis.recipe
        since, held = self.since, self.marks.store
        last, offset = (since.era, since.offset) if since is not None else (None, None)
        follower = EraFollower(name, recipe.fingerprint, last, offset)
        row = EraRow(since.stop, since.blocks, since.offset) if since is not None else EraRow()
        copy = None
        if self.store is not None and held is not None:
            info = StreamInfo.from_genesis(self.settled.genesis, self.settled.genesis.segment_blocks)
            copy = EraCopy(self.store, info, held, row)
        try:
            with copy.opened(self.result.since) if copy is not None else nullcontext():
                await self._read(settings, follower, copy, row)
        except DifferenceError as error:
            self.result.eras = follower.log.next_number - 1  # the follower stands behind the one that is missing
            self._differs("control topic", "missing", str(error), self.result.eras)
        else:
            self.result.eras, self.result.ended = follower.log.next_number, follower.log.ended
        self._conclude()
        return self.result

    async def _read(self, settings: Settings, follower: EraFollower, copy: EraCopy | None, row: EraRow) -> None:
        """Take the eras behind the follower's that came before the mark."""
        async with consumer(settings) as client:
            async for found in read_eras(client, self.settled.stream.control_topic, follower, self.marks.end):
                for era, offset in found:
                    row = self._take(era, offset, copy, row)
        self.result.ignored = follower.ignored

    def _take(self, era: Era, offset: int, copy: EraCopy | None, row: EraRow) -> EraRow:
        """Count an era of the chain, lay down its ends, and hold the store against it."""
        result, held = self.result, self.marks.store
        result.eras = era.number + 1
        result.blocks += era.blocks
        self.ends.add(era)
        if copy is not None and not result.differences:
            found = copy.compare(era, offset)
            if found is not None:
                self._differs("store", found.kind, found.text, era.number)
            elif held is not None and era.number < held.eras:
                result.store_equal += 1
        row = EraRow(row.stop + len(era.pack()) + 1, row.blocks + era.blocks, offset)
        if held is None or era.number < held.eras:
            result.verified = VerifiedEras(era, offset, row.stop, row.blocks)
        return row

    def _conclude(self) -> None:
        """Say what the store holds beyond the topic, and what of it cannot be read."""
        result, held = self.result, self.marks.store
        result.verified = result.verified or self.since
        if held is None:
            return
        if held.damage is not None:
            self._differs("store", "damaged", held.damage, held.eras or None)
        elif held.eras < result.since:
            self._differs("store", "missing", f"it had {result.since} eras when it was last verified", held.eras)
        if held.eras > result.eras and not result.differences:
            text = (
                f"the store holds {held.eras} eras, the control topic {result.eras}: the topic lost its end, or the "
                "store is another's. Trainers of this store have been on these eras, and no new one will come: go on "
                "from a checkpoint before the first that is missing, or give new text a stream of its own "
                "(stream_suffix)"
            )
            self._differs("control topic", "missing", text, result.eras)

    def _differs(self, side: Side, kind: Kind, text: str, era: int | None) -> None:
        self.result.differences.append(Difference(side, kind, self.result.stream, None, text, era=era))
