"""A stream of a bucket in a folder of this host, which is a store: filled by its eras, or for any order.

By eras, the folder has all eras that the bucket has, and segments come and go. Eras say what comes next, so each byte
is fetched once a pass and host. Of the processes of a host that read the stream, one fetches: the one that holds the
lock on the stream's directory; when it ends, another one goes on. Each says in a file of its own, which it keeps
locked, which eras it wants; what nobody wants is removed, a while after who wanted it has ended.

For any order (`open_folder`), files come when they are first opened. The folder has all that the heads named when it
was opened: descriptions, eras, and of each segment the name of its seal, a link to nothing, so that it is seen in
listings. `open_regular` asks here for what is not there, so any process that has this module fetches, each file once.
The oldest segments are removed to keep within the bytes; who has mapped one keeps it.
"""

import fcntl
import json
import logging
import os
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from time import monotonic, time
from typing import Any, Final, TypeAlias
from uuid import uuid4

from tokenmill.bucket.objects import (
    Bucket,
    BucketSegment,
    Fetched,
    HeadLog,
    RemoteSegment,
    address_of,
    fetch_all,
    stream_of,
    streams_of,
    tokenizer_of,
)
from tokenmill.eras import Era
from tokenmill.errors import BucketError, DifferenceError, DiskError, InputError, LockedError, TokenMillError
from tokenmill.recipe import canonical_json
from tokenmill.store import EraReader, EraWriter, Start, Store, StreamInfo, layout, partitions_in, read_stream
from tokenmill.store.store import write_start
from tokenmill.untrusted import FETCHERS, read_json_file

LOOK_SECONDS: Final = 5.0
"""How often the bucket is asked for new heads."""
CLAIM_SECONDS: Final = 0.05
"""How often it is looked which eras are wanted."""
LONGEST_PAUSE: Final = 30.0
"""Seconds until the next try while the bucket or the disk fails; the first come after one, two, four."""
_AGAIN: Final = "what reads this cache of a bucket tries again, or goes on when it is called again"
"""What follows once the cache's disk is there."""
_CLAIM_BYTES: Final = 4096
_LEFT: Final = ".left"
"""Ends the name of a claim of a process that has ended."""

log = logging.getLogger(__name__)

Place: TypeAlias = tuple[int, int]
"""Of a segment: its partition and its first block."""


class CacheFolder:
    """Which segments of a stream are in a folder."""

    def __init__(self, path: Path, info: StreamInfo) -> None:
        self.path = path
        self.info = info
        self.claims = path / info.name / layout.CLAIMS
        """Who has its lock says what is wanted, or removes anything: what was there is not removed unseen."""

    def segments(self, eras: Iterable[Era]) -> list[Place]:
        """Return the segments that hold blocks of eras, each once."""
        size = self.info.segment_blocks
        found = (
            (partition, first)
            for era in eras
            for partition, part in enumerate(era.ranges)
            for first in range(part.first - part.first % size, part.stop if part.blocks else 0, size)
        )
        return list(dict.fromkeys(found))

    def begun(self, eras: Iterable[Era]) -> list[Place]:
        """Return the segments of which eras have no block, and those before and after them have."""
        size = self.info.segment_blocks
        empty = [(n, part.first) for era in eras for n, part in enumerate(era.ranges) if not part.blocks]
        return [(partition, first - first % size) for partition, first in empty if first % size]

    def bytes(self, segments: int) -> int:
        """Return the size of the tokens of so many segments."""
        return segments * self.info.segment_blocks * self.info.block_bytes

    def paths(self, partition: int, first: int) -> layout.SegmentPaths:
        """Return the files of a segment."""
        return layout.SegmentPaths(layout.partition_directory(self.path, self.info.name, partition), first)

    def has(self, place: Place) -> bool:
        """Return whether a segment is here: its seal is written last, and its tokens are removed first."""
        paths = self.paths(*place)
        return (paths.manifest.exists() or paths.commits.exists()) and paths.tokens.exists()

    def put(self, fetched: Fetched) -> None:
        """Write a segment."""
        paths = self.paths(fetched.segment.partition, fetched.segment.first)
        with layout.blaming(paths.directory, _AGAIN):
            paths.directory.mkdir(exist_ok=True)
            for end, data in fetched.files.items():
                layout.put_file(paths.directory / f"{paths.first:012d}.{end}", data)

    def keep(self, kept: Collection[Place], tables: Collection[Place]) -> None:
        """Remove all other segments, but of some the tokens alone; who has mapped one keeps it."""
        for partition in partitions_in(self.path, self.info.name):
            directory = layout.partition_directory(self.path, self.info.name, partition)
            names = os.listdir(directory)  # noqa: PTH208 - names alone
            for name in names:
                if name.endswith(layout.TEMPORARY):  # of a process that was killed
                    (directory / name).unlink(missing_ok=True)
            for first in layout.segment_firsts(names):
                paths, place = self.paths(partition, first), (partition, first)
                if place in kept:
                    continue
                for path in (paths.tokens,) if place in tables else reversed(paths.all):  # the seal first
                    path.unlink(missing_ok=True)


