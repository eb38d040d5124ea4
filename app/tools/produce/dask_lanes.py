"""A run of produce on a Dask cluster: its files in lanes, each lane a task, and each task a run of produce by itself.

Large files are divided first, by tasks as well, into parts that are sources by themselves: files of lines and tables
where a line or row ends, parquet files between row groups. What these are depends on the file alone, and a part's items
have the numbers, and so the ids, of the whole file. The lane of a file, or a part, is a hash of its name, and a lane's
run has an identity of its own. So a lane is sent once, however often it is begun: a second attempt fences the first one
off, and goes on behind what is acknowledged (`app.tools.produce.producing`). All workers must reach the brokers, and
the files by the same paths.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from io import BufferedReader
from typing import Any, Final, NamedTuple

import xxhash
from pydantic import SecretStr

from tokenmill.errors import InputError, SettingsError, TokenMillError
from tokenmill.redaction import holds_secret

from ...settings import SECRETS, Settings
from ...sources.encodings import BUFFER_BYTES
from ...sources.file_sources import TABLES, FileSource, OpenedSources
from ...sources.formats.columnar import row_groups
from ...sources.formats.text import line_start, lines_between, row_ends
from ...sources.items import DocumentSource, File, ItemChunk, Place, first_line, library
from ...sources.paths import is_piped
from .producing import RunPlan, produce
from .run_notes import run_identity
from .sending import Acknowledged, Progress, Summary

LANES: Final = 64
"""Lanes of every run: the tasks that a cluster can work on at once. Another number would be another run."""
RULE: Final = 2
"""How files are put into lanes; 1 was without parts."""
RETRIES: Final = 3
"""How often a lane is tried again that ended because a broker did not answer."""
ADDED: Final = (
    *("before", "refused", "broken", "broken_before", "over", "unmet", "unnamed", "without_field"),
    *("examples", "left_out", "bytes_read"),
)
"""What a run counts that is the sum of its lanes'."""
PART_BYTES: Final = 64 << 20
"""Least bytes of a part, but for the last one of a file; another number would be other parts, and so another run."""


class PartBounds(NamedTuple):
    """A part of a file; its name, and that of `FileParts`, are in the hash that a run notes (`_DividedFile`)."""

    begin: Place
    data: tuple[int, int]
    groups: tuple[int, int] = (0, 0)
    """First row group, and the one behind the last; of parquet files alone."""


class FileParts(NamedTuple):
    """How a file of so many bytes is divided."""

    size: int
    bounds: tuple[PartBounds, ...]


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of a large file."""

    whole: FileSource
    bounds: PartBounds
    file_size: int

    @property
    def name(self) -> str:
        """The file's, with the byte where the part begins."""
        return f"{self.whole.name}[{self.bounds.data[0]}:]"

    @property
    def size(self) -> int:
        """Bytes of it."""
        begin, end = self.bounds.data
        return end - begin

    def signature(self) -> bytes:
        """Return a hash of its bytes. Raises InputError where the file is another one than was divided."""
        begin, end = self.bounds.data
        content = xxhash.xxh3_128()
        try:
            with self.whole.open() as file:
                self._require_size(os.fstat(file.fileno()).st_size)
                if self.whole.kind in TABLES:
                    content.update(file.read(min(begin, 1 << 20)))  # which names the columns
                file.seek(begin)
                while begin < end and (piece := file.read(min(1 << 20, end - begin))):
                    content.update(piece)
                    begin += len(piece)
        except OSError as error:
            return f"error {error.errno}".encode()
        return content.digest()

    def chunks(self, start: Place) -> Iterator[ItemChunk]:
        """Yield the part's items, as `FileSource.chunks` does those of the file. Raises as `signature`."""
        whole, (begin, end) = self.whole, self.bounds.data
        groups = range(*self.bounds.groups) if self.bounds.groups[1] else None
        self._require_size(FileSource(whole.path, whole.reading).size)
        part = replace(whole, size=end, begin=self.bounds.begin, bounded=groups is None, groups=groups)
        for chunk in part.chunks(start):
            yield chunk._replace(bytes_read=max(0, chunk.bytes_read - begin))

    def _require_size(self, size: int) -> None:
        if size != self.file_size:
            raise InputError(
                f"{self.whole.name} has changed since the command began ({self.file_size:,} bytes then, {size:,} now); "
                "what was read before is sent"
            )


@dataclass(frozen=True, slots=True)
class _DividedFile:
    """How a file is divided, as a source without documents: a run that has it notices when that changes."""

    name: str
    parts: FileParts

    @property
    def size(self) -> int:
        return self.parts.size

    def signature(self) -> bytes:
        return xxhash.xxh3_128_digest(repr(self.parts).encode())

    def chunks(self, start: Place) -> Iterator[ItemChunk]:
        yield ItemChunk([], start, self.size, 0, last=True)


