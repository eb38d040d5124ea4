"""Pages of the web: the text of one as a web server sent it, and archives of them, WARC and WET.

Text comes out of its encodings, and of HTML where that is wanted. A damaged record of an archive is refused alone.
"""

import re
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from io import BufferedReader
from typing import Any, Final, NamedTuple

from ..encodings import BUFFER_BYTES, DAMAGE, UTF_8, ZSTD, is_binary, marked_encoding, why_no_text
from ..items import Bad, Content, Entry, File, Needs, Place, Text, library
from .text import read_whole

TEXT: Final = "text/plain"
HTML: Final = ("text/html", "application/xhtml+xml")
HTML_SUFFIXES: Final = (".html", ".htm", ".xhtml")
EXTRACT: Final = "extract"
HEAD_BYTES: Final = 64 << 10
"""Longest head of a record or page: twice what servers and other readers of archives take."""
MOST_DEEP: Final = 4096
"""Elements that may be nested deeper than `DEEP`: what extracting costs grows with the square of the depth."""
DEEP: Final = 128
"""Pages that people wrote are a tenth as deep; browsers give up at 512."""
MOST_ATTRIBUTES: Final = 10_000
"""Attributes of an element: parsing costs as their square, half a second. Several elements share as many squares."""
FEW_BYTES: Final = 500
"""A tag of so many bytes has too few attributes to be counted."""
_TAG: Final = re.compile(rb"</?[a-zA-Z]")
_ATTRIBUTE: Final = re.compile(
    rb"[\s/]*+[^\s/>][^\s/>=]*+(?:\s*+=\s*+(?:\"[^\"]*+\"?|'[^']*+'?|[^\s>\"'][^\s>]*+)?+)?+"
)
_ATTRIBUTES: Final = re.compile(rb"(?:%s){,%d}+" % (_ATTRIBUTE.pattern, MOST_ATTRIBUTES + 2))
"""Those that follow the first letter of a tag, whose name counts as one (HTML, 13.2.5.32)."""
_CHARSET: Final = re.compile(r"charset\s*=\s*[\"']?(?:x-(?=sjis|gbk|euc-|mac-))?([^\s;,\"']+)")
ENCODINGS: Final = re.compile(
    r"(us-)?ascii|utf-?(8|16|16le|16be)|latin-?1|iso-?8859-([1-9]|1[0134-6])|(windows-|cp)125[0-8]|koi8-[ru]|macintosh"
    r"|mac-cyrillic|(ibm|cp)866|tis-620|cp(874|93[26]|949|950)|gbk|gb2312|gb18030|big5(-hkscs)?|euc-(jp|kr)|shift-jis"
    r"|sjis|windows-31j|iso-2022-jp|ks-c-5601-1987"
)
"""Encodings of texts on the web, which Python decodes in time that grows with the text. It knows others (punycode takes
the square), and remembers each name that it was asked for."""
_HEAD: Final = re.compile(rb"HTTP/[^\r\n]*\r?\n(?:(.*?)\r?\n)?\r?\n", re.DOTALL)
_CHUNK: Final = re.compile(rb"([0-9a-fA-F]{1,8})[ \t]*(?:;[^\r\n]*)?\r?\n")
_NO_ENCODING: Final = frozenset({"", "identity", "none", "utf-8", "binary", "8bit"})


def _fields_of(head: bytes) -> dict[str, str]:
    fields: dict[str, str] = {}
    name = ""
    for line in head.decode("utf-8", "replace").splitlines()[1:]:
        before, colon, value = line.partition(":")
        if line[:1] in (" ", "\t") and name:  # it continues the field before it
            fields[name] += " " + line.strip()
        elif colon:
            name = before.strip().lower()
            fields[name] = f"{fields[name]}, {value.strip()}" if name in fields else value.strip()
    return fields


def read_page(file: File, needs: Needs, start: Place) -> Iterator[Entry]:
    """Yield the main text of the HTML page that a file is, with the file's name as id."""
    return read_whole(file, needs, start, _page_of_file)


def _page_of_file(data: bytes) -> Text | Bad:
    if is_binary(data):
        return Bad("no page: these are bytes of compressed or other binary data", data)
    try:
        found = _extracted(data, UTF_8)
    except (ValueError, LookupError) as error:
        return Bad(f"no page: {error}", data)
    return found if isinstance(found, Bad) else Text(found.encode("utf-8", "surrogatepass"), whole=True)


