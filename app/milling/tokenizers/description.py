"""A summary of a ``tokenizer.json`` for people."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

from .tokenizer_file import TokenizerFile

_SEQUENCES: Final = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"}
"""The keys under which a sequence holds its parts."""


@dataclass(frozen=True, slots=True)
class Description:
    """The parts of a tokenizer, by the names that its file gives them."""

    model: str
    """``BPE``, ``Unigram``, ``WordPiece``, ``WordLevel``; ``bytes`` for raw bytes."""
    normalizer: str
    pre_tokenizer: str
    special: Mapping[str, int]
    """Special tokens and their ids; in a text, their names are text."""
    added: Mapping[str, int]
    """Added tokens that are not special: they are found in texts."""

    @classmethod
    def of(cls, tokenizer: TokenizerFile) -> Self:
        """Describe a tokenizer that an engine could be opened for."""
        if tokenizer.content is None:
            return cls("bytes", "none", "none", {}, {})
        file = json.loads(tokenizer.content)
        tokens = file.get("added_tokens") or []
        model = file["model"]
        fallback = " with byte fallback" if model.get("byte_fallback") else ""
        return cls(
            model=model.get("type", "BPE") + fallback,
            normalizer=_names(parts_of(file, "normalizer")),
            pre_tokenizer=_names(parts_of(file, "pre_tokenizer")),
            special={token["content"]: token["id"] for token in tokens if token["special"]},
            added={token["content"]: token["id"] for token in tokens if not token["special"]},
        )


def parts_of(file: Mapping[str, Any], name: Literal["normalizer", "pre_tokenizer"]) -> list[dict[str, Any]]:
    """Return the parts, one after the other, of a ``tokenizer.json``'s normalizer or pre-tokenizer."""
    part = file.get(name)
    return list(part.get(_SEQUENCES[name], [part])) if part else []


def _names(parts: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(str(part["type"]) for part in parts) or "none"
