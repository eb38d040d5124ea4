"""Lightning: its module saves the state of the batch that it trained on last, and resumes the data set."""

from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from tests.peers.loops.data import SAVE_EVERY, STEPS, Run
from tokenmill.consumers import Batch, StepDataset


class Module(lightning.LightningModule):
    def __init__(self, model: torch.nn.Module, dataset: StepDataset) -> None:
        super().__init__()
        self.model = model
        self.dataset = dataset

    def training_step(self, batch: Batch) -> torch.Tensor:
        x, y = batch
        self.data_state = batch.state
        loss: torch.Tensor = self.model(x, y)
        return loss

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["data"] = self.data_state

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.dataset.resume(checkpoint["data"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    """Train; ``more`` is "finite" where the run's length is known, else "open"."""
    run = Run.from_arguments()
    saved = run.directory / "last.ckpt"
    model, dataset = run.model(), run.dataset()
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=-1 if run.more == "finite" else STEPS,
        max_epochs=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=run.directory,
        callbacks=[ModelCheckpoint(run.directory, every_n_train_steps=SAVE_EVERY, save_last=True, save_top_k=0)],
    )
    loader = run.loader(dataset, persistent_workers=run.workers > 0)
    trainer.fit(Module(model, dataset), loader, ckpt_path=saved if saved.exists() else None, weights_only=False)
    torch.save(model.state_dict(), run.end)


if __name__ == "__main__":
    main()
