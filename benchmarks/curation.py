"""``python -m benchmarks.curation``: how fast texts are filtered, beside datatrove and unfiltered (`README.md`)."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import median
from time import process_time
from typing import Annotated, Any, Final

import numpy as np
import orjson
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.workplace import RESULTS, about_this_run, workplace, write_result
from tests.app.milling.steps.curated import odd_texts
from tests.every_step import every_step
from tests.mills import RECIPE, Source
from tests.peers.curation.corpus import documents
from tests.vocabularies import gpt2
from tokenmill.app.milling.curation.choosing import faster_steps
from tokenmill.app.milling.curation.fast_steps import FastStep
from tokenmill.app.milling.document_columns import DocumentColumns
from tokenmill.app.milling.recipe_stages import open_stages
from tokenmill.app.milling.steps.pipeline import open_pipeline, read_pipeline
from tokenmill.app.milling.steps.protocol import Step
from tokenmill.app.milling.tokenizers import TokenizerFile, dtype_for
from tokenmill.documents import Document, Limits, Record

DIRECTORY: Final = Path(".tokenmill/curation")
PEER: Final = Path(".venv/peers/curation")
DOCUMENTS: Final = 40_000
PEER_DOCUMENTS: Final = 600
"""Of these datatrove's rate is measured, in each round other ones: it takes a hundred times as long."""
ODD_BYTES: Final = 4 << 20
"""Longest text by default."""
LIMITS: Final = Limits(4 << 20, 128, 256)
URL: Final = {"url": "http://good.example/page"}
"""The fields of documents, for the step `url`."""
FINEWEB: Final = (
    {"name": "gopher_repetition"},
    {"name": "gopher_quality"},
    {"name": "c4_quality", "filter_no_terminal_punct": False},
    {"name": "fineweb_quality"},
)
"""The profile's filters that datatrove has too, and that are the same function of a text in both."""

console = Console(width=140, highlight=False)


def main(
    *,
    rounds: Annotated[int, typer.Option(help="How often everything is measured.", min=1)] = 3,
    share: Annotated[float, typer.Option(help="Of the documents; less to see that it works.")] = 1.0,
    directory: Annotated[Path, typer.Option(help="Where files go; emptied first.")] = DIRECTORY,
    output: Annotated[Path, typer.Option(help="Where curation.json goes.")] = RESULTS,
) -> None:
    """Filter, mill and compare; print a table, and write `curation.json`."""
    about = about_this_run()
    with workplace(directory):
        texts = list(islice(documents(int(DOCUMENTS * share)), int(DOCUMENTS * share)))
        steps = _opened(FINEWEB)
        measured = [_round(steps, _turned(texts, number / rounds), share, directory) for number in range(rounds)]
        odd = _odd(texts, directory)
    result = {
        **about,
        "rounds": rounds,
        "text_mb": round(_megabytes(texts), 1),
        "documents": len(texts),
        **_record(),
        "documents_compared_in_this_run": sum(one["compared"] for one in measured),
        "differences_in_this_run": sum(one["differences"] for one in measured),
        **{name: _spread([one[name] for one in measured]) for name in measured[0] if name.endswith("_s")},
        "step_mb_per_cpu_s": {step.name: _spread([one["steps"][step.name] for one in measured]) for step in steps},
        "ratios": {name: _spread([one["ratios"][name] for one in measured]) for name in measured[0]["ratios"]},
        "odd_text_times": {name: max(times[name] for times in odd.values()) for name in odd_texts(1 << 10)},
        "odd_text_times_by_step": {name: max(times.values()) for name, times in odd.items()},
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000),
    }
    _print(result)
    write_result(output, "curation.json", result)


def _record() -> dict[str, int]:
    """Return how many real documents the last full comparison had, and how many answers differed."""
    record = json.loads((RESULTS / "curation_verdicts.json").read_text())
    found = [one for one in record["differences_of_datatrove"] if one["document"].startswith("real")]
    return {"documents_compared": record["documents_compared"], "differences_of_datatrove": len(found)}


