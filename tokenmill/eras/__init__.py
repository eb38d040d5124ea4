"""Eras: which blocks of all partitions are trainable, and in which order everyone reads them."""

from tokenmill.eras.closing import close_era
from tokenmill.eras.follower import EraFollower, LogRecord
from tokenmill.eras.log import EraLog
from tokenmill.eras.order import Permutation
from tokenmill.eras.record import ERA_KEY, Era, EraRange, first_hash, why_no_era
from tokenmill.reading.continuing import Extent

__all__ = [
    "ERA_KEY",
    "Era",
    "EraFollower",
    "EraLog",
    "EraRange",
    "Extent",
    "LogRecord",
    "Permutation",
    "close_era",
    "first_hash",
    "why_no_era",
]
