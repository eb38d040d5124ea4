"""How often Python looks for cycles of objects."""

import gc
from typing import Final

OBJECTS: Final = 250_000
"""New objects between two looks for garbage. Imports make many and leave none; a fetch of small documents makes forty
thousand, which live until it is milled, without cycles, and a worker has some fetches at once: at 50,000, looking took
3 % of its time. At Python's own 700 a start takes a tenth longer, each fetch is looked at some dozen times, and
`produce` spends a third of its time for small documents on looking."""


def collect_seldom() -> None:
    """Look for garbage seldom in this process."""
    gc.set_threshold(OBJECTS, 10, 10)


def keep_loaded() -> None:
    """Leave what is there now out of all collections to come: what was imported, and what was opened for good."""
    gc.collect()
    gc.freeze()
