"""What may reach a terminal, or a log that is read on one: text without control characters, shown escaped.

Records, file names and what others say are anybody's: a sequence in them could move the cursor, hide text or turn a
line around. `guard_streams` lets none out of the process either: tracebacks, warnings, libraries.
"""

import codecs
import io
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TextIO

from tokenmill.redaction import redacted

_BIDI: Final = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""What turns the direction of text: marks, embeddings, overrides and isolates (Unicode Standard Annex 9)."""
_OTHERS: Final = "\u2028\u2029\ud800-\udfff"
"""Ends of lines and paragraphs, and surrogates: bytes of file names that are no UTF-8, which no stream can write."""
_HARMFUL: Final = re.compile(f"[\0-\x1f\x7f-\x9f{_BIDI}{_OTHERS}]")
_HARMFUL_IN_LINES: Final = re.compile(f"[\0-\x08\x0b-\x1f\x7f-\x9f{_BIDI}{_OTHERS}]")
"""The same, but for line ends and tabs."""
STAND_INS: Final[dict[str, str]] = {}
"""Folders of this process that stand for a bucket, and its address, which is shown in their place."""
_BETWEEN: Final = re.compile(r"(\x1b\[[?0-9;]*[mABCDGHJKhl]|\r)")
"""What progress bars, tables and colours are made of: styles, and moves of the cursor. No other sequence is."""


def in_notebook() -> bool:
    """Return whether a notebook's kernel started this process: it shows output as on a terminal, and is none."""
    return "JPY_PARENT_PID" in os.environ


def is_terminal(stream: TextIO) -> bool:
    """Return whether a stream leads to a terminal, whatever FORCE_COLOR says of colours."""
    return stream.isatty() and not in_notebook()


def escaped(text: str) -> str:
    r"""Return a text in one line, with C0 and C1 controls, bidi controls and surrogates written as ``\x1b``."""
    return _HARMFUL.sub(_escape, text)


def escaped_lines(text: str) -> str:
    """Escape all but line ends and tabs, in text of several lines."""
    return _HARMFUL_IN_LINES.sub(_escape, text)


def escaped_json(value: object) -> str:
    """Return JSON in one line that says the same and holds no such character; what JSON does not know is its text."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return _HARMFUL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)  # C0 is escaped already


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    known = {9: r"\t", 10: r"\n", 13: r"\r"}.get(code)
    return known or (f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}")  # noqa: PLR2004 - two digits reach so far


class GuardedStream:
    """A stream of text that lets no control character through but, on a terminal, styles and moves of the cursor."""

    reader_is_gone = False
    """Whether the other end of a pipe is closed, as `head` closes it: of any stream of this process."""

    def __init__(self, stream: TextIO, *, redacts: bool = False) -> None:
        """Write to ``stream``; ``redacts``: what is said there holds no secret, of which documents may have some."""
        self._stream = stream
        self._redacts = redacts
        self._terminal = stream.isatty()

    def write(self, text: str, /) -> int:
        """Write a text, escaped; return how long it was."""
        shown = redacted(text) if self._redacts else text
        for folder, address in STAND_INS.items():
            shown = shown.replace(folder, address)
        parts = _BETWEEN.split(shown) if self._terminal else [shown]
        parts[::2] = map(escaped_lines, parts[::2])
        with self._naming_the_stream():
            self._stream.write("".join(parts))
        return len(text)

    def flush(self) -> None:
        """Let what was written out."""
        with self._naming_the_stream():
            self._stream.flush()

    def writelines(self, lines: Iterable[str], /) -> None:
        """Write texts, escaped."""
        self.write("".join(lines))

    @contextmanager
    def _naming_the_stream(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            GuardedStream.reader_is_gone = True
            raise
        except OSError as error:  # the disk is full on which the file is that it goes to
            error.filename = "standard error" if self._redacts else "standard output"
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_AS_JSON: Final = "tokenmill.as-json"


def _as_json(error: UnicodeError) -> tuple[str, int]:
    r"""Write what an encoding lacks as JSON does: ``backslashreplace`` makes ``\xe9`` of it, which no JSON has."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error(_AS_JSON, _as_json)


def guard_streams() -> None:
    """Let nothing out of this process through `sys.stdout` and `sys.stderr` but what may reach a terminal.

    Of what was closed before the process began (``>&-``), nothing is read, and what is written there is nowhere.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # and its descriptor that of the next file that is opened
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115 - until the process ends
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, GuardedStream):
            continue
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_AS_JSON)  # not every terminal has every character
        setattr(sys, name, GuardedStream(stream, redacts=name == "stderr"))
