"""The manifest of a sealed segment: what its other files must be, in canonical JSON and one newline."""

from dataclasses import asdict, dataclass, fields
from typing import Self

from tokenmill.canonical import canonical_json
from tokenmill.store.layout import FORMAT
from tokenmill.untrusted import parse_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The description of a sealed segment. Two stores of one stream hold equal manifests, byte for byte."""

    format: int = FORMAT
    stream: str
    partition: int
    first: int
    """Number of the first block."""
    blocks: int
    """Number of blocks, the stream's ``segment_blocks``."""
    block_tokens: int
    """Tokens per block."""
    dtype: str
    fingerprint: str
    """Of the stream, in hexadecimal; so are the chain hashes."""
    chain_before: str
    """Chain hash before the first block."""
    chain_after: str
    """Chain hash after the last block."""
    bin_bytes: int
    """Length of ``.bin``."""
    docs_bytes: int
    """Length of ``.docs``."""
    bin_crc32: int
    docs_crc32: int
    index_crc32: int

    def encode(self) -> bytes:
        """Return the manifest's bytes."""
        return canonical_json(asdict(self)) + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the manifest that `encode` made these bytes of.

        Raises:
            ValueError: they are no manifest of this format, or are spelled in another way.

        """
        values = parse_json(data)
        if not isinstance(values, dict) or set(values) != {field.name for field in fields(cls)}:
            raise ValueError("it is no manifest")
        if values["format"] != FORMAT:
            raise ValueError(f"it has format {values['format']}, this version knows format {FORMAT}")
        for name in ("fingerprint", "chain_before", "chain_after"):
            if values[name] != bytes.fromhex(str(values[name])).hex():
                raise ValueError(f"its {name} is no hexadecimal number")
        if canonical_json(values) + b"\n" != data:
            raise ValueError("it is not spelled as it was written")
        return cls(**values)
