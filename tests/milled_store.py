"""A store of real documents, milled by the reference without Kafka, what its documents are, and its exports' rows."""

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from tests.mills import RAW, RECIPE
from tests.store.chains import make_eras, write_eras
from tokenmill.app.milling.recipe_stages import complete
from tokenmill.app.milling.reference import Reference, ReferenceBlock
from tokenmill.app.milling.tokenizers import TokenizerFile
from tokenmill.app.tools.tokenizers import train_tokenizer
from tokenmill.documents import FLUSH_HEADER, Record
from tokenmill.packings import Chunks, Rows, packing_of
from tokenmill.reading import Blocks
from tokenmill.recipe import Genesis, Recipe
from tokenmill.store import DocumentPiece, PartitionWriter, Store, StreamInfo, open_eras, open_partition

STREAM = "raw-text.train"
DRAFT = replace(RECIPE, block_tokens=9, metadata_fields=("label",), steps=(), end_of_document=-1, vocabulary_size=-1)
DRAFT = replace(DRAFT, tokenizer_sha256="", probe="", dtype="")  # the tokenizer decides
PARTITIONS = 2
SEGMENT_BLOCKS = 16

SHAPES: dict[str, dict[str, Any]] = {
    "fit": {"packing": "fit", "parameters": {"open_blocks": 3, "max_age_offsets": 4}, "begin": (2,)},
    "rows": {"packing": "rows", "begin": (2, 3)},
    "rows, split": {"packing": "rows", "parameters": {"long": "split"}, "begin": (2, 3)},
    "rows, full ones": {"packing": "rows", "parameters": {"long": "split", "short": "drop"}, "begin": (2,)},
    "chunks": {"packing": "chunks", "parameters": {"chunk_tokens": 8}, "begin": (2,)},
    "chunks, padded": {"packing": "chunks", "parameters": {"chunk_tokens": 8, "rest": "pad"}},
}
"""Arguments of `milled_store` for the packings other than concat."""


@dataclass(frozen=True)
class TrueDocument:
    offset: int
    id: str | int | None
    label: str | None
    tokens: list[int]


@dataclass(frozen=True)
class MilledStore:
    path: Path
    info: StreamInfo
    blocks: dict[int, list[ReferenceBlock]]
    documents: dict[int, list[TrueDocument]]

    def tokens(self, partition: int) -> npt.NDArray[np.unsignedinteger]:
        joined = b"".join(block.tokens for block in self.blocks[partition])
        return np.frombuffer(joined, self.info.dtype).reshape(-1, self.info.block_tokens)

    def close_era(self, *, end: bool = False) -> None:
        chains = {partition: _joined(blocks) for partition, blocks in self.blocks.items()}
        reached = {partition: len(blocks) for partition, blocks in self.blocks.items()}
        write_eras(Store.open(self.path), make_eras(self.info, chains, [reached], end=end), stream=self.info.name)

    @property
    def ended(self) -> bool:
        return open_eras(self.path, self.info.name).ended

    def exported(self, partition: int, stop: int | None = None) -> int:
        """Return how many of the first ``stop`` blocks are exported: those in sealed segments, or all at the end."""
        count = len(self.blocks[partition][:stop])
        return count if self.ended else count - count % self.info.segment_blocks

    def fill(self, stop: int | None = None) -> None:
        store = Store.open(self.path)
        for partition, blocks in self.blocks.items():
            with PartitionWriter.open(store, self.info.name, partition) as writer:
                new = blocks[writer.next_block : stop]
                if new:
                    writer.append(_joined(new), token_offset=new[-1].number)
                    writer.commit()


def milled_store(
    path: Path,
    *,
    seed: int = 0,
    records: int = 30,
    dtype: str = "uint8",
    stop: int | None = None,
    longest: int = 40,
    packing: str = "concat",
    parameters: Mapping[str, Any] = MappingProxyType({}),
    begin: Sequence[int] | None = None,
) -> MilledStore:
    """Mill documents with ids, numbers as ids and none, with labels and without, some longer than a segment.

    ``parameters`` are those of the packing that are no defaults; ``begin`` stands before each text.
    """
    tokenizer: Tokenizer | None = None if dtype == "uint8" else train_tokenizer(["ab aab b"], vocabulary_size=260)
    file = RAW if tokenizer is None else TokenizerFile("tiny", tokenizer.to_str().encode())
    draft = replace(DRAFT, packing=packing, packing_parameters=dict(parameters))
    recipe, stages = complete(draft, file, None, begin_of_document=begin)
    genesis = Genesis(STREAM, recipe, (0,) * PARTITIONS, SEGMENT_BLOCKS)
    info = StreamInfo.from_genesis(genesis, SEGMENT_BLOCKS)
    Store.open_or_create(path).add_stream(info, None)
    rng = random.Random(seed)
    blocks, documents = {}, {}
    for partition in range(PARTITIONS):
        sent = list(_records(rng, records, longest))
        blocks[partition] = list(Reference(recipe, stages, partition, 0).blocks(sent))
        documents[partition] = list(_true(tokenizer, recipe, sent))
    store = MilledStore(path, info, blocks, documents)
    store.fill(stop)
    return store


