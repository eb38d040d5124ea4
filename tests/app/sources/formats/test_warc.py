"""Web archives."""

import gzip
import io
import json
import zlib
from dataclasses import replace
from encodings import _cache
from pathlib import Path

import brotli
import pytest
from hypothesis import given
from hypothesis import strategies as st
from warcio.warcwriter import WARCWriter

from tests.app.sources.files import warc_record, zstd
from tests.app.sources.reading import found_in, reading_of, refusals, values
from tokenmill.app.settings import Settings
from tokenmill.app.sources import Item, Refused
from tokenmill.app.sources.formats.web_pages import DEEP, MOST_DEEP, read_warc
from tokenmill.app.sources.items import START, File, Needs

HTTP = "application/http; msgtype=response"


def page(kind: str, body: str | bytes, *fields: str, name: str = "page") -> bytes:
    head = "\r\n".join(["HTTP/1.1 200 OK", f"Content-Type: {kind}", *fields, "", ""]).encode()
    return warc_record("response", name, head + (body.encode() if isinstance(body, str) else body), HTTP)


def read(path: Path, *records: bytes) -> list[Item | Refused]:
    """Return what becomes of an archive of these records where pages are extracted."""
    path.write_bytes(b"".join(records))
    return found_in(replace(reading_of(plain=True), extract=True), path)


def test_plain_pages_are_documents_and_others_are_named(tmp_path: Path) -> None:
    records = [
        warc_record("warcinfo", "info", "about"),
        warc_record("conversion", "one", "first"),
        page("text/html", "<p>second"),
        page("text/plain", "third", name="three"),
        warc_record("request", "four", "GET / HTTP/1.1\r\n\r\n", HTTP),
    ]
    (tmp_path / "a.warc.gz").write_bytes(b"".join(map(gzip.compress, records)))
    found = found_in(reading_of(metadata_fields=["url"]), tmp_path / "a.warc.gz")
    assert [json.loads(value) for value in values(found)] == [
        {"id": "one", "text": "first", "url": "https://example.org/one"},
        {"id": "three", "text": "third", "url": "https://example.org/three"},
    ]
    ((where, why),) = refusals(found)
    assert where == "a.warc.gz:3"
    assert why.startswith("a page of type text/html")


def test_an_archive_that_is_cut_off_is_named(tmp_path: Path) -> None:
    records = [warc_record("conversion", str(number), f"text {number} " * 500) for number in range(3)]
    packed = b"".join(map(gzip.compress, records))
    cut = {"a.wet": b"".join(records)[:-900], "b.wet.gz": packed[:-40], "c.warc": b"hello world\n" * 100}
    for name, whole in (("a.wet", 2), ("b.wet.gz", 2), ("c.warc", 0)):
        found = read(tmp_path / name, cut[name])
        assert len(values(found)) == whole
        assert found[-1].broken  # type: ignore[union-attr]


def test_only_charsets_of_the_web_are_looked_up(tmp_path: Path) -> None:
    """Python has others: punycode took the square of a page's length, and a name is remembered for ever."""
    body = "xn--" + "a" * 100_000
    names = ["punycode", "IDNA", "unicode_escape", "zlib", "utf-7", *(f"x{number}" for number in range(50))]
    records = [warc_record("conversion", name, body, f"text/plain; charset={name}") for name in names]
    records += [warc_record("conversion", "odd", "grün", f"text/plain; charset={name}") for name in ("\0utf", "utf-16")]
    refused = len(records) + 1
    kinds = ["", '; charset="ISO_8859-1"; format=flowed', ";charset = shift_jis", "; charset=x-sjis"]
    records += [warc_record("conversion", "good", "text", f"text/plain{kind}") for kind in kinds]
    kept = len(_cache)
    found = read(tmp_path / "a.warc", page("text/html; charset=punycode", "<p>" + body), *records)
    assert values(found) == [b"text"] * len(kinds)
    assert [where for where, _ in refusals(found)] == [f"a.warc:{number}" for number in range(1, refused + 1)]
    assert refusals(found)[1][1] == "not the text that it says it is: 'punycode' is no charset of the web"
    assert all(why.startswith("not the text that it says it is") for _, why in refusals(found))
    assert not any(item.broken for item in found if isinstance(item, Refused))
    assert len(_cache) <= kept + len(kinds) + 1  # and UTF-16


