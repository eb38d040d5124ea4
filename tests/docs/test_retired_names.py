"""Names that were replaced by the words of Kafka, PyTorch and tokenization do not come back, in pages or in code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from docs.generators.site import ROOT

PATTERNS: Final = ("*.md", "docs/*.md", "docs/decisions/*.md", "docker-compose.yml", "Makefile", ".env.example")
DEPLOYED: Final = ("deploy/**/*.md", "deploy/**/*.yml", "deploy/**/*.json")
PAGES: Final = sorted(path for pattern in (*PATTERNS, *DEPLOYED) for path in ROOT.glob(pattern))
"""What users read. docs/settings.md and the pages of metrics hold every setting's description and metric's help."""
FOLDERS: Final = sorted(
    {path.parent for code in ("app", "tokenmill", "consumers") for path in (ROOT / code).rglob("*.py")}
)
WORD: Final = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")  # one word of a name in snake or camel case


class Retired(NamedTuple):
    """A name that was replaced, and how far it is banned; no module or class is called exactly so in any case."""

    name: str
    now: str
    in_text: str = ""
    """A regular expression that no page may match; empty for words that have another, ordinary use in a text."""
    in_names: bool = False  # whether the name may not even be one word of a module's, class's or function's name


RETIRED: Final = (
    Retired("calm", "metadata backoff", r"\bcalm\b", in_names=True),
    Retired("patience", "retry", r"\bpatience\b", in_names=True),
    Retired("asking", "retry", in_names=True),
    Retired("frames", "receive buffers"),
    Retired("parts", "send buffers"),
    Retired("heads", "token-topic tails"),
    Retired("garbage", "gc tuning", r"\bgarbage\b(?! collect)"),
    Retired("private", "secure files"),
    Retired("alone", "self watchdog"),
    Retired("standing", "progress, or state", in_names=True),
    Retired("lies", "is", r"\b(lies|lie)\b", in_names=True),
    Retired("tells", "says", r"\btells\b", in_names=True),
    Retired("suspects", "in flight", r"\bsuspect(s|ed)?\b", in_names=True),
    Retired("suspect", "in flight", in_names=True),
    Retired("fates", "what a chain makes of a fetch", r"\bfates?\b", in_names=True),
    Retired("fate", "outcome", in_names=True),
    Retired("trail", "lag age", in_names=True),
    Retired("zeros", "initial series"),
    Retired("begun", "run start"),
    Retired("tails", "run position"),
    Retired("wishes", "options", r"\bwish(es)?\b", in_names=True),
    Retired("wish", "options", in_names=True),
    Retired("dry", "dry run"),
    Retired("post", "worker slot"),
    Retired("condemn", "kill", r"\bcondemn(s|ed)?\b", in_names=True),
    Retired("heart", "heartbeat", r"\bhearts?\b", in_names=True),
    Retired("crowd", "bounded server", r"\bcrowd\b", in_names=True),
    Retired("anew", "again", r"\banew\b", in_names=True),
    Retired("mend", "repair", r"\bmend(s|ed|ing)?\b", in_names=True),
    # An assignment's epoch is its generation; a training run's epochs are passes, and PyTorch has the word elsewhere.
    Retired("epoch", "generation", r"\bepoch of (an|the) assignment\b"),
)
BANNED_WORDS: Final = {row.name for row in RETIRED if row.in_names}
BANNED_NAMES: Final = {row.name for row in RETIRED}


def places_in_text(text: str) -> list[str]:
    there = [row for row in RETIRED if row.in_text and re.search(row.in_text, text, re.IGNORECASE)]
    return [
        f"{number}: {found[0]} (now: {row.now})"
        for number, line in enumerate(text.splitlines() if there else [], 1)
        for row in there
        if (found := re.search(row.in_text, line, re.IGNORECASE))
    ]


def named_in(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield the names that a module defines, its own first; true for modules and classes."""
    yield path.stem, True
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            yield node.name, True
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, False


def is_retired(name: str, *, whole: bool) -> bool:
    """Return whether a name holds a word that is banned everywhere, or (``whole``) is a banned name itself."""
    words = {word.lower() for word in WORD.findall(name)}
    return bool(words & BANNED_WORDS) or (whole and name.strip("_").lower() in BANNED_NAMES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_use_the_words_of_the_field(page: Path) -> None:
    assert places_in_text(page.read_text()) == []


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_code_uses_the_words_of_the_field(folder: Path) -> None:
    files = sorted(folder.glob("*.py"))
    assert {path.name: found for path in files if (found := places_in_text(path.read_text()))} == {}
    assert not is_retired(folder.name, whole=True)
    named = [(path.name, name, whole) for path in files for name, whole in named_in(path)]
    assert [(file, name) for file, name, whole in named if is_retired(name, whole=whole)] == []


def test_what_is_searched_is_there() -> None:
    """A moved folder or page must not make the others pass over nothing."""
    names = {str(path.relative_to(ROOT)) for path in (*PAGES, *FOLDERS)}
    assert {"README.md", "SECURITY.md", "docs/settings.md", "docs/metrics.md"} <= names
    assert "deploy/helm/tokenmill/files/alerts.yml" in names
    assert {"app/kafka", "app/mill", "tokenmill", "tokenmill/wire", "consumers"} <= names


def test_names_are_judged_by_their_words() -> None:
    """Common words are banned as a module's or class's whole name only, odd ones as a part of any name."""
    modules = ("frames", "_Frames", "Heads", "Post", "TimesOfCalm", "TokenizerParts", "receive_frames", "Heartbeat")
    assert [name for name in modules if not is_retired(name, whole=True)] == [*modules[5:]]
    functions = ("keep_asking", "feel_heart", "standing", "parts", "trailing_newline", "show_dry_run", "__post_init__")
    assert [name for name in functions if not is_retired(name, whole=False)] == [*functions[3:]]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Kafka is calm.", 1),
        ("It is written Anew,\nand mended.", 2),
        ("garbage collector", 0),
        ("It lies behind.\nWho tells?", 2),
        ("Families that believe what you tell them.", 0),
        ("A recommended heartbeat amends nothing, frames and heads included.", 0),
    ],
)
def test_texts_are_judged_by_whole_words(text: str, found: int) -> None:
    assert len(places_in_text(text)) == found
