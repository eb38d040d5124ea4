"""What defines a stream: the recipe of its tokens with its fingerprint, and its genesis.

A genesis is the first record of its kind on the control topic, and defines the stream for good. What differs between
two recipes is said in the words of the settings that people write.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from hashlib import sha256
from typing import Any, Final, Self

import numpy as np

from tokenmill.errors import DamagedError, FingerprintError
from tokenmill.packings import packing_in_words
from tokenmill.parameters import default_of

FORMAT: Final = 1
"""Version of the rules by which a recipe and a log make tokens; a change of any answer raises it."""
FINGERPRINT_BYTES: Final = 16
RAW_BYTES_SHA256: Final = sha256(b"bytes").hexdigest()
"""What a recipe has where there is no tokenizer file."""


def canonical_json(value: Any) -> bytes:
    """Return UTF-8 JSON with sorted keys and no spaces, the one spelling of what is hashed or compared byte for byte.

    NaN and infinities are a ValueError.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


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
    def division(self) -> bytes:
        """The fingerprint of all but the split: what the streams that divide one raw topic's documents share."""
        return replace(self, split="").fingerprint

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


LATER: Final = {one.name: default_of(one) for one in fields(Recipe) if default_of(one) is not MISSING}
"""Fields added after the first streams, with their defaults; a recipe omits a default of these (`Recipe.to_dict`)."""

_FRAME: Final = ("begin_of_document", "end_of_document", "padding")
_TOKENIZER: Final = ("tokenizer_sha256", "vocabulary_size", "probe", "dtype", *_FRAME)
_LOADED: Final = ("steps", "block_tokens", "packing_parameters", "segment_tokens", *_TOKENIZER)
PLAIN: Final = (*(one.name for one in fields(Recipe) if one.name not in _LOADED), "sequence_length")
"""What a recipe has from the settings alone, without loading a tokenizer or a function."""

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
        if not all(isinstance(entry, dict) for entry in (*self.recipe.steps, *self.recipe.pipeline)):
            raise ValueError("its recipe has steps that are no objects")
        if self.recipe.block_tokens < 1 or self.recipe.dtype not in {"uint8", "uint16", "uint32"}:
            raise ValueError("its blocks have no tokens, or tokens of no type")


def plain_differences(stream: Recipe, here: Recipe) -> list[str]:
    """Return differences that need no tokenizer, ``name: the stream has …, here …``; ``here`` may be a draft."""
    return [
        f"{SETTINGS.get(name, name)}: the stream has {_shown(name, mine)}, here {_shown(name, theirs)}"
        for name in PLAIN
        if (mine := _value(stream, name)) != (theirs := _value(here, name))
        and not (name == "max_text_bytes" and theirs == 0)
    ]


def differences(stream: Recipe, here: Recipe) -> list[str]:
    """Return what differs, each as ``name: the stream has …, here …``; of hashes, only those of tokenizer files."""
    found = plain_differences(stream, here)
    said = {line.partition(":")[0] for line in found}
    if stream.decoded_otherwise(here):
        found.append(f"decode: the stream has {_steps(stream.decoder)}, here {_steps(here.decoder)}")
    same_file = stream.tokenizer_sha256 == here.tokenizer_sha256
    if stream.normalized_length != here.normalized_length and not said & {"normalize", "max_text_bytes"} and same_file:
        limits = [one.normalized_length or "no limit" for one in (stream, here)]
        found.append(f"normalized_length: the stream has {limits[0]}, here {limits[1]}")
    mine, theirs = (
        tuple(step for step in one.steps if step not in one.decoder and step.get("name") != "normalized_length")
        for one in (stream, here)
    )
    if mine != theirs and not said & {"normalize", "min_chars", "function", "steps"}:
        mine, theirs = (
            tuple(step for step in one if step not in other) for one, other in ((mine, theirs), (theirs, mine))
        )
        setting = "function" if any(step.get("name") == "function" for step in (*mine, *theirs)) else "steps"
        found.append(f"{setting}: the stream has {_steps(mine)}, here {_steps(theirs)}")
    return found + _of_tokenizers(stream, here)


def step_in_words(entry: Mapping[str, Any]) -> str:
    """Return a step as people write it on one line: ``regex(pattern = "a+")``."""
    values = ", ".join(
        f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in entry.items() if name != "name"
    )
    return f"{entry['name']}({values})" if values else str(entry["name"])


def _of_tokenizers(stream: Recipe, here: Recipe) -> list[str]:
    """Return one line where the tokenizer differs, which decides the other fields; else one for each of these."""
    if all(getattr(stream, name) == getattr(here, name) for name in _TOKENIZER):
        return []
    if stream.tokenizer_sha256 != here.tokenizer_sha256:
        return [f"tokenizer: the stream has {_tokenizer(stream)}, here {_tokenizer(here)}"]
    pairs = [(name, getattr(stream, name), getattr(here, name)) for name in _FRAME]
    frame = [f"{name}: the stream has {_id(mine)}, here {_id(other)}" for name, mine, other in pairs if mine != other]
    if frame:
        return frame
    return ["tokenizer: the same file, to which the libraries that are installed here give other ids"]


def _id(value: int | tuple[int, ...] | None) -> str:
    """Return an id, or several; padding without one is that of the end of a document."""
    if isinstance(value, int):
        return f"id {value}"
    return f"ids {', '.join(map(str, value))}" if value else "none of its own"


def _tokenizer(recipe: Recipe) -> str:
    # 12 digits are enough to compare with `sha256sum` by eye
    return f"one of {recipe.vocabulary_size:,} ids (SHA-256 {recipe.tokenizer_sha256[:12]}…)"


def _steps(steps: tuple[Mapping[str, Any], ...]) -> str:
    shown = [
        ", ".join(f"{name} {value}" for name, value in step.items() if name not in {"probe", "sha256"})
        for step in steps
    ]
    return f"[{'; '.join(shown)}]"


def _value(recipe: Recipe, name: str) -> Any:
    return packing_in_words(recipe.packing, recipe.packing_parameters) if name == "packing" else getattr(recipe, name)


def _shown(name: str, value: Any) -> str:
    return _SHOW.get(name, str)(value) or "nothing"


SETTINGS: Final = {"split": "splits", "raw_topic": "raw_topics", "pipeline": "steps"}
"""Settings that have another name than the field of a recipe that they decide."""
_SHOW: Final[Mapping[str, Callable[[Any], str]]] = {
    "allow_flush": lambda value: str(value).lower(),
    "dedup": lambda value: step_in_words(value) if value else "",
    "metadata_fields": ",".join,
    "pipeline": lambda value: ", ".join(map(step_in_words, value)),
    "function": lambda value: value or "",
    "splits": lambda value: ",".join(f"{name}={size}" for name, size in value),
    "text_fields": ",".join,
}
