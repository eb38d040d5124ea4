"""Grain: a loop is an iterator of its own; an `EraDataset` is a source, which Grain shuffles and divides itself."""

import json
from collections.abc import Callable
from typing import Any

import grain
import torch

from tests.consumers.recording import Recording, train_step
from tests.peers.loops.data import SAVE_EVERY, STEPS, Run, loop_of
from tokenmill.consumers import Batch, Batches, EraDataset, Mixture


class Steps(grain.IterDataset[Batch]):
    """The batches of a `Batches` or `Mixture`, which ``opened`` opens."""

    def __init__(self, opened: Callable[[], Batches | Mixture]) -> None:
        super().__init__()
        self._opened = opened

    def __iter__(self) -> "StepsIterator":
        return StepsIterator(self._opened())


class StepsIterator(grain.DatasetIterator[Batch]):
    """One loop; its state is that of the `Batches`, whatever reads ahead of it."""

    def __init__(self, batches: Batches | Mixture) -> None:
        super().__init__()
        self._batches, self._steps = batches, iter(batches)

    def __next__(self) -> Batch:
        return next(self._steps)

    def get_state(self) -> dict[str, Any]:
        return self._batches.state_dict()

    def set_state(self, state: dict[str, Any]) -> None:
        self._batches.load_state_dict(state)
        self._steps = iter(self._batches)


def iterator_of(run: Run) -> "grain.DatasetIterator[Any]":
    """Return what is trained on: ``more`` is "steps", "ahead" (Grain's thread makes two batches ahead), or "source"."""
    if run.more == "source":
        source = EraDataset(run.store, "raw-text.train", sequence_length=4)
        return iter(grain.MapDataset.source(source).seed(1).shuffle().to_iter_dataset().batch(3))
    steps: Any = Steps(lambda: loop_of(run.kind, run.store))
    return iter(
        steps if run.more == "steps" else grain.experimental.ThreadPrefetchIterDataset(steps, prefetch_buffer_size=2)
    )


def elastic(run: Run) -> None:
    """Train as two processes do from a state that one has saved, and leave the rows of both."""
    found = []
    for shard in (0, 1):
        source = grain.MapDataset.source(EraDataset(run.store, "raw-text.train", sequence_length=4)).seed(1).shuffle()
        alone = iter(grain.experimental.ElasticIterator(source, 4, grain.sharding.ShardOptions(0, 1)))
        before = [next(alone) for _ in range(2)]
        mine = iter(grain.experimental.ElasticIterator(source, 4, grain.sharding.ShardOptions(shard, 2)))
        mine.set_state(json.loads(json.dumps(alone.get_state())))
        found.append([[x.tolist() for x, _ in zip(*batch, strict=True)] for batch in mine])
    first = [x.tolist() for xs, _ in before for x in xs]
    run.end.write_text(json.dumps({"first": first, "shards": found}))


def main() -> None:
    run = Run.from_arguments()
    if run.more == "elastic":
        elastic(run)
        return
    saved = run.directory / "saved.pt"
    model: Recording = run.model()
    batches = iterator_of(run)
    step = 0
    if saved.exists():
        checkpoint = torch.load(saved)
        step = checkpoint["step"]
        model.load_state_dict(checkpoint["model"])
        batches.set_state(json.loads(checkpoint["data"]))
    while step < STEPS:
        train_step(model, map(torch.as_tensor, next(batches)))
        step += 1
        if step % SAVE_EVERY == 0:
            state = json.dumps(batches.get_state())
            torch.save({"step": step, "model": model.state_dict(), "data": state}, saved)
    torch.save(model.state_dict(), run.end)


if __name__ == "__main__":
    main()
