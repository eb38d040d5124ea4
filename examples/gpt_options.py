"""The command line of `train_gpt.py`: each value is held against what it must be before anything is opened."""

# ruff: noqa: INP001 - beside a script, no part of a package

import argparse
import math
import os
import re
import tomllib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import torch

INT64 = range(-(1 << 63), 1 << 63)
MOST_THREADS = 1024  # torch makes them all at once
GPT_2 = {"batch_size": 16, "width": 768, "layers": 12, "heads": 12, "warmup": 500, "learning_rate": 6e-4}
TINY = {"batch_size": 8, "width": 128, "layers": 2, "heads": 4, "warmup": 1, "learning_rate": 2e-3}


def whole(least: int, most: int = INT64[-1]) -> Callable[[str], int]:
    """Return what reads a whole number from ``least`` to ``most``."""

    def read(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,20}", text) or not least <= int(text) <= most:
            bounds = f"{least} or more" if most == INT64[-1] else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"{text!r} is given: give a whole number, {bounds}")
        return int(text)

    return read


def number(text: str) -> float:
    """Return a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is given: give a number above 0")
    return value


def file_of(text: str) -> Path:
    """Return the path of a file that can be there: its directory is."""
    path = Path(text)
    if not text or "\0" in text or path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is given: give a file in a directory that is there")
    return path


def eras_of(text: str) -> tuple[str, range]:
    """Return stream and eras of ``raw-text.validation@0:4``."""
    found = re.fullmatch(r"([^@]+)@([0-9]{1,18}):([0-9]{1,18})", text)
    if not found or int(found[2]) >= int(found[3]):
        raise argparse.ArgumentTypeError(f"{text!r} is given: give STREAM@FIRST:STOP, such as raw-text.validation@0:4")
    return found[1], range(int(found[2]), int(found[3]))


class Mix(NamedTuple):
    """Streams by name, and their weights: for `Mixture`."""

    streams: tuple[str, ...]
    weights: list[tuple[int, dict[str, Any]]]
    unit: str
    linear: bool


def mix_of(text: str) -> Mix | None:
    """Return streams and weights of ``web=0.7,code=0.2``, or of a TOML file; none where nothing is given."""
    if not text:
        return None
    try:
        if text.endswith(".toml"):
            return mix_in(tomllib.loads(Path(text).read_text()))
        weights = dict(part.split("=") for part in text.split(","))
        return mix_in({"point": [{"from": 0, "weights": weights}]})
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is given: give STREAM=WEIGHT,STREAM=WEIGHT, or a TOML file with [[point]] tables, each with "
            "from = 0 and weights = { web = 0.7, code = 0.3 }, and above them, where these are wanted, unit = 'step' "
            f"and linear = true ({error})"
        ) from error


def mix_in(values: dict[str, Any]) -> Mix:
    """Return the mix that a TOML file describes; raises for anything else."""
    if unknown := {*values} - {"point", "unit", "linear"}:
        raise ValueError(f"{min(unknown)} is not known")
    points = [(point["from"], dict(point["weights"])) for point in values["point"]]
    names = sorted({name for _, weights in points for name in weights})
    if not names or "" in names:
        raise ValueError("a stream has no name")
    for _, weights in points:
        for name, weight in weights.items():
            if not Fraction(str(weight)) > 0:
                raise ValueError(f"the weight of {name} is not above 0")
    return Mix(tuple(names), points, values.get("unit", "sample"), values.get("linear", False))


def parser() -> argparse.ArgumentParser:
    """Return what knows all options."""
    made = argparse.ArgumentParser(description="Train a small GPT on a store that may still be growing.")
    add = made.add_argument
    add("store", type=Path, help="directory of the store")
    add("stream", help="for example raw-text.train")
    add(
        "--mix", type=mix_of, metavar="STREAM=WEIGHT,…", help="streams to mix by weight, or a TOML file with a schedule"
    )
    add("--steps", type=whole(0), help="end after so many steps, those of earlier runs included")
    add("--seconds", type=number, help="end so long after the first step began (one process alone)")
    add("--timeout", type=number, help="fail when nothing new came for so many seconds")
    add("--validation", type=eras_of, default=("", range(0)), help="STREAM@FIRST:STOP, eras held out")
    add("--validate-every", type=whole(1), default=500, help="steps between looks at them")
    add("--test", type=eras_of, default=("", range(0)), help="eras for the loss at the very end")
    add("--checkpoint", type=file_of, help="file to go on from, and to save to")
    add("--save-every", type=whole(1), default=500, help="steps between checkpoints")
    add("--samples-log", type=file_of, help="append a line with a hash of its samples for each step")
    add("--metrics-port", type=whole(0, 65535), default=0, help="serve a run's metrics here (and RANK above)")
    add("--metrics-host", default="127.0.0.1", help="address that serves them")
    add("--json", action="store_true", help="print each progress as JSON")
    add("--cpu", action="store_true", help="leave the GPU alone")
    add("--threads", type=whole(0, MOST_THREADS), default=0, help="threads on a CPU (0: torch decides)")
    add("--compile", action=argparse.BooleanOptionalAction, help="by default on a GPU")
    add("--documents-apart", action="store_true", help="no document sees or predicts another")
    add("--seed", type=whole(INT64[0]), default=1, help="of the order of the samples")
    add("--batch-size", type=whole(1), help="samples of each step, all processes together")
    add("--sequence-length", type=whole(1), help="of the blocks or a divisor of it")
    for name in ("width", "layers", "heads", "warmup"):
        add(f"--{name}", type=whole(1))
    add("--learning-rate", type=number)
    return made


def parse_arguments() -> argparse.Namespace:
    """Return what the command line says; where it says nothing, what suits a GPU or a CPU."""
    options = parser()
    arguments = options.parse_args()
    on_gpu = torch.cuda.is_available() and not arguments.cpu
    for name, value in ({"compile": on_gpu} | (GPT_2 if on_gpu else TINY)).items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if arguments.batch_size % processes:
        options.error(
            f"--batch-size {arguments.batch_size} is shared by {processes} processes: give a multiple of that"
        )
    if arguments.width % arguments.heads:
        options.error(f"--width {arguments.width} is shared by --heads {arguments.heads}: give a multiple of that")
    if arguments.seconds and processes > 1:
        options.error("--seconds would end each process at another step: give --steps")
    return arguments
