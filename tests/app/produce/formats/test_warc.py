"""Web archives."""

import gzip
import json
from pathlib import Path

from tests.app.produce.files import warc_record
from tests.app.produce.reading import found_in, reading_of, refusals, values

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

    found = found_in(reading_of(carry=["url"]), tmp_path / "a.warc.gz")

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
