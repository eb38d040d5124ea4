"""Every record below a cursor: in = kept + filtered + tombstones + dead-lettered + flushes + other split."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from tokenmill.canonical import canonical_json
from tokenmill.untrusted import parse_json
from tokenmill.wire.figures import Figures


@dataclass(slots=True)
class Totals:
    """What became of the records of one raw partition in one chain, from the chain's start up to a cursor.

    Totals depend on the cursor alone: a document that the cursor is in the middle of is not counted yet.
    """

    records: int = 0
    """All records."""
    kept: int = 0
    """Documents whose tokens are in the chain."""
    tombstones: int = 0
    """Records with a null value that asked for no flush."""
    flushes: int = 0
    """Records that asked for padding up to the block's end."""
    other_split: int = 0
    """Records that belong to another split of the topic."""
    filtered: Counter[str] = field(default_factory=Counter)
    """Documents that a step filtered out, by reason."""
    dead_lettered: Counter[str] = field(default_factory=Counter)
    """Records that could not become a document, by reason."""
    tokens: int = 0
    """Tokens of the kept documents, those around their texts included."""
    value_bytes: int = 0
    """Bytes of the values of the kept records."""
    figures: Figures = field(default_factory=Figures)
    """By step, and of lengths; empty where the recipe has no list of steps."""
    packing: Counter[str] = field(default_factory=Counter)
    """What the packing counts of the blocks before the cursor, by name; nothing for ``concat``."""

    @property
    def balanced(self) -> bool:
        """Whether every record is accounted for exactly once, in the figures as well."""
        outcomes = self.kept + self.tombstones + self.flushes + self.other_split
        counted = self.records == outcomes + self.filtered.total() + self.dead_lettered.total()
        return counted and (not self.figures or self._figures_balance())

    def _figures_balance(self) -> bool:
        figures, kept = self.figures, self.kept
        lengths = figures.token_lengths.total() == figures.text_lengths.total() == kept
        # the tokenizer filters and refuses as well, behind all steps
        behind = self.filtered.total() - sum(amount.documents for amount in figures.filtered.values())
        refused = sum(step.refused.documents for step in figures.steps)
        passed = figures.steps[-1].passed.documents - kept - behind
        return figures.balanced and lengths and 0 <= passed <= self.dead_lettered.total() - refused and behind >= 0

    def copy(self) -> Self:
        """Return an independent copy."""
        return type(self).from_dict(self.to_dict())

    def __add__(self, other: "Totals") -> "Totals":
        """Return the sum of two chains' totals."""
        total = Totals()
        for name in ("records", "kept", "tombstones", "flushes", "other_split", "tokens", "value_bytes"):
            setattr(total, name, getattr(self, name) + getattr(other, name))
        total.filtered = self.filtered + other.filtered
        total.dead_lettered = self.dead_lettered + other.dead_lettered
        total.figures = self.figures + other.figures
        total.packing = self.packing + other.packing
        return total

    def to_dict(self) -> dict[str, Any]:
        """Return the totals as JSON types, without reasons that have no record, and without figures that are empty."""
        values = {
            "records": self.records,
            "kept": self.kept,
            "filtered": {reason: n for reason, n in self.filtered.items() if n},
            "tombstones": self.tombstones,
            "dead_lettered": {reason: n for reason, n in self.dead_lettered.items() if n},
            "flushes": self.flushes,
            "other_split": self.other_split,
            "tokens": self.tokens,
            "value_bytes": self.value_bytes,
        }
        if self.figures:
            values["figures"] = self.figures.to_dict()
        packing = {name: n for name, n in self.packing.items() if n}
        return {**values, "packing": packing} if packing else values

    def pack(self) -> bytes:
        """Return canonical JSON: equal totals give equal bytes."""
        return canonical_json(self.to_dict())

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> Self:
        """Return the totals that `pack` made these bytes of.

        Raises:
            ValueError, TypeError: these bytes are no totals, or hold a name that this version does not know.

        """
        values = parse_json(data)
        if not isinstance(values, dict):
            raise TypeError(f"totals are a JSON object, not {type(values).__name__}")
        return cls.from_dict(values)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the totals that `to_dict` made this mapping of; an unknown name is a TypeError."""
        counters = {name: Counter(values.get(name, {})) for name in ("filtered", "dead_lettered", "packing")}
        figures = {"figures": Figures.from_dict(values["figures"])} if "figures" in values else {}
        return cls(**{**values, **counters, **figures})
