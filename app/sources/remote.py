"""Objects of stores and web servers as sources: ``s3://``, ``gs://``, ``https://``; never kept on disk.

An object is what it was as long as its entity tag (or time) and size are the same. Each request is held against these:
an object that changes while it is read ends the run, and one that changed between two calls is named.
"""

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from fnmatch import fnmatchcase
from http.client import HTTPMessage
from io import SEEK_CUR, SEEK_END, SEEK_SET, BufferedReader
from typing import IO, Any, Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from tokenmill.errors import InputError

from ..tasks import Backoff
from .contents import data_among, why_no_rows
from .encodings import BUFFER_BYTES, Made
from .file_sources import Reading, Unreadable, file_chunks
from .items import File, ItemChunk, Opened, Place, first_line, library

SCHEMES: Final = ("s3://", "gs://", "https://", "http://")
EXTRA: Final = "remote"
PURPOSE: Final = "reading from object stores"


def is_remote(path: str) -> bool:
    """Return whether a path is the address of an object, a prefix of objects, or a pattern."""
    return path.startswith(SCHEMES)


def remote_sources(address: str, reading: Reading) -> list["RemoteFile | Unreadable"]:
    """Return the objects that an address names, by name.

    An address that ends with a slash is a prefix, of all objects below it that hold data (`data_among`). With ``*``,
    ``?`` or ``[`` it is a pattern, whose ``*`` also matches slashes. Raises InputError where there is no such object;
    the store does not answer, or refuses; the library is missing.
    """
    parts = urlsplit("")
    with suppress(ValueError):  # brackets that do not close
        parts = urlsplit(address)
    if not parts.hostname:
        raise InputError(f"{address} names no bucket or host: write it as s3://bucket/name or https://host/name")
    web = parts.scheme in ("https", "http")
    if "@" in parts.netloc or (web and (parts.query or parts.fragment)):
        raise InputError(
            f"{parts.scheme}://{parts.hostname or ''}{parts.path}: an address with a query or a password is not read: "
            "it would be in ids and notes: download the file, or name an object of a store"
        )
    origin = f"{parts.scheme}://{parts.netloc}"
    key = unquote(parts.path.lstrip("/")) if web else address.partition("://")[2].partition("/")[2].lstrip("/")
    tables: dict[str, str] = {}
    wild = not web and next((at for at, letter in enumerate(key) if letter in "*?["), None)
    try:
        store = _WebServer(origin) if web else _ObjectStore(origin)
        if isinstance(store, _WebServer) or (wild is None and key and not key.endswith("/")):
            found = [(key, store.version(key))]
        else:
            prefix = key if wild is None else key[:wild].rpartition("/")[0]
            below = dict(store.below(prefix))
            data, tables = data_among(below)
            found = [(path, below[path]) for path in data if wild is None or fnmatchcase(path, key)]
    except WEB_ERRORS as error:
        raise InputError(f"{address}: {first_line(error)}; check the address, and how you log in there") from error
    if not found and not tables:
        raise InputError(f"{address}: matches nothing; check the address")
    refused = [Unreadable(f"{origin}/{name}", why_no_rows(table)) for name, table in tables.items()]
    files = [RemoteFile(f"{origin}/{path}", store, path, version, reading) for path, version in sorted(found)]
    return [*refused, *files]


TRIES: Final = 5
"""How often a file is asked for while its server is overloaded."""
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 8.0
"""Seconds between two tries, doubled each time."""
WEB_ERRORS: Final = (OSError, http.client.HTTPException)


class _Version(NamedTuple):
    """What distinguishes one version of an object, or of a file of a server, from another."""

    size: int
    tag: str  # its entity tag, or else its time

    @classmethod
    def of(cls, size: int, tag: str | None, time: datetime | None) -> "_Version":
        """Return the version; some servers leave the tag's quotes out in lists, and nowhere else."""
        if not tag:
            return cls(size, "" if time is None else time.isoformat())
        return cls(size, tag if tag.endswith('"') else f'"{tag}"')


class _Answer(NamedTuple):
    """Which version there is of an object, or of a file of a server, and its bytes from some byte on."""

    version: _Version
    begin: int
    pieces: Iterator[Any]


class SameHost(urllib.request.HTTPRedirectHandler):
    """Follows a server that sends us elsewhere on its host, or to HTTPS: what others have was not asked for."""

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


