"""Eras: which blocks of all partitions are trainable, and in which order everyone reads them."""

from tokenmill.eras.follower import EraFollower, LogRecord
from tokenmill.eras.order import Permutation
from tokenmill.eras.record import ERA_KEY, Era, EraLog, EraRange, close_era, era_hash, first_hash, why_no_era
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
    "era_hash",
    "first_hash",
    "why_no_era",
]
