"""A bucket: its objects, created once, read and listed, never replaced; what counts among them, by numbered heads.

A put that fails may have created its object all the same, and so may one that is refused because the name is taken: an
answer was lost, and the client asked again. So after any failure the object is read back: what is there decides.

A head, created once and never replaced, names the segments that are there since the head before, and the lines of the
eras all of whose blocks are there with it. Readers take heads from 0 on; the first number that is missing ends the
list. A head adds, and takes nothing back. Each byte of a segment is held against its seal, and the seal against the
head that names it. docs/format.md ("In a bucket") has the bytes.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from hashlib import sha256
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

import numpy as np
from zlib_ng.zlib_ng import crc32

from tokenmill.eras import Era, EraLog
from tokenmill.errors import BucketError, DamagedError, InputError, StoreError, how_to_install
from tokenmill.reading import Blocks
from tokenmill.recipe import RAW_BYTES_SHA256, canonical_json
from tokenmill.store import StreamInfo
from tokenmill.store.layout import BUCKET_FILE, STORE_FILE, STREAM_FILE, TOKENIZER_FILE, sync_way_to
from tokenmill.store.sealing import BLOCK_ROW, Manifest, Rows, chain_after, scan
from tokenmill.untrusted import parse_json, regular_file

Given = TypeVar("Given")
Made = TypeVar("Made")
Data: TypeAlias = bytes | memoryview
SCHEMES: Final = ("s3", "gs", "az", "file")
FORMAT: Final = 1
_HINTS: Final = {
    "169.254.169.254": "no login is in the environment: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AZURE_…",
    "builder error": "a server without TLS needs AWS_ALLOW_HTTP=true",
}
"""What to do, by what obstore says where it finds no login and asks the cloud's own host, or may not speak plainly."""
_FINAL: Final = (PermissionError, FileNotFoundError)
"""What asking again does not change: the login lacks a right, or there is no such bucket."""


class StoredObjects:
    """Objects behind an address of `obstore`, whose names of variables logins have; every failure is an OSError."""

    _directory: Path | None = None
    """Of a mounted share."""

    def __init__(self, address: str) -> None:
        """Open it; nothing is asked for yet. Raises OSError or ValueError where the address cannot be one."""
        if _used_by - {os.getpid()}:  # obstore would wait for ever for threads that only the parent has
            raise InputError(
                "this process was forked from one that has used a bucket, whose threads are not here: start it in "
                "another way, as with DataLoader(…, multiprocessing_context='forkserver')"
            )
        _used_by.add(os.getpid())
        self._library, stores = _library("obstore"), _library("obstore.store")
        parts = urlsplit(address)
        with self._errors():
            if parts.scheme == "file":  # made by nobody: in place of a share that is not mounted would be another one
                self._directory = Path(unquote(parts.path)).resolve(strict=True)
                self._store = stores.LocalStore(self._directory)
            else:
                self._store = stores.from_url(address)

    def create(self, path: str, data: Data) -> None:
        """Create an object whole, by one request. Raises FileExistsError where the name is taken."""
        with self._errors():
            self._library.put(self._store, path, data, mode="create", use_multipart=False)

    def settle(self, path: str) -> None:
        """Let an object that is there outlive a crash; a server has promised that already."""
        if self._directory is not None:
            with regular_file(self._directory / path) as file:
                os.fsync(file.fileno())
            sync_way_to((self._directory / path).parent)

    def read(self, path: str) -> Data:
        """Return an object. Raises FileNotFoundError where there is none."""
        with self._errors():
            return memoryview(self._library.get(self._store, path).bytes())

    def names(self, folder: str, after: str | None) -> list[str]:
        """Return the paths of all objects below a folder, those up to ``after`` left out, in order."""
        with self._errors():
            pages = list(self._library.list(self._store, folder, offset=after))
        return sorted(str(meta["path"]) for page in pages for meta in page)

    def folders(self) -> list[str]:
        """Return the folders at the top, in order."""
        with self._errors():
            return sorted(map(str, self._library.list_with_delimiter(self._store)["common_prefixes"]))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        errors = self._library.exceptions
        try:
            yield
        except FileNotFoundError as error:
            raise FileNotFoundError(_first_line(error)) from error
        except errors.AlreadyExistsError as error:
            raise FileExistsError(_first_line(error)) from error
        except (errors.PermissionDeniedError, errors.UnauthenticatedError) as error:
            raise PermissionError(_first_line(error)) from error
        except errors.BaseError as error:
            raise OSError(_first_line(error)) from error


