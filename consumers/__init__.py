"""The training side: batches from a store, without Kafka."""

from .batch import Batch
from .batches import Batches

__all__ = ["Batch", "Batches"]
