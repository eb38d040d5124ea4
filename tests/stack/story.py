"""What the tests of the stack look at: one run of it, with work from two sides and with faults in the middle of it."""

import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa
from pyarrow import parquet

from tests.marked import until
from tokenmill.app.milling.steps.gopher_quality import GopherQuality
from tokenmill.app.milling.steps.protocol import Rejected
from tokenmill.documents import Document

from .engine import Project
from .prometheus import Panel, Prometheus, dashboard_queries

PAUSE_SECONDS: Final = 0.05
"""Between two documents, while there is no hurry: 20 a second last for minutes, whatever the machine."""
WAIT_SECONDS: Final = 180


class Sending:
    """Documents of a file, through the port on loopback, by `tokenmill produce` from a pipe. A context manager."""

    def __init__(self, bootstrap_servers: str, topic: str, file: Path) -> None:
        self._command = [sys.executable, "-m", "tokenmill.app.cli", "produce", topic, "-", "--format", "jsonl"]
        self._command += ["--bootstrap-servers", bootstrap_servers]
        self._file = file
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._feed, name="feed")

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._hurry.set()
        self._thread.join()
        self._process.wait()

    @property
    def goes_on(self) -> bool:
        return self._thread.is_alive() and self._process.poll() is None

    def finish(self) -> int:
        self._hurry.set()
        return self._process.wait(WAIT_SECONDS)

    def _feed(self) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        with suppress(BrokenPipeError), self._file.open("rb") as lines, pipe:  # it has ended: `finish` says how
            for line in lines:
                pipe.write(line)
                if not self._hurry.is_set():
                    pipe.flush()
                    self._hurry.wait(PAUSE_SECONDS)


class Corpus(NamedTuple):
    path: Path
    filtered: Counter[str]
    """Documents that a filter drops, by reason."""
    documents: int
    """All others."""
    tokens: int
    """Theirs, with raw bytes as tokens: the bytes of the texts, and one for the end of each document."""


def write_json_lines(path: Path, size: int) -> Corpus:
    """Write documents of ``size`` bytes of text or a little more, with ids that begin with the file's name."""
    documents = _documents(path.stem, size)
    lines = (json.dumps({"id": name, "text": text}, ensure_ascii=False) + "\n" for name, text in documents.items())
    path.write_text("".join(lines), encoding="utf-8")
    return _corpus(path, documents, lambda _: None)


def write_parquet(path: Path, size: int, reason: Callable[[str], str | None]) -> Corpus:
    """Do the same as a parquet file, for a topic with a filter; ``reason`` says why it drops a text, if it does."""
    documents = _documents(path.stem, size)
    columns = {"id": list(documents), "text": list(documents.values())}
    parquet.write_table(pa.table(columns), path, row_group_size=1000)
    return _corpus(path, documents, reason)


def _documents(name: str, size: int) -> dict[str, str]:
    source, found, written = random.Random(name), dict[str, str](), 0
    words = ["".join(source.choices("abcdefghijklmnopqrstuvwxyzäöüß", k=source.randint(2, 12))) for _ in range(5000)]
    while written < size:
        text = " ".join(source.choices(words, k=source.randint(20, 600)))
        found[f"{name}-{len(found)}"] = text
        written += len(text.encode())
    return found


def _corpus(path: Path, documents: Mapping[str, str], reason: Callable[[str], str | None]) -> Corpus:
    path.chmod(0o644)
    reasons = [reason(text) for text in documents.values()]
    kept = [text for text, why in zip(documents.values(), reasons, strict=True) if why is None]
    tokens = sum(len(text.encode()) + 1 for text in kept)
    return Corpus(path, Counter(why for why in reasons if why), len(kept), tokens)


SIZE: Final = 25_000_000
TOPIC: Final = "raw-text"
FILTERED: Final = "pages"
"""A topic whose texts are filtered, and whose blocks hold whole documents."""
FILTERED_SIZE: Final = 5_000_000
"""Of its text: the filter's reference takes some milliseconds for each."""
FILTER: Final = GopherQuality(min_stop_words=0)  # the words are not English
SETTINGS: Final = f"""
[topic.{FILTERED}]
packing = "fit"
steps = [{{ name = "{FILTER.name}", min_stop_words = {FILTER.min_stop_words} }}]
"""


@dataclass(slots=True)
class Story:
    outside: Corpus
    inside: Corpus
    killed: tuple[int, int] = (0, 0)
    """The mill's process before it was killed, and the one that came after."""
    replaced: list[str] = field(default_factory=list)
    mills: list[int] = field(default_factory=list)
    """How many containers of the mill had partitions, each time when that was wanted to change."""
    kafka_started: list[str] = field(default_factory=list)
    sending_during: list[str] = field(default_factory=list)
    verified: dict[str, Any] = field(default_factory=dict)
    healthy: dict[str, bool] = field(default_factory=dict)
    points: dict[Panel, int] = field(default_factory=dict)
    targets: list[dict[str, Any]] = field(default_factory=list)
    rules: list[dict[str, Any]] = field(default_factory=list)
    mill_log: str = ""


