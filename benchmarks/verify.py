"""``python -m benchmarks.verify``: how fast everything is verified again, on one core (`README.md`)."""

import resource
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import process_time
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.cluster import RawTopic, fill
from benchmarks.contenders import Task
from benchmarks.contenders.by_tokenmill import start
from benchmarks.corpus import documents
from benchmarks.measuring import measure
from benchmarks.workplace import RESULTS, about_this_run, gpt2_in, workplace, write_result
from tests.vocabularies import gpt2
from tokenmill.app.local.broker import Broker
from tokenmill.app.milling.tokenizers import open_fast

DIRECTORY: Final = Path(".tokenmill/verify")
CUT_AT: Final = 3670
TEXT_BYTES: Final = 500_000_000
SHORT_BYTES: Final = 2_000_000
"""A topic whose verification is taken for starting, and for the reference's first sample."""
BATCH: Final = 512

console = Console(width=140, highlight=False)


def main(
    *,
    rounds: Annotated[int, typer.Option(help="How often it is verified.", min=1)] = 3,
    share: Annotated[float, typer.Option(help="Of the text; less to see that it works.")] = 1.0,
    directory: Annotated[Path, typer.Option(help="Where broker and store go; emptied first.")] = DIRECTORY,
    output: Annotated[Path, typer.Option(help="Where verify.json goes.")] = RESULTS,
) -> None:
    """Mill a topic, verify it with one process, print megabytes for each CPU second, and write `verify.json`."""
    about = about_this_run()
    with workplace(directory), Broker(directory / "broker") as broker:
        tokenizer = gpt2_in(directory)
        few = fill(broker, "short", documents(CUT_AT, SHORT_BYTES), tokenizer)
        short = _seconds(broker, few, tokenizer, directory, rounds)
        topic = fill(broker, "long", documents(CUT_AT, int(TEXT_BYTES * share)), tokenizer)
        whole = _seconds(broker, topic, tokenizer, directory, rounds)
    engine = sorted(_engine_rate() for _ in range(rounds))
    starting = median(short)
    rates = sorted(topic.text_bytes / 1e6 / (seconds - starting) for seconds in whole)
    rate = {"median": round(median(rates), 1), "min": round(rates[0], 1), "max": round(rates[-1], 1)}
    result = {
        **about,
        "rounds": rounds,
        "text_mb": round(topic.text_bytes / 1e6, 1),
        "starting_cpu_s": round(starting, 2),
        "text_mb_per_cpu_s": rate,
        "engine_text_mb_per_cpu_s": round(median(engine), 1),
    }
    _print(result, rate)
    write_result(output, "verify.json", result)


def _seconds(broker: Broker, topic: RawTopic, tokenizer: Path, directory: Path, rounds: int) -> list[float]:
    """Mill a topic into a store; return the CPU seconds of each verification of both streams, topic and store."""
    place = directory / topic.name
    place.mkdir()
    task = Task(broker.bootstrap_servers, topic.name, topic.partitions, tokenizer, place, topic.name, 1)
    with start(task) as running:
        measure(running.processes, running.tokens_on_disk, topic.block_tokens)
        return [_verify(task) for _ in range(rounds)]


def _verify(task: Task) -> float:
    command = [sys.executable, "-m", "tokenmill.app.cli", "verify", "--processes", "1", "--sample-seed", "1"]
    command += ["--bootstrap-servers", task.bootstrap_servers, "--raw-topics", task.raw_topic]
    command += ["--stream-suffix", f"-{task.name}", "--store", str(task.directory / "store")]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _engine_rate() -> float:
    """Return megabytes of text for each CPU second of the fast engine alone, once it knows the words."""
    texts = [document.text for document in documents(CUT_AT, 40_000_000)]
    engine = open_fast(gpt2())
    for _ in range(2):
        began = process_time()
        for at in range(0, len(texts), BATCH):
            engine.encode(texts[at : at + BATCH])
        seconds = process_time() - began
    return sum(len(text.encode()) for text in texts) / 1e6 / seconds


def _print(result: dict[str, object], rate: dict[str, float]) -> None:
    table = Table(title=f"{result['text_mb']} MB of text verified", title_justify="left", title_style="bold")
    for name in ("", "MB of text for a CPU second"):
        table.add_column(name, justify="right" if name else "left")
    table.add_row("tokenmill verify", f"{rate['median']} ({rate['min']} to {rate['max']})")
    table.add_row("the fast engine alone", str(result["engine_text_mb_per_cpu_s"]))
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
