"""Web archives: the texts of WET files, and of those records of WARC files that are plain text."""

import re
from collections.abc import Iterator
from io import BufferedReader
from typing import Any, Final

from tokenmill.sources.compressed import DAMAGE
from tokenmill.sources.items import Bad, Content, Entry, File, Needs, Place, library

PAGES: Final = ("conversion", "resource", "response")
"""Types of the records that hold a page; the others are about pages, or about the archive."""
TEXT: Final = "text/plain"
HTML: Final = ("text/html", "application/xhtml+xml")
EXTRACT: Final = "extract"
"""The extra that extracting needs."""
MOST_DEEP: Final = 4096
"""Elements that may be nested deeper than `DEEP`: what extracting costs grows with the square of the depth."""
DEEP: Final = 128
"""Pages that people wrote are a tenth as deep; browsers give up at 512."""
_TOO_DEEP: Final = "*>" * DEEP + "*"
_CHARSET: Final = re.compile(r"charset\s*=\s*[\"']?([^\s;,\"']+)")
ENCODINGS: Final = re.compile(
    r"(us-)?ascii|utf-?(8|16|16le|16be)|latin-?1|iso-?8859-([1-9]|1[0134-6])|(windows-|cp)125[0-8]|koi8-[ru]|macintosh"
    r"|mac-cyrillic|(ibm|cp)866|tis-620|cp(874|93[26]|949|950)|gbk|gb2312|gb18030|big5(-hkscs)?|euc-(jp|kr)|shift-jis"
    r"|sjis|windows-31j|iso-2022-jp|ks-c-5601-1987"
)
"""Encodings of texts on the web, which Python decodes in time that grows with the text. It knows others (punycode takes
the square), and remembers each name that it was asked for."""


def read_warc(file: File, needs: Needs, start: Place) -> Iterator[Entry]:
    """Yield the records that hold a page; an entry's number counts all records.

    A row has ``id`` (WARC-Record-ID), ``text``, ``url`` and ``date``. Of an HTML page it is the main text, where that
    is wanted (`Needs.extract`). A page of any other type than plain text is `Bad`.
    """
    records = library("warcio.archiveiterator", "produce", "reading WARC and WET").ArchiveIterator
    failed = library("warcio.exceptions", "produce", "reading WARC and WET").ArchiveLoadFailed
    number = 0
    try:
        for record in records(_Pieces(file.stream)):
            number += 1
            if number > start.entry and record.rec_type in PAGES:
                yield number, 0, _content(record, needs)
    except DAMAGE:
        raise
    except failed as error:
        yield number + 1, 0, Bad(f"no WARC, or damaged: {str(error).splitlines()[0]}", broken=True)
    except Exception as error:  # noqa: BLE001 - warcio meets odd headers with any error, and reads no further then
        yield number + 1, 0, Bad(f"warcio cannot read this record: {type(error).__name__}: {error}", broken=True)


class _Pieces:
    """The stream as warcio reads it: what is there comes before any error in what follows."""

    def __init__(self, stream: "BufferedReader[Any]") -> None:
        self._stream = stream
        self.tell = stream.tell

    def read(self, size: int) -> bytes:
        """Return some bytes, none at the end."""
        try:
            return self._stream.read1(size)
        except EOFError as error:  # for warcio, that would be an archive's proper end
            raise OSError(str(error)) from error


def _content(record: Any, needs: Needs) -> Content:
    headers = record.rec_headers if record.http_headers is None else record.http_headers
    kind = str(headers.get_header("Content-Type") or "unknown").lower()
    html = kind.startswith(HTML)
    if html and not needs.extract:
        return Bad(f"a page of type {kind[:60]}, no plain text: --extract takes its text, or take the WET file")
    if not html and not kind.startswith(TEXT):
        return Bad(f"a page of type {kind[:60]}, which has no text that could be taken")
    data = record.content_stream().read(needs.limit + 1)
    if len(data) > needs.limit:
        return needs.too_long
    if record.raw_stream.limit:
        return Bad("the record is cut off", broken=True)
    text = _text(data, kind, html=html)
    if isinstance(text, Bad):
        return text
    about = record.rec_headers.get_header
    return {
        "id": about("WARC-Record-ID", "").strip("<>"),
        "text": text,
        "url": about("WARC-Target-URI"),
        "date": about("WARC-Date"),
    }


def _text(data: bytes, kind: str, *, html: bool) -> str | Bad:
    said = _CHARSET.search(kind)
    encoding = said[1] if said else None if html else "utf-8"
    if encoding is not None and not ENCODINGS.fullmatch(encoding.replace("_", "-")):
        return Bad(f"not the text that it says it is: {encoding[:60]!r} is no charset of the web", data)
    try:
        return _extracted(data, encoding) if html else data.decode(encoding or "utf-8")
    except (ValueError, LookupError) as error:  # no such text in it
        return Bad(f"not the text that it says it is: {error}", data)


def _extracted(page: bytes, encoding: str | None) -> str | Bad:
    """Return the main text of an HTML page, by default in the encoding that its bytes look like.

    Its depth is counted, and nothing is timed: what becomes of a page is the same on every machine.
    """
    encodings = library("resiliparse.parse.encoding", EXTRACT, "--extract")
    html = library("resiliparse.parse.html", EXTRACT, "--extract")
    extract = library("resiliparse.extract.html2text", EXTRACT, "--extract").extract_plain_text
    tree = html.HTMLTree.parse_from_bytes(page, encoding or encodings.detect_encoding(page))
    if len(tree.document.query_selector_all(_TOO_DEEP)) > MOST_DEEP:
        return Bad(f"a page of over {MOST_DEEP} elements that are nested deeper than {DEEP}", page)
    return str(extract(tree, main_content=True, alt_texts=False))
