"""A store of real documents, milled by the reference without Kafka, and what its documents are."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from tests.mills import RAW, RECIPE
from tokenmill.milling.reference import Reference, ReferenceBlock
from tokenmill.reading.acceptance import Blocks
from tokenmill.recipe_stages import complete
from tokenmill.records import FLUSH_HEADER, Record
from tokenmill.stages.engines import TokenizerFile
from tokenmill.stages.training_tokenizer import train_tokenizer
from tokenmill.store import PartitionWriter, Store, StreamInfo
from tokenmill.wire.genesis import Genesis

STREAM = "raw-text.train"
DRAFT = replace(
    RECIPE,
    block_tokens=9,
    metadata_fields=("label",),
    steps=(),
    tokenizer_sha256="",
    end_of_document=-1,
    vocabulary_size=-1,
    probe="",
    dtype="",
)
PARTITIONS = 2
SEGMENT_BLOCKS = 16


@dataclass(frozen=True)
class TrueDocument:
    """A document, as it was sent."""

    offset: int
    id: str | int | None
    label: str | None
    tokens: list[int]


@dataclass(frozen=True)
class MilledStore:
    """A store, and what is in it."""

    path: Path
    info: StreamInfo
    blocks: dict[int, list[ReferenceBlock]]
    """Of each partition."""
    documents: dict[int, list[TrueDocument]]

    def tokens(self, partition: int) -> npt.NDArray[np.unsignedinteger]:
        """Return the tokens of all blocks."""
        joined = b"".join(block.tokens for block in self.blocks[partition])
        return np.frombuffer(joined, self.info.dtype).reshape(-1, self.info.block_tokens)

    def sealed(self, partition: int, stop: int | None = None) -> int:
        """Return how many of the first ``stop`` blocks are in sealed segments."""
        count = len(self.blocks[partition][:stop])
        return count - count % self.info.segment_blocks

    def fill(self, stop: int | None = None) -> None:
        """Append each partition's blocks up to ``stop``, or all; those that are there are left alone."""
        store = Store.open(self.path)
        for partition, blocks in self.blocks.items():
            with PartitionWriter.open(store, self.info.name, partition) as writer:
                new = blocks[writer.next_block : stop]
                if new:
                    writer.append(_joined(new), token_offset=new[-1].number)
                    writer.commit()


def milled_store(
    path: Path, *, seed: int = 0, records: int = 30, dtype: str = "uint8", stop: int | None = None, longest: int = 40
) -> MilledStore:
    """Mill documents with ids, numbers as ids and none, with labels and without, some longer than a segment."""
    tokenizer: Tokenizer | None = None if dtype == "uint8" else train_tokenizer(["ab aab b"], vocabulary_size=260)
    file = RAW if tokenizer is None else TokenizerFile("tiny", tokenizer.to_str().encode())
    recipe, stages = complete(DRAFT, file, None)
    genesis = Genesis(STREAM, recipe, (0,) * PARTITIONS, SEGMENT_BLOCKS)
    info = StreamInfo.from_genesis(genesis, SEGMENT_BLOCKS)
    Store.open_or_create(path).add_stream(info, None)
    rng = random.Random(seed)
    blocks, documents = {}, {}
    for partition in range(PARTITIONS):
        sent = list(_records(rng, records, longest))
        blocks[partition] = list(Reference(recipe, stages, partition, 0).blocks(sent))
        documents[partition] = list(_true(tokenizer, recipe.padding_id, sent))
    store = MilledStore(path, info, blocks, documents)
    store.fill(stop)
    return store


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


def _true(tokenizer: Tokenizer | None, end: int, records: Sequence[Record]) -> Iterator[TrueDocument]:
    for record in records:
        if record.value is not None:
            value = json.loads(record.value)
            ids = value["text"].encode() if tokenizer is None else tokenizer.encode(value["text"]).ids
            yield TrueDocument(record.offset, value.get("id"), value.get("label"), [*ids, end])


def _joined(blocks: Sequence[ReferenceBlock]) -> Blocks:
    return Blocks(
        blocks[0].number,
        b"".join(block.tokens for block in blocks),
        [block.entry for block in blocks],
        [block.chain for block in blocks],
    )
