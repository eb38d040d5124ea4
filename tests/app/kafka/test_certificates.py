"""When certificates end, as the settings' files say."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme

from tokenmill.app.kafka.certificates import certificate_ends
from tokenmill.app.settings import Settings


def written(path: Path, *blobs: trustme.Blob) -> str:
    """Write certificates into one file; return its path."""
    path.write_bytes(b"".join(blob.bytes() for blob in blobs))
    return str(path)


@pytest.mark.parametrize("year", [2031, 2049, 2050, 2090])
def test_the_end_is_the_one_that_was_given(tmp_path: Path, year: int) -> None:
    """From 2050 on certificates write years with four digits."""
    end, later = datetime(year, 2, 28, 12, 30, 5, tzinfo=UTC), datetime(year, 3, 1, tzinfo=UTC)
    ours, theirs = trustme.CA(), trustme.CA()
    leaf, other = (ours.issue_cert("client.example", not_after=moment) for moment in (end, later))
    chain = written(tmp_path / "own.pem", other.private_key_pem, *other.cert_chain_pems, *leaf.cert_chain_pems)
    settings = Settings(
        security_protocol="SSL",
        ssl_certfile=chain,  # type: ignore[arg-type]
        ssl_cafile=written(tmp_path / "ca.pem", ours.cert_pem, theirs.cert_pem, leaf.cert_chain_pems[0]),  # type: ignore[arg-type]
    )
    ends = certificate_ends(settings)
    assert ends["ssl_certfile"] == end.timestamp()
    assert ends["ssl_cafile"] >= end.timestamp()
    assert ends.keys() == {"ssl_certfile", "ssl_cafile"}


@pytest.mark.parametrize("content", [b"", b"no PEM", None, trustme.CA().cert_pem.bytes().replace(b"M", b"Q", 40)])
def test_a_file_that_holds_none_is_left_out(tmp_path: Path, content: bytes | None) -> None:
    """Or that is not there: the client that needs it says so."""
    path = tmp_path / "own.pem"
    if content is not None:
        path.write_bytes(content)
    assert certificate_ends(Settings(security_protocol="SSL", ssl_certfile=path)) == {}
