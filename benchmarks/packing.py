"""``python -m benchmarks.packing``: JSON lines into token files, beside what one would run instead (`README.md`)."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from statistics import median
from typing import Annotated, Any, Final, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.corpus import documents
from benchmarks.measuring import BenchmarkError
from benchmarks.workplace import RESULTS, about_this_run, gpt2_in, workplace, write_result

DIRECTORY: Final = Path(".tokenmill/packing")
PACKERS: Final = Path(__file__).with_name("packers")
PEERS: Final = Path(".venv/packers")
SIZE: Final = 3_670
FAST_BYTES: Final = 90_000_000
"""Before a text comes again: what an engine has met before it encodes twice as fast."""
SLOW_BYTES: Final = 12_000_000
HAND_WRITTEN: Final = "hand-written, gigatoken"
TWICE: Final = f"{HAND_WRITTEN}, twice at once"
CORES: Final = {1: "one core", 2: "two cores"}
THREADS: Final = {1: "one thread", 2: "two threads"}
SAME: Final = 1e-4
"""How much two numbers of tokens may differ: datatrove makes the real thing of <|endoftext|> in a text."""
BY_TOKENIZERS: Final = ("nanogpt_script", "megatron_loop", "datatrove_tokenizer")
"""Scripts that use `tokenizers`."""

console = Console(width=140, highlight=False)


class Corpus(NamedTuple):
    """A file of documents."""

    file: Path
    text_bytes: int


class Track(NamedTuple):
    """Where everything runs."""

    directory: Path
    tokenizer: Path

    def corpus(self, name: str, total: int) -> Corpus:
        """Write documents; return their file."""
        file, text_bytes = self.directory / f"{name}.jsonl", 0
        with file.open("wb") as lines:
            for document in documents(SIZE, total):
                lines.write(document.value + b"\n")
                text_bytes += len(document.text.encode())
        return Corpus(file, text_bytes)

    def pack(self, corpus: Corpus, cores: int) -> tuple[float, int]:
        """Let TokenMill pack, with a process for each core; return megabytes of text a second, and tokens."""
        store = self.directory / "store"
        command = [sys.executable, "-m", "tokenmill.app.cli", "pack", str(corpus.file), "--store", str(store)]
        command += ["--tokenizer", str(self.tokenizer), "--partitions", "2", "--processes", str(cores), "--json"]
        said = self._run(command, cores)
        rmtree(store)
        tokens = sum(stream["totals"]["tokens"] for stream in said["streams"].values())
        return corpus.text_bytes / 1e6 / said["seconds"], tokens

    def script(self, name: str, corpus: Corpus, cores: int = 1, *, first: int = 0) -> tuple[float, int]:
        """Let a script do the same, on the ``first`` core and those behind it."""
        folder = self.directory / f"out-{first}"
        folder.mkdir()
        command = [sys.executable, str(PACKERS / f"{name}.py"), str(corpus.file), str(self.tokenizer), str(folder)]
        said = self._run(command, cores, first)
        rmtree(folder)
        return corpus.text_bytes / 1e6 / said["seconds"], said["tokens"]

    def at_once(self, name: str, corpus: Corpus) -> float:
        """Let a script do all of it on each of two cores at once; return the megabytes a second of both together."""
        with ThreadPoolExecutor(2) as threads:
            both = threads.map(lambda core: self.script(name, corpus, first=core), range(2))
            return 2 * min(rate for rate, _ in both)

    def _run(self, command: list[str], cores: int, first: int = 0) -> dict[str, Any]:
        environment = {"PYTHONPATH": str(PEERS), "RAYON_NUM_THREADS": str(cores), "TOKENIZERS_PARALLELISM": "true"}
        with _cores(cores, first):
            done = subprocess.run(
                command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
            )
        if done.returncode:
            raise BenchmarkError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


@contextmanager
def _cores(count: int, first: int = 0) -> Iterator[None]:
    """Give what this thread starts in the block so many of the cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[first : first + count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def main(
    *,
    rounds: Annotated[int, typer.Option(help="How often each runs.", min=1)] = 3,
    share: Annotated[float, typer.Option(help="Of the text; less to see that it works.")] = 1.0,
    directory: Annotated[Path, typer.Option(help="Where files go; emptied first.")] = DIRECTORY,
    output: Annotated[Path, typer.Option(help="Where pack.json goes.")] = RESULTS,
) -> None:
    """Measure the speed of each, starting left out; print a table, and write `pack.json`."""
    result: dict[str, Any] = {**about_this_run(), "rounds": rounds}
    rates: dict[str, list[float]] = {}
    with workplace(directory):
        track = Track(directory, gpt2_in(directory))
        large, small = track.corpus("large", int(FAST_BYTES * share)), track.corpus("small", int(SLOW_BYTES * share))
        for number in range(rounds):
            with console.status(f"round {number + 1}"):
                _round(track, large, small, rates)
    result |= {"text_mb": round(large.text_bytes / 1e6, 1), "documents": f"{SIZE / 1000:.1f} kB"}
    result["text_mb_per_s"] = {name: _spread(found) for name, found in rates.items()}
    result["ratios"] = _ratios(rates)
    write_result(output, "pack.json", result)
    _print(result)


def _round(track: Track, large: Corpus, small: Corpus, rates: dict[str, list[float]]) -> None:
    """Let each run once, and check that all make the same number of tokens."""
    made = set()
    for cores, name in CORES.items():
        rate, tokens = track.pack(large, cores)
        rates.setdefault(f"TokenMill, {name}", []).append(rate)
        rate, written = track.script("hand_written", large, cores)
        rates.setdefault(f"{HAND_WRITTEN}, {THREADS[cores]}", []).append(rate)
        made |= {tokens, written}
    rates.setdefault(TWICE, []).append(track.at_once("hand_written", large))
    right = track.pack(small, 1)[1]
    counts = {}
    for name in BY_TOKENIZERS:
        rate, counts[name] = track.script(name, small)
        rates.setdefault(name, []).append(rate)
    if len(made) > 1 or any(abs(count / right - 1) > SAME for count in counts.values()):
        raise BenchmarkError(f"the tokens differ: {made}, {right} and {counts}")


def _ratios(rates: dict[str, list[float]]) -> dict[str, Any]:
    """Return what is asked of pack, round by round."""
    one, two = (rates[f"TokenMill, {name}"] for name in CORES.values())
    by_hand, by_threads = (rates[f"{HAND_WRITTEN}, {name}"] for name in THREADS.values())
    slow = [max(found) for found in zip(*(rates[name] for name in BY_TOKENIZERS), strict=True)]
    pairs = {
        "pack_of_hand_written": (two, [max(loops) for loops in zip(by_hand, by_threads, strict=True)]),
        "pack_of_hand_written_on_one_core": (one, by_hand),
        "pack_of_hand_written_with_one_thread": (two, by_hand),
        "pack_of_tokenizers": (one, slow),
        "two_processes_of_one": (two, one),
        "two_hand_written_of_one": (rates[TWICE], by_hand),
    }
    return {name: _spread([a / b for a, b in zip(*pair, strict=True)]) for name, pair in pairs.items()}


def _spread(numbers: list[float]) -> dict[str, float]:
    return {name: float(f"{of(numbers):.4g}") for name, of in (("median", median), ("min", min), ("max", max))}


def _print(result: dict[str, Any]) -> None:
    table = Table(title=f"{result['text_mb']} MB of text, documents of {result['documents']}", title_justify="left")
    for name in ("MB/s", "median", "lowest", "highest"):
        table.add_column(name, justify="left" if name == "MB/s" else "right")
    for name, spread in (result["text_mb_per_s"] | result["ratios"]).items():
        table.add_row(name.replace("_", " "), *(f"{spread[key]:,.2f}" for key in ("median", "min", "max")))
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
