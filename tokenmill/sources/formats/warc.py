"""Web archives: the texts of WET files, and of those records of WARC files that are plain text."""

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
_CHARSET: Final = "charset="


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
    try:
        text = _extracted(data, kind) if html else data.decode(kind.partition(_CHARSET)[2].strip("\"' ") or "utf-8")
    except (ValueError, LookupError) as error:  # no such charset, no such text in it, or no name of one
        return Bad(f"not the text that it says it is: {error}", data)
    about = record.rec_headers.get_header
    return {
        "id": about("WARC-Record-ID", "").strip("<>"),
        "text": text,
        "url": about("WARC-Target-URI"),
        "date": about("WARC-Date"),
    }


def _extracted(page: bytes, kind: str) -> str:
    """Return the main text of an HTML page; its encoding is what it says, or else what its bytes look like."""
    encodings = library("resiliparse.parse.encoding", EXTRACT, "--extract")
    html = library("resiliparse.parse.html", EXTRACT, "--extract")
    extract = library("resiliparse.extract.html2text", EXTRACT, "--extract").extract_plain_text
    encoding = kind.partition(_CHARSET)[2].strip("\"' ") or encodings.detect_encoding(page)
    return str(extract(html.HTMLTree.parse_from_bytes(page, encoding), main_content=True, alt_texts=False))
