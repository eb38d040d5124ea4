"""Figures of a stream whose recipe has a list of steps: what each took and let pass, and lengths of what was kept.

They are part of a chain's totals (`tokenmill.wire.totals`): functions of log, recipe and cursor that can be added up.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

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
    """The step's label in its recipe."""
    taken: Amount = NOTHING
    """What came: that which the step before passed on."""
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
        """Return the sum with another chain's same step."""
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
    """One for each step of the recipe, in its order."""
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
    """Return the counts from key 0 on, none behind the last that is not 0."""
    return [lengths[key] for key in range(max(+lengths, default=-1) + 1)]


def _counted(counts: Sequence[int]) -> Counter[int]:
    if len(counts) > LENGTHS:
        raise ValueError(f"a length has one of {LENGTHS} powers of two, not of {len(counts)}")
    return Counter({key: count for key, count in enumerate(counts) if count})
