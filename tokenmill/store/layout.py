"""What every writer of a store shares: names and paths, durable writes, locks, and the errors for damage.

::

    <store>/store.json
    <store>/<stream>/stream.json, tokenizer.json, lock, eras.jsonl, eras.index
    <store>/<stream>/<partition>/lock, start.json, <first block, 12 digits>.{bin,docs,commits,index,json,idx}

What helps depends on what filled the stream: the service, from Kafka, or `tokenmill pack`, from files.
"""

import errno
import fcntl
import os
import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeAlias

from tokenmill.errors import DamagedError, DiskError, InputError, LockedError, StoreError
from tokenmill.untrusted import open_regular, read_json_file, read_regular

StorePath: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]

FORMAT: Final = 1
"""Version of the store's files; raised when a reader of the old version could not read the new one."""
STORE_FILE: Final = "store.json"
STREAM_FILE: Final = "stream.json"
TOKENIZER_FILE: Final = "tokenizer.json"
ERA_LINES_FILE: Final = "eras.jsonl"
ERA_INDEX_FILE: Final = "eras.index"
LOCK_FILE: Final = "lock"
START_FILE: Final = "start.json"
"""Where a partition begins, if that is not block 0."""
PACK_DIRECTORY: Final = "pack"
"""In a store that `tokenmill pack` fills: what it goes on from; no stream has this name, for theirs hold a dot."""
BUCKET_FILE: Final = "bucket.json"
"""Says that there is a bucket."""
CLAIMS: Final = "wanted"
"""In the directory of a stream whose store is the cache of a bucket: a file for each process that reads it."""
SOURCE_FILE: Final = "source.json"
"""In the directory of a stream whose segments are fetched from a bucket when they are first read: which one it is."""
REPAIR_DIRECTORY: Final = "repair"
READY_FILE: Final = "ready"
"""In the repair directory: the segment there is complete, and is moved to its place."""
BROKEN: Final = ".broken"
"""Ends the name of a damaged file that a repair put aside; a number follows where the name was taken."""
TEMPORARY: Final = ".tmp"
"""Ends the name of a file that is still being written; recovery removes what a crash left."""

_SEGMENT: Final = re.compile(r"([0-9]{12,})\.(?:bin|docs|commits|index|json|idx)")


class _SegmentFile:
    """One file of a segment, by the end of its name."""

    def __init__(self, end: str) -> None:
        self._end = end

    def __get__(self, paths: "SegmentPaths", _: type) -> Path:
        return paths.directory / f"{paths.first:012d}.{self._end}"


@dataclass(frozen=True, slots=True)
class SegmentPaths:
    """The files of one segment; which of them exist shows the state of the segment."""

    directory: Path
    first: int

    tokens = _SegmentFile("bin")
    """Tokens only, blocks back to back."""
    documents = _SegmentFile("docs")
    """The document table: one entry per block, back to back."""
    commits = _SegmentFile("commits")
    """The commit log: what of the two files above counts, until the manifest is there."""
    index = _SegmentFile("index")
    """Written at seal: one row per block."""
    megatron = _SegmentFile("idx")
    """Written at seal: the index by which Megatron reads the tokens."""
    manifest = _SegmentFile("json")
    """Written at seal, last: the segment is sealed if and only if this file is there."""

    @property
    def all(self) -> tuple[Path, ...]:
        """All of them, in the order in which they are created."""
        return self.tokens, self.documents, self.commits, self.index, self.megatron, self.manifest


