"""Mistral's tekken: ranks, and a pattern that divides words where a capital follows a small letter.

Its file lists more tokens than are in use: the first ``default_vocab_size`` less the special ones, which have the
lowest ids.
"""

import base64
import json
from pathlib import Path
from typing import Any, Final

from tests.vocabularies.ranks import byte_level_bpe

_NAMED: Final = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]")
"""Special tokens from id 0 on, as far as tests want their names; the others are called ``<SPECIAL_n>``."""


def read_tekken(path: Path) -> tuple[dict[bytes, int], str, int]:
    """Return the ranks that are in use, the pattern, and the number of special tokens."""
    content: dict[str, Any] = json.loads(path.read_bytes())
    config = content["config"]
    specials = config["default_num_special_tokens"]
    used = content["vocab"][: config["default_vocab_size"] - specials]
    return {base64.b64decode(token["token_bytes"]): token["rank"] for token in used}, config["pattern"], specials


def convert_tekken(path: Path) -> bytes:
    """Return the ``tokenizer.json``."""
    ranks, pattern, count = read_tekken(path)
    names = [*_NAMED, *(f"<SPECIAL_{number}>" for number in range(len(_NAMED), count))]
    specials = {name: number for number, name in enumerate(names)}
    return byte_level_bpe(ranks, specials, pattern=pattern, first=count, ignore_merges=True)