def _round(steps: Sequence[Step], turned: list[str], share: float, directory: Path) -> dict[str, Any]:
    """Return one round's rates; the second half of the texts is new to it."""
    half = len(turned) // 2
    _forget(steps)
    first = _filter(steps, turned[:half])
    fresh = _filter(steps, turned[half:])
    known = _filter(steps, turned[half:])
    few = turned[:: max(1, int(len(turned) / (PEER_DOCUMENTS * share)))]
    peer, answers = _datatrove(few, directory)
    ours = _answers(steps, few)
    plain, filtered = _mill((), turned[half:]), _mill(FINEWEB, turned[half:])
    return {
        "fineweb_mb_per_cpu_s": fresh["all"],
        "fineweb_from_nothing_mb_per_cpu_s": first["all"],
        "fineweb_known_mb_per_cpu_s": known["all"],
        "datatrove_mb_per_cpu_s": peer,
        "language_mb_per_cpu_s": _filter(_opened([{"name": "language"}]), turned[half:])["all"],
        "mill_mb_per_cpu_s": plain,
        "filtering_mill_mb_per_cpu_s": filtered,
        "steps": fresh,
        "ratios": {"fineweb_of_datatrove": fresh["all"] / peer, "mill_of_unfiltered": filtered / plain},
        "compared": len(few),
        "differences": sum(one != other for one, other in zip(ours, answers, strict=True)),
    }


def _turned(texts: list[str], share: float) -> list[str]:
    """Return the texts from another place on."""
    begin = int(len(texts) * share)
    return texts[begin:] + texts[:begin]


def _opened(entries: Sequence[dict[str, Any]]) -> tuple[Step, ...]:
    read, lists = read_pipeline(entries)
    steps, refused = faster_steps(open_pipeline(read, lists, metadata_fields=tuple(URL), limits=LIMITS))
    if refused:
        raise SystemExit(refused)
    return steps


def _forget(steps: Sequence[Step]) -> None:
    for step in steps:
        if isinstance(step, FastStep):
            step.words.forget()


def _parts(texts: Sequence[str]) -> Iterator[list[str]]:
    """Divide as a fetch is divided; the texts are other objects each time."""
    part: list[str] = []
    size = 0
    for text in texts:
        part.append(text.encode().decode())
        size += len(text)
        if size > 2 << 20 or len(part) == 4096:  # noqa: PLR2004 - as columns.py has them
            yield part
            part, size = [], 0
    yield part


def _filter(steps: Sequence[Step], texts: Sequence[str]) -> dict[str, float]:
    """Return megabytes for each CPU second: of each step, of what reaches it, and of all steps together."""
    seconds, reached = dict.fromkeys([step.name for step in steps], 0.0), dict.fromkeys([s.name for s in steps], 0.0)
    for part in _parts(texts):
        columns = DocumentColumns.without_fields(part, [None] * len(part))
        for step in steps:
            reached[step.name] += _megabytes(columns.texts)
            began = process_time()
            columns = _after(columns, step)
            seconds[step.name] += process_time() - began
    rates = {name: reached[name] / seconds[name] for name in seconds}
    return rates | {"all": _megabytes(texts) / sum(seconds.values())}


def _after(columns: DocumentColumns, step: Step) -> DocumentColumns:
    stays = np.ones(len(columns), np.bool_)
    changed = {}
    for at, answer in step.many(columns):
        if isinstance(answer, Document):
            changed[at] = answer
        else:
            stays[at] = False
    return columns.changed(changed).chosen(stays)


def _answers(steps: Sequence[Step], texts: Sequence[str]) -> list[list[str]]:
    """Return, in datatrove's form, where each text ends: a step and its reason, or ``kept`` and the text."""
    found: dict[int, list[str]] = {}
    for number, text in enumerate(texts):
        columns = DocumentColumns.without_fields([text], [None])
        for step in steps:
            for _, answer in step.many(columns):
                if isinstance(answer, Document):
                    columns = DocumentColumns.of([answer])
                else:
                    found[number] = [step.name, answer.reason]
            if number in found:
                break
        else:
            found[number] = ["kept", columns.texts[0]]
    return [found[number] for number in range(len(texts))]


