"""Files of web servers: from the host that was named, and from no other.

A server may send us elsewhere. That is followed on the same host alone: what another one has, one of this machine's
network for example, was not asked for.
"""

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPMessage
from typing import IO, Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

from tokenmill.errors import InputError

from ..backoff import Backoff

ANSWER_SECONDS: Final = 30.0
"""How long a server may send nothing."""
TRIES: Final = 5
"""How often a file is asked for while its server is overloaded."""
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 8.0
"""Seconds between two tries, doubled each time."""
_UNCHANGED: Final = "/~!$&'()*+,;=:@"
"""Letters of a path that stand for themselves (RFC 3986, 3.3)."""
_BUSY: Final = frozenset({429, 500, 502, 503, 504})
WEB_ERRORS: Final = (OSError, http.client.HTTPException)
"""What reading raises where a server does not answer, or refuses."""


class Version(NamedTuple):
    """What distinguishes one version of an object, or of a file of a server, from another."""

    size: int
    tag: str
    """Its entity tag, or else its time."""

    @classmethod
    def of(cls, size: int, tag: str | None, time: datetime | None) -> "Version":
        """Return the version; some servers leave the tag's quotes out in lists, and nowhere else."""
        if not tag:
            return cls(size, "" if time is None else time.isoformat())
        return cls(size, tag if tag.endswith('"') else f'"{tag}"')


class RemoteAnswer(NamedTuple):
    """An object, or a file of a server: which version of it, and its bytes from some byte on."""

    version: Version
    begin: int
    pieces: Iterator[Any]


class SameHost(urllib.request.HTTPRedirectHandler):
    """Follows a server that sends us elsewhere on the same host; from HTTP to HTTPS, too."""

    def redirect_request(  # noqa: PLR0917 - the library's signature
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        """Return the request for the other place. Raises InputError where it is on another host."""
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        upgraded = (old.scheme, old.port, new.scheme, new.port) == ("http", None, "https", None)
        if old.hostname != new.hostname or not (upgraded or (old.scheme, old.port) == (new.scheme, new.port)):
            raise InputError(
                f"{req.full_url} sends us to another host, {newurl}: give that address, if it is the one you mean"
            )
        found = super().redirect_request(req, fp, code, msg, headers, newurl)
        if found is not None:
            found.method = req.get_method()
        return found


class WebServer:
    """A web server, of which files are asked for by their names."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._opener = urllib.request.build_opener(SameHost)

    def version(self, path: str) -> Version:
        """Return which version of a file there is.

        Raises InputError where it sends us to another host, or does not say how long the file is; and OSError or
        HTTPException where it does not answer, or refuses.
        """
        with self._opened(path, "HEAD") as response:
            return self._answer(response, path).version

    def read(self, path: str, begin: int) -> RemoteAnswer:
        """Return a file from a byte on, or from its first one where the server knows no ranges. Raises as `version`."""
        return self._answer(self._opened(path, "GET", begin), path)

    def _opened(self, path: str, method: str, begin: int = 0) -> Any:
        headers = {"Range": f"bytes={begin}-"} if begin else {}
        address = f"{self._origin}/{quote(path, safe=_UNCHANGED)}"
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        for tries in range(TRIES):
            try:
                request = urllib.request.Request(address, headers=headers, method=method)  # noqa: S310 - is_remote()
                return self._opener.open(request, timeout=ANSWER_SECONDS)
            except urllib.error.HTTPError as error:
                error.close()
                if error.code not in _BUSY or tries == TRIES - 1:
                    raise OSError(f"it answers {error.code} ({str(error.reason).lower()})") from error
            time.sleep(backoff.next())
        raise AssertionError  # the last try returns or raises

    def _answer(self, response: Any, path: str) -> RemoteAnswer:
        headers = response.headers
        unit, _, ranges = headers.get("Content-Range", "").partition(" ")
        part, _, whole = ranges.partition("/")
        begin = int(part.partition("-")[0]) if response.status == http.client.PARTIAL_CONTENT and unit == "bytes" else 0
        length = headers.get("Content-Length", "")
        if not length.isdecimal():
            response.close()
            raise InputError(f"{self._origin}/{path}: its server does not say how long it is: download it")
        size = int(whole) if begin and whole.isdecimal() else int(length)
        try:
            changed = parsedate_to_datetime(headers.get("Last-Modified", ""))
        except ValueError:
            changed = None
        return RemoteAnswer(Version.of(size, headers.get("ETag"), changed), begin, _pieces(response, int(length)))


def _pieces(response: Any, left: int) -> Iterator[bytes]:
    with response:
        while left:
            piece = response.read1(min(left, 1 << 20))
            if not piece:
                raise OSError("the server closed the connection early")
            left -= len(piece)
            yield piece