class BucketCache:
    """A stream of a bucket, cached for one reader, until that is gone (`end_with`)."""

    def __init__(self, bucket: Bucket, stream: str, path: Path, most_bytes: int | None) -> None:
        """Let the folder ``path`` be a store that has the stream, and begin to bring its eras.

        Raises BucketError where the bucket holds no such stream, or does not answer; InputError where the folder is a
        store; others as `Store.add_stream`.
        """
        info = stream_of(bucket, stream)
        if any((path / stream).glob("[0-9]*")) and not (path / stream / layout.CLAIMS).exists():
            raise InputError(
                f"cache is '{path}', a store that has {stream}, and would lose it: give a folder of its own"
            )
        store = Store.open_or_create(path, _AGAIN)
        store.add_stream(info, tokenizer_of(bucket, info))
        self.path = store.path
        self._folder = CacheFolder(store.path, info)
        self._most_bytes = most_bytes
        self._claimed: Any = None
        with layout.blaming(claims := self._folder.claims, _AGAIN):
            claims.mkdir(exist_ok=True)
            file = claims / uuid4().hex
            self._claim = os.open(new := file.with_suffix(layout.TEMPORARY), os.O_RDWR | os.O_CREAT)
            layout.take_lock(self._claim, fcntl.LOCK_EX, new)
            new.rename(file)  # who fetches takes one that is not locked for that of a process that is gone
        self._work = FetchWork(bucket, store, self._folder, most_bytes)
        weakref.finalize(self, os.close, self._claim).atexit = False  # who fetches removes a file that is not locked
        Thread(target=self._work.run, name="fetch", daemon=True).start()

    def end_with(self, reader: object) -> None:
        """Let another process fetch, and want nothing any more, when ``reader`` is gone."""
        weakref.finalize(reader, self._work.ended.set).atexit = False

    def has(self, eras: EraReader, now: Sequence[int], following: Sequence[int], had: Sequence[int]) -> bool:
        """Say which eras are read, which will be next, and of which somebody has batches: their documents stay here.

        Returns whether the blocks of the first one are all here. Raises BucketError where the bucket refuses or holds
        something else, InputError where the era is larger than the cache may be, TokenMillError where the folder cannot
        be used.
        """
        if self._work.error is not None:
            raise self._work.error
        if self._claimed != (claim := [[*now], [*following], [*had[-256:]]]):  # so many fit into a claim
            self._claimed = claim
            with layout.locked(self._folder.claims):
                os.pwrite(self._claim, json.dumps(claim).encode().ljust(_CLAIM_BYTES), 0)
        segments = self._folder.segments([eras.era(now[0])])
        size = self._folder.bytes(len(segments))
        if self._most_bytes is not None and size > self._most_bytes:
            raise InputError(
                f"era {now[0]} of {self._folder.info.name} is in segments with {size} bytes of tokens, and cache_bytes "
                f"is {self._most_bytes}: give more; twice as much has room for the next era"
            )
        return all(map(self._folder.has, segments))


