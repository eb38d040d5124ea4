"""What a run did."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from .items import Refused, Unmet
from .known import Change
from .sender import Sent

EXAMPLES: Final = 20
"""How many refusals are remembered word for word; all are counted."""


@dataclass(slots=True, kw_only=True)
class PassedOver:
    """What was no document."""

    refused: int = 0
    """How often that was so."""
    broken: int = 0
    """Sources that could not be read to their end."""
    examples: list[Refused] = field(default_factory=list)
    """The first refusals, without what stood there."""

    unmet: int = 0
    """Documents that did not meet the conditions, as far as this call read them."""
    without_field: int = 0
    """How many of these lack the field that a condition is about."""

    def count_unmet(self, unmet: Unmet) -> None:
        """Count what was not wanted."""
        self.unmet += unmet.documents
        self.without_field += unmet.without_field

    def refuse(self, refused: Refused) -> None:
        """Count something that is no document."""
        self.refused += 1
        self.broken += refused.broken
        if len(self.examples) < EXAMPLES:
            self.examples.append(refused.told)


@dataclass(slots=True)
class Summary(PassedOver):
    """What a run did, so far or in all; what it passed over counts also where an earlier call of the run met it."""

    topic: str
    partitions: dict[int, Sent]
    """What is acknowledged, by partition."""
    before: int = 0
    """Documents that were in the topic already: an earlier run of the same command was interrupted, or had ended."""
    left_out: list[Change] = field(default_factory=list)
    """What became of sources since they were sent: they are not sent again."""
    broken_before: int = 0
    """How many of the broken sources this call did not read again."""
    seconds: float = 0.0
    limit: int | None = None
    """Documents after which the run ends, those from before included."""
    bytes_read: int = 0
    """Of the sources, as they lie on disk, those of earlier runs included."""
    bytes_total: int = 0
    """Of all sources whose size is known; 0: of none."""

    @property
    def documents(self) -> int:
        """Acknowledged documents."""
        return sum(sent.documents for sent in self.partitions.values())

    @property
    def bytes(self) -> int:
        """Bytes of the acknowledged records' values."""
        return sum(sent.bytes for sent in self.partitions.values())


Progress = Callable[[Summary], None]
