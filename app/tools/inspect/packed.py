"""Packed streams: what their store knows of them, in the types that are made of Kafka's topics elsewhere."""

import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

from tokenmill.errors import DamagedError, InputError, RecordError
from tokenmill.recipe import Genesis
from tokenmill.store import open_eras, open_partition, read_stream, streams_in
from tokenmill.store.layout import SOURCE_FILE, SegmentPaths, comparing, is_packed, partition_directory, segment_firsts
from tokenmill.store.sealing import UNKNOWN, scan
from tokenmill.untrusted import parse_json, read_regular, regular_file
from tokenmill.wire.message import Message

from ...kafka.control_log import ControlLog
from ...kafka.control_topic import Settled
from ...kafka.dead_letters import DeadLetter, RecordPlace
from ...milling.splits import SplitRule
from ...settings import Settings, Stream
from ..pack.packed_partition import DEAD, REJECTED, SOURCE_LETTERS, PackFiles, PackRun, pack_directory
from ..repair import examine_store
from .record_ledger import ChainLedger, RecordLedger, account, raw_partition_accounts, read_ledger
from .tracing import RejectedDocument, recipe_decoder, require_counted

_AGAIN: Final = "`tokenmill try` with the same files and settings shows what is filtered out"


@dataclass(frozen=True, slots=True)
class StoredPack:
    """A stream that `tokenmill pack` filled, and what that noted."""

    store: Path
    settled: Settled
    files: PackFiles
    run: PackRun

    @classmethod
    def find(cls, store: Path, name: str) -> "StoredPack | None":
        """Return a stream of a store; None where that does not hold it, or it came from Kafka."""
        if name not in streams_in(store) or not is_packed(store, name):
            return None
        genesis = Genesis.from_dict(read_stream(store, name).values["genesis"])
        recipe = genesis.recipe
        stream = Stream(name, recipe.raw_topic, recipe.split)
        files = PackFiles(pack_directory(store, recipe.raw_topic, stream.suffix))
        run = files.read_run()
        return None if run is None else cls(store, Settled(stream, genesis, ControlLog(name, genesis)), files, run)

    def head(self, partition: int) -> Message | None:
        """Return the message that says where a chain continues; None of one that has not begun."""
        return self.files.read_partition(partition).carries.get(self.settled.stream.split)

    def chain(self, partition: int, head: Message | None) -> ChainLedger:
        """Return the account of a chain that continues as a message says."""
        return account(self.settled, partition, self.run.first_offset, head)

    def chains(self) -> list[ChainLedger]:
        """Return the account of each chain."""
        return [self.chain(partition, self.head(partition)) for partition in range(self.run.partitions)]


def packed_streams(settings: Settings, names: Sequence[str] = ()) -> list[StoredPack]:
    """Return the packed ones of some streams; without names those of the settings' raw topics, or else of any."""
    wanted = names or streams_in(settings.store)
    found = [one for name in sorted(wanted) if (one := StoredPack.find(settings.store, name)) is not None]
    own = [one for one in found if one.settled.stream.raw_topic in settings.raw_topics]
    if found and len(found) < len(names):
        others = set(names) - {one.settled.stream.name for one in found}
        raise InputError(
            f"{found[0].settled.stream.name} in {settings.store} was packed, and {', '.join(sorted(others))} was not: "
            "ask for packed streams and for streams on brokers in two calls"
        )
    return found if names else own or found


def without_topics(store: Path) -> str:
    """Return what to say beside an error of topics: which streams of a store are in none, or may be; else nothing."""
    names = streams_in(store)
    if packed := [name for name in names if is_packed(store, name)]:
        return (
            f"{', '.join(packed)} in {store} was packed from files, and is in no topic: `tokenmill ledger` counts its "
            "documents, `tokenmill inspect stream` its blocks"
        )
    if copied := [name for name in names if _came_from_bucket(store, name)]:
        return (
            f"{', '.join(copied)} in {store} came from a bucket: if it was packed from files, it is in no topic, and "
            "the store that was packed is the one to ask"
        )
    return ""


def _came_from_bucket(store: Path, name: str) -> bool:
    """Return whether no message brought the last blocks of a stream's first partition, nor a pack."""
    if (store / name / SOURCE_FILE).exists():
        return True
    info, directory = read_stream(store, name), partition_directory(store, name, 0)
    if not (firsts := segment_firsts(os.listdir(directory))):  # noqa: PTH208 - names alone
        return False
    log = read_regular(SegmentPaths(directory, firsts[-1]).commits)
    commits = scan(log, block_bytes=info.block_bytes, segment_blocks=info.segment_blocks).commits
    return bool(commits) and commits[-1].source_offset == UNKNOWN


