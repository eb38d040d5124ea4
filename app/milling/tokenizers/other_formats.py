"""Files of tokenizers that are no ``tokenizer.json``: what each is, and how to convert it. No I/O."""

import json
import re
from collections.abc import Collection
from typing import Any, Final

_RANKS: Final = re.compile(rb"[A-Za-z0-9+/]+={0,2} [0-9]+\r?\n")
_TIKTOKEN_NAMES: Final = frozenset(
    {"r50k_base", "p50k_base", "p50k_edit", "cl100k_base", "o200k_base", "o200k_harmony"}
)
_SUFFIXES: Final = (".json", ".model", ".tiktoken", ".txt", ".vocab", ".bpe", ".spm")
"""Suffixes of tokenizer files, which no name on the hub has."""
_BESIDE: Final = ("tokenizer.model", "tekken.json", "vocab.txt", "vocab.json", "spiece.model", "merges.txt")
"""Files in folders of models that have no ``tokenizer.json``."""
_TRANSFORMERS: Final = (
    "make one of the model's folder with transformers, AutoTokenizer.from_pretrained(FOLDER).save_pretrained(NEW), "
    "and name NEW, or name the model on the hub"
)
_NAMED: Final = "name a model on the hub that has a tokenizer.json of the same vocabulary"


def looks_like_file(name: str) -> bool:
    """Return whether a name ends like a tokenizer file, so that it is no name on the hub."""
    return name.lower().endswith(_SUFFIXES)


def known_elsewhere(name: str) -> str | None:
    """Return what a name is that another library knows, and what to do; None for any other."""
    if name not in _TIKTOKEN_NAMES:
        return None
    return f"that is a vocabulary of tiktoken, of ranks without a tokenizer.json: {_NAMED}"


def beside(names: Collection[str]) -> str:
    """Return what a folder without ``tokenizer.json`` has instead, and what to do."""
    found = [name for name in _BESIDE if name in names] + sorted(n for n in names if n.endswith(".tiktoken"))
    if not found:
        return "name a folder that holds one"
    return f"it has {', '.join(found)}: {_TRANSFORMERS}"


def other_format(content: bytes) -> str | None:
    """Return what a file is that holds no ``tokenizer.json``, and what to do; None where it may hold one."""
    if _RANKS.match(content):
        return f"it holds ranks of bytes, as tiktoken has them: {_TRANSFORMERS}"
    if content[:1] == b"\n" and b"<unk>" in content[:4096]:  # field 1 of a protobuf: the first of its pieces
        return f"it is a model of SentencePiece: {_TRANSFORMERS}"
    try:
        value = json.loads(content.decode())
    except ValueError:
        return _other_text(content)
    return _other_json(value)


def _other_text(content: bytes) -> str:
    lines = content[:65536].splitlines()
    if {b"[UNK]", b"[PAD]", b"<unk>"} & set(lines):
        return (
            "it is a vocabulary of WordPiece, a token in each line: "
            'tokenizers.BertWordPieceTokenizer("vocab.txt").save("tokenizer.json") makes one of it'
        )
    if lines[:1] and lines[0].startswith(b"#version"):
        return (
            "it holds the merges of a BPE, without its ids: "
            'tokenizers.ByteLevelBPETokenizer("vocab.json", "merges.txt").save("tokenizer.json") makes one of both'
        )
    return (
        "it is no JSON in UTF-8: name a tokenizer.json, as `tokenmill train-tokenizer` writes and models on the hub "
        "have"
    )


def _other_json(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "its JSON is no object: name a tokenizer.json"
    if "model" in value and isinstance(value["model"], dict):
        return None
    if isinstance(value.get("vocab"), list):
        return f"it is a vocabulary of Tekken, Mistral's own format: {_NAMED}"
    if "tokenizer_class" in value or "model_type" in value or "architectures" in value:
        return "it describes a model or its tokenizer, and holds none: name the tokenizer.json beside it"
    if value and all(isinstance(number, int) for number in value.values()):
        return (
            "it holds the ids of a vocabulary alone: "
            'tokenizers.ByteLevelBPETokenizer("vocab.json", "merges.txt").save("tokenizer.json") makes one of both, '
            "if it is a BPE of bytes"
        )
    return "it has no model in it: name a tokenizer.json"
