"""``tokenmill train-tokenizer``: a tokenizer of one's own text."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from tokenmill.stages.training_tokenizer import train_tokenizer

from ..local.places import require_file
from ..settings import Settings
from ..tools.produce import Reading, Refused, Walk, find_sources, read_items, shape_for
from .options import examples, with_settings
from .output import count, say, show
from .produce import FormatName, Lines, Paths
from .produced import tell_not_read

DEFAULT_VOCABULARY = 16_384  # ids of uint16 with room; small models spend little on their embedding

Output = Annotated[Path, typer.Option("--output", help="The file to write.")]
Size = Annotated[int, typer.Option("--vocabulary-size", min=257, help="Number of ids, the 256 bytes included.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "train-tokenizer",
        epilog=examples(
            "tokenmill train-tokenizer corpus.jsonl notes/",
            "tokenmill train-tokenizer notes/ --vocabulary-size 4096 --output small.json",
        ),
    )(with_settings(train_command, "text_fields"))


def train_command(
    settings: Settings,
    paths: Paths,
    *,
    output: Output = Path("tokenizer.json"),
    vocabulary_size: Size = DEFAULT_VOCABULARY,
    format_name: FormatName = "auto",
    lines: Lines = False,
) -> None:
    """Train a byte-level BPE tokenizer on files, folders or standard input, read as `produce` reads them."""
    require_file("--output", output)  # before minutes of work
    texts = _Texts(settings, paths, "lines" if lines else format_name)
    tokenizer = train_tokenizer(iter(texts), vocabulary_size=vocabulary_size)
    output.write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    say(f"{count(tokenizer.get_vocab_size(), 'id')} learnt from {count(texts.documents, 'document')}")
    show(str(output))


class _Texts:
    """The documents' texts; counts them, and names those that cannot be used."""

    def __init__(self, settings: Settings, paths: list[str], choice: FormatName) -> None:
        reading = Reading(shape_for(settings, settings.raw_topics[0]), choice)
        walk = Walk()
        self._items = read_items(find_sources(paths, reading, walk=walk))
        tell_not_read(walk)
        self.documents = 0

    def __iter__(self) -> Iterator[str]:
        for item in self._items:
            if isinstance(item, Refused):
                say(f"{item.where}: {item.why}")
            else:
                self.documents += 1
                yield item.text
