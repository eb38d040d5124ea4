"""What the loops of all frameworks share: their arguments, and what they train on."""

import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

from torch.utils.data import DataLoader

from tests.consumers.recording import Recording
from tokenmill.consumers import Batch, Batches, Mixture, MixtureDataset, StepDataset

STEPS = 12
"""Of three samples each; there is one more for those who read ahead."""
SAVE_EVERY = 4
KILLED_AT = 29
"""The sample in whose step, the tenth, a process is killed: the last checkpoint is two steps old."""
STREAMS: Final[dict[str, dict[str, Any]]] = {"early": {"eras": range(3)}, "whole": {}}
WEIGHTS: Final = {"early": 2, "whole": 3}


def _options(store: str) -> dict[str, Any]:
    return {"batch_size": 3, "sequence_length": 4, "seed": 1, "timeout": 30, "store": store, "stream": "raw-text.train"}


def dataset_of(kind: str, store: str, **options: Any) -> StepDataset:
    kept = _options(store) | options
    return StepDataset(**kept) if kind == "batches" else MixtureDataset(STREAMS, WEIGHTS, **kept)


def loop_of(kind: str, store: str) -> Batches | Mixture:
    return Batches(**_options(store)) if kind == "batches" else Mixture.open(STREAMS, WEIGHTS, **_options(store))


class Run(NamedTuple):
    """One process: ``python -m tests.peers.loops.LOOP KIND STORE DIRECTORY WORKERS MORE``."""

    kind: str
    """What is trained on: "batches" of a stream, or a "mixture"."""
    store: str
    directory: Path
    """For checkpoints, and for the model that comes out."""
    workers: int
    more: str

    @classmethod
    def from_arguments(cls) -> "Run":
        kind, store, directory, workers, more = sys.argv[1:]
        return cls(kind, store, Path(directory), int(workers), more)

    @property
    def is_first(self) -> bool:
        return not any(self.directory.iterdir())

    def dataset(self, **options: Any) -> StepDataset:
        return dataset_of(self.kind, self.store, **options)

    def loader(self, dataset: StepDataset, **options: Any) -> DataLoader[Batch]:
        return DataLoader(dataset, batch_size=None, num_workers=self.workers, **options)

    def model(self) -> Recording:
        return Recording(killed_at=KILLED_AT if self.is_first else None)

    @property
    def end(self) -> Path:
        return self.directory / "end.pt"
