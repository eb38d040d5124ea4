"""Where eras end in each partition, and with which chain hash: laid down in files, held against blocks as they pass.

The eras of a stream may be many, and their records are read once; the blocks of each partition are read by a process of
its own. So what these need is written to a file for each partition, 32 bytes for each era that has blocks there.
"""

from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.eras import Era
from tokenmill.errors import DamagedError, StoreError
from tokenmill.store import PartitionReader, StreamInfo, open_partition
from tokenmill.wire.chain import roll

from ...kafka.token_topic import message_of, message_with
from .token_topic import TopicRun
from .verified import Verified

END: Final = np.dtype([("block", "<i8"), ("era", "<i8"), ("chain", "V16")])
"""The block after an era's last one, the era, and the chain hash that it names there."""
_BUFFER: Final = 64 * 1024
"""Bytes held for each partition before they are written: fewer files are open than there may be partitions."""


class EraEndsFiles:
    """Takes the eras of one stream; after `close`, there is a file for each partition that they have blocks of."""

    def __init__(self, directory: Path) -> None:
        """Write into a ``directory`` of its own, which is made."""
        directory.mkdir()
        self._directory = directory
        self._held: dict[int, bytearray] = {}

    def add(self, era: Era) -> None:
        """Lay down where an era ends."""
        for partition, part in enumerate(era.ranges):
            if part.blocks:
                held = self._held.setdefault(partition, bytearray())
                held += np.array([(part.stop, era.number, part.after)], END).tobytes()
                if len(held) >= _BUFFER:
                    self._write(partition)

    def close(self) -> dict[int, Path]:
        """Return the files by partition."""
        for partition in self._held:
            self._write(partition)
        return {partition: self._directory / str(partition) for partition in self._held}

    def _write(self, partition: int) -> None:
        with (self._directory / str(partition)).open("ab") as file:
            file.write(self._held[partition])
        self._held[partition].clear()


class EraEnds:
    """The ends of eras in one partition, in ascending order: those that runs of blocks pass are checked at once."""

    def __init__(self, path: Path | None) -> None:
        """Map a file of `EraEndsFiles`; None: there are no eras."""
        self._ends: npt.NDArray[np.void] = np.memmap(path, END, "r") if path is not None else np.empty(0, END)
        self._blocks = self._ends["block"]
        self._passed: tuple[int, int] | None = None
        self.wrong = False
        """Whether one was."""

    def first_wrong(self, run: TopicRun) -> tuple[int, int] | None:
        """Return era and block of the first end among a run's blocks that has another hash; None if all are right."""
        low, high = np.searchsorted(self._blocks, (run.first, run.end), side="right").tolist()
        first = self._passed[0] if self._passed else low
        for index in range(low, high):
            end = self._ends[index]
            self._passed = first, index
            if end["chain"].tobytes() != run.chains[int(end["block"]) - 1 - run.first]:
                self.wrong = True
                return int(end["era"]), int(end["block"])
        self._passed = first, high
        return None

    @property
    def checked(self) -> int:
        """How many ends runs have passed that were right."""
        return self._passed[1] - self._passed[0] if self._passed else 0

    def rest(self) -> list[tuple[int, int, bytes]]:
        """Return block, era and hash of the ends that no run passed: below the first one, or above the last."""
        low, high = self._passed or (0, 0)
        left = np.concatenate([self._ends[:low], self._ends[high:]])
        return [(int(end["block"]), int(end["era"]), end["chain"].tobytes()) for end in left]


class OtherHashes:
    """The chain hashes before blocks that are not read: from where a verification ended, the store, or one message."""

    def __init__(
        self,
        client: AIOKafkaConsumer,
        tokens: TopicPartition,
        span: tuple[int, int],
        *,
        since: Verified | None,
        store: Path | None,
        info: StreamInfo,
    ) -> None:
        """Ask with ``client``, which nobody else uses when `chain_before` is called."""
        self._client = client
        self._tokens = tokens
        self._span = span
        self._since = since
        self._store = store
        self._info = info
        self._reader: PartitionReader | None = None

    async def chain_before(self, block: int, *, use_store: bool) -> bytes | None:
        """Return the hash before a block, which is above 0; None where nothing holds the block before it any more."""
        if self._since is not None and self._since.carry.first == block:
            return self._since.carry.after
        if self._store is not None and use_store:
            with suppress(DamagedError, StoreError):
                self._reader = self._reader or open_partition(self._store, self._info.name, self._tokens.partition)
                found = self._reader.chain_before(block)
                if found is not None:
                    return found
        record = await message_with(self._client, self._tokens, self._info.fingerprint, block - 1, self._span)
        if record is None:
            return None
        message = message_of(record, self._tokens)
        return roll(message.before, message.tokens, message.entries)[block - 1 - message.first]