def _page_text(kind: str, block: bytes, needs: Needs) -> str | Bad:
    coded: list[str] = []
    if kind.lower().startswith("application/http"):
        found = _HEAD.match(block, 0, HEAD_BYTES)
        if found is None:
            return Bad("no answer of a web server: its head has no end", block)
        fields = _fields_of(b"\n" + (found[1] or b""))
        block, kind = block[found.end() :], fields.get("content-type", "unknown")
        for name in ("content-encoding", "transfer-encoding"):
            coded += [one.strip() for one in fields.get(name, "").lower().split(",")]
    kind = kind.lower() or "unknown"
    html = kind.startswith(HTML)
    if html and not needs.extract:
        return Bad(f"a page of type {kind[:60]}, no plain text: --extract takes its text, or take the WET file")
    if not html and not kind.startswith(TEXT):
        return Bad(f"a page of type {kind[:60]}, which has no text that could be taken")
    data = _decoded(block, coded, needs)
    return data if isinstance(data, Bad) else _text(data, kind, html=html)


def _decoded(data: bytes, coded: list[str], needs: Needs) -> bytes | Bad:
    """Return a body without these encodings, of which the last one was applied last."""
    for name in reversed([one for one in coded if one not in _NO_ENCODING]):
        decode = _DECODERS.get(name)
        if decode is None:
            return Bad(f"a page in the encoding {name[:40]!r}, which is not read", data)
        try:
            made = decode(data, needs.limit + 1)
        except (*DAMAGE, ValueError, _brotli().error) as error:
            # Many crawlers store decoded bodies under heads that still name an encoding: what looks like text is taken.
            if is_binary(data, "latin-1") or isinstance(error, _CutOffError):
                return Bad(f"a page that is not in the encoding {name!r} that it says it is in: {error}", data)
        else:
            data = made
        if len(data) > needs.limit:
            return needs.too_long
    return data


def _brotli() -> Any:
    return library("brotli", "produce", "reading pages of web archives")


class _CutOffError(ValueError):
    """The sizes of chunks are in what is left of a body: it was in chunks, and is no text as it is."""


def _dechunked(data: bytes, _most: int) -> bytes:
    parts, at = [], 0
    while found := _CHUNK.match(data, at):
        size = int(found[1], 16)
        if not size or found.end() + size > len(data):
            break
        at = found.end() + size
        parts.append(data[found.end() : at])
        at += 2 if data[at : at + 2] == b"\r\n" else data[at : at + 1] == b"\n"
    if found is None or int(found[1], 16):
        begun = found is not None or len(parts) > 1 or (at == len(data) and bool(parts))
        raise (_CutOffError if begun else ValueError)(f"no whole chunk begins at byte {at}")
    return b"".join(parts)


def _inflated(data: bytes, most: int) -> bytes:
    """Return what gzip or zlib has packed, or deflate alone, as some servers send it."""
    try:
        return _unpacked(partial(zlib.decompressobj, zlib.MAX_WBITS | 32), data, most)
    except zlib.error:
        return _unpacked(partial(zlib.decompressobj, -zlib.MAX_WBITS), data, most)


def _unpacked(new: Callable[[], Any], data: bytes, most: int) -> bytes:
    """Return what is in the streams that follow one another; raises EOFError where the last one is cut off."""
    made, begin = b"", data[:2]
    while data[:2] == begin and len(made) < most:
        packed = new()
        made += packed.decompress(data, most - len(made))
        if not packed.eof and len(made) < most:
            raise EOFError("it is cut off")
        data = packed.unused_data
    return made


def _unbrotlied(data: bytes, most: int) -> bytes:
    packed = _brotli().Decompressor()
    made: bytes = packed.process(data, output_buffer_limit=most)
    if not packed.is_finished() and len(made) < most:
        raise EOFError("it is cut off")
    return made


_DECODERS: Final[dict[str, Callable[[bytes, int], bytes]]] = {
    "chunked": _dechunked,
    **dict.fromkeys(("gzip", "x-gzip", "deflate", "x-deflate"), _inflated),
    **dict.fromkeys(("br", "brotli"), _unbrotlied),
    **dict.fromkeys(("zstd", "x-zstd"), partial(_unpacked, ZSTD.ZstdDecompressor)),
}
"""By the names that servers give them (RFC 9110, 8.4.1)."""


