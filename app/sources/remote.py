"""Objects of stores and web servers as sources: ``s3://``, ``gs://``, ``https://``; never kept on disk.

An object is what it was as long as its entity tag and size (without a tag, its time) are the same. Each request is held
against these: an object that changes while it is read ends the run, and one that changed between two calls is named.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from io import SEEK_CUR, SEEK_END, SEEK_SET, BufferedReader
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from tokenmill.errors import InputError

from .encodings import BUFFER_BYTES, Made
from .file_sources import Opened, Reading, Unreadable, file_chunks
from .foreign_folders import data_among, why_no_rows
from .items import File, ItemChunk, Place, first_line, library
from .web import WEB_ERRORS, RemoteAnswer, Version, WebServer

SCHEMES: Final = ("s3://", "gs://", "https://", "http://")
EXTRA: Final = "remote"
PURPOSE: Final = "reading from object stores"


def is_remote(path: str) -> bool:
    """Return whether a path is the address of an object, a prefix of objects, or a pattern."""
    return path.startswith(SCHEMES)


def remote_sources(address: str, reading: Reading) -> list["RemoteFile | Unreadable"]:
    """Return the objects that an address names, by name.

    An address that ends with a slash is a prefix, of all objects below it that hold data (`data_among`). With ``*``,
    ``?`` or ``[`` it is a pattern, whose ``*`` also matches slashes. Web servers have no lists: theirs is one file.
    Raises InputError where there is no such object; the store does not answer, or refuses; the library is missing.
    """
    try:
        parts = urlsplit(address)
    except ValueError:  # brackets that do not close
        parts = urlsplit("")
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
        store = WebServer(origin) if web else _ObjectStore(origin)
        if isinstance(store, WebServer) or (wild is None and key and not key.endswith("/")):
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
    return [
        *refused,
        *(RemoteFile(f"{origin}/{path}", store, path, version, reading) for path, version in sorted(found)),
    ]


class _ObjectStore:
    """A store of objects: logins are in the environment, by the names that its own tools use."""

    def __init__(self, origin: str) -> None:
        self._library = library("obstore", EXTRA, PURPOSE)
        with self._errors():
            self._store = library("obstore.store", EXTRA, PURPOSE).from_url(origin)

    def version(self, path: str) -> Version:
        with self._errors():
            return _version(self._library.head(self._store, path))

    def below(self, prefix: str) -> list[tuple[str, Version]]:
        """Return the objects below a prefix."""
        with self._errors():
            pages = list(self._library.list(self._store, prefix.rstrip("/") or None))
        return [(str(meta["path"]), _version(meta)) for page in pages for meta in page]

    def read(self, path: str, begin: int) -> RemoteAnswer:
        """Return an object from a byte on."""
        with self._errors():
            answer = self._library.get(self._store, path, options={"range": {"offset": begin}} if begin else {})
            return RemoteAnswer(_version(answer.meta), begin, self._pieces(answer))

    def _pieces(self, answer: Any) -> Iterator[Any]:
        with self._errors():
            yield from answer.stream(min_chunk_size=BUFFER_BYTES)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self._library.exceptions.BaseError as error:
            raise OSError(first_line(error)) from error


def _version(meta: Any) -> Version:
    return Version.of(int(meta["size"]), meta["e_tag"], meta["last_modified"])


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of any format, perhaps compressed, behind an address."""

    name: str
    store: "WebServer | _ObjectStore"
    path: str
    version: Version
    reading: Reading

    @property
    def size(self) -> int:
        """Bytes of it."""
        return self.version.size

    def signature(self) -> bytes:
        """Return its entity tag and size."""
        return f"{self.version.tag} {self.version.size}".encode()

    def chunks(self, start: Place) -> Iterator[ItemChunk]:
        """Yield the file's items.

        Raises InputError where the store does not answer any more, or the object is another one now.
        """
        remote = _RemoteStream(self)
        opened: Opened = (File(self.name, BufferedReader(remote, BUFFER_BYTES)), lambda: remote.furthest)
        return file_chunks(self, self.reading, start, nullcontext(opened))


class _RemoteStream(Made):
    """The bytes of an object: one request for as long as they are read in order, another one after each jump."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self.furthest = 0
        """Bytes up to the furthest that was read."""
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