def store_directory(store: StorePath) -> Path:
    """Return the absolute path of a store, ``~`` at home: it stays when the working directory changes.

    Raises InputError where this is no path; StoreError where it is the folder of a stream or of its partition.
    """
    try:
        text = os.fsdecode(store)
        path = Path(text).expanduser().absolute() if text and "\0" not in text and "://" not in text else None
    except (TypeError, ValueError, RuntimeError, FileNotFoundError):  # no path; no such home; no working directory
        path = None
    if path is None:
        raise InputError(
            f"store is {repr(store)[:200]}: give the path of the store's directory, on a disk of this machine"
        )
    for folder in (path, path.parent):
        if os.path.exists(folder / STREAM_FILE):  # noqa: PTH110 - False also where nothing may be looked at
            raise StoreError(f"{path} is of the stream {folder.name}, and no store: give {folder.parent}")
    return path


def require_no_bucket(path: Path) -> None:
    """Raise StoreError where a directory is a bucket: nothing there is replaced or removed."""
    if (path / BUCKET_FILE).exists():
        raise StoreError(f"{path} is a bucket, to which nothing but `tokenmill upload` writes: name another directory")


def stream_directory(store: Path, stream: str) -> Path:
    """Return the directory of a stream; raises StoreError where no Kafka topic could have the name."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", stream) or stream in {".", ".."}:
        raise StoreError(f"{stream!r} is no stream name: use up to 249 letters, digits, dots, underscores and hyphens")
    return store / stream


def partition_directory(store: Path, stream: str, partition: int) -> Path:
    """Return the directory of one partition of a stream."""
    return stream_directory(store, stream) / str(partition)


def segment_firsts(names: Iterable[str]) -> list[int]:
    """Return the first blocks of the segments of which at least one file is among ``names``, in order."""
    found = (_SEGMENT.fullmatch(name) for name in names)
    return sorted({int(match[1]) for match in found if match})


def partition_numbers(names: Iterable[str]) -> list[int]:
    """Return the partitions among the names in a stream's directory, in order."""
    return sorted(int(name) for name in names if re.fullmatch(r"0|[1-9][0-9]*", name))


GOES_ON: Final = "a segment worker tries again by itself, and `tokenmill pack` goes on when it is called again"
"""What follows once a disk is there again."""


@contextmanager
def blaming(directory: Path, then: str = GOES_ON) -> Iterator[None]:
    """Turn the system's errors inside into a `DiskError` that names ``directory``, what to do, and what follows."""
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        repair = "Make room, repair or mount the disk" if error.errno != errno.EACCES else "Let this user write there"
        raise DiskError(f"{directory} cannot be used ({why}); what was committed is kept. {repair}: {then}") from error


def unreadable(path: StorePath, error: OSError) -> DiskError:
    """Return what to say of a file or directory that the system refuses to read."""
    name = os.fsdecode(path)
    return DiskError(f"{name} cannot be read ({error.strerror}): let this user read it, or repair its disk")


