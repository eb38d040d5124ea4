"""A stream's genesis: the first record of its kind on the control topic defines the stream for good."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

from tokenmill.errors import DamagedError
from tokenmill.recipe import Recipe, canonical_json

GENESIS_KEY: Final = b"genesis"
MAX_PARTITIONS: Final = 65_536
"""Most partitions of a stream: more than a topic of any cluster has."""


@dataclass(frozen=True, slots=True)
class Genesis:
    """The definition of a stream: its recipe, and where each partition's chain starts."""

    stream: str
    recipe: Recipe
    starts: tuple[int, ...]
    """The start offset of each raw partition; one added later starts at 0."""
    segment_blocks: int
    """Blocks in a segment, the same in every store, so that stores can be compared file by file."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Library versions at genesis, for people; not part of the fingerprint."""

    def start(self, partition: int) -> int:
        """Return the offset at which the chain of ``partition`` starts."""
        return self.starts[partition] if partition < len(self.starts) else 0

    def to_dict(self) -> dict[str, Any]:
        """Return the genesis as JSON types."""
        return {
            "stream": self.stream,
            "fingerprint": self.recipe.fingerprint.hex(),
            "recipe": self.recipe.to_dict(),
            "starts": list(self.starts),
            "segment_blocks": self.segment_blocks,
            "versions": dict(self.versions),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the genesis of this mapping; raises DamagedError where the recipe does not hash to its fingerprint.

        Also FingerprintError for another format version; ValueError, TypeError, LookupError where the values are none.
        """
        recipe = Recipe.from_dict(values["recipe"])
        if recipe.fingerprint.hex() != values["fingerprint"]:
            raise DamagedError(
                f"the genesis of {values['stream']!r} says fingerprint {values['fingerprint']}, its recipe hashes to "
                f"{recipe.fingerprint.hex()}: the control topic was changed by hand; use a new stream name"
            )
        genesis = cls(values["stream"], recipe, tuple(values["starts"]), values["segment_blocks"], values["versions"])
        genesis._require_sound()
        return genesis

    def pack(self) -> bytes:
        """Return the control record's value."""
        return canonical_json(self.to_dict())

    def _require_sound(self) -> None:
        numbers: tuple[Any, ...] = (*self.starts, self.segment_blocks)
        others: tuple[Any, ...] = (self.stream, self.versions)
        if not all(type(number) is int and 0 <= number < 1 << 63 for number in numbers) or not self.segment_blocks:
            raise ValueError("a start offset, or the number of blocks in a segment, is no such number")
        if len(self.starts) > MAX_PARTITIONS or not (isinstance(others[0], str) and isinstance(others[1], dict)):
            raise ValueError("it has too many partitions, no name or no versions")
        for one in fields(Recipe):
            value = getattr(self.recipe, one.name)
            if one.type in {int, str} and type(value) is not one.type:
                raise ValueError(f"its recipe's {one.name} is {value!r}")
        if self.recipe.block_tokens < 1 or self.recipe.dtype not in {"uint8", "uint16", "uint32"}:
            raise ValueError("its blocks have no tokens, or tokens of no type")
