"""The training side: batches from a store, or any copy of one, without Kafka. docs/training.md explains it all.

`Batches` delivers a stream's *samples* in the one order that every rank and every host has: through the *eras* as they
were closed, and inside each as the seed and the pass shuffle it. A *step* takes the next ``world_size * batch_size``
samples, of which each rank gets its slice. The *state* says how many samples were delivered; loaded by any number of
ranks, it goes on with the next one. Where no whole step is in the store yet, a loop waits; it ends where the named eras
or the closed stream do.

    >>> from tokenmill.consumers import Batches
    >>> batches = Batches("store", "raw-text.train", batch_size=4, sequence_length=64, seed=1, eras=range(0, 5))
    >>> for x, y in batches:  # int64, [4, 64] each: the next token of x[i, j] is y[i, j]
    ...     state = batches.state_dict()  # belongs into the checkpoint
    >>> state["sample"], batches.step  # 15 blocks are there; what is too little for a step is left
    (12, 3)

- `Batch` has x and y, ``documents()`` for masks and positions, and ``sources()``, the Kafka records behind each row.
- `StepDataset` gives the same steps to a ``DataLoader`` with worker processes.
- `EraDataset` is samples by index, for samplers of one's own; `Windows` is tokens at any place.
- `Documents` is whole documents by index, with labels; `PaddedBatches` are batches of these, in the order of an
  `EraSampler`, `BucketSampler` or `StratifiedSampler`.
- `Metrics` and `Behind` say what the loop got, how long it waited, and how far the store is ahead.

Arguments that cannot be, and stores that went away or are damaged, are errors of `tokenmill.errors`, which say what to
do. What makes tensors is loaded when it is asked for: `Documents`, `Windows` and `Behind` work without torch, and
a caller that asks for `Batches` is told what to install.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from tokenmill.errors import missing_extra
from tokenmill.samples.tracing import Source

from .documents import Documents, StoredDocument
from .metrics import Behind, Metrics
from .samplers import BucketSampler, EraSampler, StratifiedSampler
from .windows import Windows

if TYPE_CHECKING:
    from .batch import XY, Batch, BatchDocuments, ContextPart, ModelInputs
    from .batches import Batches
    from .loading import EraDataset, MixtureDataset, StepDataset
    from .mixture import Mixture
    from .mixture_state import StreamShare
    from .padded import PaddedBatch, PaddedBatches

_MODULES: Final = {
    "batch": ("XY", "Batch", "BatchDocuments", "ContextPart", "ModelInputs"),
    "batches": ("Batches",),
    "loading": ("EraDataset", "MixtureDataset", "StepDataset"),
    "mixture": ("Mixture",),
    "mixture_state": ("StreamShare",),
    "padded": ("PaddedBatch", "PaddedBatches"),
}
_WITH_TORCH: Final = {name: module for module, names in _MODULES.items() for name in names}


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
    "BatchDocuments",
    "Batches",
    "Behind",
    "BucketSampler",
    "ContextPart",
    "Documents",
    "EraDataset",
    "EraSampler",
    "Metrics",
    "Mixture",
    "MixtureDataset",
    "ModelInputs",
    "PaddedBatch",
    "PaddedBatches",
    "Source",
    "StepDataset",
    "StoredDocument",
    "StratifiedSampler",
    "StreamShare",
    "Windows",
]
