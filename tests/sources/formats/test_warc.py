"""Web archives."""

import gzip
import json
from dataclasses import replace
from encodings import _cache
from pathlib import Path

import pytest

from tests.sources.files import warc_record
from tests.sources.reading import found_in, reading_of, refusals, values
from tokenmill.sources import Refused
from tokenmill.sources.formats.warc import DEEP, MOST_DEEP

HTTP = "application/http; msgtype=response"


def test_plain_pages_are_documents_and_others_are_named(tmp_path: Path) -> None:
    """A conversion and a plain response are; HTML is not, and what is about the archive itself is passed over."""
    http = "HTTP/1.1 200 OK\r\nContent-Type: {}\r\n\r\n{}".format
    records = [
        warc_record("warcinfo", "info", "about"),
        warc_record("conversion", "one", "first"),
        warc_record("response", "two", http("text/html", "<p>second"), HTTP),
        warc_record("response", "three", http("text/plain", "third"), HTTP),
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
    """Half a record is no document, compressed or not."""
    records = [warc_record("conversion", str(number), f"text {number} " * 500) for number in range(3)]
    packed = b"".join(map(gzip.compress, records))
    (tmp_path / "a.wet").write_bytes(b"".join(records)[:-900])
    (tmp_path / "b.wet.gz").write_bytes(packed[:-40])
    (tmp_path / "c.warc").write_bytes(b"hello world\n" * 100)

    for name, whole in (("a.wet", 2), ("b.wet.gz", 2), ("c.warc", 0)):
        found = found_in(reading_of(), tmp_path / name)
        assert len(values(found)) == whole
        assert found[-1].broken  # type: ignore[union-attr]


def test_a_charset_that_is_none_is_refused(tmp_path: Path) -> None:
    """Whatever a page says of itself, the pages behind it are read."""
    kinds = ["text/plain; charset=\0utf", "text/plain; charset=no-such", "text/plain; charset=utf-16"]
    records = [warc_record("conversion", "odd", "grün", kind) for kind in kinds]
    (tmp_path / "a.wet").write_bytes(b"".join([*records, warc_record("conversion", "good", "text")]))

    found = found_in(reading_of(plain=True), tmp_path / "a.wet")

    assert values(found) == [b"text"]
    assert [where for where, why in refusals(found) if why.startswith("not the text that it says it is")] == [
        "a.wet:1",
        "a.wet:2",
        "a.wet:3",
    ]
    assert not any(item.broken for item in found if isinstance(item, Refused))


def test_only_charsets_of_the_web_are_looked_up(tmp_path: Path) -> None:
    """Python has others: punycode took the square of a page's length, and a name is remembered for ever."""
    body = "xn--" + "a" * 100_000
    names = ["punycode", "IDNA", "unicode_escape", "zlib", "utf-7", *(f"x{number}" for number in range(50))]
    records = [warc_record("conversion", name, body, f"text/plain; charset={name}") for name in names]
    kinds = ['text/plain; charset="ISO_8859-1"; format=flowed', "text/plain;charset = shift_jis", "text/plain"]
    records += [warc_record("conversion", "good", "text", kind) for kind in kinds]
    html = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=punycode\r\n\r\n<p>" + body.encode()
    (tmp_path / "a.warc").write_bytes(b"".join(records) + warc_bytes("page", html))
    kept = len(_cache)

    found = found_in(replace(reading_of(plain=True), extract=True), tmp_path / "a.warc")

    assert values(found) == [b"text"] * len(kinds)
    assert len(refusals(found)) == len(names) + 1
    assert refusals(found)[0][1] == "not the text that it says it is: 'punycode' is no charset of the web"
    assert len(_cache) <= kept + len(kinds)


@pytest.mark.parametrize("tag", ["<div>", "<table><tr><td>", "<ul><li>", "<svg>"])
def test_a_page_that_is_nested_too_deep_is_refused_and_its_neighbours_are_read(tag: str, tmp_path: Path) -> None:
    """Extracting it took minutes; a page as deep as people write them, and a few elements more, is read."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n"
    pages = [tag * 100 + "<p>shallow enough", tag * 30_000 + "deep", "<p>the last one"]
    (tmp_path / "a.warc").write_bytes(b"".join(warc_bytes("page", head + page.encode()) for page in pages))

    found = found_in(replace(reading_of(plain=True), extract=True), tmp_path / "a.warc")

    assert refusals(found) == [("a.warc:2", f"a page of over {MOST_DEEP} elements that are nested deeper than {DEEP}")]
    assert values(found)[-1] == b"the last one"


def test_an_archive_that_warcio_cannot_read_is_named(tmp_path: Path) -> None:
    """A response must have an address; the pages before one without are documents, and the file is broken there."""
    odd = warc_record("response", "odd", "HTTP/1.1 200 OK\r\n\r\ntext", HTTP)
    lines = [line for line in odd.split(b"\r\n") if not line.startswith(b"WARC-Target-URI")]
    good = warc_record("conversion", "good", "text")
    (tmp_path / "a.warc").write_bytes(good + b"\r\n".join(lines) + good)
    (tmp_path / "b.warc").write_bytes(good)

    found = found_in(reading_of(plain=True), tmp_path)

    assert values(found) == [b"text", b"text"]
    ((where, why),) = refusals(found)
    assert where == "a.warc:2"
    assert why.startswith("warcio cannot read this record: AttributeError")
    assert [item.broken for item in found if isinstance(item, Refused)] == [True]


def test_pages_of_html_are_extracted_where_that_is_wanted(tmp_path: Path) -> None:
    """Their main text, in the encoding that header or bytes say; other types are named as before."""
    page = (
        "<html><head><title>t</title></head><body><nav>menu</nav><main><h1>Mühle</h1><p>Korn wird in der Mühle zu Mehl,"
        " und aus Mehl wird Brot gebacken.</p></main><footer>imprint</footer></body></html>"
    )
    records = []
    for charset in ("utf-8", "latin-1"):
        body = f"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset={charset}\r\n\r\n".encode() + page.encode(charset)
        records.append(warc_bytes(charset, body))
    records.append(warc_bytes("guessed", b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + page.encode()))
    records.append(warc_bytes("image", b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n\x89PNG"))
    records.append(warc_bytes("odd", b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=no-such\r\n\r\n<p>x"))
    (tmp_path / "a.warc").write_bytes(b"".join(records))
    reading = replace(reading_of(), extract=True)
    found = found_in(reading, tmp_path / "a.warc")
    texts = {json.loads(value)["id"]: json.loads(value)["text"] for value in values(found)}
    for name in ("utf-8", "latin-1", "guessed"):
        assert "Korn wird in der Mühle zu Mehl" in texts[name]
        assert "menu" not in texts[name]
    assert "a page of type image/png, which has no text that could be taken" in [why for _, why in refusals(found)]


def warc_bytes(name: str, block: bytes) -> bytes:
    """Return a response record."""
    head = f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Record-ID: <{name}>\r\nWARC-Target-URI: https://example.org/{name}"
    more = f"\r\nWARC-Date: 2026-01-01T00:00:00Z\r\nContent-Type: {HTTP}\r\nContent-Length: {len(block)}\r\n\r\n"
    return (head + more).encode() + block + b"\r\n\r\n"
