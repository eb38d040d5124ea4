"""Repairing a store from the token topic or from another store; what is done to files is in `tokenmill.store`."""

from .result import PartitionRepair
from .run import examine_store, repair_store

__all__ = ["PartitionRepair", "examine_store", "repair_store"]
