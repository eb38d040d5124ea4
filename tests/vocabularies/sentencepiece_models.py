"""From a SentencePiece BPE model with byte fallback to a ``tokenizer.json``.

As ``transformers`` converts Llama's and Mistral's (convert_slow_tokenizer.py, the legacy form): every way to divide a
piece into two pieces is a merge, and a merge's priority is the score of the piece that it makes.
"""

from pathlib import Path
from typing import Any, Final

from tests.vocabularies.files import added_token, tokenizer_json

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