def write_at(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of ``data`` at ``offset``; not yet durable. A full disk is an error here, never a dead process."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest = rest[written:]
        offset += written


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable: those created, renamed and removed so far."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_way_to(directory: Path) -> None:
    """Make a new directory durable: its content, its name, and those of parents that this process can have made."""
    sync_directory(directory)
    for parent in directory.parents:
        if not os.access(parent, os.R_OK | os.W_OK):
            break
        sync_directory(parent)


def put_file(path: Path, data: bytes | memoryview) -> None:
    """Put a whole file in its place: after the return it is there durably, after a crash it is there whole or not."""
    temporary = path.with_name(path.name + TEMPORARY)
    descriptor = open_regular(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_at(descriptor, data, 0)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
    temporary.rename(path)
    sync_directory(path.parent)


class Closing:
    """What is closed at the end of a ``with`` block; classes below it define ``close``."""

    def close(self) -> None:
        """Let go of what is held; it may be called again."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PartitionLock(Closing):
    """The exclusive right to write in a directory, a partition's or (eras) a stream's, until `close`.

    The lock is on the directory; the file ``lock`` in it names the holder for people. A stopped process keeps it.
    Raises LockedError where another process, or another writer of this one, holds it.
    """

    def __init__(self, directory: Path) -> None:
        self._lock(directory, fcntl.LOCK_EX)

    def _lock(self, directory: Path, kind: int) -> None:
        self._directory = directory
        self._descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            take_lock(self._descriptor, kind | fcntl.LOCK_NB, directory)
            self._name_holder()
        except BlockingIOError:
            self.close()
            raise LockedError(self._refusal()) from None
        except BaseException:  # Ctrl-C, too: the caller has no object that could let go of the directory
            self.close()
            raise

    def _name_holder(self) -> None:
        file = self._directory / LOCK_FILE
        with os.fdopen(open_regular(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as opened:
            opened.write(f"{os.getpid()}\n")

    def _refusal(self) -> str:
        try:
            holder = f"process {int(read_regular(self._directory / LOCK_FILE, most=64))}"
        except (OSError, ValueError, DamagedError):  # not written yet, or by hand: the lock is held all the same
            holder = "another process"
        return (
            f"{self._directory} is being written by {holder}; "
            "it keeps the directory until it ends, even while it is stopped: wait for it, or end it"
        )

    def check_place(self) -> None:
        """Raise OSError where the path leads nowhere, or no longer to the locked directory.

        Files stay open where no reader would find them: in a directory that was moved, on a disk that was unmounted.
        """
        if not os.path.samestat(os.fstat(self._descriptor), os.stat(self._directory)):  # noqa: PTH116 - beside fstat
            raise OSError(errno.ESTALE, "another directory is in its place", str(self._directory))

    def close(self) -> None:
        """Let other processes write there."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class StoreLock(PartitionLock):
    """The right to fill a store, until `close` or the end of the process: for one mirror, or for segment workers.

    Segment workers divide the partitions, and a mirror takes all of them; so one excludes the other, by a lock on the
    store's directory. Raises LockedError where a process that this one excludes fills the store.
    """

    def __init__(self, store: Path, *, exclusive: bool) -> None:
        self._other = "a segment worker, or another mirror," if exclusive else "a mirror"
        self._lock(store, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)

    def _name_holder(self) -> None:
        """Leave the holder's name out: several may hold it."""

    def _refusal(self) -> str:
        return (
            f"{self._other} fills the store {self._directory}, until it ends, even while it is stopped: end it, or "
            "name another directory with --store"
        )


def take_lock(descriptor: int, operation: int, path: Path) -> None:
    """Take the `flock` on an open file; raises BlockingIOError, or StoreError where the file system has none."""
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        raise
    except OSError as error:
        raise StoreError(
            f"{path} cannot be locked ({error.strerror}): its file system has no flock, and without locks two writers "
            "could damage what is there. Mount it with locks (Lustre: -o flock; NFS: -o local_lock=flock, where one "
            "host alone writes), or write to a local disk and copy from there; who only reads needs no locks"
        ) from error


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let nobody else on this host have the lock of a directory or file while the block runs; waits for it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        take_lock(descriptor, fcntl.LOCK_EX, path)
        yield
    finally:
        os.close(descriptor)


MISSING: Final = "it is missing"
"""What is wrong with a file that was removed: "0 bytes" would look like a disk that was full."""
OTHER_STORE: Final = "another store: a copy, or one that the same `tokenmill pack` command fills from the same files"
ERA_ADVICE: Final = (
    f"Stop the segment worker, move {ERA_LINES_FILE} and {ERA_INDEX_FILE} away, and start it again: it writes both "
    "again from the control topic (or copy both from another store of the stream)"
)


def is_packed(store: Path, stream: str) -> bool:
    """Return whether `tokenmill pack` filled a stream: its state is in the store, named as the stream without split.

    Where the stream's description, which says what of its name is the split, is damaged, its name has to do.
    """
    try:
        names = [path.name for path in (store / PACK_DIRECTORY).iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # a reader of the state is told
        return True
    with suppress(OSError, ValueError, LookupError, TypeError, DamagedError):
        recipe = read_json_file(store / stream / STREAM_FILE)["genesis"]["recipe"]
        topic = recipe["raw_topic"]
        suffix = stream.removeprefix(f"{topic}.{recipe['split']}")
        return f"{topic}{suffix}" in names
    parts = ((name[:at], name[at:]) for name in names for at in range(1, len(name) + 1))
    return any(stream.startswith(f"{topic}.") and stream.endswith(suffix) for topic, suffix in parts)


def comparing(store: Path, stream: str) -> str:
    """Return what compares a stream with what it was made of."""
    if is_packed(store, stream):
        return "the same `tokenmill pack` command with --verify compares the store with its files"
    return "`tokenmill verify` compares the store with its topics"


def ending(store: Path, stream: str) -> str:
    """Return the command that marks the end of a stream."""
    return "`tokenmill pack … --end`" if is_packed(store, stream) else "`tokenmill close`"


def too_short(path: Path, size: int, wanted: int) -> str:
    """Return what is wrong with a file of ``size`` bytes, 0 where there is none, of which ``wanted`` were committed."""
    return f"it has {size} bytes, but {wanted} were committed" if size or path.exists() else MISSING


def damaged(path: Path, what: str) -> DamagedError:
    """Return the error for damage to a file of a partition, ``<store>/<stream>/<partition>/<file>``."""
    return DamagedError(f"{path}: {what}", repair_advice(path.parent))


def cache_advice(store: Path, stream: str) -> str | None:
    """Return what to do about any damage where a store is the cache of a bucket; else None."""
    if not any((store / stream / name).exists() for name in (CLAIMS, SOURCE_FILE)):
        return None
    return f"{store} is the cache of a bucket: end what reads it, and delete it; what is read is fetched again"


def repair_advice(partition: Path, *others: Path) -> str:
    """Return what to do about damage in a partition's directory, and ``others``': the same for every file."""
    directory = partition.parent if partition.name == REPAIR_DIRECTORY else partition
    stream, store = directory.parent.name, directory.absolute().parents[1]
    numbers = [one.name for one in (directory, *others)]
    if (cached := cache_advice(store, stream)) is not None:
        return cached
    source = "from the token topic (or, with --from, from another store)"
    worker = (
        ". A segment worker that halted the partition then goes on by itself; one that still writes there must be "
        "stopped meanwhile"
    )
    if is_packed(store, stream):
        source, worker = f"from its own undamaged bytes (or, with --from, from {OTHER_STORE})", ""
    return (
        f"To repair it, run `{_repair(store, stream, *numbers)}`, which rebuilds what is damaged {source} and keeps "
        f"the damaged files beside it{worker}"
    )


def description_damaged(path: Path, what: str) -> DamagedError:
    """Return the error for damage to ``stream.json`` or ``tokenizer.json`` in ``<store>/<stream>``."""
    store, stream = path.parents[1], path.parent.name
    source = "the control topic has it (or, with --from, another store)"
    advice = f"`{_repair(store, stream)}` writes it again as {source}"
    if is_packed(store, stream):
        advice = f"`{_repair(store, stream)} --from DIRECTORY` writes it again as it is in {OTHER_STORE}"
    return DamagedError(f"{path}: {what}", cache_advice(store, stream) or advice)


def eras_damaged(path: Path, what: str) -> DamagedError:
    """Return the error for damage to the eras of a stream, ``<store>/<stream>/eras.…``."""
    store, stream = path.parents[1], path.parent.name
    advice = ERA_ADVICE
    if is_packed(store, stream):
        advice = (
            f"Move {ERA_LINES_FILE} and {ERA_INDEX_FILE} away, and call the same `tokenmill pack` command again: it "
            "writes both again (or copy both from another store of the stream)"
        )
    return DamagedError(f"{path}: {what}", cache_advice(store, stream) or advice)


def _repair(store: Path, stream: str, *partition: str) -> str:
    return shlex.join(["tokenmill", "repair", stream, *partition, "--store", str(store)])
