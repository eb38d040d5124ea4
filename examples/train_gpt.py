"""A small GPT that trains on a store while the store grows: on a CPU, on a GPU, or on several of them.

    python examples/train_gpt.py store raw-text.train --seconds 60
    torchrun --nproc-per-node=8 examples/train_gpt.py store raw-text.train --batch-size 96 \
        --validation raw-text.validation@0:4 --test raw-text.validation@4:16 --checkpoint gpt.pt
    python examples/train_gpt.py store web.train --mix web=0.7,code=0.2,books=0.1  # or --mix schedule.toml

Started again with the same checkpoint, it goes on behind it, with any number of processes: the samples of each step
are those that they would have been (``--samples-log`` writes a hash of them). The model is of GPT-2's size on a GPU,
and tiny on a CPU. What to take from here is `Run` and `train`.
"""

# ruff: noqa: INP001 - a script, no part of a package

import signal

if __name__ == "__main__":  # while torch loads, Ctrl-C ends the process at once: a traceback would only show imports
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import faulthandler
import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import BinaryIO, NamedTuple

import torch
from gpt import GPT
from gpt_options import Mix, parse_arguments
from meter import Meter, Progress
from prometheus_client import REGISTRY
from torch import distributed, nn
from torch.nn import functional

from tokenmill.consumers import Batch, Batches, Mixture
from tokenmill.consumers.prometheus import BatchesCollector
from tokenmill.consumers.prometheus import serve_metrics as serve_registry
from tokenmill.errors import InputError, StoreError, TokenMillError
from tokenmill.store import StreamInfo, read_stream
from tokenmill.store.layout import stream_directory

LOOK_SECONDS = 0.5  # how often to look for a stream that is not in the store yet
LONGEST_WAIT = timedelta(days=7)  # processes whose data are there stand in a collective until the others have theirs