_WORKS: Final[weakref.WeakSet["FetchWork"]] = weakref.WeakSet()


def _leave_locks() -> None:
    """In a process that was forked, leave locks to the one with the threads: they are held while any has them."""
    for work in list(_WORKS):
        if work.eras is not None:
            work.eras.close()


os.register_at_fork(after_in_child=_leave_locks)


class FetchWork:
    """The thread of a process that fetches what is wanted, while no other process does."""

    def __init__(self, bucket: Bucket, store: Store, folder: CacheFolder, most_bytes: int | None) -> None:
        self.ended = Event()
        self.error: TokenMillError | None = None
        self.eras: EraWriter | None = None
        """While this process fetches; with the lock."""
        self._bucket, self._store, self._folder, self._most_bytes = bucket, store, folder, most_bytes
        _WORKS.add(self)

    def run(self) -> None:
        """Work until it is ``ended``."""
        pause = 1.0
        while not self.ended.is_set() and self.error is None:
            try:
                with EraWriter.open(self._store, self._folder.info.name) as self.eras:
                    self._fetch(self.eras)
            except LockedError:  # another process does
                self.ended.wait(CLAIM_SECONDS)
            except (TokenMillError, OSError) as error:  # the system's own, where the folder is deleted meanwhile
                if isinstance(error, DiskError | OSError) or (isinstance(error, BucketError) and error.passing):
                    log.warning("%s is tried again in %.0f seconds: %s", self._bucket.address, pause, error)
                    self.ended.wait(pause)
                    pause = min(2 * pause, LONGEST_PAUSE)
                else:
                    self.error = error

    def _fetch(self, eras: EraWriter) -> None:
        heads, looked = HeadLog(self._folder.info), float("-inf")
        while not self.ended.is_set():
            if monotonic() - looked >= LOOK_SECONDS:
                heads.look(self._bucket)
                bring_eras(heads, eras, self._folder.path, self._bucket)
                looked = monotonic()
            missing = self._missing(heads)
            wanted = [self._named(heads, place) for place in islice(missing, 8)]
            for fetched in fetch_all(self._bucket, self._folder.info, wanted):
                self._folder.put(fetched)
            if not wanted:
                self.ended.wait(CLAIM_SECONDS)

    def _named(self, heads: HeadLog, place: Place) -> BucketSegment:
        if (found := heads.segments.get(place)) is None:
            raise BucketError(
                f"{self._bucket.address} begins at block {heads.begins.get(place[0])} of partition {place[0]} of "
                f"{self._folder.info.name}, and block {place[1]} is wanted: ask for later eras"
            )
        return found

    def _missing(self, heads: HeadLog) -> list[Place]:
        """Remove what no process wants, and return what is to be fetched, the eras that are read now first."""
        with layout.locked(self._folder.claims):
            claims = list(self._read_claims())
            eras = [[heads.eras[number] for claim in claims for number in claim[kind]] for kind in range(4)]
            now, later, had, left = map(self._folder.segments, eras)
            left += self._folder.begun(chain(*eras[:2]))
            room = len(now) + len(later) + len(left)
            if self._most_bytes is not None:
                room = max(len(now), self._most_bytes // self._folder.bytes(1))
            wanted = list(dict.fromkeys([*now, *later]))[:room]
            kept = list(dict.fromkeys([*wanted, *filter(self._folder.has, left)]))[:room]
            if wanted:  # else nobody has said anything yet
                self._folder.keep(kept, had)
            return [place for place in wanted if not self._folder.has(place)]

    def _read_claims(self) -> Iterator[Any]:
        """Yield the claims of processes that live; for a while those of others, as what they left; then remove them."""
        for file in self._folder.claims.iterdir():
            if file.suffix == layout.TEMPORARY:
                continue
            with suppress(FileNotFoundError), file.open("rb") as opened:
                try:
                    fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    lives = False
                except BlockingIOError:
                    lives = True
                now, later, had = json.loads(opened.read(_CLAIM_BYTES) or "[[], [], []]")
                if lives:
                    yield now, later, had, []
                elif file.suffix != _LEFT:
                    os.utime(file)
                    file.rename(file.with_suffix(_LEFT))
                    yield [], [], had, [*now, *later]
                elif time() - file.stat().st_mtime < 30:  # noqa: PLR2004 - seconds; the next process wants the same soon
                    yield [], [], had, [*now, *later]
                else:
                    file.unlink(missing_ok=True)


def cache_folder(store: Any, cache: Any, most_bytes: int | None) -> Path | None:
    """Return the folder of a bucket, None of other stores; raises InputError where only one of the two is given."""
    if address_of(store) is None:
        for name, value in (("cache", cache), ("cache_bytes", most_bytes)):
            if value is not None:
                raise InputError(f"{name} is {value!r:.200}, and does nothing where store is no bucket: give none")
        return None
    try:
        return layout.store_directory(cache)
    except InputError as error:
        raise InputError(
            f"store is {store!r}, a bucket, and cache is {cache!r:.200}: give cache a folder on a disk of this host, "
            "for what is read"
        ) from error


def open_cache(store: Any, stream: str, cache: Any, most_bytes: int | None) -> BucketCache | None:
    """Return the cache of a stream of a bucket, None of other stores; raises as `cache_folder` and `BucketCache`."""
    folder = cache_folder(store, cache, most_bytes)
    return None if folder is None else BucketCache(Bucket.open(store), stream, folder, most_bytes)


def bring_eras(heads: HeadLog, eras: EraWriter, path: Path, bucket: Bucket) -> None:
    """Append the eras that a folder lacks. Raises DifferenceError where it has others."""
    last = eras.last
    if last is not None and (last.number >= len(heads.eras) or heads.eras[last.number] != last):
        raise DifferenceError(
            f"{path} has other eras of {heads.info.name} than {bucket.address}: it is the cache of another bucket, or "
            "an older state of this one was restored; name another folder"
        )
    eras.append([(era, era.number) for era in heads.eras[eras.next_number :]])


_temporary: list[TemporaryDirectory[str]] = []


class SegmentFolder:
    """The segments of a stream in a folder, which come out of a bucket."""

    def __init__(self, directory: Path, info: StreamInfo, bucket: Bucket, most_bytes: int | None) -> None:
        """Read the bucket's heads; raises BucketError where it does not answer, or they are none."""
        self.heads = HeadLog(info)
        self.heads.look(bucket)
        self._directory, self._bucket = directory, bucket
        self._most_bytes = None if most_bytes is None else most_bytes // max(1, len(self.heads.begins))
        self._last: dict[int, RemoteSegment] = {}

    def segment(self, partition: int, first: int) -> RemoteSegment | None:
        """Return a segment; None where no head names it."""
        last = self._last.get(partition)
        if last is None or last.segment.first != first:
            if (named := self.heads.segments.get((partition, first))) is None:
                return None
            last = self._last[partition] = RemoteSegment(self._bucket, self.heads.info, named)
        return last

    def fetch(self, path: Path) -> int | None:
        """Let a file of a segment be there, and return its descriptor; None where there is none of that name."""
        partition, first, end = int(path.parent.name), layout.segment_firsts([path.name])[0], path.suffix[1:]
        with layout.locked(path.parent):
            if (remote := self.segment(partition, first)) is None or end not in {*remote.ends, remote.seal_end}:
                return None
            if not path.exists():  # another process may have been quicker
                with layout.blaming(path.parent, _AGAIN):
                    layout.put_file(path, remote.read(end))
                    self._make_room(path)
            return os.open(path, os.O_RDONLY)

    def _make_room(self, new: Path) -> None:
        if self._most_bytes is None:
            return
        large = {".bin", ".docs", ".index"}
        files = [(path.stat(), path) for path in new.parent.iterdir() if path.suffix in large]
        over = sum(status.st_size for status, _ in files) - self._most_bytes
        for status, path in sorted(files, key=lambda one: one[0].st_mtime_ns):
            if over > 0 and path.stem != new.stem:
                path.unlink()
                over -= status.st_size

    def begin(self, store: Store) -> None:
        """Let the folder have the eras, and say in which segments the blocks are."""
        with EraWriter.open(store, self.heads.info.name) as eras:
            bring_eras(self.heads, eras, store.path, self._bucket)
        for partition, first in self.heads.begins.items():
            (directory := self._directory / str(partition)).mkdir(exist_ok=True)
            if first and (remote := self.segment(partition, first)) is not None:
                if remote.manifest is None:
                    raise BucketError(f"{self._bucket.address} does not say what is before block {first}: mirror it")
                write_start(directory, Start(first, bytes.fromhex(remote.manifest.chain_before)))
        for (partition, first), named in self.heads.segments.items():
            remote = RemoteSegment(self._bucket, self.heads.info, named)
            seal = self._directory / str(partition) / f"{first:012d}.{remote.seal_end}"
            with suppress(FileExistsError):
                seal.symlink_to("in-the-bucket")


_folders: Final[dict[Path, SegmentFolder]] = {}


def _fetch(path: Path) -> int | None:
    if not layout.segment_firsts([path.name]) or not (source := path.parents[1] / layout.SOURCE_FILE).exists():
        return None
    directory = path.parents[1]
    if directory not in _folders:  # another process has opened it
        known, info = read_json_file(source), read_stream(directory.parent, directory.name)
        _folders[directory] = SegmentFolder(directory, info, Bucket.open(known["address"]), known["most_bytes"])
    return _folders[directory].fetch(path)


FETCHERS.append(_fetch)


def open_folder(address: str, path: Path, most_bytes: int | None, streams: Sequence[str] = ()) -> Path:
    """Let a folder be a store that has the ``streams`` of a bucket, or all, as of its newest heads.

    Args:
        address, streams: of the bucket, and which of its streams.
        path: the folder; the same one is used again, also by several processes.
        most_bytes: of segments that it keeps; None: all that are read.

    Raises:
        BucketError: the bucket holds no such stream, does not answer, or does not hold what was uploaded.
        DifferenceError, FingerprintError, StoreError, DiskError: the folder is of another bucket, or cannot be used.
    """
    bucket, store = Bucket.open(address), Store.open_or_create(path, _AGAIN)
    names = streams or streams_of(bucket)
    with layout.locked(store.path):
        for name in names:
            info, directory = stream_of(bucket, name), store.path / name
            store.add_stream(info, tokenizer_of(bucket, info))
            _folders[directory] = SegmentFolder(directory, info, bucket, most_bytes)
            _folders[directory].begin(store)
            known = {"address": bucket.address, "most_bytes": most_bytes}
            layout.put_file(directory / layout.SOURCE_FILE, canonical_json(known))
    return store.path


def open_temporarily(store: Path) -> Path:
    """Return a store that is given by its path or as a bucket; a folder for that is removed when the process ends."""
    if (address := address_of(store)) is None:
        return store
    _temporary.append(folder := TemporaryDirectory(prefix="tokenmill-"))
    return open_folder(address, Path(folder.name), 2 << 30)


def store_folder(store: Any, stream: str, cached: Any, most_bytes: int | None) -> Path:
    """Return the directory of a store given by its path, or as a bucket with a folder for what is read.

    Raises InputError where it is neither, or only one of bucket and folder is given; else as `open_folder`.
    """
    if (folder := cache_folder(store, cached, most_bytes)) is None:
        return layout.store_directory(store)
    return open_folder(store, folder / "any-order", most_bytes, [stream])
