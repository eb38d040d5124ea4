"""What a worker reports of itself: to its supervisor if it has one, else to those who scrape its metrics.

A supervisor gets a heartbeat twice a second, once where nothing changes: a JSON object a line on the descriptor that
`HEARTBEAT_VARIABLE` names, from the moment a worker prepares: one that waits for something is not stuck.
"""

import asyncio
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, Literal

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ..broker_contact import CONTACT, OutageLog, no_answer
from ..kafka.clients import FAILING
from ..kafka.security import certificate_ends
from ..settings import Settings
from .server import Probes, serving
from .status_document import State, StatusSnapshot, WorkerStatus
from .worker_metrics import BROKER, CERTIFICATE_END, PROCESS, WORKER

Role = Literal["mill", "segment", "sequencer"]
"""What a worker of a service does; a sequencer runs where duplicates are looked for."""
Sample = tuple[str, Mapping[str, str], float]
RISING: Final = frozenset({"counter", "histogram"})
"""Types of metrics whose samples may be added up over processes."""
SUFFIXES: Final[Mapping[str, tuple[str, ...]]] = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
}
"""How a metric's samples are named, by its type. (A fourth kind, the time of its creation, is left out.)"""


def taken(*registries: CollectorRegistry) -> list[Sample]:
    """Return all samples of this moment."""
    return [
        (sample.name, sample.labels, sample.value)
        for registry in registries
        for metric in registry.collect()
        for sample in metric.samples
        if not sample.name.endswith("_created")
    ]


LABEL: Final = "worker"
COUNTED: Final[Mapping[str, str]] = {
    "tokenmill_records_consumed_total": "records",
    "tokenmill_consumed_bytes_total": "bytes",
    "tokenmill_documents_total": "documents",
    "tokenmill_tokens_produced_total": "tokens",
    "tokenmill_blocks_total": "blocks",
    "tokenmill_dead_letters_total": "dead_letters",
    "tokenmill_duplicate_blocks_total": "duplicates",
    "tokenmill_commits_total": "commits",
}
"""What people are shown in addition to metrics: work done, so what a crash made necessary again counts again."""


SHOWN: Final = frozenset({
    *COUNTED,
    "tokenmill_consumer_lag_seconds",
    "tokenmill_documents_filtered_total",
    "tokenmill_records_without_document_total",
    "tokenmill_step_documents_total",
})  # fmt: skip
"""Samples that ``/api/status`` has as sums over all workers, for the page's rates and its funnel."""


def counted(samples: Iterable[tuple[str, float]]) -> Counter[str]:
    """Return the sums of what `COUNTED` names, over all labels."""
    counts: Counter[str] = Counter()
    for sample, value in samples:
        if sample in COUNTED:
            counts[COUNTED[sample]] += value  # type: ignore[assignment]  # a float, as all samples
    return counts


_Key = tuple[str, tuple[tuple[str, str], ...]]
_Values = dict[_Key, float]


class Fleet(Collector):
    """Hears samples in one thread, and is collected in any other."""

    def __init__(self) -> None:
        self._metrics = {
            metric.name + suffix: Metric(metric.name, metric.documentation, metric.type)
            for registry in (WORKER, PROCESS, BROKER)
            for metric in registry.collect()
            for suffix in SUFFIXES[metric.type]
        }
        self._lock = threading.Lock()
        self._living: dict[str, tuple[int, _Values]] = {}
        self._ended: dict[str, _Values] = {}

    def heard(self, worker: str, pid: int, samples: Iterable[Sample]) -> None:
        """Take the present samples of a worker's process; another process than before begins at 0."""
        values = {(name, tuple(sorted(labels.items()))): value for name, labels, value in samples}
        with self._lock:
            if worker in self._living and self._living[worker][0] != pid:
                self._bury(worker)
            self._living[worker] = (pid, values)

    def ended(self, worker: str) -> None:
        """Take note that the worker's process has ended: what it counted stays, what it measured is gone."""
        with self._lock:
            self._bury(worker)

    def counts(self, worker: str | None = None) -> Mapping[str, float]:
        """Return what the running process of a worker has `counted`, or all processes that ever ran."""
        with self._lock:
            living = [values for name, (_, values) in self._living.items() if worker in {None, name}]
            values = living if worker is not None else [*self._ended.values(), *living]
            return dict(counted((key[0], value) for one in values for key, value in one.items()))

    def sums(self, names: Container[str]) -> dict[str, list[tuple[Mapping[str, str], float]]]:
        """Return the samples of these names, each summed up over all workers, as labels and value; in their order."""
        found: Counter[_Key] = Counter()
        for values in self._sums().values():
            for key, value in values.items():
                if key[0] in names:
                    found[key] += value  # type: ignore[assignment]  # as above
        told: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        for (name, labels), value in found.items():
            told.setdefault(name, []).append((dict(labels), value))
        return told

    def _bury(self, worker: str) -> None:
        _, values = self._living.pop(worker, (0, {}))
        total = self._ended.setdefault(worker, {})
        for key, value in values.items():
            if self._rises(key):
                total[key] = total.get(key, 0.0) + value

    def _rises(self, key: _Key) -> bool:
        return key[0] in self._metrics and self._metrics[key[0]].type in RISING

    def collect(self) -> Iterator[Metric]:
        """Yield every metric once, with the samples of all workers."""
        metrics: dict[str, Metric] = {}
        for worker, values in sorted(self._sums().items()):
            for (name, labels), value in values.items():
                if (known := self._metrics.get(name)) is not None:
                    metric = metrics.setdefault(known.name, Metric(known.name, known.documentation, known.type))
                    metric.add_sample(name, {LABEL: worker, **dict(labels)}, value)
        yield from metrics.values()

    def _sums(self) -> Mapping[str, _Values]:
        with self._lock:
            sums = {worker: dict(values) for worker, values in self._ended.items()}
            for worker, (_, values) in self._living.items():
                total = sums.setdefault(worker, {})
                for key, value in values.items():
                    total[key] = value + (total.get(key, 0.0) if self._rises(key) else 0.0)
            return sums


