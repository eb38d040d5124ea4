"""The training side: batches from a store, without Kafka.

What makes tensors is loaded when it is asked for, so `Windows` and `Behind` are here without torch, and whoever asks
for `Batches` is told what to install.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from tokenmill.extras import missing_extra
from tokenmill.samples import Source

from .metrics import Behind, Metrics
from .windows import Windows

if TYPE_CHECKING:
    from .batch import XY, Batch
    from .batches import Batches
    from .dataset import EraDataset
    from .documents import Documents
    from .loading import StepDataset

_WITH_TORCH: Final = {
    "XY": "batch",
    "Batch": "batch",
    "Batches": "batches",
    "Documents": "documents",
    "EraDataset": "dataset",
    "StepDataset": "loading",
}
"""Names whose modules need torch."""


def __getattr__(name: str) -> Any:
    if name not in _WITH_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = getattr(import_module(f".{_WITH_TORCH[name]}", __name__), name)
    except ModuleNotFoundError as error:
        hint = missing_extra(error.name)
        if hint is None:
            raise
        raise ImportError(f"{name} needs torch: {hint}", name=error.name) from error
    globals()[name] = found  # from now on without this function
    return found


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
