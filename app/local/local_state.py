"""A directory with all that one local TokenMill needs, for `demo` and `up`; the demo's text, pace and settings."""

import itertools
import json
import os
import random
import re
import shutil
import sys
import sysconfig
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from tokenmill.errors import InputError, SettingsError

from ..settings import SECRETS, Settings
from ..settings.model import explain
from ..sources import Item, Reading, Refused, Shape, find_sources, read_items
from ..sources.items import Unmet
from .broker import write_private

DEMO_DIRECTORY: Final = Path(".tokenmill/demo")


class LocalState:
    """The paths in the directory; none exists until it is made."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.broker = directory / "broker"
        self.store = directory / "store"
        self.logs = directory / "logs"
        self.settings_file = directory / "tokenmill.toml"
        """Settings, for ``--config`` of any command while the broker runs."""

    def new_name(self, name: str) -> str:
        """Return ``name-1``, or the first ``name-n`` that was never returned before; ``runs/`` remembers."""
        runs = (self.directory / "runs" / f"{name}-{number}" for number in itertools.count(1))
        run = next(run for run in runs if not run.exists())
        run.mkdir(parents=True)
        return run.name

    def save(self, settings: Settings) -> None:
        """Write the settings that differ from the defaults, without passwords; only the owner can read the file."""
        values = settings.model_dump(mode="json", exclude_unset=True, exclude={"topic", *SECRETS})
        # As JSON in a string where a value has null, for which TOML has no word.
        told = {name: json.dumps(value) if _has_null(value) else value for name, value in values.items()}
        lines = [f"{name} = {_inline(told[name])}\n" for name, value in values.items() if value is not None]
        write_private(self.settings_file, "".join(lines))

    def saved(self) -> Settings | None:
        """Return what `save` wrote, None where it never did; raises SettingsError where that cannot be used."""
        if not self.settings_file.exists():
            return None
        try:
            return Settings(**tomllib.loads(self.settings_file.read_text("utf-8")))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, ValidationError) as error:
            why = explain(error) if isinstance(error, ValidationError) else str(error)
            raise SettingsError(f"{self.settings_file}: {why}; correct it, or remove it") from None


def program() -> str:
    """Return how the command line was called, for a command that can be typed again."""
    called = Path(sys.argv[0])
    if called.name != "tokenmill":
        return "python -m tokenmill.app.cli"
    return "tokenmill" if shutil.which("tokenmill") == str(called) else str(called)


def _inline(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return json.dumps(value).replace("\x7f", r"\u007f")


def _has_null(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_has_null, value.values()))
    return any(map(_has_null, value)) if isinstance(value, list) else value is None


PASSAGE_BYTES: Final = 4096
"""A single long text is cut into documents of at least this, at blank lines: one document would be one partition's."""

Items = Callable[[Shape], Iterator[Item | Refused]]
PARTITIONS: Final = 4
"""Two for each mill worker, so that a takeover can be seen."""
VOCABULARY: Final = 8192
"""Small, as the model is; ids fit uint16."""
FEED_SECONDS: Final = 26.0
MOST_BYTES_A_SECOND: Final = 2_000_000
"""A rate that two mill workers reach on two cores that also train."""
TRAIN_SECONDS: Final = 75.0
"""How long the model trains, from its first step; mostly while text is fed and verified."""


@dataclass(frozen=True, slots=True)
class DemoText:
    """Documents to feed."""

    name: str
    description: str
    bytes: int
    """Size of the files; the records are a few per cent larger."""
    items: Items


def standard_library() -> DemoText:
    """Return the sources of the Python that runs this, some 30 MB, in a fixed random order, for a model's sake."""
    root = Path(sysconfig.get_path("stdlib"))
    files: list[Path] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in {"site-packages", "dist-packages", "__pycache__"}]
        files += [Path(folder, name) for name in names if name.endswith((".py", ".txt", ".rst"))]
    files.sort()
    random.Random(0).shuffle(files)  # noqa: S311 - for variety, not secrecy

    def items(shape: Shape) -> Iterator[Item | Refused]:
        for file in files:
            name = str(file.relative_to(root))
            if data := file.read_bytes():
                yield from _document(shape, name, name, data)

    return DemoText("stdlib", f"the standard library's {len(files):,} sources", _size(files), items)


def own_text(path: Path) -> DemoText:
    """Return the documents at a path, as `produce` reads them, but a single text cut; raises InputError: none there."""
    if not path.exists():
        raise InputError(f"there is no file or folder {path}; check --text (or TEXT= of make demo)")
    name = re.sub("[^a-z0-9]+", "-", path.absolute().stem.lower()).strip("-")[:40] or "text"
    if path.is_file() and path.suffix.lower() not in {".jsonl", ".ndjson"}:
        return DemoText(name, str(path), path.stat().st_size, lambda shape: _passages(path, shape))
    files = [Path(folder, file) for folder, _, names in os.walk(path) for file in names] or [path]
    size = _size(file for file in files if file.is_file())
    return DemoText(name, str(path), size, lambda shape: read_items(find_sources([str(path)], Reading(shape))))


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
    """Return the settings of a new run, with a raw topic of its own: the same text may come again."""
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
