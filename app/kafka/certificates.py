"""When the certificates end that the settings name, as their files say.

Python's ssl says that of the other side's certificate, and of authorities; not of one's own, so files are read here.
"""

import re
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from ..settings import Settings

_CERTIFICATE: Final = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_VERSION: Final = 0xA0
"""The tag of the only part that a certificate may lack, of those before its times (RFC 5280, 4.1)."""
_UTC_TIME: Final = 0x17
"""The tag of a time whose year has two digits."""


def certificate_ends(settings: Settings) -> dict[str, float]:
    """Return for each setting that names certificates when these end, in seconds since 1970.

    Of a chain of ours the first end counts, of authorities the last: any of them may vouch. A file that cannot be read
    is left out: who wants to connect with it says what is wrong.
    """
    found = {}
    for name in Settings.model_fields:
        path = getattr(settings, name) if name.endswith(("_certfile", "_cafile", "_certificate")) else None
        if path is not None and (ends := _ends_in(path)):
            found[name] = (max if name.endswith("_cafile") else min)(ends)
    return found


def _ends_in(path: Path) -> list[float]:
    try:
        pem = path.read_text("ascii", "replace")
        return [_end(ssl.PEM_cert_to_DER_cert(found)) for found in _CERTIFICATE.findall(pem)]
    except (OSError, ValueError, IndexError):
        return []


def _end(der: bytes) -> float:
    """Return when a certificate ends. Raises ValueError or IndexError where it is none."""
    signed = _parts(_parts(der)[0][1])[0][1]
    _, _, _, (_, times), *_ = (part for part in _parts(signed) if part[0] != _VERSION)
    kind, said = _parts(times)[1]
    form = "%y%m%d%H%M%SZ" if kind == _UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(said.decode("ascii"), form).replace(tzinfo=UTC).timestamp()


def _parts(der: bytes) -> list[tuple[int, bytes]]:
    """Return tag and content of each part of what DER puts together."""
    found, at = [], 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:  # the length of the length
            size = length & 0x7F
            length, at = int.from_bytes(der[at : at + size], "big"), at + size
        found.append((tag, der[at : at + length]))
        at += length
    return found