async def ledger_of(settings: Settings, names: Sequence[str] = ()) -> RecordLedger:
    """Return the ledger of packed streams where the store has these; of all others as `read_ledger`."""
    packed = packed_streams(settings, names)
    if not packed:
        return await read_ledger(settings, names)
    chains = [chain for one in packed for chain in one.chains()]
    return RecordLedger(chains, raw_partition_accounts([one.settled for one in packed], chains))


def packed_rejects(
    settings: Settings, packed: Sequence[StoredPack], *, reasons: Collection[str] = (), limit: int
) -> Iterator[RejectedDocument]:
    """Yield what packed streams filtered out, ``limit`` documents of a reason and stream at most; InputError: none."""
    counts = [sum((chain.totals.filtered for chain in one.chains()), Counter[str]()) for one in packed]
    require_counted(reasons, sum(counts, Counter[str]()))
    for one, counted in zip(packed, counts, strict=True):
        wanted = Counter({reason: min(limit, counted[reason]) for reason in reasons or counted})
        for found in _rejected(settings, one):
            if wanted[found.reason] > 0:
                wanted[found.reason] -= 1
                yield found
        if missing := +wanted:
            told = ", ".join(f"{counted[reason]:,} by {reason}" for reason in sorted(missing))
            raise InputError(
                f"{one.settled.stream.name} filtered out {told}, and the store has only their number: `tokenmill try` "
                "with the same files and settings shows such documents; `pack --rejects topic` keeps them in a store"
            )


def packed_letters(settings: Settings, raw_topic: str) -> Iterator[DeadLetter] | None:
    """Return the dead letters of what was packed as a raw topic; None where nothing was."""
    packed = {one.files.directory: one for one in packed_streams(settings) if one.settled.stream.raw_topic == raw_topic}
    return chain.from_iterable(map(_dead_letters, packed.values())) if packed else None


def _dead_letters(one: StoredPack) -> Iterator[DeadLetter]:
    position = one.files.read_position()
    yield from _stored(one.files.letters(DEAD, SOURCE_LETTERS), position.letters if position is not None else 0)
    for partition in range(one.run.partitions):
        yield from _stored(one.files.letters(DEAD, partition), one.files.read_partition(partition).letters.get(DEAD, 0))


def _stored(path: Path, size: int) -> Iterator[DeadLetter]:
    """Yield the letters in the first ``size`` bytes of a file: what was committed."""
    if not size:
        return
    with regular_file(path) as file:
        while size > 0:
            line = file.readline(size)
            size -= len(line) or size
            try:
                yield DeadLetter.from_json(parse_json(line))
            except (ValueError, TypeError, KeyError) as error:
                raise DamagedError(f"{path} is not what was written there ({error!r})", _AGAIN) from error


def _rejected(settings: Settings, one: StoredPack) -> Iterator[RejectedDocument]:
    stream, recipe = one.settled.stream, one.settled.genesis.recipe
    decoder = recipe_decoder(settings, recipe)
    splits = SplitRule(recipe.shards, dict(recipe.splits), recipe.split_by)
    for partition in range(one.run.partitions):
        path = one.files.letters(REJECTED, partition)
        for letter in _stored(path, one.files.read_partition(partition).letters.get(REJECTED, 0)):
            try:
                document = decoder(letter.value or b"")
            except RecordError as error:
                raise DamagedError(f"{path} is not what was written there ({error!r})", _AGAIN) from error
            if splits.split_of_document(document) == stream.split and isinstance(letter.place, RecordPlace):
                told = letter.place, letter.timestamp, letter.reason, letter.detail
                yield RejectedDocument(stream.name, *told, document)


def check_packed(one: StoredPack) -> dict[str, Any]:
    """Compare all that a store has of a packed stream with itself, and with what the pack noted; reads every byte.

    Returns JSON types: ``differences`` are texts, and ``again`` says what compares it with the files that it came from.
    """
    store, name = one.store, one.settled.stream.name
    found = [
        f"partition {part.partition}: {segment.what}"
        for part in examine_store(store, name)
        for segment in part.segments
    ]
    readers = [open_partition(store, name, number) for number in range(one.run.partitions)]
    for number, held in enumerate(readers):
        head = one.head(number)
        chain = one.chain(number, head)
        if head is not None and (
            held.blocks < head.cursor.block or held.chain_before(head.cursor.block) not in {None, head.after}
        ):
            found.append(f"partition {number}: the blocks do not end as the pack noted, before block {chain.blocks}")
        if not chain.balanced:
            found.append(f"partition {number}: its account does not balance")
    eras = open_eras(store, name)
    for era in map(eras.era, range(eras.eras)):
        for number, part in enumerate(era.ranges):
            if part.blocks and readers[number].chain_before(part.stop) not in {None, part.after}:
                found.append(f"era {era.number}: it names other blocks of partition {number}")
    if (torn := eras.torn()) is not None:
        found.append(str(torn))
    counts = {"blocks": sum(reader.blocks for reader in readers), "eras": eras.eras}
    return {"stream": name, **counts, "differences": found, "again": comparing(store, name)}
