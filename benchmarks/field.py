"""The field: which contenders race over which documents, with how many workers."""

from functools import partial
from typing import Final, NamedTuple

from benchmarks.contenders import Contender, by_tokenmill, scripts

OURS: Final = "TokenMill"
HAND_WRITTEN: Final = "hand-written, gigatoken"

CONTENDERS: Final = (
    Contender(OURS, by_tokenmill.start),
    Contender(HAND_WRITTEN, partial(scripts.start, script="hand_written.py")),
    Contender(
        "hand-written, tokenizers",
        partial(scripts.start, script="hand_written.py", options=("--engine", "tokenizers")),
        slow=True,
    ),
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
