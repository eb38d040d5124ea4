"""Under which names the totals count what each step of a recipe filters out."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

SHORT_FORMS: Final = frozenset({"normalize", "function", "not_empty", "min_chars", "normalized_length"})
"""Steps that settings of their own ask for. There is one of each, so their reasons are counted as they are."""


def step_labels(names: Iterable[str]) -> tuple[str, ...]:
    """Return a label for each step: its name, and for the second and later ones of a name ``regex_2``, ``regex_3``."""
    seen: Counter[str] = Counter()
    labels = []
    for name in names:
        seen[name] += 1
        labels.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return tuple(labels)


def counting_key(label: str, reason: str) -> str:
    """Return the name under which totals count documents that the step of this label filters out for ``reason``.

    ``reason`` alone for one of `SHORT_FORMS`, else ``label.reason``.
    """
    return reason if label in SHORT_FORMS else f"{label}.{reason}"
