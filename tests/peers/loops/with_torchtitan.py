"""torchtitan: its own Trainer, checkpoints and loader, over a model of ours, told that the CPU is its device."""

import os
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torchtitan.tools import utils

# Without a GPU torchtitan believes in one that is not there. These are all that it asks of its device.
utils.device_type = "cpu"
utils.device_module = SimpleNamespace(
    current_device=lambda: 0,
    device_count=lambda: 1,
    empty_cache=lambda: None,
    get_device_name=lambda _: "CPU",
    get_device_properties=lambda _: SimpleNamespace(total_memory=1 << 30),
    memory_stats=lambda _: {},
    reset_peak_memory_stats=lambda: None,
    set_device=lambda _: None,
    synchronize=lambda: None,
)

from torchtitan.components.checkpointer import CheckpointManager  # noqa: E402 - they look at the device when imported
from torchtitan.components.dataloader import ParallelAwareDataloader  # noqa: E402
from torchtitan.components.loss import MSELoss  # noqa: E402
from torchtitan.components.metrics import MetricsProcessor  # noqa: E402
from torchtitan.components.optimizer import default_adamw  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.config.configs import TrainingConfig  # noqa: E402
from torchtitan.protocols import BaseModel  # noqa: E402
from torchtitan.protocols.model_spec import ModelSpec  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402

from tests.consumers.recording import Recording  # noqa: E402
from tests.peers.loops.data import KILLED_AT, SAVE_EVERY, STEPS, Run, dataset_of  # noqa: E402
from tokenmill.consumers import Batch  # noqa: E402


class Model(BaseModel):
    """A model as torchtitan wants it; x and y are in what it is given as input, so that they are recorded."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseModel.Config):
        """What makes the model."""

        killed_at: int | None = None

        def update_from_config(self, **_: Any) -> None:
            """Take nothing."""

        def get_nparams_and_flops(self, _model: torch.nn.Module, seq_len: int) -> tuple[int, int]:
            return 1, seq_len

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.inner = Recording(killed_at=config.killed_at)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.inner(rows[:, :-1], rows[:, 1:])
        return loss.expand(len(rows), rows.shape[1] - 1)

    def verify_module_protocol(self) -> None:
        """Have plain layers inside."""

    def init_states(self, *, buffer_device: torch.device | None = None) -> None:  # noqa: ARG002 - there is one
        """Begin anew: torchtitan made all of it without memory."""
        self.inner.load_state_dict(Recording().state_dict())


class Tokenizer(BaseTokenizer):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        """Nothing."""

    def __init__(self, config: Any, **_: Any) -> None:
        """Take all that comes."""

    def encode(self, *_: Any, **__: Any) -> list[int]:
        return []

    def decode(self, *_: Any, **__: Any) -> str:
        return ""

    def get_vocab_size(self) -> int:
        return 65536


def as_inputs(batch: Batch) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    return {"input": torch.cat([batch.x, batch.y[:, -1:]], 1)}, batch.y / 65536


class TokenMillDataLoader(ParallelAwareDataloader):
    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):
        """What torchtitan's has: of `dataset_path` the store, of `dataset` what is trained on."""

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        local_batch_size: int,
        seq_len: int,
        snapshot_every_n_steps: int | None = None,
        **_: Any,
    ) -> None:
        options = {"batch_size": local_batch_size, "sequence_length": seq_len}
        options |= {"rank": dp_rank, "world_size": dp_world_size}
        dataset = dataset_of(config.dataset, config.dataset_path, **options)
        super().__init__(
            dataset,
            dp_rank=dp_rank,
            dp_world_size=dp_world_size,
            batch_size=None,
            collate_fn=as_inputs,
            num_workers=config.num_workers,
            snapshot_every_n_steps=snapshot_every_n_steps or 1,
        )


def main() -> None:
    run = Run.from_arguments()
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    config = Trainer.Config(
        model_spec=ModelSpec(
            name="recording",
            flavor="tiny",
            model=Model.Config(killed_at=KILLED_AT if run.is_first else None),
            parallelize_fn=lambda model, **_: model,
            pipelining_fn=None,
            post_optimizer_build_fn=None,
            state_dict_adapter=None,
        ),
        dump_folder=str(run.directory),
        tokenizer=Tokenizer.Config(),
        dataloader=TokenMillDataLoader.Config(dataset_path=run.store, dataset=run.kind, num_workers=run.workers),
        optimizer=default_adamw(lr=0.1),
        training=TrainingConfig(local_batch_size=3, seq_len=4, steps=STEPS, disable_cuda_graphs=True),
        checkpoint=CheckpointManager.Config(enable=True, interval=SAVE_EVERY, last_save_model_only=False),
        loss=MSELoss.Config(),
        metrics=MetricsProcessor.Config(log_freq=1),
    )
    trainer = config.build()
    trainer.train()
    torch.save(trainer.model_parts[0].state_dict(), run.end)
    trainer.close()


if __name__ == "__main__":
    main()
