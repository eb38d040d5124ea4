"""The training side: batches from a store, without Kafka."""

from .batches import Batch, Batches
from .sequence import Run

__all__ = ["Batch", "Batches", "Run"]
