"""From the paths of a command to sources: files, folders, patterns, zip archives, standard input, data sets.

Others may have filled a folder or an archive: a pipe there would block for ever, a device may never end, and a link may
lead to what was never meant to be sent. So only regular files are read from it; all else is named and left out.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from glob import glob
from pathlib import Path
from typing import Final
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from tokenmill.errors import InputError
from tokenmill.store.layout import STORE_FILE
from tokenmill.untrusted import read_json_file

from .contents import BEGIN_BYTES, data_among, is_about_data, table_above, why_foreign, why_no_rows, without_pointers
from .datasets import HUB, DatasetSource, is_dataset
from .encodings import DAMAGE, in_steps, suffixes_of
from .file_sources import STDIN, STDIN_NUMBER, FileSource, Reading, StandardInput, Unreadable, file_chunks, open_found
from .formats import kind_of, require
from .formats.web_pages import EXTRACT
from .items import DocumentSource, File, ItemChunk, Opened, Place, library, readable
from .remote import RemoteFile, is_remote, remote_sources

WILD: Final = re.compile(r"[*?\[]")
ANY_DEPTH: Final = "**"
KINDS: Final = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
_Place = tuple[int, int]


@dataclass(slots=True)
class FolderWalk:
    """How folders are read, and what was left out in them. What is about the data is ignored (`is_about_data`)."""

    follow_links: bool = False
    """Whether links that lead out of a folder are followed, each folder once."""
    left_out: list[str] = field(default_factory=list)
    """Messages for people: what was found and is not read, and why."""

    def folder(self, path: str) -> Iterator[str]:
        """Yield all files in a folder and those in it, by name; no link to another folder of it is followed."""
        root, seen = os.path.realpath(path), {_place(path)}
        waiting = [Path(path)]  # no recursion: folders may be nested as deep as paths can be long
        while waiting:
            files, folders = self._listed(waiting.pop())
            yield from (str(file) for file in files if self._takes_file(file, root))
            waiting += [one for one in reversed(folders) if self._enters(one, root, seen)]

    def _listed(self, folder: Path) -> tuple[list[Path], list[Path]]:
        try:
            names = without_pointers(os.listdir(folder))  # noqa: PTH208 - names alone
        except OSError as error:
            self.left_out.append(f"{folder} is left out: {error.strerror}")
            return [], []
        if STORE_FILE in names and _is_store(folder):
            self.left_out.append(f"{folder} is left out: it is a store, which holds tokens")
            return [], []
        names = {name for name in names if not is_about_data(name, folder.name)}
        found = [(folder / name, os.path.isdir(folder / name)) for name in sorted(names)]  # noqa: PTH112 - raises nothing
        return [one for one, is_folder in found if not is_folder], [one for one, is_folder in found if is_folder]

    def _enters(self, folder: Path, root: str, seen: set[_Place | None]) -> bool:
        """Return whether a folder is read: no link within the root, none that leads out unless wanted, none twice."""
        if folder.is_symlink():
            if not _leads_out(folder, root):
                return False
            if not self.follow_links:
                self._leave_out(folder)
                return False
        place = _place(str(folder))
        if place in seen:
            return False
        seen.add(place)
        return True

    def matches(self, pattern: str) -> Iterator[str]:
        """Yield the files that a pattern matches, and those in folders that it matches, by name."""
        root, wild = _fixed_part(pattern)
        if ANY_DEPTH in wild:
            # Not the library's, which goes through links to folders: two loops, and it never comes back.
            yield from sorted(file for file in self.folder(root) if _matches(Path(file).relative_to(root).parts, wild))
            return
        real = os.path.realpath(root)
        for path in map(Path, sorted(glob(pattern))):  # noqa: PTH207 - takes absolute ones
            above = [one for one in reversed(path.parents) if one != Path(root) and one.is_relative_to(root)]
            through = next((one for one in above if one.is_symlink()), path)
            if through.is_dir() and through.is_symlink() and _leads_out(path, real) and not self.follow_links:
                self._leave_out(through)
            elif is_about_data(str(path.relative_to(root)), Path(root).name):
                continue
            elif path.is_dir():
                yield from self.folder(str(path))
            elif self._takes_file(path, real):
                yield str(path)

    def _takes_file(self, path: Path, root: str) -> bool:
        """Return whether what is no folder is read; a link that leads nowhere is reported when it is opened."""
        try:
            kind = stat.S_IFMT(path.stat().st_mode)
        except OSError:
            return True
        if kind != stat.S_IFREG:
            what = KINDS.get(kind, "no regular file")
            self.left_out.append(f"{path} is left out: it is {what}; name it to read it")
            return False
        if path.is_symlink() and _leads_out(path, root) and not self.follow_links:
            self._leave_out(path)
            return False
        return True

    def _leave_out(self, link: Path) -> None:
        words = f"{link} is left out: it links to {os.path.realpath(link)}, out of it; to read it: --follow-links"
        if words not in self.left_out[-1:]:
            self.left_out.append(words)


def _fixed_part(pattern: str) -> tuple[str, tuple[str, ...]]:
    """Return the folder that holds all matches of a pattern, and the parts after it."""
    parts = Path(pattern).parts
    wild = next(number for number, part in enumerate(parts) if WILD.search(part))
    return str(Path(*parts[:wild])), parts[wild:]


def _matches(parts: Sequence[str], wild: Sequence[str]) -> bool:
    if not wild:
        return True
    if wild[0] == ANY_DEPTH:
        return any(_matches(parts[number:], wild[1:]) for number in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], wild[0]) and _matches(parts[1:], wild[1:])


def _leads_out(link: Path, root: str) -> bool:
    return not Path(os.path.realpath(link)).is_relative_to(root)


def _is_store(folder: Path) -> bool:
    """Return whether a folder is a store, as the one that an earlier call of the same `tokenmill pack .` filled."""
    with suppress(OSError, ValueError):
        values = read_json_file(folder / STORE_FILE)
        return isinstance(values, dict) and {*values} >= {"directory", "format", "host", "id"}
    return False


def _place(path: str) -> _Place | None:
    with suppress(OSError):
        status = os.stat(path)  # noqa: PTH116 - device and number
        return status.st_dev, status.st_ino
    return None


ZIP: Final = ".zip"
_METHODS: Final = (ZIP_STORED, ZIP_DEFLATED)
"""Methods of compression of which the library decompresses only as much as is asked for. Of others it makes, at once,
all that some kilobytes become: gigabytes, in an archive that is meant to do harm."""


def zip_sources(path: str, reading: Reading, root: str = "") -> Iterator[DocumentSource]:
    """Yield the members that are no folders, by name; an archive that cannot be read is one source, which says so."""
    try:
        listed = _archive(path, root).infolist()
    except (*DAMAGE, ValueError, NotImplementedError) as error:  # names in no encoding; parts on several disks
        begin = b""
        with suppress(OSError), open_found(path, root) as file:
            begin = file.read(BEGIN_BYTES) or b""
        foreign = "" if begin.startswith(b"PK") else why_foreign(begin)  # it may only have the name of an archive
        yield Unreadable(readable(path), foreign or f"no zip archive, or damaged: {error}")
        return
    data, tables = data_among([info.filename for info in listed])
    for name, table in tables.items():
        yield Unreadable(f"{readable(path)}!{readable(name)}", why_no_rows(table))
    members = [info for info in listed if info.filename in data and not info.is_dir()]
    for info in sorted(members, key=lambda info: (info.filename, info.header_offset)):
        yield _ZipMember(path, info, reading, root)


@dataclass(frozen=True, slots=True)
class _ZipMember:
    """A file in an archive, perhaps compressed once more: decompressed while it is read, never unpacked."""

    archive: str
    info: ZipInfo
    reading: Reading
    root: str = ""

    @property
    def name(self) -> str:
        return f"{readable(self.archive)}!{readable(self.info.filename)}"

    @property
    def size(self) -> int:
        return self.info.compress_size

    def signature(self) -> bytes:
        return b"%d %d" % (self.info.CRC, self.info.file_size)

    def chunks(self, start: Place) -> Iterator[ItemChunk]:
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
        how = "only 0 and 8 can be read: unpack it, and name the file"
        return f"it is compressed by method {info.compress_type}, {how}"
    if Path(info.filename).suffix.lower() == ZIP:
        return "an archive in an archive: unpack it, and name the file"
    return ""


def find_sources(
    paths: Sequence[str], reading: Reading, split: str | None = None, walk: FolderWalk | None = None
) -> list[DocumentSource]:
    """Return the sources: the paths in order, inside folders and patterns by name.

    A path is a file, a zip archive, a folder (read recursively), a pattern (``data/**/*.jsonl``), an object or a prefix
    of them (``s3://``, ``gs://``), a file of a web server (``https://``), a data set (``hf://name``, or a folder that
    ``save_to_disk`` wrote; ``split`` is for these), or ``-`` for standard input. What is named may be a pipe. ``walk``
    says whether links out of a folder are followed, and afterwards what was found there and left out.

    Raises InputError where a path does not exist, a pattern matches nothing, standard input is a terminal, or is given
    twice; or a library is missing that a format needs.
    """
    if paths.count(STDIN) > 1:
        raise InputError("standard input can be read once: give - once")
    if reading.extract:
        library("resiliparse.parse.html", EXTRACT, "--extract")
    walk = walk or FolderWalk()
    sources = [source for path in paths for source in _sources(path, reading, split, walk)]
    files = (source.name for source in sources if isinstance(source, FileSource | _ZipMember | RemoteFile))
    require({kind_of(suffixes_of(name)[0], reading.choice) for name in files})
    return sources


def _sources(path: str, reading: Reading, split: str | None, walk: FolderWalk) -> Iterator[DocumentSource]:
    if path == STDIN:
        if os.isatty(STDIN_NUMBER):
            raise InputError("standard input is a terminal: pipe documents into it, or name a file instead of -")
        yield StandardInput(reading)
    elif is_remote(path):
        yield from remote_sources(path, reading)
    elif path.startswith(HUB) or is_dataset(path):
        yield DatasetSource(path, split, reading, follow_links=walk.follow_links)
    elif os.path.lexists(path):
        # ./a is a: names become ids
        folder = Path(path).is_dir()
        root = os.path.realpath(path) if folder and not walk.follow_links else ""
        yield from _files(walk.folder(path) if folder else [str(Path(path))], reading, root)
    else:
        files: list[DocumentSource] = []
        if WILD.search(path):
            root = "" if walk.follow_links else os.path.realpath(_fixed_part(path)[0])
            files = list(_files(walk.matches(path), reading, root))
        if not files:
            why = "matches nothing" if WILD.search(path) else "there is no such file or folder"
            raise InputError(f"{path}: {why}; check the path")
        yield from files


def _files(files: Iterable[str], reading: Reading, root: str) -> Iterator[DocumentSource]:
    told: set[Path] = set()
    for file in files:
        found = table_above(Path(file).absolute().parent)
        if found is not None:
            if found[0] not in told:
                yield Unreadable(readable(str(found[0])), why_no_rows(found[1]))
            told.add(found[0])
        elif Path(file).suffix.lower() == ZIP:
            yield from zip_sources(file, reading, root)
        else:
            yield FileSource(file, reading, root=root)


def is_piped(path: str) -> bool:
    """Return whether a path can be read only once: standard input, a pipe (``<(command)``), or a device."""
    if path == STDIN or path.startswith(HUB) or is_remote(path):
        return path == STDIN
    return os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path))  # noqa: PTH110, PTH112, PTH113
