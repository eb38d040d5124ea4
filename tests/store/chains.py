"""Chains, streams, eras and stores for tests: small, deterministic, with documents of all kinds."""

import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from tokenmill.eras import Era, EraLog, close_era
from tokenmill.reading import Blocks, Extent
from tokenmill.recipe import canonical_json
from tokenmill.store import EraWriter, PartitionWriter, Store, StreamInfo
from tokenmill.store.layout import SegmentPaths
from tokenmill.wire.chain import genesis_hash, roll
from tokenmill.wire.pieces import PADDING, Piece, encode_entry

STREAM = "raw-text.train"
SUFFIXES = ("bin", "docs", "index", "json", "idx")
"""The files in which two stores of one stream are equal byte for byte."""
OFFSET = 1000
"""Of era 0's record on a control topic that nobody has; the others follow at every third offset."""


def make_info(*, block_tokens: int = 5, dtype: str = "uint16", segment_blocks: int = 4) -> StreamInfo:
    return StreamInfo.from_values(
        {
            "format": 1,
            "stream": STREAM,
            "fingerprint": "000102030405060708090a0b0c0d0e0f",
            "raw_topic": "raw-text",
            "block_tokens": block_tokens,
            "dtype": dtype,
            "end_of_document": 0,
            "segment_blocks": segment_blocks,
        }
    )


def make_chain(info: StreamInfo, count: int, *, partition: int = 0, seed: int = 0) -> Blocks:
    rng = random.Random(seed)
    tokens = rng.randbytes(count * info.block_bytes)
    entries = [encode_entry(_make_pieces(rng, info.block_tokens, 100 * block)) for block in range(count)]
    return Blocks(0, tokens, entries, roll(genesis_hash(info.fingerprint, partition), tokens, entries))


def cut(chain: Blocks, info: StreamInfo, first: int, end: int) -> Blocks:
    tokens = memoryview(chain.tokens)[first * info.block_bytes : end * info.block_bytes]
    return Blocks(first, tokens, chain.entries[first:end], chain.chains[first:end])


def make_store(path: Path, info: StreamInfo) -> Store:
    store = Store.open_or_create(path)
    store.add_stream(info, b"{}")
    return store


def fill(store: Store, info: StreamInfo, chain: Blocks, ends: Iterable[int], *, partition: int = 0) -> None:
    """Append the chain, committing at each of ``ends``; what the partition holds already is left out."""
    with PartitionWriter.open(store, info.name, partition) as writer:
        for end in ends:
            writer.append(cut(chain, info, writer.next_block, end), token_offset=end)
            writer.commit()


def filled_store(path: Path, info: StreamInfo, chain: Blocks, ends: Iterable[int]) -> Store:
    store = make_store(path, info)
    fill(store, info, chain, ends)
    return store


def make_eras(
    info: StreamInfo, chains: Mapping[int, Blocks], stops: Sequence[Mapping[int, int]], *, end: bool = False
) -> list[Era]:
    """Make the eras after each of which the partitions reach these blocks, and with ``end`` the end marker."""
    log = EraLog(info.fingerprint)
    reached: dict[int, int] = {}
    eras = []
    for closed, step in enumerate([*stops, {}] if end else stops):
        reached |= step
        extents = {
            number: Extent(stop, chains[number].chains[stop - 1] if stop else genesis_hash(info.fingerprint, number))
            for number, stop in reached.items()
        }
        is_marker = end and closed == len(stops)
        era = close_era(log, extents, now=closed, era_blocks=1, overdue=True, end=is_marker)
        assert era is not None
        assert log.add(era.pack()) == era
        eras.append(era)
    return eras


def with_offsets(eras: Sequence[Era]) -> list[tuple[Era, int]]:
    return [(era, OFFSET + 3 * era.number) for era in eras]


def write_eras(store: Store, eras: Sequence[Era], *, commit: int = 3, stream: str = STREAM) -> None:
    """Bring eras into a store, so many with each commit; those that it has already are left out."""
    with EraWriter.open(store, stream) as writer:
        rest = with_offsets(eras)[writer.next_number :]
        for first in range(0, len(rest), commit):
            writer.append(rest[first : first + commit])


def tokens_of(chain: Blocks, info: StreamInfo) -> np.ndarray[tuple[int, int], np.dtype[np.unsignedinteger]]:
    return np.frombuffer(chain.tokens, info.dtype).reshape(-1, info.block_tokens)


def directory_of(store: Store, partition: int = 0) -> Path:
    return store.path / STREAM / str(partition)


def segment_of(store: Store, first: int = 0) -> SegmentPaths:
    return SegmentPaths(directory_of(store), first)


def flipped(data: bytes, at: int, bit: int = 0) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1 << bit
    return bytes(changed)


def flip(path: Path, at: int = 0, bit: int = 0) -> None:
    """Change one bit of a file, which keeps its place on the disk, so that open maps see it."""
    changed = flipped(path.read_bytes(), at, bit)
    with path.open("r+b") as file:
        file.write(changed)


def contents(store: Store) -> dict[str, bytes]:
    """Return all files of partition 0 that must be equal in every store of the stream."""
    return {
        file.name: file.read_bytes() for file in sorted(directory_of(store).iterdir()) if file.suffix[1:] in SUFFIXES
    }


def _make_pieces(rng: random.Random, block_tokens: int, offset: int) -> list[Piece]:
    starts = [0, *sorted(rng.sample(range(1, block_tokens), min(2, block_tokens - 1)))]
    metas = [b"", canonical_json({"id": f"dokument-{offset}-é"}), canonical_json({"fields": {"label": "y"}, "id": 7})]
    pieces = [Piece(start, offset + n, rng.randint(0, 9), metas[n]) for n, start in enumerate(starts)]
    if rng.random() < 0.2:  # now and then a flush filled the block
        pieces[-1] = Piece(pieces[-1].start, pieces[-1].offset, PADDING, b"")
    return pieces
