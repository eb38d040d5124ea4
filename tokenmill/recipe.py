"""Everything that decides a stream's tokens, and its fingerprint."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from hashlib import sha256
from typing import Any, Final, Self

import numpy as np

from tokenmill.canonical import canonical_json
from tokenmill.errors import FingerprintError

FORMAT: Final = 1
"""Version of the rules by which a recipe and a log make tokens; a change of any answer raises it."""
FINGERPRINT_BYTES: Final = 16
RAW_BYTES_SHA256: Final = sha256(b"bytes").hexdigest()
"""What a recipe has where there is no tokenizer file."""
LATER: Final[Mapping[str, Any]] = {
    "allow_flush": True,
    "begin_of_document": (),
    "dedup": {},
    "packing_parameters": {},
    "padding": None,
    "pipeline": (),
    "segment_tokens": None,
    "special_tokens_in_text": "text",
}
"""Fields added after the first streams, with their defaults; a recipe omits a default of these (`Recipe.to_dict`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One stream's way from records to blocks. Two recipes are the same stream if their fingerprints are equal.

    A field without a description here has the meaning of the setting of its name (docs/settings.md).
    """

    raw_topic: str
    start: str
    """``earliest``, or an ISO timestamp from which records count."""
    decode: str
    text_fields: tuple[str, ...]
    id_field: str
    metadata_fields: tuple[str, ...]
    max_text_bytes: int
    """0 in a draft: that of the tokenizer (`tokenmill.app.milling.recipe_stages.complete`)."""
    max_id_bytes: int
    max_fields_bytes: int
    normalize: str
    min_chars: int
    function: str | None
    steps: tuple[Mapping[str, Any], ...]
    """What the decoder and each step say of themselves (`describe`): name, parameters, version."""
    shards: int
    splits: tuple[tuple[str, int], ...]
    """Names and sizes of all splits of the raw topic, in order; they decide where this one's shards begin."""
    split_by: str
    split: str
    tokenizer_sha256: str
    """Of the ``tokenizer.json``; of the word ``bytes`` for raw bytes."""
    end_of_document: int | tuple[int, ...]
    """The id after those of each text; a tuple where there are several, or none (`Recipe.after`)."""
    vocabulary_size: int
    probe: str
    """Hash of the ids of the fixed probe text, so that a library that gives other ids is noticed."""
    packing: str
    block_tokens: int
    dtype: str
    allow_flush: bool = True
    """Whether records may fill the open blocks with padding; where not, such a record is a tombstone."""
    pipeline: tuple[Mapping[str, Any], ...] = ()
    """What the setting ``steps`` asks for, in order (`tokenmill.app.milling.steps.pipeline`): each step's name and the
    parameters that have not their default; of a list file, the hash of its content."""
    begin_of_document: tuple[int, ...] = ()
    packing_parameters: Mapping[str, Any] = field(default_factory=dict)
    """Those of the packing that have not their default (`tokenmill.packings`)."""
    segment_tokens: int | None = None
    """Tokens that a model reads at a time, where the packing is ``chunks``: blocks do not show it."""
    padding: int | None = None
    """The id that padding is made of, where it is not the last one of a document (`Recipe.padding_id`)."""
    special_tokens_in_text: str = "text"
    dedup: Mapping[str, Any] = field(default_factory=dict)
    """What the setting asks for: ``name``, the ``version`` of its rules, and the parameters that have not their
    default; empty where duplicates are kept."""

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as JSON types, without defaults of `LATER`: earlier streams keep their fingerprint."""
        values = asdict(self)
        unsaid = {name for name, default in LATER.items() if values[name] == default}
        return {"format": FORMAT, **{name: value for name, value in values.items() if name not in unsaid}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the recipe of this mapping; raises FingerprintError where that has another format or other fields."""
        known = {one.name for one in fields(cls)}
        given = set(values) - {"format"}
        plain = {name: value for name, value in values.items() if name != "format"}
        for name in ("text_fields", "metadata_fields", "steps", "pipeline", "begin_of_document", "end_of_document"):
            if isinstance(plain.get(name), list):
                plain[name] = tuple(plain[name])
        spelled_out = any(plain[name] == default for name, default in LATER.items() if name in plain)
        end = plain.get("end_of_document")
        spelled_out |= isinstance(end, tuple) and len(end) == 1
        if values.get("format") != FORMAT or not known - LATER.keys() <= given <= known or spelled_out:
            raise FingerprintError(
                f"the stream was made by format {values.get('format')}, this version knows format {FORMAT}: "
                "use the version that made it, or a new stream name"
            )
        plain["splits"] = tuple((str(name), int(size)) for name, size in plain["splits"])
        return cls(**plain)

    @property
    def after(self) -> tuple[int, ...]:
        """The ids after those of each text."""
        return (self.end_of_document,) if isinstance(self.end_of_document, int) else self.end_of_document

    @property
    def padding_id(self) -> int:
        """The id that padding is made of; 0 in a stream that never has any."""
        return self.padding if self.padding is not None else (0, *self.after)[-1]

    @property
    def fingerprint(self) -> bytes:
        """The first 16 bytes of the SHA-256 of the recipe's canonical JSON."""
        return sha256(canonical_json(self.to_dict())).digest()[:FINGERPRINT_BYTES]

    @property
    def token_dtype(self) -> "np.dtype[np.unsignedinteger]":
        """The little-endian dtype of the stream's tokens."""
        return np.dtype(self.dtype).newbyteorder("<")

    @property
    def sequence_length(self) -> int:
        """The setting of that name: tokens that a model reads at a time."""
        if self.segment_tokens is not None:
            return self.segment_tokens
        return self.block_tokens - (self.packing != "rows")

    @property
    def block_bytes(self) -> int:
        """Bytes of one block's tokens."""
        return self.block_tokens * np.dtype(self.dtype).itemsize

    @property
    def rules(self) -> Mapping[str, int] | None:
        """The versions of the rules of steps and ``decode``, 1 if unnamed; None in a draft, which gets the newest."""
        return {str(step["name"]): step.get("version", 1) for step in self.steps} if self.steps else None

    def decoded_otherwise(self, other: "Recipe") -> bool:
        """Return whether the two have the same decoder settings, but other rules or another version of a function."""
        return self.decode == other.decode and self.decoder != other.decoder

    @property
    def normalized_length(self) -> int | None:
        """Most bytes of a normalized text in UTF-8; None: no limit."""
        found = (step.get("max_bytes") for step in self.steps if step.get("name") == "normalized_length")
        return next(found, None)

    @property
    def decoder(self) -> tuple[Mapping[str, Any], ...]:
        """The decoder's own description (`describe`); empty for plain text."""
        return tuple(step for step in self.steps if step.get("name") == "decode")