HEARTBEAT_VARIABLE: Final = "_TOKENMILL_HEARTBEAT_FD"
"""The underscore keeps it apart from the settings' variables: of those, an unknown one is refused."""
STORE_VARIABLE: Final = "_TOKENMILL_STORE"
"""Names the store that a supervisor's last segment worker filled, for the next one: where a disk is not mounted, it
waits for it instead of beginning a new store in the empty directory."""


def last_words(reason: str) -> None:
    """Tell the supervisor, if there is one, why this process is about to end."""
    _write(_line({"ends": reason}))


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _write(data: bytes) -> bytes:
    """Write what the pipe takes now and return the rest; without a supervisor there is none."""
    descriptor = os.environ.get(HEARTBEAT_VARIABLE)
    if descriptor is None:
        return b""
    os.set_blocking(int(descriptor), False)
    try:
        return data[os.write(int(descriptor), data) :]
    except BlockingIOError:
        return data  # the supervisor is busy
    except BrokenPipeError:
        os._exit(0)


INTERVAL_SECONDS: Final = 0.5
"""How often partitions are measured: numbers are as old."""
QUIET_SECONDS: Final = 1.0
"""How often a worker beats where nothing has changed since ..."""
QUIET_TURNS: Final = 5
"""... and the beats of which one measures: to do it each time is a third of what an idle worker does."""


@dataclass
class WorkerReporter:
    """Measures again and again while the event loop turns, and reports from `start` to the end of the process."""

    role: Role | Literal["mirror"]
    settings: Settings
    _: KW_ONLY
    status: Callable[[], dict[str, Any]]
    measure: Callable[[], None]
    """Sets the gauges."""
    not_ready: Callable[[], str | None]
    _fleet: Fleet = field(default_factory=Fleet)
    _probes: Probes = field(default_factory=Probes)
    _supervised: bool = field(default_factory=lambda: HEARTBEAT_VARIABLE in os.environ)
    _unsent: bytes = b""
    _task: asyncio.Task[None] | None = None
    _open: ExitStack = field(default_factory=ExitStack)

    def start(self) -> None:
        """Report from now on; under a supervisor, which serves the numbers of all its workers, nothing is served."""
        if self._task is None:
            self._look = self._looked({})
            for setting, end in certificate_ends(self.settings).items():
                CERTIFICATE_END.labels(setting).set(end)
            if not self._supervised:
                self._open.enter_context(serving(self.settings, [self._fleet], self._probes, self._document))
            self._task = asyncio.get_running_loop().create_task(self._run(), name="report")

    def stop(self) -> None:
        """Report nothing more, and serve nothing: a server that still runs would keep the interpreter from ending."""
        if self._task is not None:
            self._task.cancel()
        self._open.close()

    async def _run(self) -> None:
        outage = OutageLog(self.settings.bootstrap_servers)
        before: Mapping[str, Any] = {}
        quiet = 0
        while True:
            CONTACT.turn()
            if not self._supervised:  # else the supervisor says so, once for all
                outage.look()
            status = self.status()
            status["waits"] = {**status.get("waits", {}), **FAILING}
            self._look = self._looked(status)
            self._probes.turn(self._look.not_ready, self._look.stopped)
            told = {**status, "away_since": CONTACT.away_since}
            quiet, before = quiet + 1 if told == before else 0, told
            if quiet % QUIET_TURNS == 0:
                self.measure()
                samples: list[Sample] = taken(WORKER, PROCESS, BROKER)
                told = {**told, "metrics": samples}
                if not self._supervised:
                    self._fleet.heard(self.role, os.getpid(), samples)
            if self._supervised:
                # What the pipe did not take is sent first, else a line longer than the pipe would never be whole. A
                # supervisor that is gone ends this process, for its end of the pipe closes however it dies.
                self._unsent = _write(self._unsent or _line(told))
            await asyncio.sleep(QUIET_SECONDS if quiet else INTERVAL_SECONDS)

    def _document(self) -> Mapping[str, Any]:
        return self._look.document() | {"counted": self._fleet.sums(SHOWN)}

    def _looked(self, status: Mapping[str, Any]) -> StatusSnapshot:
        said: Mapping[str, Mapping[str, Any]] = status.get("partitions", {})
        away_since, servers = CONTACT.away_since, self.settings.bootstrap_servers
        not_ready = self.not_ready() if away_since is None else no_answer(servers, away_since)
        state: State = "cut off" if away_since is not None else "starting" if not_ready else "running"
        owned, counts = tuple(sorted(said)), self._fleet.counts(self.role)
        return StatusSnapshot(
            role=self.role,
            settings=self.settings,
            not_ready=not_ready,
            away_since=away_since,
            said=said,
            owners=dict.fromkeys(said, self.role),
            ends={name: partition.get("end") for name, partition in said.items()},
            workers=[WorkerStatus(self.role, self.role, state, os.getpid(), 0, None, owned, counts)],
            eras=status.get("eras", {}),
            open_since=status.get("open_since", {}),
            halts=status.get("halts", {}),
            waits=status.get("waits", {}),
        )
