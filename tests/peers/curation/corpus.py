"""Real documents of many kinds and languages that lie on a machine: documentation, man pages, translations, sources.

Which ones are chosen depends on their paths and contents alone. Files are cut at empty lines into documents of some
hundred to some thousand characters, so that many different ones take a bounded time.
"""

import gettext
import gzip
import re
import struct
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

SHARE: Final = Path("/usr/share")
LIBRARY: Final = Path(sys.base_prefix) / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
PACKAGES: Final = (
    *(Path(path) for path in sys.path if path.endswith("site-packages")),
    Path(__file__).parents[3] / ".venv" / "peers",
)
MAX_FILE_BYTES: Final = 4 << 20
MAX_FROM_FILE: Final = 40
LENGTHS: Final = (200, 250, 300, 300, 400, 400, 600, 700, 900, 2500)
"""How long documents are at least, in characters, each as often as it stands here."""
MAX_LENGTH: Final = 20_000
_EMPTY_LINES: Final = re.compile(r"\n\s*\n")
_TROFF: Final = re.compile(r"\\f(?:[A-Z]|\(..|\[.*?\])|\\&|\\\(..")


class Kind(NamedTuple):
    share: float
    roots: tuple[Path, ...]
    endings: tuple[str, ...]
    read: Callable[[Path], str]


def plain(path: Path) -> str:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return data.decode(errors="replace")


def man_page(path: Path) -> str:
    lines = (line for line in plain(path).split("\n") if not line.startswith((".\\", "'\\", ".\n")))
    text = "\n".join("" if line.startswith((".PP", ".TP", ".SH")) else line.lstrip(".'") for line in lines)
    return _TROFF.sub("", text).replace("\\-", "-").replace("\\e", "\\")


def translations(path: Path) -> str:
    with path.open("rb") as file:
        catalogue = gettext.GNUTranslations(file)
    _header, *messages = map(str, getattr(catalogue, "_catalog", {}).values())
    return "\n\n".join("\n".join(messages[begin : begin + 5]) for begin in range(0, len(messages), 5))


KINDS: Final = (
    Kind(0.3, (SHARE / "doc", SHARE / "common-licenses", SHARE / "vim"), ("", ".gz", ".txt", ".md", ".html"), plain),
    Kind(0.15, (SHARE / "man",), (".gz",), man_page),
    Kind(0.25, (SHARE / "locale", SHARE / "vim", LIBRARY, *PACKAGES), (".mo",), translations),
    Kind(0.12, (LIBRARY, *PACKAGES, SHARE), (".rst", ".txt", ".md", "METADATA", "LICENSE"), plain),
    Kind(0.18, (LIBRARY, *PACKAGES, SHARE / "perl"), (".py", ".pyi", ".h", ".pm", ".pl", ".js", ".json"), plain),
)


def documents(count: int) -> Iterator[str]:
    """Yield ``count`` different documents, or as many as there are; none has NULs alone or lone surrogates."""
    seen: set[bytes] = set()
    streams, given = {kind: _of_kind(kind) for kind in KINDS}, dict.fromkeys(KINDS, 0)
    while len(seen) < count and streams:
        behind = min(streams, key=lambda kind: given[kind] / kind.share)
        text = next(streams[behind], None)
        if text is None:
            del streams[behind]
        elif (digest := blake2b(text.encode(), digest_size=12).digest()) not in seen:
            seen.add(digest)
            given[behind] += 1
            yield text


def _of_kind(kind: Kind) -> Iterator[str]:
    files = {path.resolve() for root in kind.roots for path in _files(root, kind.endings)}
    for path in sorted(files, key=lambda path: blake2b(str(path).encode(), digest_size=8).digest()):
        with suppress(OSError, EOFError, LookupError, ValueError, struct.error, zlib.error):  # not what its name says
            if path.stat().st_size <= MAX_FILE_BYTES and "\0" not in (text := kind.read(path))[:1000]:
                yield from _cut(text)


def _files(root: Path, endings: tuple[str, ...]) -> Iterable[Path]:
    for path in root.rglob("*"):
        if (path.suffix in endings or path.name in endings) and path.is_file():
            yield path


def _cut(text: str) -> Iterator[str]:
    """Yield consecutive paragraphs together, of different lengths, from places all over the text."""
    pieces: list[str] = []
    found: list[str] = []
    length, number = 0, len(text)
    for paragraph in _EMPTY_LINES.split(text):
        pieces.append(paragraph)
        length += len(paragraph) + 2
        if length >= LENGTHS[number % len(LENGTHS)]:
            found.append("\n\n".join(pieces)[:MAX_LENGTH])
            pieces, length, number = [], 0, number + 7
    if pieces and not found:
        found.append("\n\n".join(pieces)[:MAX_LENGTH])
    yield from found[:: -(-len(found) // MAX_FROM_FILE) or 1]
