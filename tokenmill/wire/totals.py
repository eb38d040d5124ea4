"""What became of every record below a cursor, and figures of the steps that its documents passed.

In = kept + filtered + tombstones + dead-lettered + flushes + other split. Where a recipe has a list of steps, figures
say what each took and let pass, and how long is what was kept. All are functions of log, recipe and cursor, and can be
added up.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Self

from tokenmill.recipe import canonical_json
from tokenmill.untrusted import parse_json

LENGTHS = 64
"""Powers of two that a length can have: it is a signed integer of 64 bits."""


class Amount(NamedTuple):
    """Documents, and the bytes of their texts in UTF-8, or their tokens."""

    documents: int = 0
    size: int = 0

    def plus(self, other: "Amount") -> "Amount":
        """Return the sum."""
        return Amount(self.documents + other.documents, self.size + other.size)


NOTHING = Amount()
LANGUAGE = "language"
"""The step that says which language a document has, and the field in which it does."""


@dataclass(slots=True)
class StepFigures:
    """What came to one step of a recipe, and what left it. Sizes are bytes of text."""

    step: str
    taken: Amount = NOTHING
    passed: Amount = NOTHING
    """What it passed on. Its size is that of the texts as the step left them."""
    filtered: dict[str, Amount] = field(default_factory=dict)
    """What it filtered out, as it came, by the reason in `Totals.filtered`."""
    refused: Amount = NOTHING
    """What it could not answer for, which was dead-lettered, as it came."""

    @property
    def balanced(self) -> bool:
        """Whether each document that came is in one place."""
        return self.taken.documents == self.passed.documents + self.dropped.documents + self.refused.documents

    @property
    def dropped(self) -> Amount:
        """All that it filtered out."""
        return Amount(sum(a.documents for a in self.filtered.values()), sum(a.size for a in self.filtered.values()))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types; an amount is a list of documents and size."""
        filtered = {reason: list(amount) for reason, amount in self.filtered.items() if any(amount)}
        values = {"step": self.step, "in": list(self.taken), "out": list(self.passed), "filtered": filtered}
        return {**values, "dead_lettered": list(self.refused)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the figures that `to_dict` made this mapping of; anything else is a ValueError or TypeError."""
        if not isinstance(values, dict) or set(values) != {"step", "in", "out", "filtered", "dead_lettered"}:
            raise TypeError(f"a step's figures have other names than {values!r:.100}")
        return cls(
            step=str(values["step"]),
            taken=Amount(*values["in"]),
            passed=Amount(*values["out"]),
            filtered={reason: Amount(*amount) for reason, amount in values["filtered"].items()},
            refused=Amount(*values["dead_lettered"]),
        )

    def __add__(self, other: "StepFigures") -> "StepFigures":
        return StepFigures(
            self.step,
            self.taken.plus(other.taken),
            self.passed.plus(other.passed),
            _summed(self.filtered, other.filtered),
            self.refused.plus(other.refused),
        )


@dataclass(slots=True)
class Figures:
    """The figures of one chain, or of several; empty until a document has come to the first step."""

    steps: list[StepFigures] = field(default_factory=list)
    token_lengths: Counter[int] = field(default_factory=Counter)
    """Kept documents by their tokens, as counted in `Totals.tokens`: key ``k`` is ``2**k`` to ``2**(k+1) - 1``."""
    text_lengths: Counter[int] = field(default_factory=Counter)
    """Kept documents by the bytes of their texts as the last step left them."""
    languages: dict[str, Amount] = field(default_factory=dict)
    """Kept documents and their tokens by language, where a step `language` says which."""

    def __bool__(self) -> bool:
        return bool(self.steps)

    @property
    def balanced(self) -> bool:
        """Whether each step has what the one before passed on, and every document is in one place."""
        joined = all(one.passed == following.taken for one, following in zip(self.steps, self.steps[1:], strict=False))
        return joined and all(step.balanced for step in self.steps)

    @property
    def entered(self) -> Amount:
        """What came to the first step: the chain's documents."""
        return self.steps[0].taken if self.steps else NOTHING

    @property
    def filtered(self) -> dict[str, Amount]:
        """What all steps filtered out, by reason."""
        found: dict[str, Amount] = {}
        for step in self.steps:
            found = _summed(found, step.filtered)
        return found

    def step(self, label: str) -> StepFigures:
        """Return the figures of a step, which is listed last if it is new."""
        found = next((step for step in self.steps if step.step == label), None)
        if found is None:
            found = StepFigures(label)
            self.steps.append(found)
        return found

    def __add__(self, other: "Figures") -> "Figures":
        """Return the sum; steps that only the other has come last."""
        theirs = {step.step: step for step in other.steps}
        steps = [step + theirs.pop(step.step, StepFigures(step.step)) for step in self.steps]
        return Figures(
            [*steps, *(step + StepFigures(step.step) for step in theirs.values())],
            self.token_lengths + other.token_lengths,
            self.text_lengths + other.text_lengths,
            _summed(self.languages, other.languages),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        return {
            "steps": [step.to_dict() for step in self.steps],
            "tokens": _listed(self.token_lengths),
            "bytes": _listed(self.text_lengths),
            "languages": {language: list(amount) for language, amount in self.languages.items() if any(amount)},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the figures that `to_dict` made this mapping of; anything else is a ValueError or TypeError."""
        if not isinstance(values, dict) or set(values) != {"steps", "tokens", "bytes", "languages"}:
            raise TypeError(f"figures have other names than {values!r:.100}")
        return cls(
            [StepFigures.from_dict(step) for step in values["steps"]],
            _counted(values["tokens"]),
            _counted(values["bytes"]),
            {language: Amount(*amount) for language, amount in values["languages"].items()},
        )


def _summed(one: Mapping[str, Amount], other: Mapping[str, Amount]) -> dict[str, Amount]:
    return {name: one.get(name, NOTHING).plus(other.get(name, NOTHING)) for name in {**one, **other}}


def _listed(lengths: Counter[int]) -> list[int]:
    return [lengths[key] for key in range(max(+lengths, default=-1) + 1)]


def _counted(counts: Sequence[int]) -> Counter[int]:
    if len(counts) > LENGTHS:
        raise ValueError(f"a length has one of {LENGTHS} powers of two, not of {len(counts)}")
    return Counter({key: count for key, count in enumerate(counts) if count})


@dataclass(slots=True)
class Totals:
    """What became of the records of one raw partition in one chain, from its start up to a cursor.

    Totals depend on the cursor alone: a document that the cursor is in the middle of is not counted yet.
    """

    records: int = 0
    kept: int = 0
    tombstones: int = 0
    """Records with a null value that asked for no flush."""
    flushes: int = 0
    """Records that asked for padding up to the block's end."""
    other_split: int = 0
    filtered: Counter[str] = field(default_factory=Counter)
    dead_lettered: Counter[str] = field(default_factory=Counter)
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
        total = Totals()
        for one in fields(self):
            setattr(total, one.name, getattr(self, one.name) + getattr(other, one.name))
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
        """Return the totals of these bytes; raises ValueError or TypeError where this version knows none such."""
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
