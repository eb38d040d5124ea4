"""Text of this machine, and a store made of it: what the labs begin with."""

# ruff: noqa: INP001 - beside scripts, no part of a package

import argparse
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any, NamedTuple

from tokenmill.app.funnel.retention import Retention
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
    parser.add_argument("--seed", type=int, default=1)
    return parser


def pack(texts: list[str], store: Path, tokenizer: str | None, **settings: Any) -> dict[str, Packed]:
    """Fill a store from texts, without Kafka, and return its streams by split; called again, it goes on there.

    The settings are those of docs/settings.md; each travels as a variable of the command.
    """
    store.mkdir(parents=True, exist_ok=True)
    if tokenizer is None:
        tokenizer = str(store / "trained.json")
        if not Path(tokenizer).exists():
            _run("train-tokenizer", *texts, "--output", tokenizer, "--vocabulary-size", "2048")
    variables = {f"TOKENMILL_{name.upper()}": _spelled(value) for name, value in settings.items()}
    options = ["--store", str(store), "--tokenizer", tokenizer, "--flush", "--end", "--json"]
    summary = json.loads(_run("pack", *texts, *options, **variables))
    return {
        name.rpartition(".")[2]: Packed(
            name, Totals.from_dict(one["totals"]), one["blocks"], read_stream(store, name).block_tokens
        )
        for name, one in summary["streams"].items()
    }


def _spelled(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _run(*command: str, **variables: str) -> str:
    """Run the command line, whose progress and errors are shown; return what it printed."""
    done = subprocess.run(
        [TOKENMILL, *command], env=os.environ | variables, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.returncode)  # it has said why
    return done.stdout
