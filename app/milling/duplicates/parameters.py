"""What counts as a duplicate: the parameters of the setting ``dedup``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tokenmill.errors import SettingsError
from tokenmill.parameters import canonical_choice, checked_values

VERSION: Final = 1
"""Of the arithmetic in docs/format.md, which is in the recipe: a rule that changes gets the next one."""
SLICES: Final = 4
"""Parts of a window; the oldest is forgotten as a whole."""
PLACE: Final = 2
"""Numbers by which a document's place is told: where it is from, and its offset there."""
_MOST_WINDOW: Final = 1 << 34
"""A slice has fewer entries than 2**32 then, with the most bands."""


@dataclass(frozen=True, slots=True)
class Exact:
    """The same text again."""

    window: int = 100_000_000
    """Kept documents among which duplicates are looked for, at most; and never fewer than the newest 3/4 of so many."""
    fold: bool = False
    """Whether texts are the same that differ in capitals and white space alone."""
    domain: str = ""
    """Names the topics among which a service looks for duplicates together; not set: the raw topic alone."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        _require("window", self.window, SLICES, _MOST_WINDOW)

    @property
    def entries(self) -> int:
        """Hashes by which a document is found."""
        return 1

    @property
    def width(self) -> int:
        """Hashes of a signature."""
        return 1

    @property
    def table_bytes(self) -> float:
        """Bytes of memory for each document of the window."""
        return 6.0

    @property
    def row_bytes(self) -> int:
        """Bytes on the disk for each document of the window."""
        return 8 * (self.width + PLACE)


@dataclass(frozen=True, slots=True)
class Near:
    """The same text again, or one that shares most of its runs of words with it (MinHash with bands)."""

    window: int = 10_000_000
    """Kept documents among which duplicates are looked for, at most; and never fewer than the newest 3/4 of so many."""
    fold: bool = False
    """Whether capitals and white space are passed over, in runs of words as well."""
    shingle: int = 5
    """Words of a run; of a document with fewer words, the whole text alone decides."""
    bands: int = 14
    """Bands of hashes; a document is a duplicate where all hashes of one band are those of an earlier document."""
    rows: int = 8
    """Hashes of a band."""
    domain: str = ""
    """Names the topics among which a service looks for duplicates together; not set: the raw topic alone."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        _require("window", self.window, SLICES, _MOST_WINDOW // 64)
        _require("shingle", self.shingle, 1, 101)
        _require("bands", self.bands, 1, 65)
        _require("rows", self.rows, 2, 32)

    @property
    def entries(self) -> int:
        """Hashes by which a document is found."""
        return self.bands

    @property
    def width(self) -> int:
        """Hashes of a signature: one a band, and that of the text."""
        return self.bands + 1

    @property
    def table_bytes(self) -> float:
        """Bytes of memory for each document of the window."""
        return 4.5 * self.bands

    @property
    def row_bytes(self) -> int:
        """Bytes on the disk for each document of the window."""
        return 8 * (self.width + PLACE)

    def chance(self, similarity: float) -> float:
        """Return how likely a document is found that has this Jaccard similarity with one in the window."""
        return float(1 - (1 - similarity**self.rows) ** self.bands)


@dataclass(frozen=True, slots=True)
class Off:
    """All documents are kept."""


Deduplication: TypeAlias = Exact | Near
KINDS: Final[Mapping[str, type[Any]]] = {"none": Off, "exact": Exact, "near": Near}
"""By the names that settings have."""


def canonical_dedup(value: Any) -> dict[str, Any]:
    """Return the setting's value as a table of its ``name`` and the parameters that have not their default.

    Raises SettingsError for an unknown name or parameter, or a value that cannot be used.
    """
    return canonical_choice(value, KINDS, 'as "near"', 'as {name = "near", window = 1000000}')


def recipe_dedup(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a recipe has of the setting in its canonical form."""
    return {} if table["name"] == "none" else {**table, "version": VERSION}


def deduplication_of(table: Mapping[str, Any]) -> Deduplication | None:
    """Return the parameters in a recipe's ``dedup``, those with their default as well; None where it is empty.

    Raises SettingsError where this version does not know its rules.
    """
    if not table:
        return None
    given = {name: value for name, value in table.items() if name not in {"name", "version"}}
    if table["name"] not in KINDS or table["version"] != VERSION:
        raise SettingsError(f"dedup {dict(table)} is unknown here: use the version that made the stream")
    found: Deduplication = KINDS[table["name"]](**checked_values(KINDS[table["name"]], given, "dedup"))
    return found


def _require(name: str, value: int, least: int, below: int) -> None:
    if not least <= value < below:
        raise ValueError(f"{name} = {value}: set it to {least} or more, below {below:,}")