def tell(project: Project, data: Path, services: list[str], say: Callable[[str], None]) -> Story:
    """Run the stack, and return what was seen; it runs on. ``services`` are those that can be had here."""
    settings = data / "tokenmill.toml"
    settings.write_text(SETTINGS)
    settings.chmod(0o644)
    inside = write_parquet(data / "inside.parquet", FILTERED_SIZE, _reason)
    story = Story(write_json_lines(data / "outside.jsonl", SIZE), inside)
    say("brings the stack up")
    since = time.time()
    project.up(services)
    _wait_for_mills(project, 1)
    with Sending(f"127.0.0.1:{project.kafka_port}", TOPIC, story.outside.path) as sending:

        def note(fault: str) -> None:
            if sending.goes_on:
                story.sending_during.append(fault)

        say("pushes a parquet file from inside, while a program outside does as well")
        project.cli("produce", FILTERED, f"/data/{story.inside.path.name}")
        say("kills the mill")
        _kill_the_mill(project, story)
        note("kill")
        say("replaces the segments container, as an upgrade does")
        _replace_segments(project, story, services)
        note("replace")
        for mills in (3, 1):
            say(f"scales the mill to {mills}")
            project.up(services, mills)
            _wait_for_mills(project, mills)
            story.mills.append(len(project.containers("mill")))
            note(f"scale to {mills}")
        say("restarts Kafka")
        _restart_kafka(project, story)
        note("restart")
        if code := sending.finish():
            raise RuntimeError(f"the program outside ended with {code}: see its output above")
    say("verifies")
    for topic in (TOPIC, FILTERED):
        project.cli("flush", topic)
    story.verified = _verified(project)
    say("asks Prometheus")
    _look(project, story, since)
    return story


def _reason(text: str) -> str | None:
    outcome = FILTER(Document(text))
    return f"{FILTER.name}.{outcome.reason}" if isinstance(outcome, Rejected) else None


def _kill_the_mill(project: Project, story: Story) -> None:
    mill = project.containers("mill")[0]
    before = project.kill(mill)

    def again() -> bool:
        state = project.inspect(mill)["State"]
        return bool(state["Running"]) and state["Pid"] not in {0, before}

    assert until(again, WAIT_SECONDS), "the killed container does not run again"
    story.killed = (before, project.inspect(mill)["State"]["Pid"])
    _wait_for_mills(project, 1)


def _replace_segments(project: Project, story: Story, services: list[str]) -> None:
    (before,) = project.containers("segments")
    story.replaced.append(project.inspect(before)["Id"])
    project.remove(before)
    project.up(services)
    (after,) = project.containers("segments")
    story.replaced.append(project.inspect(after)["Id"])


def _restart_kafka(project: Project, story: Story) -> None:
    kafka = project.containers("kafka")[0]
    story.kafka_started.append(project.inspect(kafka)["State"]["StartedAt"])
    project.compose("restart", "kafka")
    story.kafka_started.append(project.inspect(kafka)["State"]["StartedAt"])


def _verified(project: Project) -> dict[str, Any]:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        answer: dict[str, Any] = json.loads(project.cli("verify", "--json").splitlines()[-1])
        if answer["complete"] or time.monotonic() > deadline:
            return answer
        time.sleep(2)


def _look(project: Project, story: Story, since: float) -> None:
    prometheus = Prometheus(project.prometheus_port)
    time.sleep(20)  # one more look of Prometheus at all services, whatever its interval
    story.points = {panel: prometheus.points(panel.expression, since) for panel in dashboard_queries()}
    story.targets = prometheus.ask("targets")["activeTargets"]
    story.rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    story.mill_log = project.log(project.containers("mill")[0])
    for service in ("mill", "segments"):
        story.healthy[service] = project.healthy(project.containers(service)[0])


def _wait_for_mills(project: Project, count: int) -> None:
    assert until(lambda: _members(project) == count, WAIT_SECONDS), f"not {count} mills have partitions"


def _members(project: Project) -> int:
    """Return how many members of the mill's group have partitions, as Kafka's own command says; 0 while it does not."""
    script = "/opt/kafka/bin/kafka-consumer-groups.sh"
    asked = ("--bootstrap-server", "127.0.0.1:9092", "--describe", "--members", "--group", "tokenmill")
    lines = project.compose("exec", "-T", "kafka", script, *asked, check=False).splitlines()
    rows = [line.split() for line in lines if line.startswith("tokenmill ")]
    return sum(row[-1].isdecimal() and int(row[-1]) > 0 for row in rows)