class _WebServer:
    """A web server, of which files are asked for by their names.

    What is asked raises InputError where it sends us to another host, or does not say how long a file is; and OSError
    or HTTPException where it does not answer, or refuses.
    """

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._opener = urllib.request.build_opener(SameHost)

    def version(self, path: str) -> _Version:
        with self._opened(path, "HEAD") as response:
            return self._answer(response, path).version

    def read(self, path: str, begin: int) -> _Answer:
        """Return a file from a byte on, or from its first one where the server knows no ranges."""
        return self._answer(self._opened(path, "GET", begin), path)

    def _opened(self, path: str, method: str, begin: int = 0) -> Any:
        headers = {"Range": f"bytes={begin}-"} if begin else {}
        address = self._origin + "/" + quote(path, safe="/~!$&'()*+,;=:@")  # RFC 3986, 3.3
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        for tries in range(TRIES):
            try:
                request = urllib.request.Request(address, headers=headers, method=method)  # noqa: S310 - is_remote()
                return self._opener.open(request, timeout=30.0)
            except urllib.error.HTTPError as error:
                error.close()
                if error.code not in (429, 500, 502, 503, 504) or tries == TRIES - 1:
                    raise OSError(f"it answers {error.code} ({str(error.reason).lower()})") from error
            time.sleep(backoff.next())
        raise AssertionError  # the last try returns or raises

    def _answer(self, response: Any, path: str) -> _Answer:
        headers = response.headers
        unit, _, ranges = headers.get("Content-Range", "").partition(" ")
        part, _, whole = ranges.partition("/")
        begin = int(part.partition("-")[0]) if response.status == http.client.PARTIAL_CONTENT and unit == "bytes" else 0
        length = headers.get("Content-Length", "")
        if not length.isdecimal():
            response.close()
            raise InputError(f"{self._origin}/{path}: its server does not say how long it is: download it")
        size = int(whole) if begin and whole.isdecimal() else int(length)
        changed: datetime | None = None
        with suppress(ValueError):
            changed = parsedate_to_datetime(headers.get("Last-Modified", ""))
        return _Answer(_Version.of(size, headers.get("ETag"), changed), begin, _pieces(response, int(length)))


def _pieces(response: Any, left: int) -> Iterator[bytes]:
    with response:
        while left:
            piece = response.read1(min(left, 1 << 20))
            if not piece:
                raise OSError("the server closed the connection early")
            left -= len(piece)
            yield piece


class _ObjectStore:
    """A store of objects: logins are in the environment, by the names that its own tools use."""

    def __init__(self, origin: str) -> None:
        self._library = library("obstore", EXTRA, PURPOSE)
        with self._errors():
            self._store = library("obstore.store", EXTRA, PURPOSE).from_url(origin)

    def version(self, path: str) -> _Version:
        with self._errors():
            return _version(self._library.head(self._store, path))

    def below(self, prefix: str) -> list[tuple[str, _Version]]:
        with self._errors():
            pages = list(self._library.list(self._store, prefix.rstrip("/") or None))
        return [(str(meta["path"]), _version(meta)) for page in pages for meta in page]

    def read(self, path: str, begin: int) -> _Answer:
        with self._errors():
            answer = self._library.get(self._store, path, options={"range": {"offset": begin}} if begin else {})
            return _Answer(_version(answer.meta), begin, self._pieces(answer))

    def _pieces(self, answer: Any) -> Iterator[Any]:
        with self._errors():
            yield from answer.stream(min_chunk_size=BUFFER_BYTES)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self._library.exceptions.BaseError as error:
            raise OSError(first_line(error)) from error


def _version(meta: Any) -> _Version:
    return _Version.of(int(meta["size"]), meta["e_tag"], meta["last_modified"])


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of any format, perhaps compressed, behind an address."""

    name: str
    store: "_WebServer | _ObjectStore"
    path: str
    version: _Version
    reading: Reading

    @property
    def size(self) -> int:
        """Bytes of it."""
        return self.version.size

    def signature(self) -> bytes:
        """Return its entity tag and size."""
        return f"{self.version.tag} {self.version.size}".encode()

    def chunks(self, start: Place) -> Iterator[ItemChunk]:
        """Yield the file's items. Raises InputError where the store is away, or the object is another one now."""
        remote = _RemoteStream(self)
        opened: Opened = (File(self.name, BufferedReader(remote, BUFFER_BYTES)), lambda: remote.furthest)
        return file_chunks(self, self.reading, start, nullcontext(opened))


class _RemoteStream(Made):
    """The bytes of an object: one request for as long as they are read in order, another one after each jump."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self.furthest = 0  # bytes up to the furthest that was read
        super().__init__(None, lambda _: self._from(0))

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        """Go to a position; nothing is asked for before something is read there."""
        at = offset + {SEEK_SET: 0, SEEK_CUR: self._at, SEEK_END: self._file.size}[whence]
        if at != self._at:
            self._pieces, self._error, self._rest, self._at = self._from(at), None, memoryview(b""), at
        return at

    def readinto(self, buffer: Any) -> int:
        """Read from what the store sent last; none of what comes after that is asked for yet."""
        size, file = super().readinto(buffer), self._file
        if not size and self._at < file.size:
            raise InputError(f"{file.name} ended at byte {self._at:,} of {file.size:,}: the same command goes on there")
        self.furthest = max(self.furthest, self._at)
        return size

    def _from(self, at: int) -> Iterator[Any]:
        """Yield what the store sends from a byte on; of a server that knows no ranges, it sends all."""
        file = self._file
        try:
            version, begin, pieces = file.store.read(file.path, at) if at < file.size else (file.version, at, iter(()))
            if version != file.version:
                raise InputError(
                    f"{file.name} has changed since the command began: what was read before is sent, and the same "
                    "command says what to do"
                )
            for piece in pieces:
                view = memoryview(piece).cast("B")[max(0, at - begin) :]
                begin += len(piece)
                at += len(view)
                if view:
                    yield view
        except WEB_ERRORS as error:
            raise InputError(
                f"{file.name} cannot be read on from byte {at:,}: {first_line(error)}. What was read before is sent; "
                "the same command goes on from there"
            ) from error