def store_of(path: Path, texts: Sequence[str], block_tokens: int = 64) -> None:
    recipe, stages = complete(replace(DRAFT, block_tokens=block_tokens), RAW, None)
    info = StreamInfo.from_genesis(Genesis(STREAM, recipe, (0,), SEGMENT_BLOCKS), SEGMENT_BLOCKS)
    Store.open_or_create(path).add_stream(info, None)
    sent = [Record(at, 1000, None, json.dumps({"text": text}).encode(), []) for at, text in enumerate(texts)]
    MilledStore(path, info, {0: list(Reference(recipe, stages, 0, 0).blocks(sent))}, {}).fill()


def _records(rng: random.Random, count: int, longest: int) -> Iterator[Record]:
    for offset in range(count):
        if offset % 23 == 7:
            yield Record(offset, 1000 + offset, None, None, [FLUSH_HEADER])
            continue
        text = "".join(rng.choice("abcdé ") for _ in range(rng.randint(1, longest)))
        if offset % 17 == 5:
            text *= 16  # longer than a segment, now and then
        value: dict[str, str | int] = {"text": f"{text}."}
        if offset % 3:
            value["id"] = f"document-{offset}" if offset % 2 else offset
        if offset % 4 == 1:
            value["label"] = rng.choice(["ä", "b"])
        yield Record(offset, 1000 + offset, None, json.dumps(value).encode(), [])


def _true(tokenizer: Tokenizer | None, recipe: Recipe, records: Sequence[Record]) -> Iterator[TrueDocument]:
    for record in records:
        if record.value is None:
            continue
        value = json.loads(record.value)
        ids = list(value["text"].encode()) if tokenizer is None else tokenizer.encode(value["text"]).ids
        tokens = kept_tokens(ids, recipe)
        if tokens:
            yield TrueDocument(record.offset, value.get("id"), value.get("label"), tokens)


def kept_tokens(ids: list[int], recipe: Recipe) -> list[int]:
    """Return what a stream keeps of a text with these ids, each token once; nothing where the document is dropped."""
    before, after = list(recipe.begin_of_document), list(recipe.after)
    packing = packing_of(recipe)
    if isinstance(packing, Rows):
        step = recipe.block_tokens - len(before) - len(after)
        if (len(ids) > step and packing.long == "drop") or (len(ids) < step and packing.short == "drop"):
            return []
        if packing.long == "truncate":
            ids = ids[:step]
        elif packing.short == "drop":
            ids = ids[: len(ids) // step * step]
    whole = before + ids + after
    if isinstance(packing, Chunks) and packing.rest == "drop":
        chunks = (len(whole) - 1) // packing.chunk_tokens
        return whole[: chunks * packing.chunk_tokens + 1] if chunks else []
    return whole


def _joined(blocks: Sequence[ReferenceBlock]) -> Blocks:
    return Blocks(
        blocks[0].number,
        b"".join(block.tokens for block in blocks),
        [block.entry for block in blocks],
        [block.chain for block in blocks],
    )


def spelled(value: str | int | None) -> str | None:
    return None if value is None else str(value)


def assert_blocks(rows: list[dict[str, Any]], store: MilledStore) -> None:
    """Check that the rows are all blocks of sealed segments, or all that there are at the end, with their documents."""
    found = {(row["partition"], row["block"]): row for row in rows}
    wanted = [(partition, number) for partition in store.blocks for number in range(store.exported(partition))]
    assert sorted(found) == wanted
    assert len(rows) == len(wanted)
    for partition in store.blocks:
        tokens, reader = store.tokens(partition), open_partition(store.path, STREAM, partition)
        for number in range(store.exported(partition)):
            row = found[partition, number]
            assert list(row["tokens"]) == tokens[number].tolist()
            pieces = reader.documents(number)
            names = ("start", "stop", "offset", "position")
            told = [tuple(piece[name] for name in names) for piece in row["documents"]]
            assert told == [tuple(getattr(piece, name) for name in names) for piece in pieces]
            assert [spelled(piece["id"]) for piece in row["documents"]] == [spelled(piece.id) for piece in pieces]


def begun(
    store: MilledStore, waiting: Sequence[str] = (), stop: int | None = None
) -> dict[tuple[int, int], TrueDocument]:
    """Return the documents of segments that do not wait, by partition and offset; where all has ended, whole ones."""
    found: dict[tuple[int, int], TrueDocument] = {}
    for partition, documents in store.documents.items():
        reader = open_partition(store.path, STREAM, partition)
        numbers = [n for n in range(store.exported(partition, stop)) if f"{partition}/{n - n % 16}" not in waiting]
        pieces = [piece for number in numbers for piece in reader.documents(number)]
        offsets = {piece.offset for piece in pieces if piece.position == 0}
        cut = _left_open(documents, pieces) if store.ended else set[int]()
        found |= {(partition, one.offset): one for one in documents if one.offset in offsets - cut}
    return found


def _left_open(documents: Sequence[TrueDocument], pieces: Sequence[DocumentPiece]) -> set[int]:
    """Return the offsets of documents of which not all tokens are in blocks; what rows repeat counts more than once."""
    held = Counter[int]()
    for piece in pieces:
        held[piece.offset] += piece.stop - piece.start
    return {one.offset for one in documents if held[one.offset] < len(one.tokens)}


def assert_documents(rows: list[dict[str, Any]], wanted: dict[tuple[int, int], TrueDocument]) -> None:
    assert sorted((row["partition"], row["offset"]) for row in rows) == sorted(wanted)
    for row in rows:
        document = wanted[row["partition"], row["offset"]]
        assert list(row["tokens"]) == document.tokens
        assert row["id"] == spelled(document.id)
        assert json.loads(row["fields"] or "{}") == ({"label": document.label} if document.label else {})
