"""Objects of stores and web servers as sources: ``s3://``, ``gs://``, ``https://``; never kept on disk.

An object is what it was as long as its entity tag and size (without a tag, its time) are the same. Each request is held
against these: an object that changes while it is read ends the run, and one that changed between two calls is named.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from io import SEEK_CUR, SEEK_END, SEEK_SET, BufferedReader, RawIOBase
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from tokenmill.errors import InputError
from tokenmill.sources.compressed import BUFFER_BYTES, DAMAGE, decompressed, suffixes_of
from tokenmill.sources.file_sources import Chunker, Reading, broken_chunk
from tokenmill.sources.formats import File, kind_of
from tokenmill.sources.items import ItemChunk, Place, library

SCHEMES: Final = ("s3://", "gs://", "https://", "http://")
EXTRA: Final = "remote"
PURPOSE: Final = "reading from object stores and web servers"


def is_remote(path: str) -> bool:
    """Return whether a path is the address of an object, a prefix of objects, or a pattern."""
    return path.startswith(SCHEMES)


def remote_sources(address: str, reading: Reading) -> list["RemoteFile"]:
    """Return the objects that an address names, by name.

    An address that ends with a slash is a prefix, of all objects below it whose names do not begin with a dot; one with
    ``*``, ``?`` or ``[`` is a pattern, whose ``*`` also matches slashes. Web servers have no lists: theirs is one file.

    Raises:
        InputError: there is no such object; the store does not answer, or refuses; the library is missing.

    """
    obstore = library("obstore", EXTRA, PURPOSE)
    parts = urlsplit(address)
    web = parts.scheme in ("https", "http")
    if web and (parts.query or parts.username):
        raise InputError(
            f"{parts.scheme}://{parts.hostname}{parts.path}: an address with a query or a password is not read: it "
            "would be in ids and notes: download the file, or name an object of a store"
        )
    key = unquote(parts.path.lstrip("/"))
    store = _store(f"{parts.scheme}://{parts.netloc}", web=web)
    wild = not web and next((at for at, letter in enumerate(key) if letter in "*?["), None)
    try:
        if web or (wild is None and key and not key.endswith("/")):
            found = [obstore.head(store, key)]
        else:
            prefix = key if wild is None else key[:wild].rpartition("/")[0]
            listed = [meta for page in obstore.list(store, prefix.rstrip("/") or None) for meta in page]
            hidden = [meta for meta in listed if any(part[:1] == "." for part in meta["path"].split("/"))]
            found = [m for m in listed if m not in hidden and (wild is None or fnmatchcase(m["path"], key))]
    except (obstore.exceptions.BaseError, OSError) as error:
        raise InputError(f"{address}: {_first_line(error)}; check the address, and how you log in there") from error
    if not found:
        raise InputError(f"{address}: matches nothing; check the address")
    base = f"{parts.scheme}://{parts.netloc}/"
    return [RemoteFile(base + m["path"], store, m["path"], _Identity.of(m), reading) for m in sorted(found, key=_path)]


def _path(meta: Any) -> str:
    return str(meta["path"])


def _store(address: str, *, web: bool) -> Any:
    """Return the client of a store: logins are in the environment, by the names that its own tools use."""
    module = library("obstore.store", EXTRA, PURPOSE)
    if web:
        return module.HTTPStore.from_url(address, client_options={"allow_http": address.startswith("http://")})
    return module.from_url(address)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


@dataclass(frozen=True, slots=True)
class _Identity:
    """What distinguishes one version of an object from another."""

    size: int
    tag: str

    @classmethod
    def of(cls, meta: Any) -> "_Identity":
        """Return that of an object's metadata."""
        tag = meta["e_tag"]
        if tag and not tag.endswith('"'):  # some servers leave the quotes out in lists, and nowhere else
            tag = f'"{tag}"'
        return cls(int(meta["size"]), str(tag or meta["last_modified"].isoformat()))


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of any format, perhaps compressed, behind an address."""

    name: str
    """Its address."""
    store: Any
    path: str
    """Its name in the store."""
    identity: _Identity
    reading: Reading

    @property
    def size(self) -> int:
        """Bytes of it."""
        return self.identity.size

    @property
    def kind(self) -> str:
        """The kind of file as which it is read."""
        return kind_of(suffixes_of(self.path)[0], self.reading.choice)

    def signature(self) -> bytes:
        """Return its entity tag and size."""
        return f"{self.identity.tag} {self.identity.size}".encode()

    def chunks(self, start: Place) -> Iterator[ItemChunk]:
        """Yield the file's items.

        Raises:
            InputError: the store does not answer any more, or the object is another one now.

        """
        chunker = Chunker(self.reading.shape, self.name, start)
        remote = _RemoteStream(self)
        try:
            with BufferedReader(remote, BUFFER_BYTES) as raw:
                suffix = suffixes_of(self.path)[1]
                file = File(self.name, decompressed(raw, suffix))
                for items in chunker.chunks(self.reading.entries(self.kind, file, start)):
                    yield chunker.chunk(items, remote.furthest)
                yield chunker.chunk(chunker.rest, self.size, last=True)
        except DAMAGE as error:
            yield broken_chunk(chunker, error)


class _RemoteStream(RawIOBase):
    """The bytes of an object: one request for as long as they are read in order, another one after each jump."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self._library = library("obstore", EXTRA, PURPOSE)
        self._at = 0
        self._pieces: Iterator[Any] | None = None
        self._rest = memoryview(b"")
        self.furthest = 0
        """Bytes up to the furthest that was read."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        at = offset + {SEEK_SET: 0, SEEK_CUR: self._at, SEEK_END: self._file.size}[whence]
        if at != self._at:
            self._pieces, self._rest, self._at = None, memoryview(b""), at
        return at

    def readinto(self, buffer: Any) -> int:
        if self._at >= self._file.size:
            return 0
        if not self._rest:
            self._rest = self._next()
        size = min(len(self._rest), len(buffer))
        memoryview(buffer)[:size], self._rest = self._rest[:size], self._rest[size:]
        self._at += size
        self.furthest = max(self.furthest, self._at)
        return size

    def _next(self) -> memoryview:
        """Return the next bytes that the store sends; none of what comes after it is asked for yet."""
        try:
            if self._pieces is None:
                self._pieces = self._asked()
            piece = next(self._pieces, None)
        except (self._library.exceptions.BaseError, OSError) as error:
            raise InputError(
                f"{self._file.name} cannot be read on from byte {self._at:,}: {_first_line(error)}. What was read "
                "before is sent; the same command goes on from there"
            ) from error
        if piece is None:
            raise InputError(
                f"{self._file.name} ended at byte {self._at:,} of {self._file.size:,}: the same command goes on there"
            )
        return memoryview(piece).cast("B")

    def _asked(self) -> Iterator[Any]:
        """Ask for all bytes from here on; of a server that knows no ranges, for all, and leave the first ones out."""
        get, store, path = self._library.get, self._file.store, self._file.path
        skip = 0
        try:
            answer = get(store, path, options={"range": {"offset": self._at}} if self._at else {})
        except self._library.exceptions.NotSupportedError:
            answer, skip = get(store, path), self._at
        if _Identity.of(answer.meta) != self._file.identity:
            raise InputError(
                f"{self._file.name} has changed since the command began: what was read before is sent, and the same "
                "command says what to do"
            )
        for piece in answer.stream(min_chunk_size=BUFFER_BYTES):
            view = memoryview(piece).cast("B")
            if skip < len(view):
                yield view[skip:]
            skip = max(0, skip - len(view))
