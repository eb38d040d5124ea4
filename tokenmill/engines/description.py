"""What a ``tokenizer.json`` says of itself, for people."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from tokenmill.engines.tokenizer_file import TokenizerFile


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
            normalizer=_parts(file.get("normalizer"), "normalizers"),
            pre_tokenizer=_parts(file.get("pre_tokenizer"), "pretokenizers"),
            special={token["content"]: token["id"] for token in tokens if token["special"]},
            added={token["content"]: token["id"] for token in tokens if not token["special"]},
        )


def _parts(part: Mapping[str, Any] | None, inner: str) -> str:
    if not part:
        return "none"
    return ", ".join(str(one["type"]) for one in part.get(inner, [part])) or "none"
