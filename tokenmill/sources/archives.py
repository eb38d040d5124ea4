"""Zip archives: each member is a file, read from the archive while it is decompressed, and never unpacked."""

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from tokenmill.sources.compressed import DAMAGE, decompressed, in_steps, suffixes_of
from tokenmill.sources.file_sources import Chunker, Reading, broken_chunk
from tokenmill.sources.formats import File, kind_of
from tokenmill.sources.items import DocumentSource, ItemChunk, Place, readable

ZIP: Final = ".zip"
OPEN_ARCHIVES: Final = 16
"""Most archives that are open at once, beside those of which a member is read: each takes a file handle."""
_ENCRYPTED: Final = 1
"""A member's flag (APPNOTE.TXT, 4.4.4)."""
_METHODS: Final = (ZIP_STORED, ZIP_DEFLATED)
"""Methods of compression of which the library decompresses only as much as is asked for. Of others it makes, at once,
all that some kilobytes become: gigabytes, in an archive that is meant to do harm."""


def zip_sources(path: str, reading: Reading) -> Iterator[DocumentSource]:
    """Yield the members that are files, by name, without names that start with a dot.

    An archive that cannot be read is one source, which says so when it is read.
    """
    try:
        members = [info for info in _opened(_Version.of(path)).infolist() if _is_wanted(info)]
    except (*DAMAGE, ValueError, NotImplementedError) as error:  # names in no encoding; parts on several disks
        yield UnreadableArchive(path, reading, str(error))
        return
    for info in sorted(members, key=lambda info: (info.filename, info.header_offset)):
        yield ZipMember(path, info, reading)


@dataclass(frozen=True, slots=True)
class ZipMember:
    """A file in an archive: of any format, perhaps compressed once more."""

    archive: str
    info: ZipInfo
    reading: Reading

    @property
    def name(self) -> str:
        """The archive's path and the member's, ``archive.zip!folder/member.txt``."""
        return f"{readable(self.archive)}!{readable(self.info.filename)}"

    @property
    def size(self) -> int:
        """Bytes that it takes in the archive."""
        return self.info.compress_size

    @property
    def kind(self) -> str:
        """The kind of file as which it is read."""
        return kind_of(suffixes_of(self.info.filename)[0], self.reading.choice)

    def signature(self) -> bytes:
        """Return the checksum and size that the archive has of its content."""
        return b"%d %d" % (self.info.CRC, self.info.file_size)

    def chunks(self, start: Place) -> Iterator[ItemChunk]:
        """Yield the member's items."""
        chunker = Chunker(self.reading.shape_of(self.name), self.name, start)
        try:
            if why := _hindrance(self.info):
                raise BadZipFile(why)
            yield from self._chunks(chunker, start)
        except DAMAGE as error:
            yield broken_chunk(chunker, error)

    def _chunks(self, chunker: Chunker, start: Place) -> Iterator[ItemChunk]:
        try:
            opened = _opened(_Version.of(self.archive)).open(self.info)
        except (ValueError, NotImplementedError, RuntimeError) as error:  # its own head says other than the table
            raise BadZipFile(str(error)) from error
        with opened as member:
            file = File(self.name, decompressed(in_steps(member), suffixes_of(self.info.filename)[1]))

            def read_so_far() -> int:
                share = member.tell() / max(1, self.info.file_size) if file.share is None else file.share
                return int(share * self.size)

            for items in chunker.chunks(self.reading.entries(self.kind, file, start)):
                yield chunker.chunk(items, read_so_far())
            yield chunker.chunk(chunker.rest, self.size, last=True)


@dataclass(frozen=True, slots=True)
class UnreadableArchive:
    """An archive whose members cannot be listed."""

    path: str
    reading: Reading
    why: str
    size: int = 0

    @property
    def name(self) -> str:
        """The path as it was given."""
        return readable(self.path)

    def signature(self) -> bytes:
        """Return why it cannot be read."""
        return self.why.encode("utf-8", "replace")

    def chunks(self, start: Place) -> Iterator[ItemChunk]:
        """Yield a refusal that says why."""
        why = f"no zip archive, or damaged: {self.why}"
        yield broken_chunk(Chunker(self.reading.shape, self.name, start), BadZipFile(why))


class _Version(NamedTuple):
    """An archive as it is now: if it changes meanwhile, its old table is not used."""

    path: str
    size: int
    modified: int
    changed: int

    @classmethod
    def of(cls, path: str) -> "_Version":
        status = Path(path).stat()
        return cls(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@lru_cache(OPEN_ARCHIVES)
def _opened(version: _Version) -> ZipFile:
    """Return the archive, whose table of members is read once; it is closed when no reference is left."""
    return ZipFile(version.path)


def _is_wanted(info: ZipInfo) -> bool:
    """Return whether it is a file, no folder and no link, whose path has no name that starts with a dot."""
    kind = stat.S_IFMT(info.external_attr >> 16)
    hidden = any(part.startswith(".") and part != ".." for part in PurePosixPath(info.filename).parts)
    return not info.filename.endswith("/") and not hidden and kind in (0, stat.S_IFREG)


def _hindrance(info: ZipInfo) -> str:
    """Return why a member cannot be read; nothing if it can."""
    if info.flag_bits & _ENCRYPTED:
        return "it is encrypted: unpack it with its password, and name the file"
    if info.compress_type not in _METHODS:
        return (
            f"it is compressed by method {info.compress_type}, only 0 and 8 can be read: unpack it, and name the file"
        )
    if Path(info.filename).suffix.lower() == ZIP:
        return "an archive in an archive: unpack it, and name the file"
    return ""
