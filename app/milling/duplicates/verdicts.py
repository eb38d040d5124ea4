"""What is said of documents that were seen before."""

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ..steps.protocol import Rejected
from .signatures import Hashes

REASONS: Final = ("", "duplicate_exact", "duplicate_near")
SAID: Final = ("", "the text of", "resembles")
"""By kind."""


class Verdicts(NamedTuple):
    """What consecutive documents are."""

    kinds: npt.NDArray[np.uint8]
    """`KEPT`, `EXACT` or `NEAR`; shape ``[documents]``."""
    places: Hashes
    """Source and offset of the kept document that a duplicate resembles, of a kept one its own; ``[documents, 2]``."""


def rejections(verdicts: Verdicts, name: Callable[[int, int], str]) -> list[Rejected | None]:
    """Return how each duplicate is filtered out, with the ``name`` of the place that it resembles; None of others."""
    return [
        Rejected(REASONS[kind], f"{SAID[kind]} {name(source, offset)}") if kind else None
        for kind, (source, offset) in zip(verdicts.kinds.tolist(), verdicts.places.tolist(), strict=True)
    ]