def _text(data: bytes, kind: str, *, html: bool) -> str | Bad:
    said = _CHARSET.search(kind)
    if said is not None and not ENCODINGS.fullmatch(said[1].replace("_", "-")):
        return Bad(f"not the text that it says it is: {said[1][:60]!r} is no charset of the web", data)
    marked = marked_encoding(data)
    encoding = marked or (said[1] if said else UTF_8)
    if is_binary(data, encoding):
        return Bad("not the text that it says it is: these are bytes of compressed or other binary data", data)
    if not said and not marked and (why := why_no_text(data)):
        return Bad(f"not the text that it says it is: {why}", data)
    try:
        return _extracted(data, encoding) if html else data.decode(encoding).removeprefix("\ufeff")
    except (ValueError, LookupError) as error:  # no such text in it
        return Bad(f"not the text that it says it is: {error}", data)


def _characters(page: bytes, encoding: str) -> str:
    """Return an HTML page with U+FFFD for what is no character, or, where most is none, in the encoding it seems in."""
    encodings = library("resiliparse.parse.encoding", EXTRACT, "--extract")
    said = encodings.map_encoding_to_html5(encoding, False) or encoding
    text = page.decode(marked_encoding(page) or said, "replace")
    if (bad := text.count("\ufffd")) and 2 * bad > len(text) - len(text.encode("ascii", "ignore")):
        text = page.decode(encodings.detect_encoding(page, from_html_meta=True), "replace")
    return text.removeprefix("\ufeff")


def _extracted(page: bytes, encoding: str) -> str | Bad:
    """Return the main text of an HTML page; its depth is counted and nothing timed, so it is the same everywhere."""
    html = library("resiliparse.parse.html", EXTRACT, "--extract")
    extract = library("resiliparse.extract.html2text", EXTRACT, "--extract").extract_plain_text
    text = _characters(page, encoding)
    if why := _too_many_attributes(text.encode()):
        return Bad(why, page)
    tree = html.HTMLTree.parse(text)
    if len(tree.document.query_selector_all("*>" * DEEP + "*")) > MOST_DEEP:
        return Bad(f"a page of over {MOST_DEEP} elements that are nested deeper than {DEEP}", page)
    return str(extract(tree, main_content=True, alt_texts=False))


def _too_many_attributes(page: bytes) -> str:
    """Return why a page is not parsed; what looks like a tag in a script or a quote is counted as one."""
    scanned = squares = 0
    for tag in _TAG.finditer(page):
        found = _ATTRIBUTES.match(page, tag.end())
        size = found.end() - tag.end() if found else 0
        scanned += size
        if found and size > FEW_BYTES:
            squares += len(_ATTRIBUTE.findall(found[0])) ** 2
        if squares > MOST_ATTRIBUTES**2 or scanned > 16 * max(len(page), 1 << 16):
            return f"a page whose elements have too many attributes: one may have {MOST_ATTRIBUTES:,}"
    return ""


PAGES: Final = ("conversion", "resource", "response")
"""Types of the records that hold a page ..."""
ABOUT: Final = ("warcinfo", "request", "metadata", "revisit")
"""... or are about pages, or about the archive. A damaged type is neither."""
_VERSION: Final = re.compile(rb"(?:\r?\n)*WARC/[01]\.")
_END: Final = re.compile(rb"\r\n\r\n|(?:\r?\n)*(?:WARC/[01]\.|\Z)")
"""What follows a record: two line ends, or less where another program wrote the archive."""
_NEXT: Final = re.compile(rb"WARC/[01]\.[0-9]{1,2}\r?\n(?:WARC-|Content-)", re.IGNORECASE)
"""What a record begins with, even where the one before it was cut off within a line."""
_NEXT_BYTES: Final = 32  # enough for it
_HEAD_END: Final = re.compile(rb"\r?\n\r?\n")


def read_warc(file: File, needs: Needs, start: Place) -> Iterator[Entry]:
    """Yield the records that hold a page; an entry's number counts all records, and each stretch that is none.

    A row has ``id`` (WARC-Record-ID), ``text``, ``url`` and ``date``. A page without a text that is wanted is `Bad`.
    """
    for number, found in enumerate(_records(_Ahead(file.stream), needs), 1):
        if number > start.entry:
            content = _content(found, needs) if isinstance(found, _Record) else found
            if content is not None:
                yield number, 0, content


class _Record(NamedTuple):
    head: dict[str, str]
    block: bytes | None  # None: it is longer than a record may be