def test_pages_of_html_are_extracted_where_that_is_wanted(tmp_path: Path) -> None:
    html = (
        "<html><head><title>t</title></head><body><nav>menu</nav><main><h1>Mühle</h1><p>Korn wird in der Mühle zu Mehl,"
        " und aus Mehl wird Brot gebacken.</p></main><footer>imprint</footer></body></html>"
    )
    found = read(
        tmp_path / "a.warc",
        *(page(f"text/html; charset={charset}", html.encode(charset)) for charset in ("utf-8", "latin-1")),
        page("text/html", html),
        page("image/png", b"\x89PNG"),
        page("text/html; charset=no-such", "<p>x"),
    )
    texts = [value.decode() for value in values(found)]
    assert ["Korn wird in der Mühle zu Mehl" in text for text in texts[:3]] == [True] * 3
    assert not any("menu" in text for text in texts[:3])
    assert "a page of type image/png, which has no text that could be taken" in [why for _, why in refusals(found)]


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "text/html"])
def test_a_byte_that_is_no_character_harms_no_other_of_a_page(kind: str, tmp_path: Path) -> None:
    """One made Latin-1 of a whole page; a page that says another encoding than it is in is read in that."""
    russian = "<meta charset=windows-1251><p>" + "Мука из зерна. " * 9
    marked = b"\xfe\xff" + "<p>Mühle".encode("utf-16-be")
    pages = ["<p>Mühle, M\udcff, Mühle".encode("utf-8", "surrogateescape"), russian.encode("cp1251"), marked]
    plain = page(kind.replace("html", "plain"), "Mühle".encode("utf-8-sig"))
    found = values(read(tmp_path / "a.warc", *(page(kind, each) for each in pages), plain))
    assert [value.decode()[:14] for value in found] == ["Mühle, M\ufffd, Müh", "Мука из зерна.", "Mühle", "Mühle"]


BODY = (
    "<html><body><main><p>Korn wird in der Mühle zu Mehl, und aus Mehl wird Brot.</p></main></body></html>".encode() * 9
)


def in_chunks(body: bytes) -> bytes:
    """Return a body as servers send it whose length they do not know."""
    return b"".join(b"%x;x=y\r\n%s\r\n" % (len(part), part) for part in (body[:70], body[70:])) + b"0\r\n\r\n"


CODED: dict[str, tuple[str, bytes]] = {
    "gzip": ("Content-Encoding: gzip", gzip.compress(BODY)),
    "capitals": ("content-encoding:GZIP", gzip.compress(BODY)),
    "two members": ("Content-Encoding: x-gzip", gzip.compress(BODY[:50]) + gzip.compress(BODY[50:])),
    "deflate": ("Content-Encoding: deflate", zlib.compress(BODY)),
    "raw deflate": ("Content-Encoding: deflate", zlib.compress(BODY, wbits=-15)),  # as some servers send it
    "brotli": ("Content-Encoding: br", brotli.compress(BODY)),
    "zstd": ("Content-Encoding: zstd", zstd.compress(BODY)),
    "several": ("Content-Encoding: br, gzip", gzip.compress(brotli.compress(BODY))),
    "several fields": ("Content-Encoding: br\r\nContent-Encoding: gzip", gzip.compress(brotli.compress(BODY))),
    "chunks": ("Transfer-Encoding: chunked", in_chunks(BODY)),
    "both": ("Transfer-Encoding: chunked\r\nContent-Encoding: zstd", in_chunks(zstd.compress(BODY))),
    "none": ("Content-Encoding: identity", BODY),
    "undone before": ("Content-Encoding: br\r\nTransfer-Encoding: chunked", BODY),
    "undone, with digits first": ("Transfer-Encoding: chunked", b"A\r\n" + BODY),
}
NOT_READ: dict[str, tuple[str, bytes, str]] = {
    "another": ("Content-Encoding: dcb", b"\xff" + brotli.compress(BODY), "in the encoding 'dcb', which is not read"),
    "gzip cut off": ("Content-Encoding: gzip", gzip.compress(BODY)[:-9], "not in the encoding 'gzip'"),
    "zstd cut off": ("Content-Encoding: zstd", zstd.compress(BODY)[:-9], "not in the encoding 'zstd'"),
    "brotli cut off": ("Content-Encoding: br", brotli.compress(BODY)[:-9], "not in the encoding 'br'"),
    "damaged": ("Content-Encoding: gzip", gzip.compress(BODY)[:40] + b"\0" * 90, "not in the encoding 'gzip'"),
    "chunks cut off": ("Transfer-Encoding: chunked", in_chunks(gzip.compress(BODY))[:90], "encoding 'chunked'"),
    "text in cut chunks": ("Transfer-Encoding: chunked", in_chunks(BODY)[:-9], "encoding 'chunked'"),
    "no last chunk": ("Transfer-Encoding: chunked", in_chunks(BODY)[:-5], "encoding 'chunked'"),
    "a chunk that is cut": ("Transfer-Encoding: chunked", b"%x\r\n%s" % (len(BODY) + 9, BODY), "encoding 'chunked'"),
    "not said": ("X: y", gzip.compress(BODY), "bytes of compressed or other binary data"),
    "the wrong one": ("Content-Encoding: br", zstd.compress(BODY), "not in the encoding 'br'"),
}