def _datatrove(texts: Sequence[str], directory: Path) -> tuple[float, list[list[str]]]:
    """Return datatrove's megabytes for each CPU second, and its answers."""
    given, written = directory / "texts.jsonl", directory / "answers.json"
    given.write_text("".join(json.dumps(text) + "\n" for text in texts))
    environment = {**os.environ, "PYTHONPATH": f"{PEER}{os.pathsep}."}
    command = [sys.executable, "-m", "benchmarks.curation_peer", str(given), str(written)]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    answer = json.loads(written.read_text())
    return _megabytes(texts) / sum(answer["seconds"].values()), answer["answers"]


def _mill(entries: Sequence[dict[str, Any]], texts: Sequence[str]) -> float:
    """Return the megabytes that a partition's mill takes in for each CPU second, with GPT-2's tokens, without Kafka."""
    tokenizer = TokenizerFile("gpt2", gpt2())
    recipe = replace(
        RECIPE,
        pipeline=tuple(read_pipeline(entries)[0]),
        max_text_bytes=LIMITS.max_text_bytes,
        tokenizer_sha256=tokenizer.sha256,
        vocabulary_size=50_257,
        end_of_document=50_256,
        dtype=dtype_for(50_257).name,
        block_tokens=1025,
    )
    source = Source(open_stages(recipe, tokenizer), (recipe,))
    values = (orjson.dumps({"id": str(at), "text": text}) for at, text in enumerate(texts))
    records = [Record(at, 0, None, value) for at, value in enumerate(values)]
    mill = source.mill(message_bytes=1 << 19)
    for low in range(0, len(records), 512):  # the words of tokenizer and filters are known then
        mill.feed(records[low : low + 512])
    mill = source.mill(message_bytes=1 << 19)
    began = process_time()
    for low in range(0, len(records), 2048):
        mill.feed(records[low : low + 2048])
    return _megabytes(texts) / (process_time() - began)


def _odd(texts: Sequence[str], directory: Path) -> dict[str, dict[str, float]]:
    """Return how many times as long as a real text each odd one takes a byte, by step and text: of every step."""
    steps = _opened(every_step(directory))
    plain = {step.name: _seconds(step, texts[:2000]) for step in steps}
    odd = odd_texts(ODD_BYTES)
    return {
        step.name: {name: round(_seconds(step, [text]) / plain[step.name], 1) for name, text in odd.items()}
        for step in steps
    }


def _seconds(step: Step, texts: Sequence[str]) -> float:
    """Return CPU seconds for each megabyte; the chunks are not known before."""
    _forget([step])
    columns = DocumentColumns.of([Document(text, None, URL) for text in texts])
    began = process_time()
    list(step.many(columns))
    return (process_time() - began) / _megabytes(texts)


def _megabytes(texts: Sequence[str]) -> float:
    return sum(len(text.encode()) for text in texts) / 1e6


def _spread(numbers: list[float]) -> dict[str, float]:
    short: Callable[[float], float] = lambda number: float(f"{number:.4g}")  # noqa: E731 - three digits and one
    return {"median": short(median(numbers)), "min": short(min(numbers)), "max": short(max(numbers))}


def _print(result: dict[str, Any]) -> None:
    table = Table(title=f"{result['text_mb']} MB of text, {result['documents']:,} documents", title_justify="left")
    for name in ("", "median", "lowest", "highest"):
        table.add_column(name, justify="right" if name else "left")
    rows = {name: value for name, value in result.items() if name.endswith("_s") and "median" in value}
    rows |= result["step_mb_per_cpu_s"] | result["ratios"]
    for name, spread in rows.items():
        table.add_row(name.replace("_", " "), *(f"{spread[key]:,.2f}" for key in ("median", "min", "max")))
    console.print(table)
    compared = ("documents_compared", "differences_of_datatrove")
    here = ("documents_compared_in_this_run", "differences_in_this_run")
    shown = (*compared, *here, "odd_text_times", "odd_text_times_by_step", "peak_rss_mb")
    console.print({key: result[key] for key in shown})


if __name__ == "__main__":
    typer.run(main)
