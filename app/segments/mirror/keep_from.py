"""Retiring what the checkpoints of a training host do not need any more, again and again while a mirror runs."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from tokenmill.errors import DamagedError, InputError, StoreError
from tokenmill.samples import UNPINNED, Position, first_needed, read_state
from tokenmill.store import partitions_in, read_stream, streams_in
from tokenmill.store.retiring import retire

from ...tasks import in_thread

LOOK_SECONDS: Final = 10.0
"""How often states are read: space is freed as soon after a checkpoint."""

log = structlog.get_logger(__name__)


class CheckpointKeeper:
    """Retires segments of a store whose blocks belong only to eras before those that states in files need.

    Of a stream that no state is of, and while any of the files is missing, nothing is retired.
    """

    def __init__(self, store: Path, files: Sequence[Path]) -> None:
        self._store = store
        self._files = files
        self._said = ""
        self._doubted: set[Path] = set()
        """Files with old states, of which that was said."""

    async def run(self) -> None:
        """Look again and again, at once for the first time; what is wrong later is logged, and all is kept.

        Raises:
            InputError: at the first look, a file is no state, or one of another stream, fingerprint or content.

        """
        await in_thread(self.look)
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await in_thread(self.look)
            except (InputError, StoreError, DamagedError) as error:
                self._say(str(error))

    def look(self) -> None:
        """Read all states, then retire what none of them needs; raises as `retire` and `first_needed` do."""
        missing = [str(file) for file in self._files if not file.exists()]
        if missing:
            self._say(f"{', '.join(missing)}: not there yet")
            return
        positions = [self._read(file) for file in self._files]
        for stream in sorted({position.sequence.stream for position in positions}):
            if stream not in streams_in(self._store):
                raise InputError(
                    f"a state is one of stream {stream!r}, which is not in {self._store} (streams there: "
                    f"{', '.join(streams_in(self._store)) or 'none'}): name states of runs over these"
                )
            needed = first_needed(
                self._store,
                read_stream(self._store, stream),
                [position for position in positions if position.sequence.stream == stream],
            )
            for partition in partitions_in(self._store, stream):
                if partition < len(needed):
                    self._retire(stream, partition, needed[partition])
        self._said = ""

    def _read(self, file: Path) -> Position:
        position = read_state(file)
        if position.unpinned and file not in self._doubted:
            self._doubted.add(file)
            log.warning("state without content", file=str(file), reason=UNPINNED)
        return position

    def _retire(self, stream: str, partition: int, below: int) -> None:
        retired = retire(self._store, stream, partition, below)
        if retired.segments:
            log.info(
                "segments retired", stream=stream, partition=partition, segments=retired.segments,
                bytes=retired.freed_bytes, first=retired.first,
            )  # fmt: skip

    def _say(self, reason: str) -> None:
        if reason != self._said:
            log.warning("nothing is retired", reason=reason)
        self._said = reason
