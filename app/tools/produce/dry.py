"""What a run would send, without a broker."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from .builders import Known
from .datasets import DatasetSource
from .items import Item, Place, Refused
from .sources import Source
from .summary import PassedOver

SAMPLES: Final = 3


@dataclass(slots=True)
class Dry(PassedOver):
    """What would be sent."""

    topic: str
    documents: int = 0
    bytes: int = 0
    """Of the records' values."""
    samples: list[Item] = field(default_factory=list)
    """The first documents."""
    known: list[Known] = field(default_factory=list)
    """What is known of each data set before it is read."""


def dry_run(sources: Sequence[Source], topic: str, limit: int | None = None) -> Dry:
    """Read the sources, one after the other, up to a number of documents, and return what would be sent."""
    found = Dry(topic, known=[source.known() for source in sources if isinstance(source, DatasetSource)])
    for source in sources:
        for chunk in source.chunks(Place()):
            found.count_unmet(chunk.unmet)
            for item in chunk.items:
                if isinstance(item, Refused):
                    found.refuse(item)
                    continue
                if limit is not None and found.documents >= limit:
                    return found
                found.documents += 1
                found.bytes += len(item.value)
                found.samples += [item] if len(found.samples) < SAMPLES else []
    return found
