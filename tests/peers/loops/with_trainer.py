"""Hugging Face's Trainer: it saves how many steps it made, and the rest is arithmetic."""

from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerState, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from tests.peers.loops.data import SAVE_EVERY, STEPS, Run


class Model(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor, attention_mask: torch.Tensor, position_ids: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        assert attention_mask.shape == position_ids.shape == labels.shape
        return {"loss": self.inner(input_ids[:, :-1], input_ids[:, 1:])}


class TokenTrainer(Trainer):
    loader: DataLoader[Any]

    def get_train_dataloader(self) -> DataLoader[Any]:
        return self.loader


def main() -> None:
    """Train; ``more`` says how many batches make a step."""
    run = Run.from_arguments()
    accumulated = int(run.more)
    model, dataset = Model(run.model()), run.dataset(as_dict=True)
    arguments = TrainingArguments(
        output_dir=str(run.directory),
        max_steps=STEPS // accumulated,
        save_steps=SAVE_EVERY // accumulated,
        gradient_accumulation_steps=accumulated,
        ignore_data_skip=True,  # else it reads all over again up to there
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    saved = get_last_checkpoint(str(run.directory))
    if saved is not None:
        steps = TrainerState.load_from_json(f"{saved}/trainer_state.json").global_step
        dataset.resume(dataset.state_after(steps * accumulated - 1))
    trainer = TokenTrainer(model=model, args=arguments)
    trainer.loader = run.loader(dataset)
    trainer.train(resume_from_checkpoint=saved)
    torch.save(model.state_dict(), run.end)


if __name__ == "__main__":
    main()
