"""What counts as a duplicate: the parameters of the setting ``dedup``, signatures, and what is said of documents.

Signatures are the hashes that are compared; docs/format.md says the arithmetic. The window in which they are looked for
is another module: a mill asks a sequencer, and loads no store.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.documents import SourceRecord, index_at
from tokenmill.errors import SettingsError
from tokenmill.parameters import canonical_choice, checked_values, require_within

from ..steps.protocol import Rejected

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
    """Whether texts are the same that, in small letters (`str.lower` of Python), differ in white space alone."""
    domain: str = ""
    """Names the topics among which a service looks for duplicates together; not set: the raw topic alone."""

    entries: ClassVar[int] = 1
    width: ClassVar[int] = 1
    table_bytes: ClassVar[float] = 6.0
    """As those of `Near`."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        require_within("window", self.window, SLICES, _MOST_WINDOW)


@dataclass(frozen=True, slots=True)
class Near:
    """The same text again, or one that shares most of its runs of words with it (MinHash with bands)."""

    window: int = 10_000_000
    """Kept documents among which duplicates are looked for, at most; and never fewer than the newest 3/4 of so many."""
    fold: bool = False
    """The same, in runs of words as well."""
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
        require_within("window", self.window, SLICES, _MOST_WINDOW // 64)
        require_within("shingle", self.shingle, 1, 101)
        require_within("bands", self.bands, 1, 65)
        require_within("rows", self.rows, 2, 32)

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

    def chance(self, similarity: float) -> float:
        """Return how likely a document is found that has this Jaccard similarity with one in the window."""
        return float(1 - (1 - similarity**self.rows) ** self.bands)


@dataclass(frozen=True, slots=True)
class Off:
    """All documents are kept."""


Deduplication: TypeAlias = Exact | Near
KINDS: Final[Mapping[str, type[Any]]] = {"none": Off, "exact": Exact, "near": Near}
"""By the names that settings have."""


def row_bytes(deduplication: Deduplication) -> int:
    """Return the bytes on the disk for each document of the window."""
    return 8 * (deduplication.width + PLACE)


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


if TYPE_CHECKING:
    from types import ModuleType

    from ..partition_mill import Looked, PartitionMill

Hashes: TypeAlias = npt.NDArray[np.uint64]
NOTHING: Final = 0
"""In place of a band's hash, of a document that has no bands; a hash that is 0 is 1."""
_ALONE: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""Characters of scripts without spaces between words: Thai, Lao, Burmese, Khmer, kana, Han. Each is a word."""


def sign(deduplication: Deduplication, texts: Sequence[str]) -> Hashes:
    """Return the signatures of texts; shape ``[texts, width]``: of ``near`` one hash a band, then that of the text.

    Raises SettingsError: numba is not installed.
    """
    if not texts:
        return np.zeros((0, deduplication.width), np.uint64)
    if deduplication.fold:
        texts = [" ".join(text.lower().split()) for text in texts]
    exact = np.fromiter((xxhash.xxh3_64_intdigest(text.encode()) for text in texts), np.uint64, len(texts))
    if isinstance(deduplication, Near):
        least = np.array([1, *[NOTHING] * (deduplication.bands - 1), 1], np.uint64)
        return np.maximum(np.column_stack([_bands(deduplication, texts, exact), exact]), least)
    return np.maximum(exact, 1)[:, None]


def words_of(text: str) -> str:
    """Return the words of a text with a space between two."""
    if not text.isascii():
        text = _ALONE.sub(r" \g<0> ", text)
    return " ".join(text.split())


def _bands(near: Near, texts: Sequence[str], exact: Hashes) -> Hashes:
    """Return the hash of each band; of a text with too few words, its own hash in the first place alone."""
    native = kernels()
    encoded = [words_of(text).encode() for text in texts]
    data = np.frombuffer(b" ".join([*encoded, b" " * native.PADDING]), np.uint8)
    stops = np.cumsum([len(words) + 1 for words in encoded]) - 1  # the space behind each text
    ends = np.flatnonzero(data[: stops[-1] + 1] == ord(" "))
    begins = np.append(0, ends[:-1] + 1)
    last = np.searchsorted(ends, stops)  # word of each text
    counts = np.maximum(np.diff(last, prepend=-1) - near.shingle + 1, 0)
    bounds = np.append(0, np.cumsum(counts))
    first = np.append(-1, last[:-1]) + 1
    shingles = np.arange(bounds[-1]) + np.repeat(first - bounds[:-1], counts)
    hashes = _shingle_hashes(data, begins[shingles], ends[shingles + near.shingle - 1])
    smallest = np.full((len(texts), near.bands * near.rows), 0xFFFFFFFF, np.uint32)
    native.smallest_values(hashes, bounds, *permutations(near.bands * near.rows), smallest)
    bands = np.zeros((len(texts), near.bands), np.uint64)
    packed = np.zeros((len(texts), near.bands, 1 + near.rows), "<u4")
    packed[:, :, 0] = np.arange(near.bands)
    packed[:, :, 1:] = smallest.reshape(len(texts), near.bands, near.rows)
    padded = np.append(packed.view(np.uint8), np.zeros(native.PADDING, np.uint8))
    native.hash_bands(padded, packed.itemsize * (1 + near.rows), bands.reshape(-1))
    bands = np.maximum(bands, 1)
    short = counts == 0
    bands[short] = NOTHING
    bands[short, 0] = exact[short]
    return bands


def _shingle_hashes(data: npt.NDArray[np.uint8], begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Hashes:
    native = kernels()
    hashes = np.zeros(len(begins), np.uint64)
    native.hash_spans(data, begins, ends, hashes)
    sizes = ends - begins
    for at in np.flatnonzero((sizes < native.SHORTEST) | (sizes > native.LONGEST)).tolist():
        hashes[at] = xxhash.xxh3_64_intdigest(data[begins[at] : ends[at]].tobytes())
    return hashes


@cache
def permutations(count: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """Return the factors and the terms of the permutations; shape ``[count]`` each."""
    numbers = [xxhash.xxh3_64_intdigest(number.to_bytes(8, "little")) for number in range(2 * count)]
    low = np.array(numbers, np.uint64).astype(np.uint32)
    return low[::2] | np.uint32(1), low[1::2].copy()


def kernels() -> "ModuleType":
    """Return the module of that name. Raises SettingsError where numba is not installed."""
    try:
        return import_module(".kernels", __package__)
    except ImportError as error:
        raise SettingsError(
            f"dedup needs numba, which cannot be loaded ({error}): install tokenmill[curation]"
        ) from error


class SignedRecords(NamedTuple):
    """Consecutive records of a partition."""

    milled: Sequence[SourceRecord]
    """Those that are to be milled when all is known of them."""
    looked: "Looked"
    """The same, behind all steps."""
    offsets: npt.NDArray[np.int64]
    """Of the documents of all records that the steps keep; shape ``[documents]``, ascending."""
    hashes: Hashes
    """Their signatures, as `sign` returns them."""


def sign_records(
    mill: "PartitionMill", deduplication: Deduplication, records: Sequence[SourceRecord], begin: int
) -> SignedRecords:
    """Take records through the steps and sign what these keep; those below offset ``begin`` are milled already.

    Raises as `PartitionMill.look`, and SettingsError where numba is not installed.
    """
    cut = index_at(records, begin)
    parts = [mill.look(records[:cut]), mill.look(records[cut:])]
    found = [document for part in parts for columns in part.columns for document in columns.kept_texts()]
    offsets = np.array([offset for offset, _ in found], np.int64)
    return SignedRecords(records[cut:], parts[1], offsets, sign(deduplication, [text for _, text in found]))


REASONS: Final = ("", "duplicate_exact", "duplicate_near")
SAID: Final = ("", "the text of", "resembles")
"""By kind."""


class Verdicts(NamedTuple):
    """What consecutive documents are."""

    kinds: npt.NDArray[np.uint8]
    """`KEPT`, `EXACT` or `NEAR`; shape ``[documents]``."""
    places: Hashes
    """Source and offset of the kept document that a duplicate resembles, of a kept one its own; ``[documents, 2]``."""


def rejections(verdicts: Verdicts, name: Callable[[int, int], str]) -> list[Rejected | None]:
    """Return how each duplicate is filtered out, with the ``name`` of the place that it resembles; None of others."""
    return [
        Rejected(REASONS[kind], f"{SAID[kind]} {name(source, offset)}") if kind else None
        for kind, (source, offset) in zip(verdicts.kinds.tolist(), verdicts.places.tolist(), strict=True)
    ]