class _Ahead:
    """A stream of which some bytes were read ahead: what is there comes before any error in what follows."""

    def __init__(self, stream: "BufferedReader[Any]") -> None:
        self._stream = stream
        self._error: BaseException | None = None
        self.held = bytearray()
        self.ended = False

    def hold(self, size: int) -> bool:
        """Read on until so many bytes are held; return whether there are so many."""
        while len(self.held) < size and not self.ended:
            try:
                piece = self._stream.read1(BUFFER_BYTES)
            except DAMAGE as error:
                self._error, piece = error, b""
            self.held += piece
            self.ended = not piece
        return len(self.held) >= size

    def drop(self, size: int) -> bytes:
        dropped = bytes(self.held[:size])
        del self.held[:size]
        return dropped

    def raise_if_damaged(self) -> None:
        if self._error is not None:
            raise self._error


def _records(ahead: _Ahead, needs: Needs) -> Iterator[_Record | Bad]:
    while ahead.hold(HEAD_BYTES) or ahead.held.strip(b"\r\n"):
        try:
            found: _Record | Bad = _record(ahead, needs)
        except ValueError as error:
            found = _passed(ahead, needs, str(error))
            if found.broken:
                ahead.raise_if_damaged()
        yield found
    ahead.raise_if_damaged()


def _record(ahead: _Ahead, needs: Needs) -> _Record | Bad:
    version = _VERSION.match(ahead.held)
    if version is None:
        raise ValueError("no WARC record begins here")
    head_end = _HEAD_END.search(ahead.held, version.end(), HEAD_BYTES)
    if head_end is None or _NEXT.search(ahead.held, version.end(), head_end.end()):
        raise ValueError("the head of a WARC record has no end")
    head = _fields_of(bytes(ahead.held[version.end() : head_end.start()]))
    length = head.get("content-length", "")
    if not re.fullmatch(r"[0-9]{1,18}", length):
        raise ValueError(f"a WARC record without a length (Content-Length: {length[:20]!r})")
    begin, end = head_end.end(), head_end.end() + int(length)
    if int(length) > needs.limit + HEAD_BYTES:
        return _long(ahead, head, begin, int(length))
    if not ahead.hold(end):
        raise ValueError("the record is cut off, or its Content-Length is wrong")
    ahead.hold(end + _NEXT_BYTES)
    if not _END.match(ahead.held, end):
        raise ValueError(f"what follows is no WARC record: is Content-Length {length} wrong?")
    return _Record(head, ahead.drop(end)[begin:])


def _passed(ahead: _Ahead, needs: Needs, why: str) -> Bad:
    """Pass over all up to the next record, or to the end, and return it as refused."""
    data: bytearray | None = bytearray()
    own = _VERSION.match(ahead.held)
    begin = own.end() if own else 0
    while True:
        found = _NEXT.search(ahead.held, begin)
        size = found.start() if found else len(ahead.held) if ahead.ended else len(ahead.held) - _NEXT_BYTES
        passed = ahead.drop(max(0, size))
        data = None if data is None or len(data) + len(passed) > needs.limit else data + passed
        if found or (ahead.ended and not ahead.held):
            return Bad(why, bytes(data or b""), broken=found is None)
        begin = 0
        ahead.hold(BUFFER_BYTES)


def _long(ahead: _Ahead, head: dict[str, str], begin: int, length: int) -> _Record | Bad:
    """Pass over a record that is too long to be held; it ends where the next one begins, if that is sooner."""
    ahead.drop(begin)
    while length:
        ahead.hold(min(length, BUFFER_BYTES) + _NEXT_BYTES)
        if not ahead.held:
            return Bad("the record is cut off, or its Content-Length is wrong", broken=True)
        found = _NEXT.search(ahead.held)
        size = found.start() if found else max(1, len(ahead.held) - _NEXT_BYTES)
        if found and size < length:
            ahead.drop(size)
            return Bad("another WARC record begins within this one: its Content-Length is wrong")
        length -= len(ahead.drop(min(size, length)))
    return _Record(head, None)


def _content(record: _Record, needs: Needs) -> Content:
    head = record.head
    kind = head.get("warc-type", "").lower()
    if kind in ABOUT:
        return None
    if kind not in PAGES:
        return Bad(f"a record of the type {kind[:20]!r}, which is not read", record.block or b"")
    if record.block is None:
        return needs.too_long
    text = _page_text(head.get("content-type", ""), record.block, needs)
    if isinstance(text, Bad):
        return text
    return {
        "id": head.get("warc-record-id", "").strip("<>"),
        "text": text,
        "url": head.get("warc-target-uri"),
        "date": head.get("warc-date"),
    }
