"""The folder of an export: what it is of, which files it has, and writing them whole or not at all.

In ``_tokenmill``, ``export.json`` says what is exported and how, and ``<partition>-<first block>.json`` lists the files
of a segment once these are durable.
"""

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Self

import xxhash

from tokenmill.errors import DiskError, InputError
from tokenmill.recipe import canonical_json
from tokenmill.store.layout import TEMPORARY, PartitionLock, put_file, sync_directory, sync_way_to
from tokenmill.untrusted import read_json_file

STATE_FOLDER: Final = "_tokenmill"
EXPORT_FILE: Final = "export.json"
FORMAT: Final = 1
"""Version of the files in `STATE_FOLDER`, and of the files that a segment becomes."""


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """One file of an export; its name is a function of the segment."""

    name: str
    """Relative to the folder."""
    rows: int
    tokens: int
    size: int


@dataclass(frozen=True, slots=True)
class ExportedSegment:
    """The files of one segment."""

    partition: int
    first: int
    chain_after: str
    """Chain hash after its last block: with the same one, two stores hold the same blocks up to there."""
    files: tuple[ExportedFile, ...]

    @property
    def name(self) -> str:
        """Name of the segment in an export; its files begin with it."""
        return f"{self.partition}-{self.first:012d}"


class ExportContent(NamedTuple):
    """What an export holds."""

    files: Sequence[ExportedFile]
    identity: str
    """16 hexadecimal digits, which are others for other rows."""


class ExportFolder:
    """A folder that this process may add files to, until the block's end."""

    def __init__(self, path: Path, made_of: Mapping[str, Any]) -> None:
        """Open or begin an export's folder; ``made_of``: stream and options, which decide the files, as JSON types."""
        self.path = path.absolute()
        self._state = self.path / STATE_FOLDER
        self._made_of = made_of
        with blaming_export(self.path), ExitStack() as locks:
            self._require_ours()
            self._state.mkdir(parents=True, exist_ok=True)
            locks.enter_context(PartitionLock(self._state))
            if not (self._state / EXPORT_FILE).exists():
                put_file(self._state / EXPORT_FILE, canonical_json({"format": FORMAT, **made_of}) + b"\n")
            sync_way_to(self._state)
            self._require_ours()  # another process may have been quicker
            for left in (*self.path.rglob(f".*{TEMPORARY}"), *self._state.glob(f"*{TEMPORARY}")):
                left.unlink()  # of a run that was killed
            self._locks = locks.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._locks.close()

    def segments(self) -> dict[tuple[int, int], ExportedSegment]:
        """Return the segments whose files are all there, by partition and first block, in this order."""
        found = map(self._read, self._state.glob("*-*.json"))
        return dict(sorted(((segment.partition, segment.first), segment) for segment in found))

    def add(self, segment: ExportedSegment) -> None:
        """Note that all files of a segment are in their places; on return this is durable."""
        for folder in {(self.path / file.name).parent for file in segment.files}:
            sync_directory(folder)
        put_file(self._state / f"{segment.name}.json", canonical_json(asdict(segment)) + b"\n")

    def content_of(self, segments: Mapping[tuple[int, int], ExportedSegment]) -> ExportContent:
        """Return what the folder holds with these segments."""
        ordered = [segment for _, segment in sorted(segments.items())]
        chains = [[segment.name, segment.chain_after] for segment in ordered]
        identity = xxhash.xxh3_64_hexdigest(canonical_json([dict(self._made_of), chains]))
        return ExportContent([file for segment in ordered for file in segment.files], identity)

    def _require_ours(self) -> None:
        file = self._state / EXPORT_FILE
        try:
            known = read_json_file(file)
        except FileNotFoundError:
            if self.path.is_dir() and any(name != STATE_FOLDER for name in os.listdir(self.path)):  # noqa: PTH208
                raise InputError(
                    f"{self.path} is not empty, and holds no export ({STATE_FOLDER}/{EXPORT_FILE} is missing): name a "
                    "new folder with --out"
                ) from None
            return
        except NotADirectoryError:
            raise InputError(f"{self.path} is a file, or below one: name a folder with --out") from None
        except ValueError as error:
            raise InputError(f"{file} is not JSON ({error}): name a new folder with --out") from error
        wanted = {"format": FORMAT, **self._made_of}
        if known != wanted:
            have = known if isinstance(known, dict) else {}
            names = [name for name in wanted if have.get(name) != wanted[name]]
            there, here = (", ".join(f"{n} {values.get(n)!r}" for n in names) for values in (have, wanted))
            raise InputError(
                f"{self.path} holds another export: {there} there, {here} asked for. Name another folder with --out, "
                "or give the options that it was made with"
            )

    def _read(self, file: Path) -> ExportedSegment:
        advice = f"remove {file}, and the same command writes the segment again"
        try:
            values = read_json_file(file)
            files = tuple(ExportedFile(**one) for one in values.pop("files"))
            segment = ExportedSegment(**values, files=files)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise InputError(f"{file} is no list of files ({error}): {advice}") from error
        for one in segment.files:
            path = self.path / one.name
            size = path.stat().st_size if path.exists() else None
            if size != one.size:
                what = "is missing" if size is None else f"has {size} bytes, and was written with {one.size}"
                raise InputError(f"{path} {what}: {advice}")
        return segment


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file beside its place; then it is durable, and has its name. A crash leaves a name that readers skip."""
    temporary = hidden(path)
    path.parent.mkdir(exist_ok=True)
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def hidden(path: Path) -> Path:
    """Return where a file is written before it has its name."""
    return path.with_name(f".{path.name}{TEMPORARY}")


def put_index(path: Path, data: bytes) -> None:
    """Replace an index file; readers see the old one or the new one, whole."""
    with new_file(path) as file:
        file.write(data)
    sync_directory(path.parent)


@contextmanager
def blaming_export(folder: Path) -> Iterator[None]:
    """Turn the system's errors inside into a `DiskError` that says what to do."""
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        advice = "make room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "let this user write there"
        raise DiskError(
            f"{folder} cannot be written to ({why}): {advice}, and give the same command again; the segments that are "
            "there stay, and it goes on behind them"
        ) from error
