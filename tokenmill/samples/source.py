"""Where the tokens of a sample came from: documents, and the Kafka records that held them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenmill.samples.sequence import Samples
from tokenmill.store import PartitionReader
from tokenmill.wire.pieces import PADDING


@dataclass(frozen=True, slots=True)
class Source:
    """The part of one document in one row of a batch, and the Kafka record that it came from."""

    start: int
    """Index of its first token among the row's ``sequence_length + 1``; x has all but the last, y all but the first."""
    stop: int
    """Index after its last token in the row."""
    topic: str
    """The raw topic."""
    partition: int
    offset: int
    """Offset of the record in that partition."""
    position: int
    """Index of the first token here among the document's tokens."""
    id: str | int | None
    fields: Mapping[str, Any]
    """The fields of the record that the stream carries."""
    block: int
    """The block of the partition in which these tokens are."""


def sources_of(reader: PartitionReader, block: int, view: int, length: int) -> list[Source]:
    """Return the sources of one view of a block, in the order of their tokens; padding has none."""
    begin = view * length
    found = []
    for piece in reader.documents(block):
        start, stop = max(piece.start, begin), min(piece.stop, begin + length + 1)
        if start < stop and piece.position != PADDING:
            found.append(
                Source(
                    start=start - begin,
                    stop=stop - begin,
                    topic=str(reader.info.values["raw_topic"]),
                    partition=reader.partition,
                    offset=piece.offset,
                    position=piece.position + start - piece.start,
                    id=piece.id,
                    fields=piece.fields,
                    block=block,
                )
            )
    return found


def places_of(samples: Samples) -> list[tuple[int, int, int]]:
    """Return partition, block and view of each sample."""
    return list(zip(*(column.tolist() for column in samples), strict=True))
