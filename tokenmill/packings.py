"""The packings that a stream may have, and their parameters: from the setting ``packing`` to a recipe, and back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from tokenmill.errors import SettingsError
from tokenmill.parameters import canonical_choice, checked_values, parameters_of, require_within

if TYPE_CHECKING:
    from tokenmill.recipe import Recipe

CONCAT: Final = "concat"
_MOST: Final = 1 << 31
"""Above every number that a parameter may have: sums of such numbers fit everywhere."""


class PackingParameters:
    """The parameters of one packing; a ValueError when one is made says which value cannot be used, and why."""

    __slots__ = ()

    @property
    def pads(self) -> bool:
        """Whether blocks may have padding that no flush asked for."""
        return False

    def block_tokens(self, sequence_length: int) -> int:
        """Return a block's ids, one more than a model reads as a rule; a ValueError says why no length fits."""
        return sequence_length + 1


@dataclass(frozen=True, slots=True)
class Concat(PackingParameters):
    """All documents one after the other, cut where a block ends: no padding but that of flushes."""


@dataclass(frozen=True, slots=True)
class Fit(PackingParameters):
    """Whole documents: what fits a block is never cut. Blocks are closed with padding where nothing fits any more."""

    open_blocks: int = 64
    """Blocks that wait for documents at a time."""
    max_age_offsets: int = 16_384
    """A block whose oldest piece is more than so many offsets behind is closed, so that a resume reads no more. So far
    behind, blocks of up to 131,072 tokens are as full as without a limit, and messages refer to 330 kB at most."""

    def __post_init__(self) -> None:
        require_within("open_blocks", self.open_blocks, 1, 1 << 16)
        require_within("max_age_offsets", self.max_age_offsets, 1, _MOST)

    @property
    def pads(self) -> bool:
        """Yes: where nothing fits any more."""
        return True


@dataclass(frozen=True, slots=True)
class Rows(PackingParameters):
    """One document a row of ``sequence_length`` ids, template included, as a tokenizer's call with padding gives it."""

    long: Literal["truncate", "split", "drop"] = "truncate"
    """What becomes of a document that is longer than a row: the rest of its text is left out, or goes into rows of its
    own, each with the template; or the document is dropped and counted as ``too_long``."""
    short: Literal["pad", "drop"] = "pad"
    """What becomes of a row that is not full: it is padded; or dropped, and a document without any other is counted as
    ``too_short``."""

    @property
    def pads(self) -> bool:
        """Whether short rows are padded."""
        return self.short == "pad"

    def block_tokens(self, sequence_length: int) -> int:
        """As many as a model reads: a row is what a tokenizer's call gives, and its label is no next token."""
        return sequence_length


@dataclass(frozen=True, slots=True)
class Chunks(PackingParameters):
    """Long documents in chunks of several segments of ``sequence_length`` tokens, for models that remember."""

    chunk_tokens: int = 5_120
    """Tokens of a chunk, a multiple of ``sequence_length``."""
    rest: Literal["drop", "pad"] = "drop"
    """What becomes of the end of a document, which is no whole chunk: it is dropped, and a document without a chunk is
    counted as ``too_short``; or it is padded."""

    def __post_init__(self) -> None:
        require_within("chunk_tokens", self.chunk_tokens, 1, _MOST)

    @property
    def pads(self) -> bool:
        """Whether the ends of documents are padded."""
        return self.rest == "pad"

    def block_tokens(self, sequence_length: int) -> int:
        """One more than the chunk: the last token's label, with which the next chunk of the document begins."""
        if self.chunk_tokens % sequence_length:
            near = max(1, self.chunk_tokens // sequence_length) * sequence_length
            raise ValueError(
                f"chunk_tokens = {self.chunk_tokens} is no multiple of sequence_length = {sequence_length}, which is "
                f"the segment that a model reads at a time: set it to {near}, for example"
            )
        return self.chunk_tokens + 1


PACKINGS: Final[Mapping[str, type[Any]]] = {CONCAT: Concat, "fit": Fit, "rows": Rows, "chunks": Chunks}
"""By name, in the order in which pages list them."""

SEPARATE: Final = frozenset({"rows", "chunks"})
"""Those in which each document has blocks of its own."""


def canonical_packing(value: Any) -> dict[str, Any]:
    """Return the packing's name and what has not its default, as JSON; raises SettingsError for what cannot be."""
    return canonical_choice(value, PACKINGS, 'as "concat"', 'as {name = "rows", long = "drop"}')


def packing_parameters(name: str, parameters: Mapping[str, Any]) -> PackingParameters:
    """Return the parameters of a packing; raises SettingsError where this version does not know it or one of them."""
    if name not in PACKINGS:
        raise SettingsError(f"packing {name!r} is unknown here: use the version that made the stream")
    found: PackingParameters = PACKINGS[name](**checked_values(PACKINGS[name], parameters, f"packing {name}"))
    return found


def packing_of(recipe: "Recipe") -> PackingParameters:
    """Return the parameters of a recipe's packing; raises as `packing_parameters`."""
    return packing_parameters(recipe.packing, recipe.packing_parameters)


def packing_in_words(name: str, parameters: Mapping[str, Any]) -> str:
    """Return a packing on one line, its defaults spelled out: ``rows (long = truncate, short = pad)``."""
    if name not in PACKINGS:
        return name
    known = {one.name: one.default for one in parameters_of(PACKINGS[name])}
    values = ", ".join(f"{key} = {value}" for key, value in {**known, **parameters}.items())
    return f"{name} ({values})" if values else name
