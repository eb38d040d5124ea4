"""Where a benchmark works, and where its numbers go."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from shutil import rmtree
from typing import Any, Final

from benchmarks.machine import describe_machine, versions
from tests.vocabularies import gpt2
from tokenmill.app.logs import set_up_logging

RESULTS: Final = Path(__file__).with_name("results")


@contextmanager
def workplace(directory: Path, *, log_level: str = "warning") -> Iterator[None]:
    """Give the block an empty directory and quiet logs; what is in it stays only where something failed."""
    set_up_logging(log_level=log_level)
    rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    yield
    rmtree(directory)


def gpt2_in(directory: Path) -> Path:
    """Return a file with GPT-2's ``tokenizer.json``."""
    file = directory / "gpt2.json"
    file.write_bytes(gpt2())
    return file


def about_this_run() -> dict[str, Any]:
    """Return when and on what a run was made; to be called before it, for the machine's load is part of it."""
    return {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "versions": versions(),
    }


def write_result(output: Path, name: str, result: Mapping[str, Any]) -> None:
    """Write ``name`` into the directory ``output``, which is made if it is not there."""
    output.mkdir(parents=True, exist_ok=True)
    (output / name).write_text(json.dumps(result, indent=1) + "\n")
