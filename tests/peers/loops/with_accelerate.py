"""Accelerate: the state of the last batch is a file in each of its checkpoints."""

import json

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration

from tests.peers.loops.data import SAVE_EVERY, STEPS, Run


def main() -> None:
    """Train; ``more`` is "prepared" where Accelerate has the loader, and reads one batch ahead, else "own"."""
    run = Run.from_arguments()
    saved = run.directory / "saved"
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=False))
    recording, dataset = run.model(), run.dataset()
    model, optimizer = accelerator.prepare(recording, torch.optim.SGD(recording.parameters(), lr=0.1))
    loader = run.loader(dataset)
    if run.more == "prepared":
        loader = accelerator.prepare(loader)
    if saved.exists():
        accelerator.load_state(str(saved))
        dataset.resume(json.loads((saved / "data.json").read_text()))
    for batch in loader:
        x, y = batch.to(accelerator.device)
        optimizer.zero_grad()
        accelerator.backward(model(x, y))
        optimizer.step()
        if (batch.step + 1) % SAVE_EVERY == 0:
            accelerator.save_state(str(saved))
            (saved / "data.json").write_text(json.dumps(batch.state))
        if batch.step + 1 == STEPS:
            break
    torch.save(accelerator.unwrap_model(model).state_dict(), run.end)


if __name__ == "__main__":
    main()