MANY = [b"a%d=1" % number for number in range(40_000)]
ENDLESS = {
    "attributes": b"<p " + b" ".join(MANY) + b">Text.</p>",
    "attributes with slashes": b"<p/" + b"/".join(b"a%d" % number for number in range(40_000)) + b">Text.",
    "attributes in quotes": b"<p " + b"".join(b"a%d='>'" % number for number in range(40_000)) + b">Text.",
    "attributes behind a script": b'<script>if(x<y="</script><p ' + b" ".join(MANY) + b">Text.",
    "attributes of an end": b"</p " + b" ".join(MANY) + b">Text.",
    "attributes of several": (b"<p " + b" ".join(MANY[:5000]) + b">Text.</p>") * 8,
    **{tag: tag.encode() * 30_000 + b"deep" for tag in ("<div>", "<table><tr><td>", "<ul><li>", "<svg>")},
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", [*ENDLESS])
def test_a_page_that_would_take_minutes_is_refused_alone(name: str, tmp_path: Path) -> None:
    """Time grows with the square of attributes, or of depth; what people write, and somewhat more, is read."""
    tag = name if name.startswith("<") else ""
    shallow, good = tag * 100 + "<p>shallow enough", b"<p " + b" ".join(MANY[:200]) + b">Some words."
    found = read(tmp_path / "a.warc", *(page("text/html", each) for each in (shallow, good, ENDLESS[name], good)))
    assert values(found)[1:] == [b"Some words.", b"Some words."]
    deep = f"a page of over {MOST_DEEP} elements that are nested deeper than {DEEP}"
    ((where, told),) = refusals(found)
    assert where == "a.warc:3"
    assert told == deep if tag else "too many attributes" in told


@pytest.mark.parametrize("kind", ["text/html", "text/plain; charset=latin-1", "text/plain"])
@pytest.mark.parametrize("name", [*CODED])
def test_pages_are_read_in_every_encoding_of_http(name: str, kind: str, tmp_path: Path) -> None:
    field, body = CODED[name]
    (value,) = values(read(tmp_path / "a.warc", page(kind, body, field)))
    assert b"wird in der M" in value


@pytest.mark.parametrize("kind", ["text/html", "text/html; charset=latin-1", "text/plain; charset=latin-1"])
@pytest.mark.parametrize("name", [*NOT_READ])
def test_a_page_whose_encoding_cannot_be_undone_is_refused_alone(name: str, kind: str, tmp_path: Path) -> None:
    field, body, why = NOT_READ[name]
    good = warc_record("conversion", "good", "text")
    found = read(tmp_path / "a.warc", good, page(kind, body, field), good)
    assert values(found) == [b"text", b"text"]
    ((where, told),) = refusals(found)
    assert (where, why in told) == ("a.warc:2", True)


def test_a_page_that_unpacks_to_more_than_a_record_is_not_unpacked_further(tmp_path: Path) -> None:
    packers = (("gzip", gzip.compress), ("br", brotli.compress), ("zstd", zstd.compress))
    pages = [page("text/plain", pack(bytes(1 << 24)), f"Content-Encoding: {name}") for name, pack in packers]
    (tmp_path / "a.warc").write_bytes(b"".join(pages))
    found = found_in(reading_of(Settings(max_record_bytes=1 << 20)), tmp_path / "a.warc")
    assert [why for _, why in refusals(found)] == ["longer than 1048576 bytes (max_record_bytes)"] * 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves temporary files open
def test_what_warcio_writes_is_read(tmp_path: Path) -> None:
    """A library that shares no code with ours; compressed by record, too."""
    for packed in (False, True):
        out = io.BytesIO()
        writer = WARCWriter(out, gzip=packed)
        for number in range(3):
            with io.BytesIO(f"text {number}".encode()) as block:
                kind = {"warc_content_type": "text/plain"}
                writer.write_record(writer.create_warc_record("https://example.org/", "resource", block, **kind))
        (tmp_path / f"a.warc{'.gz' * packed}").write_bytes(out.getvalue())
    assert values(found_in(reading_of(plain=True), tmp_path)) == [b"text 0", b"text 1", b"text 2"] * 2


RECORDS = [warc_record("conversion", str(number), f"text {number}\r\n\r\nand more") for number in range(4)]


@given(
    which=st.integers(0, 3),
    at=st.integers(0, len(RECORDS[0])),
    removed=st.integers(0, 40),
    put=st.sampled_from([b"", b"x", b"\0" * 9, b"9", b"9999999", b"\r\n\r\n", b"WARC/1.0\r\n", b"no record\r\n\r\n"]),
    limit=st.sampled_from([60, 1 << 20]),
)
def test_damage_in_a_record_loses_no_other(*, which: int, at: int, removed: int, put: bytes, limit: int) -> None:
    damaged = RECORDS[which][:at] + put + RECORDS[which][at + removed :]
    data = b"".join([*RECORDS[:which], damaged, *RECORDS[which + 1 :]])
    file = File("a", io.BufferedReader(io.BytesIO(data)))
    contents = [content for _, _, content in read_warc(file, Needs(limit), START)]
    there = [content["id"] for content in contents if isinstance(content, dict)]
    others = [str(number) for number in range(4) if number != which]
    assert [name for name in there if name in others] == others
    assert len(contents) > len(others) or damaged.startswith(RECORDS[which])  # a line end behind it may be missing
