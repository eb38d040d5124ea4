"""What the demo works on: its text (the standard library's, or the user's own), its pace, and its settings."""

import os
import random
import re
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tokenmill.errors import InputError

from ..settings import Settings
from ..sources import Item, Reading, Refused, Shape, find_sources, read_items
from ..sources.items import Unmet
from .local_state import LocalState

PASSAGE_BYTES: Final = 4096
"""A single long text is cut into documents of at least this, at blank lines: one document would be one partition's."""

Items = Callable[[Shape], Iterator[Item | Refused]]
PARTITIONS: Final = 4
"""Two for each mill worker, so that a takeover can be seen."""
VOCABULARY: Final = 8192
"""Small, as the model is; ids fit uint16."""
FEED_SECONDS: Final = 26.0
"""How long the text is fed, unless it is too long for that."""
MOST_BYTES_A_SECOND: Final = 2_000_000
"""A rate that two mill workers reach on two cores that also train."""
TRAIN_SECONDS: Final = 75.0
"""How long the model trains, from its first step; mostly while text is fed and verified."""


@dataclass(frozen=True, slots=True)
class DemoText:
    """Documents to feed."""

    name: str
    """The raw topic is named after it."""
    description: str
    bytes: int
    """Size of the files; the records are a few per cent larger."""
    items: Items


def standard_library() -> DemoText:
    """Return the sources of the Python that runs this, about 30 MB, with its tests where they are installed.

    They come in a fixed random order, so that a model that trains meanwhile sees some of everything.
    """
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(_files(root))
    random.Random(0).shuffle(files)  # noqa: S311 - for variety, not secrecy

    def items(shape: Shape) -> Iterator[Item | Refused]:
        for file in files:
            name = str(file.relative_to(root))
            if data := file.read_bytes():
                yield from _document(shape, name, name, data)

    return DemoText("stdlib", f"the standard library's {len(files):,} sources", _size(files), items)


def own_text(path: Path) -> DemoText:
    """Return the documents of a file or folder, as `produce` reads them, but a single text cut into passages.

    Raises InputError where there is nothing at ``path``.
    """
    if not path.exists():
        raise InputError(f"there is no file or folder {path}; check --text (or TEXT= of make demo)")
    name = re.sub("[^a-z0-9]+", "-", path.absolute().stem.lower()).strip("-")[:40] or "text"
    if path.is_file() and path.suffix.lower() not in {".jsonl", ".ndjson"}:
        return DemoText(name, str(path), path.stat().st_size, lambda shape: _passages(path, shape))
    files = [Path(folder, file) for folder, _, names in os.walk(path) for file in names] or [path]
    return DemoText(
        name,
        str(path),
        _size(file for file in files if file.is_file()),
        lambda shape: read_items(find_sources([str(path)], Reading(shape))),
    )


def _files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in {"site-packages", "dist-packages", "__pycache__"}]
        yield from (Path(folder, name) for name in names if name.endswith((".py", ".txt", ".rst")))


def _size(files: Iterator[Path] | list[Path]) -> int:
    return sum(file.stat().st_size for file in files)


def _passages(path: Path, shape: Shape) -> Iterator[Item | Refused]:
    """Yield documents of at least `PASSAGE_BYTES` that end where a blank line does, with ``name:line`` as id."""
    passage: list[bytes] = []
    first = size = 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            first = first if passage else number
            passage.append(line)
            size += len(line)
            if size >= PASSAGE_BYTES and not line.strip():
                yield from _document(shape, f"{path}:{first}", f"{path.name}:{first}", b"".join(passage))
                passage, size = [], 0
    if b"".join(passage).strip():
        yield from _document(shape, f"{path}:{first}", f"{path.name}:{first}", b"".join(passage))


def _document(shape: Shape, where: str, name: str, data: bytes) -> Iterator[Item | Refused]:
    if not isinstance(found := shape.of_text(where, name, data), Unmet):
        yield found


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    """What the demo does."""

    directory: Path
    """Directory of everything that it leaves behind."""
    text: DemoText
    train: bool = True
    rate: float | None = None
    """Bytes a second; None: such that the text takes ``seconds``, at most `MOST_BYTES_A_SECOND`."""
    seconds: float = FEED_SECONDS
    train_seconds: float = TRAIN_SECONDS

    @property
    def bytes_per_second(self) -> float:
        """The rate at which text is fed."""
        return self.rate or max(1.0, min(self.text.bytes / self.seconds, MOST_BYTES_A_SECOND))


def demo_settings(state: LocalState, text: DemoText, bootstrap_servers: str) -> Settings:
    """Return the settings of a new run: each run has a raw topic of its own, ``<text's name>-<number>``.

    So the same text may come again, is milled and verified by itself, and earlier runs stay in the store.
    """
    topic = state.new_name(text.name)
    return Settings(
        bootstrap_servers=bootstrap_servers,
        raw_topics=(topic,),
        store=state.store,
        tokenizer=str(state.directory / "runs" / topic / "tokenizer.json"),
        sequence_length=256,  # a tiny model makes many steps of these on a CPU
        segment_blocks=512,  # some ten segments in each partition, instead of one
        era_max_seconds=1.0,  # the model begins early in the demo
        session_timeout=3.0,  # a dead worker loses its partitions so soon that the takeover is seen
        group=f"tokenmill-{topic}",
        workers=2,
    )
