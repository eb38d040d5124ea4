"""The training side: batches from a store, without Kafka."""

from tokenmill.samples import Source

from .batch import XY, Batch
from .batches import Batches
from .dataset import EraDataset
from .documents import Documents
from .loading import StepDataset
from .metrics import Behind, Metrics
from .windows import Windows

__all__ = [
    "XY",
    "Batch",
    "Batches",
    "Behind",
    "Documents",
    "EraDataset",
    "Metrics",
    "Source",
    "StepDataset",
    "Windows",
]
