"""``tokenmill tokenizer`` and ``train-tokenizer``: what a tokenizer is, and a new one from the user's own text."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tokenmill.errors import EngineError

from ..local.output_files import require_file
from ..milling.tokenizers import load_tokenizer
from ..milling.training_tokenizer import train_tokenizer
from ..settings import Settings
from ..sources import Item, Reading, Refused, read_items, shape_for
from ..tools.tokenizer_report import TokenizerReport, report_on
from .options import argument, command, option
from .output import AsJson, EscapingConsole, count, say, show, show_json, size
from .reading_options import UNUSED, Paths, SourceChoice, found_sources, with_reading

SHOWN_IDS = 16

DEFAULT_VOCABULARY = 16_384  # ids of uint16 with room; small models spend little on their embedding


@command(
    "tokenizer",
    "tokenmill tokenizer tokenizer.json --text corpus.jsonl",
    "tokenmill tokenizer openai-community/gpt2",
    shown=("engine",),
)
def tokenizer_command(
    settings: Settings,
    name: Annotated[str, argument("A tokenizer.json, a folder with one, or a name on the hub.", "PATH_OR_NAME")],
    *,
    text: Annotated[
        list[str] | None, option("Text to try it on, as `produce` reads it; may be given again.", "PATH")
    ] = None,
    seconds: Annotated[float, option("How long to look for differences.", "SECONDS", "--search", min=0)] = 10.0,
    as_json: AsJson = False,
) -> None:
    """Show a tokenizer's kind, size and special tokens, the engine for it, speeds, and texts on which engines differ.

    The search tries your text and mutations of it, all Unicode categories, runs of white space and very long words.
    Ends with 13 when it found a difference.
    """
    tokenizer = load_tokenizer(name)
    with EscapingConsole(stderr=True).status("timing the engines") as status:
        report = report_on(
            *(tokenizer, _Texts(_items(settings, text)) if text else (), settings.engine, seconds),
            tick=lambda tried: status.update(f"searching for differences: {count(tried, 'text')} tried"),
        )
    if as_json:
        show_json(asdict(report))
    else:
        for line in lines(report):
            show(line)
    if report.differences:
        raise typer.Exit(EngineError.exit_code)


def lines(report: TokenizerReport) -> Iterator[str]:
    """Yield the report for people, a line a fact."""
    about = report.description
    yield f"{report.name}: {about.model}, {count(report.vocabulary_size, 'id')}, blocks of {report.dtype}"
    yield f"normalizer: {about.normalizer}; pre-tokenizer: {about.pre_tokenizer}"
    yield f"special tokens, text where they stand in a text: {_tokens(about.special)}"
    if about.added:
        yield f"added tokens, found in texts: {_tokens(about.added)}"
    yield f"a document ends with: {report.end}"
    yield f"rows are padded with: {report.padding}"
    yield f"a text may begin with (if begin_of_document says so): {report.begin}"
    yield f"what is not in the vocabulary is: {report.unknown}"
    yield f"engine: {report.engine}" + (f" ({report.refused})" if report.refused else "")
    for engine, speed in report.speeds.items():
        yield f"speed of {engine}: {size(speed)}/s on one core"
    if report.tried:
        yield f"differences between engines: {len(report.differences)} in {count(report.tried, 'text')}"
    for difference in report.differences:
        yield f"  {difference.text!a}: {_ids(difference.ids)}, by tokenizers {_ids(difference.right)}"


def _tokens(tokens: Mapping[str, int]) -> str:
    shown = [f"{name} {number}" for name, number in list(tokens.items())[:12]]  # --json has all
    more = len(tokens) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "") if shown else "none"


def _ids(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids[:SHOWN_IDS])) + (" …" if len(ids) > SHOWN_IDS else "")


@command(
    "train-tokenizer",
    "tokenmill train-tokenizer corpus.jsonl notes/",
    "tokenmill train-tokenizer notes/ --vocabulary-size 4096 --output small.json",
    shown=("text_fields",),
)
@with_reading(*UNUSED, "id_field", "metadata_fields")
def train_command(
    settings: Settings,
    paths: Paths,
    *,
    output: Annotated[Path, option("The file to write.")] = Path("tokenizer.json"),
    vocabulary_size: Annotated[int, option("Number of ids, the 256 bytes included.", min=257)] = DEFAULT_VOCABULARY,
    choice: SourceChoice,
) -> None:
    """Train a byte-level BPE tokenizer on files, folders or standard input, read as `produce` reads them."""
    require_file("--output", output)  # before minutes of work
    with choice.opened(settings, settings.raw_topics[0], paths) as (_, sources):
        texts = _Texts(read_items(sources), choice.plan.limit)
        tokenizer = train_tokenizer(iter(texts), vocabulary_size=vocabulary_size)
    output.write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    say(f"{count(tokenizer.get_vocab_size(), 'id')} learnt from {count(texts.documents, 'document')}")
    show(str(output))


def _items(settings: Settings, paths: Sequence[str]) -> Iterator[Item | Refused]:
    reading = Reading(shape_for(settings.for_topic(settings.raw_topics[0]), settings.max_record_bytes))
    return read_items(found_sources(paths, reading))


class _Texts:
    """The documents' texts; counts them, and names those that cannot be used."""

    def __init__(self, items: Iterable[Item | Refused], limit: int | None = None) -> None:
        self._items = items
        self._limit = limit
        self.documents = 0

    def __iter__(self) -> Iterator[str]:
        for item in self._items:
            if isinstance(item, Refused):
                say(f"{item.where}: {item.why}")
            else:
                self.documents += 1
                yield item.text
            if self.documents == self._limit:
                return
