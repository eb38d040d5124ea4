"""What the supervisor shows on its ``/metrics``: all workers' numbers, its own process, and the workers' fates."""

import os
from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..contact import CONTACT, no_answer
from ..metrics.fleet import Fleet
from ..metrics.probes import Probes
from ..metrics.samples import received, taken
from ..metrics.worker import BROKER, PROCESS
from ..settings import Settings
from .child import Child
from .cluster import Cluster
from .post import Post

SUPERVISOR: Final = "supervisor"
"""The label ``worker`` of this process's own numbers."""


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

    def __init__(self, settings: Settings, posts: Mapping[str, Post], cluster: Cluster) -> None:
        """Have nothing to show yet."""
        self._servers = settings.bootstrap_servers
        self.probes = Probes()
        self._posts = posts
        self._cluster = cluster
        self._fleet = Fleet()

    @property
    def collectors(self) -> list[Collector]:
        """All that is to be shown."""
        return [self._fleet, PostsCollector(self._posts)]

    def turn(self) -> None:
        """Take note that the event loop turns, and of this process's numbers."""
        self.probes.turn(self._not_ready())
        self._fleet.heard(SUPERVISOR, os.getpid(), taken(PROCESS, BROKER))

    def heard(self, worker: str, child: Child) -> None:
        """Take the last metrics that a process told."""
        if "metrics" in child.status:
            self._fleet.heard(worker, child.pid, received(child.status["metrics"]))

    def ended(self, worker: str, child: Child) -> None:
        """Take the last words of a process that has ended, and keep what it counted."""
        self.heard(worker, child)
        self._fleet.ended(worker)

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
