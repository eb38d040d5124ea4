"""What a fault test shows for itself: that its fault fired, and what was held against what afterwards."""

import random
import re
from collections import Counter
from pathlib import Path
from typing import Final, Literal, get_args

PAGE: Final = Path(__file__).parents[2] / "docs" / "reliability.md"
CLASSES: Final = dict(re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", PAGE.read_text(), re.MULTILINE))
"""Name of each class and what is done, as the page has it, with the promise that each attacks."""
Oracle = Literal["exact", "complete", "conserved", "dead letters", "topic", "reader", "eras", "alive", "loud"]
"""What can be held against a service after, or while, it was broken.

exact: the committed blocks of each chain are, byte for byte, a prefix of the reference's answer
complete: they are all of it
conserved: the totals balance, and are the reference's
dead letters: each record that is no document has one, with the right reason, counted once an offset
topic: the token topic, duplicates dropped, has the same blocks in the same order
reader: who reads all the while gets every block once, in order, and no other
eras: one chain of eras, ranges without gap or overlap from block 0 on, hashes those of the blocks, and a store's eras
    are the topic's; once quiet, every block is in one
alive: after the fault a new document is committed without anyone's hand
loud: what cannot heal says where, why and what to do, with the right exit code or state, and nothing else stops
"""

ORACLES: Final = get_args(Oracle)


ALIVE_SECONDS: Final = 30.0
"""Within which a service lives again that heals. Held against it in the long run, which has the machine to itself: in
the short form three tests run side by side, and how long anything takes is theirs as well."""


class Trial:
    """One run of a fault test: its random numbers and its length, and what it saw.

    A test that ends well without a fault that fired, or without an oracle, has failed (`tests/faults/conftest.py`).
    """

    def __init__(self, rng: random.Random, *, full: bool) -> None:
        self.rng = rng  # from a seed that is printed; ``FAULT_SEED=<number>`` repeats a run's choices
        self.full = full  # whether this is a full run (`make faults`): rounds are many, not few
        self.faults: Counter[str] = Counter()
        self.oracles: set[Oracle] = set()
        self.figures: Counter[str] = Counter()
        self.slowest = 0.0  # the most seconds that it took to live again

    def rounds(self, short: int, full: int) -> int:
        """Return how often to do what the test does."""
        return full if self.full else short

    def fired(self, what: str, times: int = 1) -> None:
        """Note that a fault was seen to take effect (an exit by the signal, an error in the log), so many times."""
        self.faults[what] += times

    def held(self, *oracles: Oracle, **figures: int) -> None:
        """Note which oracles were asked and agreed, and figures worth adding up (blocks, duplicates, bytes cut)."""
        self.oracles.update(oracles)
        self.figures.update(figures)

    def lived(self, seconds: float) -> None:
        """Note that the service lived again, without anyone's hand, so many seconds after the fault had healed."""
        self.slowest = max(self.slowest, seconds)
        self.held("alive", probes=1)
        if self.full:
            assert seconds <= ALIVE_SECONDS, f"it lived again after {seconds:.0f} seconds"