_used_by: set[int] = set()
"""The process that has used obstore, and those that it was forked from which have."""


def address_of(store: object) -> str | None:
    """Return the address of the bucket that is given as a store, also as a path, which has fewer slashes; else None."""
    if isinstance(store, Path):
        scheme, colon, rest = str(store).partition(":/")
        return f"{scheme}://{'/' * (scheme == 'file')}{rest}" if colon and scheme in SCHEMES else None
    return store if isinstance(store, str) and "://" in store else None


def _library(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(f"a bucket needs obstore, of the extra 'remote': {how_to_install('remote')}") from error


def in_lanes(work: Callable[[Given], Made], items: Iterable[Given], lanes: int) -> Iterator[Made]:
    """Yield what ``work`` makes of the items, in their order; so many at once, and no more than these are held."""
    with ThreadPoolExecutor(lanes, "lanes") as pool:
        flying: deque[Future[Made]] = deque()
        for item in items:
            flying.append(pool.submit(work, item))
            if len(flying) == lanes:
                yield flying.popleft().result()
        while flying:
            yield flying.popleft().result()


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


class Bucket:
    """The objects below an address; for any number of threads."""

    def __init__(self, address: str, objects: StoredObjects, pause: Callable[[float], object] = time.sleep) -> None:
        self.address = address
        self._objects = objects
        self._pause = pause

    @classmethod
    def open(cls, address: str) -> "Bucket":
        """Open the bucket at an address; asks for nothing yet. Raises BucketError where it is none, or no directory."""
        address = (address_of(address) or str(address)).rstrip("/")
        try:
            parts = urlsplit(address)
            is_whole = not (parts.query or parts.fragment)  # obstore would leave them out in silence
            if parts.scheme in SCHEMES and is_whole and (parts.path if parts.scheme == "file" else parts.hostname):
                return cls(address, StoredObjects(address))
        except (OSError, ValueError) as error:
            raise BucketError(f"{address} cannot be opened ({_first_line(error)}): check the address") from error
        raise BucketError(
            f"{address} is no bucket: write it as s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, or "
            "file:///directory of a mounted share, with %3F for a question mark and %23 for a number sign"
        )

    def create(self, path: str, data: Data) -> bool:
        """Create an object durably, unless it is there; return whether it has these bytes now. Raises BucketError."""
        for tries in range(6):
            found: Data | None = data
            try:
                self._objects.create(path, data)
            except OSError as error:
                failure, found = error, self.read(path)
            if found is not None:
                with self._failing(f"does not keep {path}"):
                    self._objects.settle(path)
                return found is data or np.array_equal(np.frombuffer(found, np.uint8), np.frombuffer(data, np.uint8))
            if isinstance(failure, _FINAL):
                break
            self._pause(min(0.2 * 2**tries, 5.0))
        raise self._failed(f"does not take {path}", failure) from failure

    def require(self, path: str, data: Data) -> None:
        """Let an object be there with these bytes. Raises BucketError where it has others, or as `create`."""
        if not self.create(path, data):
            raise BucketError(
                f"{self.address}/{path} is another object than the one of this store. Nothing was replaced. If the "
                "bucket is of another service, or was changed by hand, upload to another prefix"
            )

    def read(self, path: str) -> Data | None:
        """Return the bytes of an object, in a buffer; None where there is none. Raises BucketError where it fails."""
        with self._failing(f"does not give {path}"), suppress(FileNotFoundError):
            return self._objects.read(path)
        return None

    def names(self, folder: str, after: str | None) -> list[str]:
        """Return the paths of all objects below a folder that are behind ``after``, in order; raises as `read`."""
        with self._failing(f"does not list {folder}"):
            return self._objects.names(folder, after)

    def folders(self) -> list[str]:
        """Return the folders at the top of the bucket, in order; raises as `read`."""
        with self._failing("does not list its folders"):
            return self._objects.folders()

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._failed(what, error) from error

    def _failed(self, what: str, error: OSError) -> BucketError:
        check = "check the address, and that this login may list, read and create objects there"
        todo = next((hint for said, hint in _HINTS.items() if said in str(error)), check)
        return BucketError(f"{self.address} {what} ({error}): {todo}", passing=not isinstance(error, _FINAL))

    def prepare(self) -> None:
        """Let the bucket be one, and see once that it creates a name only once.

        Several servers answer "created" to both of two creations of one name; uploaders could replace each other's
        objects. Raises BucketError where it is such a server, a store, or a bucket of another format, or as `create`.
        """
        if self.read(STORE_FILE) is not None:
            raise BucketError(f"{self.address} is a store, and no bucket: name a directory, or a prefix, of its own")
        mine = canonical_json({"format": FORMAT}) + b"\n"
        self.require(BUCKET_FILE, mine)
        try:
            self._objects.create(BUCKET_FILE, mine)
        except FileExistsError:
            return
        except OSError as error:
            raise self._failed("cannot be probed", error) from error
        raise BucketError(
            f"{self.address} creates one name twice: it ignores If-None-Match, so two uploaders could overwrite each "
            "other. Nothing was uploaded: use a server that knows conditional writes"
        )


FOLDER: Final = "heads"
HEADS_AT_ONCE: Final = 32
"""A thousand take less than 2 seconds from a bucket that is 50 ms away."""


class BucketSegment(NamedTuple):
    """A segment in a bucket, the blocks ``[first, stop)`` of a partition."""

    partition: int
    first: int
    stop: int
    """Number after its last block: so many later, or fewer where the stream ended."""
    digest: str
    """SHA-256 of its manifest, or of its commit log where it is short; hexadecimal."""


@dataclass(frozen=True, slots=True)
class Head:
    """One head."""

    number: int
    before: str
    """SHA-256 of the head before; of ``stream.json`` before the first."""
    segments: tuple[BucketSegment, ...]
    eras: tuple[str, ...]

    def encode(self) -> bytes:
        """Return the head's bytes."""
        values = {"format": 1, "head": self.number, "before": self.before}
        return canonical_json({**values, "segments": self.segments, "eras": self.eras}) + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the head that `encode` made these bytes of. Raises ValueError where they are none."""
        try:
            values: Any = parse_json(data)
            segments = tuple(BucketSegment(*one) for one in values["segments"])
            head = cls(values["head"], values["before"], segments, tuple(values["eras"]))
            if head.encode() != data:
                raise ValueError("it is not spelled as it was written")
        except (TypeError, LookupError, AttributeError) as error:
            raise ValueError(f"it is none ({error!r})") from error
        return head


@dataclass
class HeadLog:
    """The heads of a stream up to one, and what they say together; `add` and `look` take those that follow."""

    info: StreamInfo
    next_number: int = 0
    before: str = ""
    segments: dict[tuple[int, int], BucketSegment] = field(default_factory=dict)
    begins: dict[int, int] = field(default_factory=dict)
    """The first block of each partition."""
    stops: dict[int, int] = field(default_factory=dict)
    """The number after its last block."""
    eras: list[Era] = field(default_factory=list)
    """All eras from 0 on whose blocks are there."""

    def __post_init__(self) -> None:
        self.before = self.before or sha256(self.info.encode()).hexdigest()
        self._log = EraLog(self.info.fingerprint)

    def add(self, data: bytes) -> Head:
        """Take the next head; raises ValueError, and takes nothing, where it does not continue the ones before."""
        head = Head.decode(data)
        if (head.number, head.before) != (self.next_number, self.before):
            raise ValueError(f"it does not continue head {self.next_number - 1}")
        stops, begins = dict(self.stops), dict(self.begins)
        size = self.info.segment_blocks
        for partition, first, stop, _ in head.segments:
            if not 0 < stop - first <= size or first % size or first < 0 or first != stops.get(partition, first):
                raise ValueError(f"its segment {first} of partition {partition} does not follow those before")
            begins.setdefault(partition, first)
            stops[partition] = stop
        log = EraLog(self._log.fingerprint, self._log.last)
        eras = [log.add(line.encode()) for line in head.eras]
        if any(era is None or era.lacks(stops) for era in eras):
            raise ValueError("it names an era that does not follow, or whose blocks are not there")
        self.next_number, self.before, self._log = head.number + 1, sha256(data).hexdigest(), log
        self.stops, self.begins = stops, begins
        self.segments |= {(one.partition, one.first): one for one in head.segments}
        self.eras += [era for era in eras if era is not None]
        return head

    def look(self, bucket: Bucket) -> int:
        """Take all heads that the bucket has since; return how many. Raises BucketError where one is gone, or none."""
        known = self.next_number
        after = self.path(known - 2) if known > 1 else None
        names = bucket.names(f"{self.info.name}/{FOLDER}", after)
        if known and self.path(known - 1) not in names:
            raise BucketError(
                f"{bucket.address}/{self.path(known - 1)} was there, and is not any more: an older state of the bucket "
                "was restored, or heads were deleted. Restore them, or begin with another prefix"
            )
        new = [name for number, name in enumerate(names[1:] if known else names, known) if name == self.path(number)]
        with ThreadPoolExecutor(HEADS_AT_ONCE, "heads") as pool:
            for begin in range(0, len(new), HEADS_AT_ONCE):
                part = new[begin : begin + HEADS_AT_ONCE]
                for name, data in zip(part, pool.map(bucket.read, part), strict=True):
                    self._take(bucket, name, data)
        return self.next_number - known

    def _take(self, bucket: Bucket, name: str, data: Data | None) -> None:
        if data is None:
            raise BucketError(f"{bucket.address}/{name} was listed, and is not there: look again", passing=True)
        try:
            self.add(bytes(data))
        except ValueError as error:
            raise BucketError(
                f"{bucket.address}/{name} is no head of this stream: {error}. It was changed, or an older state of the "
                "bucket was restored: restore it as it was"
            ) from error

    def path(self, number: int) -> str:
        """Return the name of a head."""
        return f"{self.info.name}/{FOLDER}/{number:08d}"


LANES: Final = 4
"""Segments that are fetched at once; each is in memory, 128 MiB of tokens at most."""


class Fetched(NamedTuple):
    """A segment as it came, whose bytes are those that its seal names."""

    segment: BucketSegment
    files: dict[str, Data]
    rows: Rows

    def blocks(self) -> Blocks:
        """Return its blocks."""
        ends = [0, *self.rows["docs_end"].tolist()]
        table = memoryview(self.files["docs"])
        entries = [bytes(table[start:stop]) for start, stop in pairwise(ends)]
        chains = [chain_after(self.rows, number) for number in range(len(self.rows))]
        return Blocks(self.segment.first, memoryview(self.files["bin"]), entries, chains)


def streams_of(bucket: Bucket, *, some: bool = False) -> list[str]:
    """Return the names of the streams in a bucket; raises BucketError where it does not answer, or lacks ``some``."""
    found = [name for name in bucket.folders() if bucket.read(f"{name}/{STREAM_FILE}") is not None]
    if some and not found:
        raise BucketError(f"{bucket.address} holds no stream: check the address, or upload one")
    return found


def stream_of(bucket: Bucket, stream: str) -> StreamInfo:
    """Return the description of a stream in a bucket. Raises BucketError where there is none, or it is none."""
    data = bucket.read(f"{stream}/{STREAM_FILE}")
    if data is None:
        raise BucketError(f"{bucket.address} holds no stream {stream!r}: check both names, and whether it was uploaded")
    try:
        return StreamInfo.decode(bytes(data))
    except (StoreError, DamagedError) as error:
        raise BucketError(f"{bucket.address}/{stream}/{STREAM_FILE} is no description of a stream: {error}") from error


def tokenizer_of(bucket: Bucket, info: StreamInfo) -> bytes | None:
    """Return the tokenizer file of a stream, None if it has none; raises BucketError where it is not the recipe's."""
    digest = info.recipe.get("tokenizer_sha256")
    data = None if digest == RAW_BYTES_SHA256 else bucket.read(f"{info.name}/{TOKENIZER_FILE}")
    if data is not None and digest and sha256(data).hexdigest() != digest:
        raise BucketError(
            f"{bucket.address}/{info.name}/{TOKENIZER_FILE} is not the stream's (SHA-256 {digest}): restore it"
        )
    return None if data is None else bytes(data)


class RemoteSegment:
    """A segment that a head names; each of its files is held against its seal, and the seal against the head."""

    def __init__(self, bucket: Bucket, info: StreamInfo, segment: BucketSegment) -> None:
        self.segment = segment
        self.blocks = segment.stop - segment.first
        whole = self.blocks == info.segment_blocks
        self.seal_end = "json" if whole else "commits"
        self.ends = ("bin", "docs", "index", "idx") if whole else ("bin", "docs")
        self._bucket, self._info = bucket, info
        self._base = f"{info.name}/{segment.partition}/{segment.first:012d}."

    @cached_property
    def seal(self) -> bytes:
        """What seals it; raises as `read`."""
        data = bytes(self.unchecked(self.seal_end))
        if sha256(data).hexdigest() != self.segment.digest:
            raise self._wrong(self.seal_end, "its SHA-256 is not the one in the head")
        return data

    @cached_property
    def manifest(self) -> Manifest | None:
        """Its manifest; None where it is short."""
        return Manifest.decode(self.seal) if self.seal_end == "json" else None

    def read(self, end: str) -> Data:
        """Fetch a file by the end of its name; raises BucketError where it is missing, or not what was uploaded."""
        return self.seal if end == self.seal_end else self.checked(end, self.unchecked(end))

    def checked(self, end: str, data: Data) -> Data:
        """Return what was fetched of a file, if it is what the seal says; raises as `read`."""
        length, crc = self._wanted(end)
        if crc is not None and crc32(data) != crc:
            raise self._wrong(end, "its CRC is not the one in the manifest")
        if length is not None and len(data) != length:
            raise self._wrong(end, "it has another length")
        return data

    def _wanted(self, end: str) -> tuple[int | None, int | None]:
        """Return the length and the CRC of a file, as far as the seal says them."""
        tokens, seal = self.blocks * self._info.block_bytes, self.manifest
        if seal is not None:
            return {
                "bin": (tokens, seal.bin_crc32),
                "docs": (seal.docs_bytes, seal.docs_crc32),
                "index": (self.blocks * BLOCK_ROW.itemsize, seal.index_crc32),
            }.get(end, (None, None))
        return (tokens if end == "bin" else int(self.short_rows["docs_end"][-1])), None

    @property
    def short_rows(self) -> Rows:
        """The rows of its blocks where it is short; raises as `read`."""
        info = self._info
        rows = scan(self.seal, block_bytes=info.block_bytes, segment_blocks=info.segment_blocks).rows
        if len(rows) != self.blocks:
            raise self._wrong(self.seal_end, "it has another length")
        return rows

    def unchecked(self, end: str) -> Data:
        """Fetch a file, whatever is in it. Raises BucketError where it is missing, or cannot be read."""
        data = self._bucket.read(self._base + end)
        if data is None:
            raise BucketError(f"{self._bucket.address}/{self._base}{end} is missing, and a head names it: restore it")
        return data

    def _wrong(self, end: str, why: str) -> BucketError:
        return BucketError(
            f"{self._bucket.address}/{self._base}{end} is not what was uploaded ({why}): restore it, or read another "
            "store"
        )


def fetch(bucket: Bucket, info: StreamInfo, segment: BucketSegment) -> Fetched:
    """Fetch a segment that a head names, its files at once; raises as `RemoteSegment.read`."""
    remote = RemoteSegment(bucket, info, segment)
    with ThreadPoolExecutor(len(remote.ends), "fetch") as pool:
        coming = {end: pool.submit(remote.unchecked, end) for end in remote.ends}
        seal = remote.seal
        files = {end: remote.checked(end, data.result()) for end, data in coming.items()} | {remote.seal_end: seal}
    rows = remote.short_rows if remote.manifest is None else np.frombuffer(files["index"], BLOCK_ROW)
    return Fetched(segment, files, rows)


def fetch_all(bucket: Bucket, info: StreamInfo, segments: Iterable[BucketSegment]) -> Iterator[Fetched]:
    """Fetch segments, `LANES` at once, and yield them in their order; raises as `fetch`."""
    return in_lanes(partial(fetch, bucket, info), segments, LANES)
