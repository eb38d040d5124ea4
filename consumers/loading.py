"""Batches through torch's ``DataLoader`` and torchdata's ``StatefulDataLoader``, read by worker processes."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from tokenmill.errors import InputError

from . import arguments
from .batches import Batches

Step = tuple[torch.Tensor, torch.Tensor, int]
"""x and y, ``[batch_size, sequence_length]`` each, on the CPU and as `Batch` has them, and the number of the step."""


class StepDataset(IterableDataset[Step]):
    """The batches of `Batches`, in their order, for ``DataLoader(StepDataset(...), batch_size=None, num_workers=n)``.

    Worker i of n takes every n-th step, and the loader puts them together again, so any number of workers gives the
    same sequence. One is seldom needed: `Batches` alone reads faster than processes can hand over tensors.

    What was read ahead in workers is no progress. So each item carries its step, and `state_after` turns the step of
    the last item that was used into the state of `Batches`: one for all ranks, which `resume` takes, here and for any
    other number of ranks or workers. ``StatefulDataLoader`` saves `state_dict` for each worker instead, and wants as
    many workers and ranks again.
    """

    def __init__(self, store: Path | str, stream: str, **options: Any) -> None:
        """Open a stream; the options are those of `Batches`, of which ``device`` and ``stop`` stay with the loop.

        Raises:
            as in `Batches`.

        """
        kept = [name for name in ("device", "stop", "worker") if not _is_default(options.get(name))]
        if kept:
            raise InputError(
                f"StepDataset takes no {kept[0]}, which is {arguments.shown(options[kept[0]])}: give none. Its batches "
                "are made in worker processes, on the CPU; move them to a device in the loop, end the loop where you "
                "like, and let the DataLoader number its workers"
            )
        self._options = {"store": store, "stream": stream} | options
        self._state = Batches(**self._options).state_dict()
        self._made = 0
        """Items that this process has yielded since ``_state``."""
        self._begin = 0
        """With how many of them the next iteration begins: with none, unless a worker's state was loaded."""

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self._options.items())
        return f"StepDataset({options}, begins at sample {self._state['sample']})"

    def __iter__(self) -> Iterator[Step]:
        """Yield this worker's batches from where `resume` or `load_state_dict` said, else from the same place again."""
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        batches = Batches(**self._options, worker=(worker, workers))
        batches.load_state_dict(self._state)
        batches.skip(self._begin)
        self._made, self._begin = self._begin, 0
        for batch in batches:
            self._made += 1
            yield batch.x, batch.y, batch.step

    def state_after(self, step: int) -> dict[str, Any]:
        """Return the state of `Batches` after a step, for `resume` and for ``Batches.load_state_dict``.

        Raises:
            InputError: the step is one before this run.

        """
        batches = Batches(**self._options)
        batches.load_state_dict(self._state)
        made = arguments.whole("step", step, 0, "steps") + 1 - batches.step
        if made < 0:
            raise InputError(f"step {step} is before this run, which begins at step {batches.step}: give a later one")
        return batches.skip(made).state_dict()

    def resume(self, state: Mapping[str, Any]) -> None:
        """Begin the next iteration where a state of `Batches` stands.

        Raises:
            InputError: it is no state, or one of another sequence of samples.

        """
        batches = Batches(**self._options)
        batches.load_state_dict(state)
        self._state = batches.state_dict()
        self._made = self._begin = 0

    def state_dict(self) -> dict[str, Any]:
        """Return where this worker stands, as ``StatefulDataLoader`` wants it."""
        return {"data": self._state, "made": self._made}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where the worker of the same number, of as many, stood.

        Raises:
            InputError: it is no such state, or one of another sequence of samples.

        """
        taken = "what state_dict() of a StepDataset said, or give resume() a state of Batches"
        state = arguments.state_of(state_dict, {"data", "made"}, taken)
        made = arguments.whole("made", state["made"], 0, "items")
        self.resume(state["data"])
        self._made = self._begin = made


def _is_default(value: Any) -> bool:
    """Whether an option says what holds without it."""
    return value is None or (isinstance(value, str | torch.device) and str(value) == "cpu")
