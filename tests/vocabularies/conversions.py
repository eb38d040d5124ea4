"""From the ranks of byte-level BPE, and from a SentencePiece model, to a ``tokenizer.json``."""

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.vocabularies.files import added_token, tokenizer_json

_PRINTABLE: Final = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
"""Bytes that stand for themselves in byte-level vocabularies, as Latin-1 characters."""


def _alphabet() -> tuple[str, ...]:
    """Return the character for each byte: GPT-2's ``bytes_to_unicode``."""
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in _PRINTABLE else next(others)) for byte in range(0x100))


ALPHABET: Final = _alphabet()


def spelled(token: bytes) -> str:
    return "".join(ALPHABET[byte] for byte in token)


def read_ranks(path: Path) -> dict[bytes, int]:
    """Return the tokens of a ``.tiktoken`` file: lines of a token in base64 and its rank.

    Whisper's has a token without bytes, which no text can have; its id is taken all the same.
    """
    return {base64.b64decode(token): int(rank) for token, rank in map(str.split, path.read_text().splitlines())}


def merges(ranks: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Return the merges, the first to be done first. Tokens that merges cannot make have none."""
    pairs = (_parts(token, ranks) for token in sorted(ranks, key=ranks.__getitem__) if len(token) > 1)
    return [(parts[0], parts[1]) for parts in pairs if len(parts) == 2]


def _parts(token: bytes, ranks: Mapping[bytes, int]) -> Sequence[bytes]:
    """Return what is left of a token's bytes when all merges of lower rank are done."""
    own = ranks[token]
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        found = [ranks.get(parts[i] + parts[i + 1], own) for i in range(len(parts) - 1)]
        if (lowest := min(found)) >= own:
            break
        i = found.index(lowest)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts


def byte_level_bpe(
    ranks: Mapping[bytes, int],
    specials: Mapping[str, int],
    *,
    pattern: str | None = None,
    first: int = 0,
    ignore_merges: bool = False,
) -> bytes:
    """Return a ``tokenizer.json`` in which the token of rank ``r`` has the id ``first + r``.

    ``specials`` are names and ids; ``pattern`` says what a word is, None for GPT-2's; ``ignore_merges`` takes words
    that are tokens as such, merges or not, as ``tiktoken`` does.
    """
    vocabulary = {spelled(token): first + rank for token, rank in ranks.items()} | dict(specials)
    model = {
        "type": "BPE",
        "vocab": vocabulary,
        "merges": [[spelled(left), spelled(right)] for left, right in merges(ranks)],
        "ignore_merges": ignore_merges,
    }
    return tokenizer_json(
        added_tokens=[added_token(number, name) for name, number in specials.items()],
        pre_tokenizer=pre_tokenizer(pattern),
        decoder=BYTE_LEVEL | {"use_regex": True},
        model=model,
    )


BYTE_LEVEL: Final[dict[str, Any]] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}


def pre_tokenizer(pattern: str | None) -> dict[str, Any]:
    """Return the part of a ``tokenizer.json`` that divides texts into words by ``pattern``, or as GPT-2 does."""
    if pattern is None:
        return BYTE_LEVEL | {"use_regex": True}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, BYTE_LEVEL | {"use_regex": False}]}


TEKKEN_NAMES: Final = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]")
"""Special tokens from id 0 on, as far as tests want their names; the others are called ``<SPECIAL_n>``."""


def read_tekken(path: Path) -> tuple[dict[bytes, int], str, int]:
    """Return the ranks that are in use, the pattern, and the number of special tokens, which have the lowest ids.

    The file of Mistral's tekken lists more ranks: its first ``default_vocab_size`` less the special ones are in use.
    The pattern divides words where a capital follows a small letter.
    """
    content: dict[str, Any] = json.loads(path.read_bytes())
    config = content["config"]
    specials = config["default_num_special_tokens"]
    used = content["vocab"][: config["default_vocab_size"] - specials]
    return {base64.b64decode(token["token_bytes"]): token["rank"] for token in used}, config["pattern"], specials


def convert_tekken(path: Path) -> bytes:
    ranks, pattern, count = read_tekken(path)
    names = [*TEKKEN_NAMES, *(f"<SPECIAL_{number}>" for number in range(len(TEKKEN_NAMES), count))]
    specials = {name: number for number, name in enumerate(names)}
    return byte_level_bpe(ranks, specials, pattern=pattern, first=count, ignore_merges=True)


SPACE: Final = "▁"
"""SentencePiece's sign for a space (U+2581)."""
NORMALIZER: Final[dict[str, Any]] = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": SPACE},
        {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
    ],
}
DECODER: Final[dict[str, Any]] = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}


def convert_sentencepiece(path: Path) -> bytes:
    """Return the ``tokenizer.json``; control pieces and the unknown one are special tokens."""
    # imported here: who wants another vocabulary need not have it
    from sentencepiece import SentencePieceProcessor  # noqa: PLC0415

    model: Any = SentencePieceProcessor(model_file=str(path))
    pieces = [model.id_to_piece(number) for number in range(model.get_piece_size())]
    special = [n for n in range(len(pieces)) if model.is_control(n) or model.is_unknown(n)]
    no_text = {*special, *(n for n in range(len(pieces)) if model.is_byte(n) or model.is_unused(n))}
    scores = {piece: model.get_score(n) for n, piece in enumerate(pieces) if n not in no_text}
    bpe = {
        "type": "BPE",
        "unk_token": pieces[model.unk_id()],
        "fuse_unk": True,
        "byte_fallback": True,
        "vocab": {piece: number for number, piece in enumerate(pieces)},
        "merges": _merges(scores, {piece: number for number, piece in enumerate(pieces)}),
    }
    added = [added_token(number, pieces[number]) for number in special]
    return tokenizer_json(added_tokens=added, normalizer=NORMALIZER, decoder=DECODER, model=bpe)


def _merges(scores: dict[str, float], ids: dict[str, int]) -> list[list[str]]:
    """Return all pairs of pieces that make a piece: by its score, the highest first, then by their ids."""
    found = []
    for piece, score in scores.items():
        cuts = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        pairs = [(left, right) for left, right in cuts if left in scores and right in scores]
        pairs.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        found += [(-score, left, right) for left, right in pairs]
    found.sort(key=lambda merge: merge[0])
    return [[left, right] for _, left, right in found]