class World(NamedTuple):
    """The processes that train one model; under torchrun, more than one."""

    rank: int
    size: int
    device: torch.device

    @classmethod
    def join(cls, *, cpu: bool) -> "World":
        """Meet the others, where torchrun started some."""
        rank, size, local = (int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        on_gpu = torch.cuda.is_available() and not cpu
        if on_gpu:
            torch.cuda.set_device(local)
            torch.set_float32_matmul_precision("high")
        if size > 1:
            distributed.init_process_group("nccl" if on_gpu else "gloo", timeout=LONGEST_WAIT)
        return cls(rank, max(size, 1), torch.device("cuda", local) if on_gpu else torch.device("cpu"))

    def mean(self, value: torch.Tensor) -> float:
        """Return the mean over all processes."""
        if self.size > 1:
            distributed.all_reduce(value)
        return value.item() / self.size

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Lay the rows of all processes end to end."""
        if self.size == 1:
            return rows
        parts = [torch.empty_like(rows) for _ in range(self.size)]
        distributed.all_gather(parts, rows)
        return torch.cat(parts)


class HeldOut(NamedTuple):
    """The loss on eras that are not trained on."""

    step: int
    name: str
    """Validation or test."""
    loss: float


def loss_of(model: nn.Module, batch: Batch, *, apart: bool) -> torch.Tensor:
    """Return the mean loss of a batch; with ``apart``, no document sees or predicts another, and padding is ignored."""
    with torch.autocast(batch.x.device.type, torch.bfloat16, enabled=batch.x.is_cuda):
        if apart:
            documents = batch.documents()
            logits = model(batch.x, documents.position_ids, documents.attention_mask())
        else:
            logits = model(batch.x)
        total = functional.cross_entropy(logits.flatten(0, 1), batch.y.flatten(), reduction="sum")
    return total / batch.label_tokens.clamp(min=1)  # mask_loss may leave none


class Run:
    """A model, its optimizer and its data, where the checkpoint left them."""

    def __init__(self, arguments: argparse.Namespace, world: World) -> None:
        """Open all; waits for the stream."""
        self.arguments, self.world = arguments, world
        self.begun = math.inf
        """When the first step began: until then it waits for data, however long that takes."""
        info = wait_for_stream(arguments.store, arguments.stream)
        length = arguments.sequence_length or info.block_tokens - 1
        open_batches = partial(
            Batches,
            arguments.store,
            batch_size=arguments.batch_size // world.size,
            sequence_length=length,
            rank=world.rank,
            world_size=world.size,
            device=world.device,
            mask_loss=arguments.documents_apart,
            timeout=arguments.timeout,
        )
        self.batches = self.open_streams(
            partial(
                open_batches,
                seed=arguments.seed,
                stop=lambda: time.monotonic() - self.begun > (arguments.seconds or math.inf),
            )
        )
        named = {"validation": arguments.validation, "test": arguments.test}
        self.held_out = {
            name: open_batches(stream, eras=eras, shuffle=False) for name, (stream, eras) in named.items() if stream
        }
        torch.manual_seed(0)
        vocabulary = int(info.values["genesis"]["recipe"]["vocabulary_size"])
        self.model = GPT(vocabulary, length, arguments.width, arguments.layers, arguments.heads).to(world.device)
        fused = world.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(self.model.parameters(), betas=(0.9, 0.95), fused=fused)
        if arguments.checkpoint and arguments.checkpoint.exists():
            self.load(arguments.checkpoint)
        self.compiled: nn.Module = torch.compile(self.model) if arguments.compile else self.model  # type: ignore[assignment]
        shared = world.size > 1
        self.parallel = nn.parallel.DistributedDataParallel(self.compiled) if shared else self.compiled

    def open_streams(self, open_batches: Callable[[str], Batches]) -> Batches:
        """Open the stream, or those that are to be mixed."""
        mix: Mix | None = self.arguments.mix
        if mix is None:
            return open_batches(self.arguments.stream)
        split = self.arguments.stream.rpartition(".")[2]
        streams = {name: name if "." in name else f"{name}.{split}" for name in mix.streams}
        for stream in streams.values():
            wait_for_stream(self.arguments.store, stream)
        opened = {name: open_batches(stream) for name, stream in streams.items()}
        return Mixture(opened, mix.weights, unit=mix.unit, linear=mix.linear)

    def load(self, checkpoint: Path) -> None:
        """Go on from a checkpoint."""
        try:
            saved = torch.load(checkpoint, map_location=self.world.device, weights_only=True)
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            data = saved["data"]
        except (UnpicklingError, RuntimeError, EOFError, LookupError, TypeError, ValueError, AttributeError) as error:
            why = str(error).strip().partition("\n")[0]
            raise InputError(
                f"--checkpoint {checkpoint} holds no such model ({type(error).__name__}: {why}): give the --width, "
                "--layers, --heads and --sequence-length that it was made with, or another file"
            ) from error
        self.batches.load_state_dict(data)

    def learn(self, batch: Batch) -> torch.Tensor:
        """Make one step; return its loss."""
        self.begun = min(self.begun, time.monotonic())
        self.log(batch, step=batch.step)
        for group in self.optimizer.param_groups:
            group["lr"] = self.arguments.learning_rate * min((batch.step + 1) / self.arguments.warmup, 1.0)
        loss = loss_of(self.parallel, batch, apart=self.arguments.documents_apart)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss

    @torch.no_grad()
    def measure(self, name: str, step: int) -> HeldOut:
        """Return the mean loss over held-out eras: always over the same batches."""
        losses = []
        for batch in self.held_out[name].rewind():
            self.log(batch, step=step, held_out=name)
            losses.append(loss_of(self.compiled, batch, apart=self.arguments.documents_apart))
        return HeldOut(step, name, self.world.mean(torch.stack(losses).mean()))

    def log(self, batch: Batch, **place: str | int) -> None:
        """Append a hash of a batch's samples, of all processes, to the log: the same for any number of these."""
        if not self.arguments.samples_log:
            return
        rows = self.world.gather(torch.cat([batch.x, batch.y[:, -1:]], dim=1)).cpu().numpy()
        if self.world.rank == 0:
            with self.arguments.samples_log.open("a") as file:
                samples = hashlib.blake2b(rows.tobytes(), digest_size=16).hexdigest()
                file.write(json.dumps(place | {"samples": samples}) + "\n")

    def save(self) -> None:
        """Write the checkpoint, and beside it the data's state as JSON, as `tokenmill trace` and others take it."""
        path: Path | None = self.arguments.checkpoint
        if path is None or self.world.rank:
            return
        model, optimizer, data = (thing.state_dict() for thing in (self.model, self.optimizer, self.batches))
        write_whole(path, lambda file: torch.save({"model": model, "optimizer": optimizer, "data": data}, file))
        state = json.dumps(data).encode()  # after the checkpoint: what is kept for this state is enough for that one
        write_whole(path.with_name(f"{path.name}.json"), lambda file: file.write(state))


def serve_metrics(run: Run) -> None:
    """Let Prometheus ask for the run's numbers, each process at a port of its own."""
    arguments, rank = run.arguments, run.world.rank
    if arguments.metrics_port:
        REGISTRY.register(BatchesCollector(run.batches, rank=str(rank)))
        serve_registry(arguments.metrics_port + rank, arguments.metrics_host)


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Replace a file as a whole: whoever is killed meanwhile leaves the old one."""
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def train(run: Run) -> Iterator[Progress | HeldOut]:
    """Train to the end, whatever that is; yield progress about once a second."""
    arguments = run.arguments
    meter = Meter(run.batches, run.world.size)
    step = run.batches.step  # how many were made, those of earlier runs included
    for batch in run.batches if arguments.steps is None or step < arguments.steps else ():
        loss = run.learn(batch)
        step = batch.step + 1
        if step % arguments.save_every == 0:
            run.save()
        if meter.add(loss):
            yield meter.report(step)
        if "validation" in run.held_out and step % arguments.validate_every == 0:
            yield run.measure("validation", step)
        if step == arguments.steps:
            break
    if meter.losses:
        yield meter.report(step)
    run.save()
    if "test" in run.held_out:
        yield run.measure("test", step)


def wait_for_stream(store: Path, stream: str) -> StreamInfo:
    """Return what the store knows of the stream, once it knows it; says at once that it waits, and for what."""
    said = ""
    stream_directory(store, stream)  # what no stream is called would be waited for in vain
    while True:
        try:
            return read_stream(store, stream)
        except StoreError as error:
            if str(error) != said and os.environ.get("LOCAL_RANK", "0") == "0":
                print(f"waiting: {error}", file=sys.stderr, flush=True)
            said = str(error)
            time.sleep(LOOK_SECONDS)


def main() -> None:
    """Train, and print progress."""
    faulthandler.enable(2)  # a file that is cut off while it is read ends the process: at least it is said where
    arguments = parse_arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    world = World.join(cpu=arguments.cpu)
    run = Run(arguments, world)
    serve_metrics(run)
    for said in train(run):
        if world.rank:
            continue
        if arguments.json:
            print(json.dumps(said._asdict()), flush=True)
        elif isinstance(said, HeldOut):
            print(f"step {said.step:6,}  {said.name} loss {said.loss:.3f}", flush=True)
        else:
            print(
                f"step {said.step:6,}  loss {said.loss:.3f}  {said.tokens_per_second:9,.0f} tokens/s  "
                f"{said.wait_share:4.0%} waiting for data; the bottleneck is the {said.bottleneck}",
                flush=True,
            )
    if world.size > 1:
        distributed.barrier()  # a rank that is still exchanging would abort when another one has closed the group
        distributed.destroy_process_group()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        main()
    except (TokenMillError, OSError) as error:  # says what is wrong and what to do, so a traceback would only hide it
        sys.exit(f"train_gpt.py: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
