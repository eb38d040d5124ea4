"""The documents: prose, docs and code that every Python installation holds, always in the same order.

Half of the documents are code (the standard library and a few packages), half are prose and docs (docstrings,
`pydoc_data.topics`, the packages' READMEs and licences). Texts are cut at line ends.
"""

import importlib
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import numpy as np
import orjson

from tokenmill.app.milling.duplicates.signatures import PLACE, Near, sign
from tokenmill.app.milling.duplicates.window import Window

PACKAGES: Final = ("aiohttp", "aiokafka", "awkward", "faust", "hypothesis", "mypy", "numpy", "pip", "pydantic", "rich")
"""Packages that the lock installs, beside the standard library: together some 90 MB before a text comes again."""
PROSE: Final = re.compile(r"(.*\.(md|rst|txt)|METADATA|LICENSE.*)")
"""Names of files that are prose."""
DOCSTRING: Final = re.compile(r'"""(.{200,}?)"""', re.DOTALL)
"""From a paragraph on; what stands between such quotes in tests is text as well."""
SEED: Final = 0


UNLIKE_WINDOW: Final = 1_000_000
"""More than there are documents of kilobytes in any benchmark."""
UNLIKE_PART: Final = 1024


class Document(NamedTuple):
    """One document, and the record's value that carries it."""

    id: str
    text: str

    @property
    def value(self) -> bytes:
        """``{"id": …, "text": …}``."""
        return orjson.dumps({"id": self.id, "text": self.text})


def documents(size: int, total: int) -> Iterator[Document]:
    """Yield documents of about ``size`` bytes until their texts have ``total`` bytes together.

    Prose and code take turns. The same arguments yield the same documents, as long as the installation is the same.
    """
    code = _sources()
    pools = (_pieces(_for_ever(lambda: _prose(code)), size), _pieces(_for_ever(lambda: map(_read, code)), size))
    number = done = 0
    while done < total:
        text = next(pools[number % len(pools)])
        yield Document(f"{size}-{number:08d}", text)
        number += 1
        done += len(text.encode())


def shuffled(found: Iterable[Document]) -> Iterator[Document]:
    """Yield the documents with their words in another order, so that hardly two resemble each other.

    Those that resemble one before all the same are left out: tables of numbers, and lines without spaces.
    """
    near = Near(window=UNLIKE_WINDOW)
    window, left = Window(near, None), enumerate(found)
    while part := [document._replace(text=_reordered(document.text, at)) for at, document in islice(left, UNLIKE_PART)]:
        signed = sign(near, [document.text for document in part])
        kinds = window.judge(signed, np.zeros((len(part), PLACE), np.uint64)).kinds
        yield from (document for document, kind in zip(part, kinds.tolist(), strict=True) if not kind)


def _reordered(text: str, number: int) -> str:
    words = text.split(" ")
    Random(number).shuffle(words)  # noqa: S311 - as below
    return " ".join(words)


def whole_documents(count: int) -> Iterator[Document]:
    """Yield so many files of code and of prose, each once and whole, mixed: with the lengths that files have.

    Fewer where the installation has not so many.
    """
    code = _sources()
    site = Path(sysconfig.get_path("purelib"))
    more = (file for file in site.rglob("*") if file.suffix == ".py" or PROSE.fullmatch(file.name))
    files = _shuffled(list({*code, *(file for file in more if file.is_file())}))
    number = 0
    for text in map(_read, files):
        if number == count:
            return
        if text.strip():
            yield Document(f"file-{number:08d}", text)
            number += 1


def _sources() -> list[Path]:
    """Return the files of code, in an order of chance that is always the same."""
    library, site = Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib"))
    files = [file for file in library.rglob("*.py") if "site-packages" not in file.parts]
    files += [file for package in PACKAGES for file in (site / package).rglob("*.py")]
    return _shuffled(files)


def _prose(code: Iterable[Path]) -> Iterator[str]:
    """Yield prose: documentation and licences, and the docstrings of the code."""
    yield from importlib.import_module("pydoc_data.topics").topics.values()
    library, site = Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib"))
    files = [file for file in library.rglob("*.txt") if "site-packages" not in file.parts]
    metadata = (file for folder in site.glob("*.dist-info") for file in folder.rglob("*") if file.is_file())
    files += [file for file in metadata if PROSE.fullmatch(file.name)]
    for file in _shuffled(files):
        yield _read(file)
    for file in code:
        yield "\n\n".join(DOCSTRING.findall(_read(file)))


def _shuffled(files: list[Path]) -> list[Path]:
    files = sorted(files)
    Random(SEED).shuffle(files)  # noqa: S311 - for variety, not secrecy
    return files


def _read(file: Path) -> str:
    return file.read_bytes().decode(errors="ignore").replace("\0", "")


def _for_ever(texts: Callable[[], Iterable[str]]) -> Iterator[str]:
    while True:
        yield from texts()


def _pieces(texts: Iterable[str], size: int) -> Iterator[str]:
    """Cut the texts into pieces that end with the first line end at or after ``size`` bytes, or with the text."""
    for text in texts:
        lines: list[str] = []
        length = 0
        for line in text.splitlines(keepends=True):
            lines.append(line)
            length += len(line.encode())
            if length >= size:
                yield "".join(lines)
                lines, length = [], 0
