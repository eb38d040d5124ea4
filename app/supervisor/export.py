"""What the supervisor shows on its ``/metrics``: all workers' numbers, its own process, and the workers' fates."""

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..broker_contact import CONTACT, no_answer
from ..settings import Settings
from ..telemetry.fleet import Fleet
from ..telemetry.probes import Probes
from ..telemetry.samples import received, taken
from ..telemetry.status_document import Look
from ..telemetry.worker_metrics import BROKER, PROCESS
from .child import Child
from .cluster import Cluster
from .ledger import Ledger
from .post import Post
from .status import WorkerStatus

SUPERVISOR: Final = "supervisor"
"""The label ``worker`` of this process's own numbers."""


def worker_status(post: Post, ledger: Ledger) -> WorkerStatus:
    """Return how a post and the process at it are now."""
    return WorkerStatus(
        post.name,
        post.role,
        post.state,
        post.child.pid if post.child else None,
        max(0, post.starts - 1),
        max(0.0, post.next_start - time.monotonic()) if post.next_start is not None else None,
        tuple(sorted(name for name, owner in ledger.owners.items() if owner == post.name)),
        ledger.counters_of(post.name),
    )


class PostsCollector(Collector):
    """Tells of each worker whether it works, and how often it had to be started again."""

    def __init__(self, posts: Mapping[str, Post]) -> None:
        """Look at these posts whenever somebody asks."""
        self._posts = posts

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, without samples where there are no posts."""
        up = GaugeMetricFamily(
            "tokenmill_worker_up",
            "1 while the worker runs, is ready and hears from a broker, else 0 (supervisor only).",
            labels=["worker"],
        )
        restarts = CounterMetricFamily(
            "tokenmill_worker_restarts",
            "Times that the worker ended and was started again (supervisor only).",
            labels=["worker", "reason"],
        )
        for name, post in self._posts.items():
            up.add_metric([name], float(post.state == "running"))
            for cause, count in post.restarts.items():
                restarts.add_metric([name, cause], count)
        yield up
        yield restarts


class Export:
    """Hears what the posts say, and has it all ready for a server in another thread."""

    def __init__(self, settings: Settings, posts: Mapping[str, Post], cluster: Cluster, ledger: Ledger) -> None:
        """Have nothing to show yet."""
        self._ledger = ledger
        self._servers = settings.bootstrap_servers
        self.probes = Probes()
        self._posts = posts
        self._cluster = cluster
        self._fleet = Fleet()
        self._look = self._looked()

    @property
    def collectors(self) -> list[Collector]:
        """All that is to be shown."""
        return [self._fleet, PostsCollector(self._posts)]

    def turn(self) -> None:
        """Take note that the event loop turns, of where all stands, and of this process's numbers."""
        self._look = self._looked()
        self.probes.turn(self._look.not_ready, self._look.halted)
        self._fleet.heard(SUPERVISOR, os.getpid(), taken(PROCESS, BROKER))

    def heard(self, worker: str, child: Child) -> None:
        """Take the last metrics that a process told."""
        if "metrics" in child.status:
            self._fleet.heard(worker, child.pid, received(child.status["metrics"]))

    def ended(self, worker: str, child: Child) -> None:
        """Take the last words of a process that has ended, and keep what it counted."""
        self.heard(worker, child)
        self._fleet.ended(worker)

    def document(self) -> Mapping[str, Any]:
        """Return what ``/status`` tells, as of the last `turn`; in any thread."""
        return self._look.document()

    def _looked(self) -> Look:
        ledger = self._ledger
        return Look(
            role="serve",
            not_ready=self._not_ready(),
            away_since=CONTACT.away_since,
            said=dict(ledger.partitions),
            owners=dict(ledger.owners),
            ends=dict(self._cluster.ends),
            workers=[worker_status(post, ledger).row() for post in self._posts.values()],
            eras=dict(ledger.eras),
            era_halts=dict(ledger.era_halts),
        )

    def _not_ready(self) -> str | None:
        if (since := CONTACT.away_since) is not None:
            return no_answer(self._servers, since)
        waiting = [name for name, post in self._posts.items() if not post.ready]
        if waiting:
            return f"not ready: {', '.join(waiting)}"
        cut_off = [name for name, post in self._posts.items() if post.state == "cut off"]
        if cut_off:
            return f"no broker answers {', '.join(cut_off)}"
        return None if self._cluster.ends else "the brokers do not say where partitions end"