def parts_of(source: FileSource, least: int = PART_BYTES) -> FileParts:
    """Return how a file is divided, in parts of ``least`` bytes; raises nothing for what is in it."""
    size = source.size
    try:
        with source.open() as raw, BufferedReader(raw, BUFFER_BYTES) as stream:
            if source.kind == "parquet":
                return FileParts(size, tuple(_row_groups(f"/proc/self/fd/{raw.fileno()}", least)))
            table = partial(row_ends, File(source.name, stream), source.reading.needs, tabs=source.kind == "tsv")
            ends = table() if source.kind in TABLES else _lines(raw.fileno(), size, least)
            return FileParts(size, tuple(_cut(ends, size, least)))
    except Exception:  # noqa: BLE001 - whatever is wrong with it, the file's reader says so
        return FileParts(size, ())


def may_be_divided(source: FileSource) -> bool:
    """Return whether it is so large, and of such a kind, that it may have several parts."""
    return source.size >= 2 * PART_BYTES and (source.grows or source.kind in TABLES or source.kind == "parquet")


def _lines(descriptor: int, size: int, least: int) -> Iterator[Place]:
    """Yield the ends of lines, each the first one that is ``least`` bytes or more behind the one before."""
    end = Place()
    while end.byte + least < size:
        at = line_start(descriptor, end.byte + least)
        end = Place(end.entry + lines_between(descriptor, end.byte, at), at)
        yield end


def _cut(ends: Iterable[Place], size: int, least: int) -> Iterator[PartBounds]:
    begin = Place()
    for end in ends:
        if end.byte - begin.byte >= least and end.byte < size:
            yield PartBounds(begin, (begin.byte, end.byte))
            begin = end
    yield PartBounds(begin, (begin.byte, size))


def _row_groups(path: str, least: int) -> Iterator[PartBounds]:
    groups = row_groups(path)
    first = rows = before = 0
    for number, group in enumerate(groups, 1):
        begin = groups[first].begin
        rows += group.rows
        if group.end - begin >= least or number == len(groups):
            yield PartBounds(Place(before), (begin, group.end), (first, number))
            first, before = number, rows


def divided(sources: Sequence[DocumentSource], parts: Mapping[str, FileParts]) -> list[DocumentSource]:
    """Return the sources, those with more than one part in parts; ``parts`` is by path."""
    found: list[DocumentSource] = []
    for source in sources:
        known = parts.get(source.path) if isinstance(source, FileSource) else None
        if isinstance(source, FileSource) and known is not None and len(known.bounds) > 1:
            found += [FilePart(source, bounds, known.size) for bounds in known.bounds]
        else:
            found.append(source)
    return found


@dataclass(frozen=True, slots=True)
class LaneTask:
    """One lane, as it is sent to a worker."""

    lane: int
    settings: Settings
    """Without passwords where it is sent: schedulers and their dashboards may show what passes."""
    topic: str
    paths: tuple[str, ...]
    opened: Callable[[], AbstractContextManager[OpenedSources]]
    options: Mapping[str, object]
    plan: RunPlan = field(default_factory=RunPlan)
    parts: Mapping[str, FileParts] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    """Those that a worker has to have in its own environment."""

    def bare(self, lane: int) -> "LaneTask":
        """Return the task of a lane as it is sent, without passwords."""
        secrets = tuple(name for name in sorted(SECRETS) if getattr(self.settings, name) is not None)
        return replace(self, lane=lane, settings=self.settings.without_secrets(), secrets=secrets)

    def run(self) -> Summary:
        """Send the lane's documents from this process; what was sent before is not sent again. Raises as `produce`."""
        settings = with_secrets(self.settings, self.secrets)
        with self.opened() as found:
            sources = [source for source in divided(found.sources, self.parts) if _lane_of(source) == self.lane]
            identity = run_identity(self.topic, {**self.options, "lane": [self.lane, LANES, RULE]}, self.paths)
            return asyncio.run(produce(settings, self.topic, sources, replace(self.plan, identity=identity)))


def with_secrets(settings: Settings, names: Sequence[str]) -> Settings:
    """Return the settings with these passwords of this process's environment; SettingsError where it has none such."""
    found = {name: os.environ.get(f"TOKENMILL_{name.upper()}", "") for name in names}
    for name in (name for name, value in found.items() if not value):
        raise SettingsError(
            f"this process has no TOKENMILL_{name.upper()}, and passwords are not sent to it: set it there, "
            f"or name a file that it has ({name}_file)"
        )
    return settings.model_copy(update={name: SecretStr(value) for name, value in found.items()})


def _lane_of(source: DocumentSource) -> int:
    """Return the lane of a source, which depends on its name alone."""
    return xxhash.xxh3_64_intdigest(source.name.encode("utf-8", "surrogateescape")) % LANES


