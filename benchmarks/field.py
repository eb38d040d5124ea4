"""The field: which contenders race over which documents, with how many workers."""

import sys
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.contenders import Contender, by_tokenmill, scripts

OURS: Final = "TokenMill"
HAND_WRITTEN: Final = "hand-written, gigatoken"

TOKENIZERS_1: Final = Path(sys.prefix) / "newest-tokenizers"
"""Where `make bench` puts version 1 of `tokenizers`, which is no release yet; without it, its contender is left out."""
WITH_TOKENIZERS_1: Final = Contender(
    "hand-written, tokenizers 1",
    partial(scripts.start, script="hand_written.py", options=("--engine", "tokenizers-1"), path=TOKENIZERS_1),
)

CONTENDERS: Final = (
    Contender(OURS, by_tokenmill.start),
    Contender(HAND_WRITTEN, partial(scripts.start, script="hand_written.py")),
    Contender(
        "hand-written, tokenizers",
        partial(scripts.start, script="hand_written.py", options=("--engine", "tokenizers")),
        slow=True,
    ),
    *([WITH_TOKENIZERS_1] if TOKENIZERS_1.is_dir() else []),
    Contender("stock Faust, gigatoken", partial(scripts.start, script="stock_faust.py"), slow=True),
)


class Documents(NamedTuple):
    """A kind of raw topic."""

    name: str
    cut_at: int
    """Bytes of text from which on a document ends at the next line."""
    fast_bytes: int
    """Text for the fast contenders: so much that what a process does in its first second is little beside it."""
    slow_bytes: int
    """Text for the slow ones."""


DOCUMENTS: Final = (
    Documents("3.7 kB", 3670, 500_000_000, 20_000_000),
    Documents("200 B", 175, 240_000_000, 8_000_000),
)
QUICK: Final = (Documents("3.7 kB", 3670, 600_000, 600_000),)
"""To see whether everything works; the numbers say nothing."""
WORKERS: Final = (1, 2)
