"""The text of a page as a web server sent it: out of its encodings, and out of HTML where that is wanted."""

import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final

from ..encodings import DAMAGE, UTF_8, ZSTD, is_binary, why_no_text
from ..items import Bad, Entry, File, Needs, Place, Text, library
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
_TOO_DEEP: Final = "*>" * DEEP + "*"
MOST_ATTRIBUTES: Final = 10_000
"""Attributes of an element: what parsing costs grows with their square, half a second for so many. Several elements may
have as many squares together."""
FEW_BYTES: Final = 500
"""A tag of so many bytes has too few attributes to be counted."""
MOST_SCANNED: Final = 16
"""Bytes looked at for attributes, for each byte of a page: of one whose tags are in one another's quotes, many."""
_TAG: Final = re.compile(rb"</?[a-zA-Z]")
_ATTRIBUTE: Final = re.compile(
    rb"[\s/]*+[^\s/>][^\s/>=]*+(?:\s*+=\s*+(?:\"[^\"]*+\"?|'[^']*+'?|[^\s>\"'][^\s>]*+)?+)?+"
)
_ATTRIBUTES: Final = re.compile(rb"(?:%s){,%d}+" % (_ATTRIBUTE.pattern, MOST_ATTRIBUTES + 2))
"""Those that follow the first letter of a tag, whose name counts as one (HTML, 13.2.5.32)."""
_CHARSET: Final = re.compile(r"charset\s*=\s*[\"']?([^\s;,\"']+)")
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
"""What servers call a body that is as it is."""


def fields_of(head: bytes) -> dict[str, str]:
    """Return the fields of a head, of a record or a page, by their names in small letters; the first line is none."""
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
    return read_whole(file, needs, start, partial(_page_of_file, file))


def _page_of_file(file: File, data: bytes) -> Text | Bad:
    encoding = UTF_8 if file.encoding != UTF_8 else _encoding_of(data)
    if is_binary(data, encoding):
        return Bad("no page: these are bytes of compressed or other binary data", data)
    try:
        found = _extracted(data, encoding)
    except (ValueError, LookupError) as error:
        return Bad(f"no page in {encoding}: {error}", data)
    return found if isinstance(found, Bad) else Text(found.encode("utf-8", "surrogatepass"), whole=True)


def page_text(kind: str, block: bytes, needs: Needs) -> str | Bad:
    """Return the text of a page, of this Content-Type, or of what a server answered (``application/http``)."""
    coded: list[str] = []
    if kind.lower().startswith("application/http"):
        found = _HEAD.match(block, 0, HEAD_BYTES)
        if found is None:
            return Bad("no answer of a web server: its head has no end", block)
        fields = fields_of(b"\n" + (found[1] or b""))
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
    """Return a body without these encodings, of which the last one was applied last.

    Many crawlers store bodies without an encoding that their heads still name. Such a body is taken as it is, where it
    looks like text.
    """
    for name in reversed([one for one in coded if one not in _NO_ENCODING]):
        decode = _DECODERS.get(name)
        if decode is None:
            return Bad(f"a page in the encoding {name[:40]!r}, which is not read", data)
        try:
            made = decode(data, needs.limit + 1)
        except (*DAMAGE, ValueError, _brotli().error) as error:
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
    "gzip": _inflated,
    "x-gzip": _inflated,
    "deflate": _inflated,
    "x-deflate": _inflated,
    "br": _unbrotlied,
    "brotli": _unbrotlied,
    "zstd": partial(_unpacked, ZSTD.ZstdDecompressor),
    "x-zstd": partial(_unpacked, ZSTD.ZstdDecompressor),
}
"""By the names that servers give them (RFC 9110, 8.4.1)."""


def _text(data: bytes, kind: str, *, html: bool) -> str | Bad:
    said = _CHARSET.search(kind)
    if said is not None and not ENCODINGS.fullmatch(said[1].replace("_", "-")):
        return Bad(f"not the text that it says it is: {said[1][:60]!r} is no charset of the web", data)
    encoding = said[1] if said else _encoding_of(data) if html else UTF_8
    if is_binary(data, encoding):
        return Bad("not the text that it says it is: these are bytes of compressed or other binary data", data)
    if not said and (why := why_no_text(data)):
        return Bad(f"not the text that it says it is: {why}", data)
    try:
        return _extracted(data, encoding) if html else data.decode(encoding)
    except (ValueError, LookupError) as error:  # no such text in it
        return Bad(f"not the text that it says it is: {error}", data)


def _encoding_of(page: bytes) -> str:
    """Return the encoding of an HTML page of which no server said any: UTF-8 if it may be that, else as it says."""
    with suppress(UnicodeDecodeError):
        page.decode()
        return UTF_8
    detect = library("resiliparse.parse.encoding", EXTRACT, "--extract").detect_encoding
    return str(detect(page, from_html_meta=True))


def _extracted(page: bytes, encoding: str) -> str | Bad:
    """Return the main text of an HTML page.

    Its depth is counted, and nothing is timed: what becomes of a page is the same on every machine.
    """
    html = library("resiliparse.parse.html", EXTRACT, "--extract")
    extract = library("resiliparse.extract.html2text", EXTRACT, "--extract").extract_plain_text
    if why := _too_many_attributes(page.decode(encoding).encode() if "16" in encoding else page):
        return Bad(why, page)
    tree = html.HTMLTree.parse_from_bytes(page, encoding)
    if len(tree.document.query_selector_all(_TOO_DEEP)) > MOST_DEEP:
        return Bad(f"a page of over {MOST_DEEP} elements that are nested deeper than {DEEP}", page)
    return str(extract(tree, main_content=True, alt_texts=False))


def _too_many_attributes(page: bytes) -> str:
    """Return why a page is not parsed, whose elements have more attributes than are counted; nothing if it may be.

    A script may hold what looks like a tag, and a quote what is one: each is looked at as if it were.
    """
    scanned = squares = 0
    for tag in _TAG.finditer(page):
        found = _ATTRIBUTES.match(page, tag.end())
        size = found.end() - tag.end() if found else 0
        scanned += size
        if found and size > FEW_BYTES:
            squares += len(_ATTRIBUTE.findall(found[0])) ** 2
        if squares > MOST_ATTRIBUTES**2 or scanned > MOST_SCANNED * max(len(page), 1 << 16):
            return f"a page whose elements have too many attributes: one may have {MOST_ATTRIBUTES:,}"
    return ""
