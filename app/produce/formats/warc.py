"""Web archives: the texts of WET files, and of those records of WARC files that are plain text."""

from collections.abc import Iterator
from typing import Any, Final

from ..extras import library
from ..items import Place
from .protocol import Bad, Content, Entry, File, Needs

TEXT_TYPES: Final = ("text/plain",)
_HTTP: Final = "application/http"


def read_warc(file: File, needs: Needs, start: Place) -> Iterator[Entry]:
    """Yield the records that hold a page; an entry's number counts all records.

    A row has ``id`` (WARC-Record-ID), ``text``, ``url`` and ``date``. A page of another type than plain text is `Bad`:
    its text would have to be extracted first.
    """
    warc = library("fastwarc.warc", "produce", "reading WARC and WET")
    kinds = warc.WarcRecordType
    wanted = (kinds.conversion, kinds.response, kinds.resource)
    number = 0
    try:
        for record in warc.ArchiveIterator(file.stream, parse_http=True):
            number += 1
            if number > start.entry and record.record_type in wanted:
                yield number, 0, _content(record, needs)
    except (OSError, ValueError) as error:
        yield number + 1, 0, Bad(f"no WARC, or damaged: {error}", broken=True)


def _content(record: Any, needs: Needs) -> Content:
    kind = str(record.headers.get("Content-Type", ""))
    is_http = kind.startswith(_HTTP)
    if is_http:
        kind = str(record.http_content_type or "unknown")
    if not kind.startswith(TEXT_TYPES):
        return Bad(f"a page of type {kind[:60]}, no plain text: extract its text first, or take the WET file")
    whole = record.content_length
    if whole > needs.limit:
        return needs.too_long
    data = record.reader.read()
    said = record.headers.get("Content-Length")
    if len(data) != whole or (not is_http and said is not None and int(said) != whole):
        return Bad("the record is cut off", broken=True)
    try:
        text = data.decode(record.http_charset or "utf-8" if is_http else "utf-8")
    except (UnicodeDecodeError, LookupError) as error:
        return Bad(f"not what it says it is: {error}", data)
    return {
        "id": record.record_id.strip("<>"),
        "text": text,
        "url": record.headers.get("WARC-Target-URI"),
        "date": record.headers.get("WARC-Date"),
    }
