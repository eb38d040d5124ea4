"""Text of this machine, and a store made of it: what the labs begin with."""

# ruff: noqa: INP001 - beside scripts, no part of a package

import argparse
import json
import os
import platform
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tokenmill.app.funnel import Retention
from tokenmill.app.settings import Settings
from tokenmill.app.sources import Item, Reading, Refused, ShapeOptions, find_sources, read_items, shape_for
from tokenmill.store import read_stream
from tokenmill.wire.totals import Totals

TOKENMILL = str(Path(sys.executable).with_name("tokenmill"))  # the command of the environment that runs this
STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
TEXTS = [f"{STANDARD_LIBRARY}/{name}/**/*.py" for name in ("json", "email", "unittest", "asyncio", "importlib")]


class Packed(NamedTuple):
    """A stream that `pack` has filled."""

    stream: str
    totals: Totals
    blocks: int
    block_tokens: int

    def lines(self) -> list[str]:
        """Say what was kept, in tokens, and how full the blocks are."""
        padding = self.blocks * self.block_tokens - self.totals.tokens
        return Retention(self.totals, padding).lines()


def arguments(about: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that all labs have."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", default=TEXTS, help="files, folders, or hf://datasets/NAME of the hub")
    parser.add_argument("--store", type=Path, default=Path("labs-store"), help="where the tokens go; made if need be")
    parser.add_argument(
        "--tokenizer", help="a tokenizer.json, a name on the hub, or bytes; one is trained if not given"
    )
    parser.add_argument("--field", help="where the text of a row or object is; text or content if not given")
    parser.add_argument("--split", help="of a data set of the hub: train, test, …")
    parser.add_argument("--seed", type=int, default=1)
    return parser


def reading(options: argparse.Namespace) -> list[str]:
    """Return how the texts are read, as options of `tokenmill pack` and `produce`."""
    named = {"--field": options.field, "--split": options.split}
    return [part for name, value in named.items() if value for part in (name, value)]


def ran_with() -> str:
    """Return what a lab runs with: whoever compares figures wants to know."""
    versions = " ".join(f"{name} {version(name)}" for name in ("tokenmill", "torch", "numpy", "tokenizers"))
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{versions}, Python {platform.python_version()}, {len(os.sched_getaffinity(0))} cores, {device}"


def pack(
    texts: list[str], store: Path, tokenizer: str | None, read: Sequence[str] = (), **settings: Any
) -> dict[str, Packed]:
    """Fill a store from texts, without Kafka, and return its streams by split; called again, it goes on there.

    ``read`` is what `reading` returns. The settings are those of docs/settings.md; each travels as a variable of the
    command.
    """
    print(ran_with())
    tokenizer = tokenizer_for(texts, store, tokenizer, read)
    variables = {f"TOKENMILL_{name.upper()}": _spelled(value) for name, value in settings.items()}
    options = ["--store", str(store), "--tokenizer", tokenizer, "--flush", "--end", "--json"]
    summary = json.loads(_run("pack", *texts, *read, *options, **variables))
    return {
        name.rpartition(".")[2]: Packed(
            name, Totals.from_dict(one["totals"]), one["blocks"], read_stream(store, name).block_tokens
        )
        for name, one in summary["streams"].items()
    }


def tokenizer_for(texts: list[str], store: Path, tokenizer: str | None, read: Sequence[str]) -> str:
    """Return the tokenizer that is given, or else one that has learnt from the texts; the store's folder is made."""
    store.mkdir(parents=True, exist_ok=True)
    if tokenizer is not None:
        return tokenizer
    path = store / "trained.json"
    if not path.exists():
        _run("train-tokenizer", *texts, *read, "--output", str(path), "--vocabulary-size", "2048")
    return str(path)


def items_of(options: argparse.Namespace) -> Iterator[Item | Refused]:
    """Yield what `tokenmill pack` and `produce` make of the texts: documents, and what is none, with the reason."""
    settings = Settings()
    fields = ShapeOptions(fields=[options.field] if options.field else ())
    shape = shape_for(settings.for_topic(settings.raw_topics[0]), settings.max_record_bytes, fields)
    yield from read_items(find_sources(options.texts, Reading(shape), options.split))


def _spelled(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _run(*command: str, **variables: str) -> str:
    """Run the command line, whose progress and errors are shown; return what it printed."""
    environment = os.environ | variables
    return subprocess.run([TOKENMILL, *command], env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
