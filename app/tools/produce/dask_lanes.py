"""A run of produce on a Dask cluster: its files in lanes, each lane a task, and each task a run of produce by itself.

Large files are divided first, by tasks as well (`app.sources.file_parts`). The lane of a file, or a part, is a
hash of its name, and a lane's run has an identity of its own. So a lane is sent once, whoever sends it and how often it
is begun: a second attempt fences the first one off, and goes on behind what is acknowledged
(`app.tools.produce.resuming`). All workers must reach the brokers, and the files by the same paths.
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import xxhash
from pydantic import SecretStr

from tokenmill.errors import InputError, SettingsError, TokenMillError
from tokenmill.redaction import holds_secret

from ...settings import SECRETS, Settings
from ...sources import file_parts
from ...sources.file_parts import DividedFile, FileParts, divided, may_be_divided, parts_of
from ...sources.file_sources import FileSource, OpenedSources
from ...sources.items import DocumentSource, first_line, library
from ...sources.paths import is_piped
from .producing import RunPlan, produce
from .run_notes import RunIdentity
from .sender import Acknowledged
from .summary import Progress, Summary

EXTRA: Final = "dask"
LANES: Final = 64
"""Lanes of every run: the tasks that a cluster can work on at once. Another number would be another run."""
RULE: Final = 2
"""How files are put into lanes; 1 was without parts."""
ANSWER_SECONDS: Final = 10
"""How long the cluster's scheduler may take to answer."""
RETRIES: Final = 3
"""How often a lane is tried again that ended because a broker did not answer."""
ADDED: Final = (
    *("before", "refused", "broken", "broken_before", "over", "unmet", "unnamed", "without_field"),
    *("examples", "left_out", "bytes_read"),
)
"""What a run counts that is the sum of its lanes'."""


@dataclass(frozen=True, slots=True)
class LaneTask:
    """One lane, as it is sent to a worker."""

    lane: int
    settings: Settings
    """Without passwords where it is sent: schedulers and their dashboards may show what passes."""
    topic: str
    paths: tuple[str, ...]
    opened: Callable[[], AbstractContextManager[OpenedSources]]
    """Opens the sources, in any process: the same ones, with the same content."""
    options: Mapping[str, object]
    """Those that decide what is sent, of the whole run."""
    plan: RunPlan = field(default_factory=RunPlan)
    parts: Mapping[str, FileParts] = field(default_factory=dict)
    """How large files are divided, by path."""
    secrets: tuple[str, ...] = ()
    """The passwords that a worker has to have in its own environment."""

    def bare(self, lane: int) -> "LaneTask":
        """Return the task of a lane as it is sent, without passwords."""
        secrets = tuple(name for name in sorted(SECRETS) if getattr(self.settings, name) is not None)
        return replace(self, lane=lane, settings=self.settings.without_secrets(), secrets=secrets)

    def run(self) -> Summary:
        """Send the lane's documents from this process; what was sent before is not sent again. Raises as `produce`."""
        settings = with_secrets(self.settings, self.secrets)
        with self.opened() as found:
            sources = [source for source in divided(found.sources, self.parts) if lane_of(source) == self.lane]
            identity = RunIdentity.of(self.topic, {**self.options, "lane": [self.lane, LANES, RULE]}, self.paths)
            return asyncio.run(produce(settings, self.topic, sources, replace(self.plan, identity=identity)))


def with_secrets(settings: Settings, names: Sequence[str]) -> Settings:
    """Return the settings with these passwords, which this process's own environment has.

    Raises SettingsError where it has none of that name.
    """
    found = {name: os.environ.get(f"TOKENMILL_{name.upper()}", "") for name in names}
    for name in (name for name, value in found.items() if not value):
        raise SettingsError(
            f"this process has no TOKENMILL_{name.upper()}, and passwords are not sent to it: set it there, "
            f"or name a file that it has ({name}_file)"
        )
    return settings.model_copy(update={name: SecretStr(value) for name, value in found.items()})


def lane_of(source: DocumentSource) -> int:
    """Return the lane of a source, which depends on its name alone."""
    return xxhash.xxh3_64_intdigest(source.name.encode("utf-8", "surrogateescape")) % LANES


def produce_on_dask(
    address: str, task: LaneTask, sources: Sequence[DocumentSource], progress: Progress = lambda _: None
) -> Summary:
    """Send the documents of all sources into the raw topic from a cluster's workers, each once.

    A worker that dies is replaced by another one, which goes on where it was. Within a lane the order is that of
    `produce`; lanes come in any order. ``task`` is that of any lane; the others differ in their number alone. When a
    lane ends, ``progress`` is called with the sum of what they have sent.

    Raises InputError where the cluster does not answer, or is gone; a lane's workers died again and again; or as
    `produce`. Says what was sent: the same command goes on.
    """
    distributed = library("distributed", EXTRA, "--dask")
    total = Summary(task.topic, {})
    total.bytes_total = sum(source.size for source in sources)
    try:
        client = distributed.Client(address, timeout=ANSWER_SECONDS)
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
        lanes = sorted({lane_of(source) for source in divided(sources, task.parts)})
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
    """Return how large files are divided, as workers find it out; each reads one file to its end."""
    large = [source for source in sources if isinstance(source, FileSource) and may_be_divided(source)]
    bare = [replace(source, reading=replace(source.reading, mapping=None)) for source in large]
    try:
        found = client.gather(client.map(parts_of, bare, least=file_parts.PART_BYTES, pure=False, retries=RETRIES))
    except Exception as error:
        raise InputError(f"{_why(error, address)}. Nothing was sent; the same command begins again") from error
    return {source.path: parts for source, parts in zip(large, found, strict=True) if len(parts.bounds) > 1}


def _note_parts(task: LaneTask, sources: Sequence[DocumentSource]) -> None:
    """Note on Kafka how files are divided, as a run without documents; lanes know nothing of one another.

    Raises InputError where they are divided otherwise since the first call: parts that no lane knows would be sent,
    with documents that were sent before.
    """
    names = {source.path: source.name for source in sources if isinstance(source, FileSource)}
    files = [DividedFile(names[path], parts) for path, parts in task.parts.items()]
    identity = RunIdentity.of(task.topic, {**task.options, "lane": ["parts", LANES, RULE]}, task.paths)
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
    """Check that a run can be sent in lanes.

    Raises InputError where it reads standard input or a pipe, or has options that only one process can keep.
    """
    if any(map(is_piped, paths)) or plan.identity is None:
        raise InputError("--dask sends what each worker can read, and goes on in it: no pipes, and not --no-resume")
    if any(map(holds_secret, paths)):
        raise InputError(
            "--dask: an address has a password, and would pass through the cluster's scheduler: leave it out"
        )
    whole = {"--rate": plan.rate, "--limit": plan.limit, "--shuffle-buffer": plan.shuffle}
    given = [name for name, value in whole.items() if value]
    if given:
        raise InputError(f"--dask sends in lanes beside each other: leave out {', '.join(given)}")
