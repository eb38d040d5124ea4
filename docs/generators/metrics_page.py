"""``docs/metrics.md``, from the code: ``make docs``."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from prometheus_client.metrics import MetricWrapperBase

from tokenmill.app.supervisor.supervisor import WorkersCollector
from tokenmill.app.supervisor.worker_slot import CAUSES
from tokenmill.app.telemetry import worker_metrics as worker
from tokenmill.app.telemetry.measuring import STAGES, STATES
from tokenmill.app.telemetry.reporting import SUFFIXES
from tokenmill.app.telemetry.server import BUILD, BUILD_HELP, ProduceCollector
from tokenmill.app.telemetry.worker_metrics import PROCESS

HEAD: Final = """\
# Metrics

<!-- Made by `make docs` from the code; a test compares. -->

`tokenmill serve` and `tokenmill up` serve the numbers of all their workers at `http://127.0.0.1:9464/metrics`
(`metrics_host`, `metrics_port`; port 0 serves nothing), and at `http://127.0.0.1:9464/` a [page](#the-page) for people.
A `tokenmill mill`, `segment` or `sequencer` that runs alone, as in a container, serves its own. An address that is
taken is told in the log, and the work goes on without.

`deploy/` has configurations of Prometheus, for `serve` on a host (`prometheus-serve.yml`) and for the compose stack,
alerts, and a dashboard for Grafana. A training process has numbers of its own:
[trainer_metrics.md](trainer_metrics.md); `deploy/targets` lists them, and mirrors, for Prometheus.

Every number of a worker has the label `worker`: `mill-1`, `mill-2`, …, `segment` and `sequencer` under a supervisor,
`mill`, `segment` or `sequencer` alone; `supervisor` for that process's own memory, CPU and broker. All other labels are
closed sets as well: topics, partitions, splits, and the words below. Nothing of a record becomes a label.

Counters count work done since the process that serves them began. When a worker ends, the supervisor keeps what it
counted, so no counter falls; what a killed worker did in its last half second is not counted, and what has to be done
again is counted again. Gauges are measured twice a second, every five seconds where nothing changes; those of a worker
that has ended are gone.

## Probes

| path | 200 | 503 |
|---|---|---|
| `/healthz` | the event loop turns | it has stood still for 20 s: restart the process |
| `/readyz` | the streams are settled and a broker answers; under a supervisor: every worker is ready, and does not \
end again and again | not yet, or not now: the answer's text says why, and since when no broker answers |
| `/readyz?strict` | the same, and nothing is halted or waits | also where a partition makes no progress, whatever the \
reason, or eras of a stream are not closed or stored: the text names it, with a reason of a few words |

A partition that makes no progress makes nothing unready by `/readyz`: the others go on, and a restart does not help.
`/readyz?strict`, `/api/status` and the exit code of `tokenmill status` name it, and the log and the live view say what
to do. It is *halted* where a person has to act. It *waits* for a schema, a disk, a lock, a block, a token partition, or
the end of a transaction that has been open for 5 s (what is behind its first record is lag); it waits as well where no
worker has had it for 10 s, and where it has had work for 30 s and got nowhere, with the stage that it is in.

## The page

`/` is a page for people without Grafana: the flow from raw topics to eras with its rates, lines of tokens and lag with
the time to catch up, what makes no progress with the command that helps, workers, partitions, what is kept by step and
what is left out by reason, the newest dead letters, eras and who trains on them, how long documents are, the newest
blocks as text, and the settings in force with where each came from. It is one file that loads nothing from elsewhere,
and asks `/api/status` and `/api/store` every two seconds while it is looked at. Its lines begin when it is opened: for
the past, and for more than one service, there are Prometheus and Grafana.

With the setting `http_token`, `/metrics`, `/api/status`, `/api/store` and `/api/settings` are for who sends
`Authorization: Bearer TOKEN`. The page asks for it; `tokenmill status` sends that of its settings; Prometheus has
`authorization: {credentials_file: ...}`. `/healthz` and `/readyz` answer all, and so does `/`, which holds no data.
With `http_tls_certificate` and `http_tls_key`, all of it is served by https alone (Prometheus: `scheme: https` and
`tls_config`); without, put a proxy in front before anything of it may be reached from other machines.

`/api/settings` is one JSON object: `settings` (each `value` and `from`; secrets are asterisks) and `versions`.
`/api/store` says what a look at the store found, at most ten seconds ago where somebody asked before. `streams` has, by
name, `lengths` (pairs of a power of two and how many documents reach it, of those that begin in the newest blocks) and,
where somebody asked with `?texts`, `newest`: the beginning of the newest block as text, in `pieces` of one document
each, with the record's `offset`. `trainers` has the figures of those whose metrics the setting `trainers` names: the
service knows of no other, for trainers only read files. Texts of records are in no other answer, and in this one for
who has the token alone; without a token, it answers this machine alone (`metrics_host` is a loopback address, and so is
the name that was asked for), and others with 403. A thread of its own looks: no disk holds up a probe.

`/api/status` is one JSON object (`version` 2): `role`, `service` (the settings by which the services of one host are
told apart: brokers, store, group, topics), `ready` and `not_ready` (why), `away_since` (when a broker last answered,
where none does), `halted` and `waiting` (partition or stream, and why in short), `workers`, `partitions` with
`state` (`running`, `resuming`, `waiting`, `halted`, `unowned`), `why`, `position`, `end`, `lag`, `chains` (of a raw
topic, by split), `block` (of a token topic) and the newest `dead_letter`, `eras` in the store by stream, and `counted`
(sums of metrics over all workers). It has an `ETag`: who sends it back as `If-None-Match` gets 304, in 370 bytes, while
nothing changed. `tokenmill status` prints it as tables, with `--watch` again and again; its exit code is 0 if all is
ready and nothing is halted or waits, 1 if not, and 3 if nobody answers. Where another service answers than the one that
its settings name, it says so and ends with 12; a service that cannot have its address says so when it starts.

All of them are read with GET or HEAD; but for the probes and the page, 50 requests a second are answered. A connection
carries one request and ends after ten seconds at the latest; there are 64 at a time, or a quarter of the files that the
process may have open, and one more ends the oldest that has not sent its request. No answer but that of `/api/store`
shows anything that a record says.
"""
PRODUCE: Final = """\
## Producers

`tokenmill produce … --metrics-port 9466` serves `/metrics` of its run at that port of `metrics_host`, to who has the
token and by TLS as a service does, until it ends. Without the option it serves nothing. Compose's Prometheus scrapes
the demo, and what `deploy/targets/producers.yml` names.
"""
LAG: Final = """\
## Lag

`tokenmill_consumer_lag_records` compares the end of a partition, as the last fetch told it, with the place up to which
its records are taken. There is none for a partition that has not started or that is halted, and no lag at all while no
broker answers (`tokenmill_broker_up` is 0): it is not known then.
Ages come from the timestamps of records: the producer's clock, or the broker's with
`message.timestamp.type=LogAppendTime`. A record that was not fetched yet counts as old as the last one that was, or as
the moment at which there was nothing left, whichever is later.

Tokens wait in an open block until it is full, so `tokenmill_durable_lag_seconds` of a source that has fallen silent
grows up to `carry_seconds` and then is 0.
"""


class Described(NamedTuple):
    """A metric as the page shows it."""

    name: str
    type: str
    labels: Sequence[str]
    help: str

    @property
    def sample_names(self) -> list[str]:
        """The names under which Prometheus knows it."""
        return [self.name + suffix for suffix in SUFFIXES[self.type]]


def described() -> list[Described]:
    """Return everything that ``/metrics`` may show: of workers, of the supervisor, of any process."""
    found = [Described(BUILD, "gauge", ["version", "python"], BUILD_HELP)]
    for metric in vars(worker).values():
        if isinstance(metric, MetricWrapperBase):
            for family in metric.describe():
                labels = ["worker", *metric._labelnames]  # noqa: SLF001 - prometheus_client has no public view of them
                found.append(Described(family.name, family.type, labels, family.documentation))
    for family in chain(WorkersCollector({}).collect(), ProduceCollector(lambda: None).collect()):
        labels = list(getattr(family, "_labelnames", ()))
        found.append(Described(family.name, family.type, labels, family.documentation))
    processes = (Described(family.name, family.type, ["worker"], family.documentation) for family in PROCESS.collect())
    return [*found, *processes]


def page() -> str:
    """Return the whole page."""
    parts = [HEAD, *_metrics(described()), PRODUCE, LAG]
    parts += _words("Stages", "stage", STAGES)
    parts += _words("States of a partition", "state", STATES)
    parts += _words("Reasons of restarts", "reason", CAUSES)
    return "\n".join(parts)


def _metrics(metrics: Sequence[Described]) -> Iterator[str]:
    yield "## All metrics\n"
    yield "Counters end in `_total`; histograms have `_bucket`, `_sum` and `_count`.\n"
    yield "| name | type | labels | meaning |\n|---|---|---|---|"
    for metric in metrics:
        name = metric.sample_names[0] if metric.type == "counter" else metric.name
        yield f"| `{name}` | {metric.type} | {', '.join(f'`{label}`' for label in metric.labels)} | {metric.help} |"
    yield ""


def _words(title: str, label: str, words: Mapping[Any, str]) -> Iterator[str]:
    yield f"## {title}\n"
    yield f"| {label} | meaning |\n|---|---|"
    for word, meaning in words.items():
        yield f"| `{word}` | {meaning} |"
    yield ""


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201 - this is what it is for