def produce_on_dask(
    address: str, task: LaneTask, sources: Sequence[DocumentSource], progress: Progress = lambda _: None
) -> Summary:
    """Send the documents of all sources into the raw topic from a cluster's workers, each once; lanes in any order.

    A worker that dies is replaced by another one, which goes on where it was. ``task`` is that of any lane; the others
    differ in their number alone. ``progress`` is called with the sum of the lanes that have ended.

    Raises InputError where the cluster does not answer, or is gone; a lane's workers died again and again; or as
    `produce`. Says what was sent: the same command goes on.
    """
    distributed = library("distributed", "dask", "--dask")
    total = Summary(task.topic, {})
    total.bytes_total = sum(source.size for source in sources)
    try:
        client = distributed.Client(address, timeout=10)  # of the scheduler
    except (OSError, TimeoutError, ValueError) as error:
        raise InputError(f"no Dask scheduler answers at {address}: {first_line(error)}; nothing was sent") from error
    with client:
        task = replace(task, parts=_divided_by(client, sources, address))
        if task.parts and task.plan.only_new:
            raise InputError(
                f"--only-new: {next(iter(task.parts))} is sent in parts, and what was added to it cannot be told from "
                "the rest: name the new files alone, without --only-new"
            )
        _note_parts(task, sources)
        lanes = sorted({_lane_of(source) for source in divided(sources, task.parts)})
        submitted = {client.submit(LaneTask.run, task.bare(lane), pure=False, retries=RETRIES): lane for lane in lanes}
        done: list[int] = []
        try:
            for future in distributed.as_completed(submitted):
                _add(total, future.result())  # or raises what its task raised, or why there is no answer
                done.append(submitted[future])
                progress(total)
        except TokenMillError as error:
            raise type(error)(f"{error}. {_so_far(total, done, lanes)}") from error
        except Exception as error:
            raise InputError(f"{_why(error, address)}. {_so_far(total, done, lanes)}") from error
    return total


def _divided_by(client: Any, sources: Sequence[DocumentSource], address: str) -> Mapping[str, FileParts]:
    large = [source for source in sources if isinstance(source, FileSource) and may_be_divided(source)]
    bare = [replace(source, reading=replace(source.reading, mapping=None)) for source in large]
    try:
        found = client.gather(client.map(parts_of, bare, least=PART_BYTES, pure=False, retries=RETRIES))
    except Exception as error:
        raise InputError(f"{_why(error, address)}. Nothing was sent; the same command begins again") from error
    return {source.path: parts for source, parts in zip(large, found, strict=True) if len(parts.bounds) > 1}


def _note_parts(task: LaneTask, sources: Sequence[DocumentSource]) -> None:
    """Note on Kafka how files are divided, as a run without documents: lanes know nothing of one another.

    Raises InputError where they are divided otherwise since the first call: documents would be sent twice.
    """
    names = {source.path: source.name for source in sources if isinstance(source, FileSource)}
    files = [_DividedFile(names[path], parts) for path, parts in task.parts.items()]
    identity = run_identity(task.topic, {**task.options, "lane": ["parts", LANES, RULE]}, task.paths)
    plan = RunPlan(identity=identity, restart=task.plan.restart, only_new=task.plan.only_new)
    asyncio.run(produce(task.settings, task.topic, files, plan))


def _why(error: BaseException, address: str) -> str:
    if type(error).__name__ == "KilledWorker":
        return f"workers of {address} died again and again over one lane ({first_line(error)}): see their logs"
    return f"the Dask cluster at {address} is gone, or lost a lane: {type(error).__name__}: {first_line(error)}"


def _so_far(total: Summary, done: Sequence[int], lanes: Sequence[int]) -> str:
    return (
        f"{len(done)} of {len(lanes)} lanes are sent completely, with {total.documents + total.before:,} documents; "
        "of the others a first part. The same command, on this cluster or another one, sends the rest"
    )


def _add(total: Summary, lane: Summary) -> None:
    for number, sent in lane.partitions.items():
        mine = total.partitions.setdefault(number, Acknowledged())
        mine.documents += sent.documents
        mine.bytes += sent.bytes
    for name in ADDED:
        setattr(total, name, getattr(total, name) + getattr(lane, name))
    total.seconds = max(total.seconds, lane.seconds)


def require_lanes(paths: Sequence[str], plan: RunPlan) -> None:
    """Check that a run can be sent in lanes: InputError for a pipe, or options that only one process can keep."""
    if any(map(is_piped, paths)) or plan.identity is None:
        raise InputError("--dask sends what each worker can read, and goes on in it: no pipes, and not --no-resume")
    if any(map(holds_secret, paths)):
        raise InputError(
            "--dask: an address has a password, and would pass through the cluster's scheduler: leave it out"
        )
    whole = {"--rate": plan.rate, "--limit": plan.limit, "--shuffle-buffer": plan.shuffle}
    if given := [name for name, value in whole.items() if value]:
        raise InputError(f"--dask sends in lanes beside each other: leave out {', '.join(given)}")
