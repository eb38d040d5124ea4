"""A reader that never closes: it holds every block, soon after it is committed, against the reference."""

import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from tests.faults.oracle import Expected, Kept, kept_of, new_reader, partitions_of, read_control
from tokenmill.app.milling.recipe_stages import reopen_stages
from tokenmill.app.milling.reference import Reference, ReferenceBlock
from tokenmill.app.milling.tokenizers import REFERENCE, load_tokenizer
from tokenmill.app.settings import Settings, Stream
from tokenmill.errors import StoreError
from tokenmill.records import Record
from tokenmill.store import PartitionReader, open_partition

LOOK_SECONDS: Final = 1.0
PATIENCE_SECONDS: Final = 2.0
"""How long a broker that does not answer is waited for; there is another look."""


@dataclass(slots=True)
class _Chain:
    stream: Stream
    partition: int
    reference: Reference
    next_offset: int = 0
    blocks: deque[ReferenceBlock] = field(default_factory=deque)
    """What the reference made and the store has not yet shown."""
    reader: PartitionReader | None = None
    seen: int = 0
    """Blocks compared."""


class Follower:
    """Follows all streams of the settings in a thread of its own, from entry to exit."""

    def __init__(self, settings: Settings) -> None:
        """Look at nothing yet; the streams may still have to be settled."""
        self._settings = settings
        self._chains: list[_Chain] | None = None
        self._client: Consumer = new_reader(settings.bootstrap_servers)
        self._enough = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def seen(self) -> int:
        """Return how many blocks were compared, all equal."""
        return sum(chain.seen for chain in self._chains or ())

    def require_health(self) -> None:
        """Fail where something was read that the reference does not have."""
        assert self._error is None, f"the reader failed: {self._error!r}"

    def require_all(self, chains: list[Expected]) -> None:
        """Fail unless, after the block, every block of the chains has been read."""
        self.require_health()
        assert self.seen == sum(len(chain.blocks) for chain in chains)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._enough.set()
        self._thread.join()
        if error is None:
            self.look()
            self.require_health()
        self._client.close()

    def _run(self) -> None:
        try:
            while not self._enough.wait(LOOK_SECONDS):
                self.look()
        except BaseException as error:
            self._error = error
            raise

    def look(self) -> None:
        """Compare what is there now."""
        if self._chains is None:
            with suppress(KafkaException, AssertionError):  # no broker answers now: there is another look
                self._chains = self._opened()
        for chain in self._chains or ():
            self._look_at(chain)

    def _opened(self) -> list[_Chain] | None:
        chains = []
        for stream in self._settings.streams():
            genesis = read_control(self._settings, stream, self._client).genesis
            if genesis is None:
                return None
            stages = reopen_stages(genesis.recipe, load_tokenizer(self._settings.tokenizer), REFERENCE)
            for partition in range(partitions_of(self._settings, stream.raw_topic)):
                reference = Reference(genesis.recipe, stages, partition, genesis.start(partition))
                chains.append(_Chain(stream, partition, reference))
        return chains

    def _look_at(self, chain: _Chain) -> None:
        reader = chain.reader = chain.reader or self._open(chain)
        if reader is None:
            return
        before, committed = reader.blocks, reader.refresh()  # before the source: it has what they were made of
        where = f"{chain.stream.name} partition {chain.partition}"
        assert committed >= before, f"{where} shrank from {before} to {committed} blocks"
        chain.blocks.extend(chain.reference.blocks(self._more(chain)))
        while chain.seen < committed and chain.blocks:
            wanted = chain.blocks.popleft()
            assert wanted.number == chain.seen, where
            assert reader.read(chain.seen).tobytes() == wanted.tokens, f"{where}, block {chain.seen}"
            assert reader.chain_before(chain.seen + 1) == wanted.chain, f"{where}, block {chain.seen}"
            chain.seen += 1

    def _open(self, chain: _Chain) -> PartitionReader | None:
        try:
            return open_partition(self._settings.store, chain.stream.name, chain.partition, check=True)
        except StoreError:  # nobody has brought the stream here yet
            return None

    def _more(self, chain: _Chain) -> list[Record]:
        """Return the next records of a raw partition; what a silent broker does not give comes at a later look."""
        place = TopicPartition(chain.stream.raw_topic, chain.partition, chain.next_offset or OFFSET_BEGINNING)
        self._client.assign([place])
        found: list[Kept] = []
        while (message := self._client.poll(PATIENCE_SECONDS)) is not None:
            if error := message.error():
                if error.code() == KafkaError._PARTITION_EOF:
                    break
                continue
            found.append(kept_of(message))
        if found:
            chain.next_offset = found[-1].offset + 1
        return [Record(*kept) for kept in found]
