"""The rules that decoders have had, by number, with what each allows one value to ask for.

A recipe says by which rules its stream is decoded (``{"name": "decode", "rules": 3}`` in its ``steps``), and a stream
keeps them for good. What is bounded is counted, never timed: a value is a document on every machine, or on none.
"""

from dataclasses import dataclass
from typing import Final

from tokenmill.errors import RecordError

from .reasons import TOO_MANY_VALUES


@dataclass(frozen=True, slots=True)
class DecodingRules:
    """What decides a decoder's answers beside its settings."""

    number: int
    """In a recipe; raised when any answer changes (docs/record_to_tokens.md has the history)."""
    most_values: int
    """Most values that one record may be decoded to: items, entries and fields at all depths. Each takes up to 200
    bytes of memory, however few it takes in the record."""
    most_steps: int | None
    """Most steps that validating one record may take (`milling.decoding.schema_cost`); None: any number."""
    most_schema_characters: int
    """Most characters of a schema with all that it refers to. Compilers of schemas are slow with large ones."""
    scalars_are_text: bool
    """Whether mode ``auto`` takes JSON that is no object or array for plain text."""

    def too_many_values(self) -> RecordError:
        """Return the error for a record that would be decoded to more than `most_values`."""
        return RecordError(
            TOO_MANY_VALUES, f"it holds over {self.most_values:,} values: send its parts as records of their own"
        )


RULES: Final = DecodingRules(3, 1_000_000, 5_000_000, 1 << 18, scalars_are_text=False)
"""Those of new streams. A million values are 200 MB, and a record of so many is read within seconds."""
KNOWN: Final = {2: DecodingRules(2, 50_000_000, None, 1 << 24, scalars_are_text=True), 3: RULES}
"""All that streams may have. Rules 2 had no bounds: these are beyond what a worker's memory could take then."""
VALUE_RULES: Final = {2: 1, 3: 2}
"""What a recipe says beside them of values of a schema registry (docs/kafka_teams.md)."""
