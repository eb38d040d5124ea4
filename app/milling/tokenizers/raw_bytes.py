"""The engine ``bytes``: a text's tokens are its UTF-8 bytes."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import numpy as np

from .protocol import TokenBatch

END_OF_DOCUMENT: Final = 0
"""NUL ends a document. A text may hold NUL as well: document boundaries are stored, never inferred from ids."""


class RawBytes:
    """Needs no tokenizer file; 256 ids, so blocks are uint8."""

    @property
    def kind(self) -> str:
        """``bytes``."""
        return "bytes"

    @property
    def vocabulary_size(self) -> int:
        """256."""
        return 256

    def encode(self, texts: Sequence[str]) -> TokenBatch:
        """Return the texts' UTF-8 bytes."""
        parts = [text.encode() for text in texts]
        ids = np.frombuffer(b"".join(parts), dtype=np.uint8).astype(np.uint32)
        return TokenBatch(ids, np.fromiter(accumulate(map(len, parts), initial=0), np.int64, len(parts) + 1))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of these bytes; a character that a block's border cuts becomes U+FFFD."""
        return bytes(ids).decode(errors="replace")

    def token_id(self, token: str) -> int | None:  # noqa: ARG002 - the protocol's name
        """Return None: bytes have no names."""
        return None
