"""Token ids as text for people."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tokenmill.stages.engines import RAW_BYTES, REFERENCE, Engine, TokenizerFile, open_engine
from tokenmill.store import StreamInfo
from tokenmill.store.layout import TOKENIZER_FILE, stream_directory
from tokenmill.untrusted import MAX_TOKENIZER_BYTES, read_regular
from tokenmill.wire.genesis import Genesis
from tokenmill.wire.pieces import Piece

SAMPLE_CHARACTERS: Final = 200
"""Enough to recognise a text."""


def beginning(text: str, characters: int = SAMPLE_CHARACTERS) -> str:
    """Return the beginning of a text, with a sign where something is left out."""
    return text if len(text) <= characters else f"{text[:characters]}…"


def decode(engine: Engine, tokens: npt.NDArray[np.unsignedinteger] | Sequence[int]) -> str:
    """Return the text of token ids."""
    return engine.decode([int(token) for token in tokens])


def genesis_in(info: StreamInfo) -> Genesis:
    """Return the genesis that a store's ``stream.json`` repeats."""
    values: dict[str, Any] = info.values["genesis"]
    return Genesis.from_dict(values)


def engine_in(store: Path, info: StreamInfo) -> Engine:
    """Return the engine of a stream in a store, which holds its tokenizer."""
    path = stream_directory(store, info.name) / TOKENIZER_FILE
    if not path.exists():
        return open_engine(TokenizerFile(RAW_BYTES, None), REFERENCE)
    return open_engine(TokenizerFile(str(path), read_regular(path, most=MAX_TOKENIZER_BYTES)), REFERENCE)


def meta_of(piece: Piece) -> dict[str, Any]:
    """Return the id and carried fields of a piece's document; nothing of a piece whose meta cannot be read."""
    try:
        meta = json.loads(piece.meta) if piece.meta else {}
    except ValueError:
        return {}
    return meta if isinstance(meta, dict) else {}
