"""Zip archives: each member is a file, read from the archive while it is decompressed, and never unpacked."""

import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from .contents import BEGIN_BYTES, why_foreign
from .encodings import DAMAGE, in_steps
from .file_sources import Opened, Reading, Unreadable, file_chunks, open_found
from .foreign_folders import data_among, why_no_rows
from .items import DocumentSource, File, ItemChunk, Place, readable

ZIP: Final = ".zip"
_METHODS: Final = (ZIP_STORED, ZIP_DEFLATED)
"""Methods of compression of which the library decompresses only as much as is asked for. Of others it makes, at once,
all that some kilobytes become: gigabytes, in an archive that is meant to do harm."""


def zip_sources(path: str, reading: Reading, root: str = "") -> Iterator[DocumentSource]:
    """Yield the members that are no folders, by name, without what is about the data (`is_about_data`).

    An archive that cannot be read is one source, which says so when it is read. ``root`` is the folder in which
    it was found, as of `FileSource`.
    """
    try:
        listed = _archive(path, root).infolist()
    except (*DAMAGE, ValueError, NotImplementedError) as error:  # names in no encoding; parts on several disks
        yield Unreadable(readable(path), _why_none(path, root) or f"no zip archive, or damaged: {error}")
        return
    data, tables = data_among([info.filename for info in listed])
    for name, table in tables.items():
        yield Unreadable(f"{readable(path)}!{readable(name)}", why_no_rows(table))
    members = [info for info in listed if info.filename in data and not info.is_dir()]
    for info in sorted(members, key=lambda info: (info.filename, info.header_offset)):
        yield ZipMember(path, info, reading, root)


def _why_none(path: str, root: str) -> str:
    """Return what a file is that only has the name of an archive; nothing if it begins as one, or as nothing known."""
    with suppress(OSError), open_found(path, root) as file:
        begin = file.read(BEGIN_BYTES) or b""
        return "" if begin.startswith(b"PK") else why_foreign(begin)
    return ""


@dataclass(frozen=True, slots=True)
class ZipMember:
    """A file in an archive: of any format, perhaps compressed once more."""

    archive: str
    info: ZipInfo
    reading: Reading
    root: str = ""

    @property
    def name(self) -> str:
        """The archive's path and the member's, ``archive.zip!folder/member.txt``."""
        return f"{readable(self.archive)}!{readable(self.info.filename)}"

    @property
    def size(self) -> int:
        """Bytes that it takes in the archive."""
        return self.info.compress_size

    def signature(self) -> bytes:
        """Return the checksum and size that the archive has of its content."""
        return b"%d %d" % (self.info.CRC, self.info.file_size)

    def chunks(self, start: Place) -> Iterator[ItemChunk]:
        """Yield the member's items."""
        return file_chunks(self, self.reading, start, self._opened())

    @contextmanager
    def _opened(self) -> Iterator[Opened]:
        if why := _hindrance(self.info):
            raise BadZipFile(why)
        try:
            opened = _archive(self.archive, self.root).open(self.info)
        except (ValueError, NotImplementedError, RuntimeError) as error:  # its own head says other than the table
            raise BadZipFile(str(error)) from error
        with opened as member:
            file = File(self.name, in_steps(member))

            def read_so_far() -> int:
                share = member.tell() / max(1, self.info.file_size) if file.share is None else file.share
                return int(share * self.size)

            yield file, read_so_far


def _archive(path: str, root: str) -> ZipFile:
    """Return an archive as it is now: if it changes meanwhile, its old table is not used."""
    status = Path(path).stat()
    return _opened(path, root, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@lru_cache(16)  # beside those of which a member is read
def _opened(path: str, root: str, _size: int, _modified: int, _changed: int) -> ZipFile:
    """Return the archive, whose table of members is read once; it is closed when no reference is left."""
    with open_found(path, root) as file:
        return ZipFile(f"/proc/self/fd/{file.fileno()}" if root else path)


def _hindrance(info: ZipInfo) -> str:
    if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG):
        return "a link, or no regular file: unpack the archive, and name the folder"
    if info.flag_bits & 1:  # of the member (APPNOTE.TXT, 4.4.4)
        return "it is encrypted: unpack it with its password, and name the file"
    if info.compress_type not in _METHODS:
        return (
            f"it is compressed by method {info.compress_type}, only 0 and 8 can be read: unpack it, and name the file"
        )
    if Path(info.filename).suffix.lower() == ZIP:
        return "an archive in an archive: unpack it, and name the file"
    return ""
