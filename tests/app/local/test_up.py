"""A local service, and its broker, which is started again when it has ended."""

import asyncio
import json
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final
from unittest.mock import Mock

import pytest

from tests.brokers import pause
from tests.commands import Command, command
from tests.marked import MARK, marked, until
from tests.scraping import ask, free_port, scrape, total
from tokenmill.app.local.broker import Broker
from tokenmill.app.local.local_state import LocalState
from tokenmill.app.local.up import keep_broker
from tokenmill.errors import BrokerError

SECONDS: Final = 60.0
WITHIN: Final = 10.0  # in which it must be known that no broker answers


@contextmanager
def running_up(directory: Path, mark: str, *options: str) -> Iterator[Command]:
    """Run `tokenmill up`; where it has not ended with the block it is killed, and its workers and Kafka end with it."""
    words = ("up", "--state", "here", "--raw-topics", "notes", *options)
    process = command(words, directory / "up.log", {MARK: mark}, directory)
    try:
        yield process
    finally:
        process.kill()


def produce(directory: Path, name: str) -> Command:
    (directory / name).write_text("one note " * 2000)
    config = str(LocalState(directory / "here").settings_file)
    return command(["produce", "notes", name, "--flush", "--config", config], directory / f"{name}.log", {}, directory)


def test_up_says_how_to_push_text_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    log = tmp_path / "up.log"
    with running_up(tmp_path, mark) as process:
        assert until(lambda: "2 of 2 mills" in log.read_text(), SECONDS), log.read_text()
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(SECONDS) == 130, log.read_text()
    assert marked(mark) == []
    state = LocalState(tmp_path / "here")
    assert f"produce --config {state.settings_file} notes PATH" in log.read_text()
    assert "Watch it in a browser: http://127.0.0.1:9464/" in log.read_text()
    saved = state.saved()
    assert saved is not None
    assert (saved.raw_topics, saved.tokenizer, saved.store) == (("notes",), "bytes", state.store)


@pytest.mark.needs("minutes")
def test_up_says_that_it_has_no_page_where_another_service_has_its_address(tmp_path: Path) -> None:
    mark, log = uuid.uuid4().hex, tmp_path / "up.log"
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        running_up(tmp_path, mark, "--metrics-port", str(other.getsockname()[1])) as process,
    ):
        assert until(lambda: "this service serves no status" in log.read_text(), SECONDS), log.read_text()
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(SECONDS) == 130, log.read_text()


@pytest.mark.needs("minutes")
def test_up_says_that_its_kafka_is_away_and_starts_it_again(tmp_path: Path) -> None:
    mark, port = uuid.uuid4().hex, free_port()
    log, broker = tmp_path / "up.log", Broker(tmp_path / "here" / "broker")
    with ExitStack() as stack:
        stack.callback(broker.kill)
        process = stack.enter_context(running_up(tmp_path, mark, "--metrics-port", str(port)))
        assert until(lambda: ask(port, "/readyz").code == 200, SECONDS), log.read_text()
        assert until(lambda: any("_lag_" in name for name, _ in scrape(port)), SECONDS)
        pause(broker)
        hung = time.time()
        # a log hears of it every two seconds
        assert until(lambda: "NO BROKER ANSWERS since" in log.read_text(), WITHIN + 2), log.read_text()
        assert "no broker answers at 127.0.0.1" in ask(port, "/readyz").text
        seen = scrape(port)
        assert total(seen, "tokenmill_broker_up", worker="supervisor") == 0
        assert abs(total(seen, "tokenmill_broker_last_answer_timestamp_seconds", worker="supervisor") - hung) < WITHIN
        assert until(lambda: total(scrape(port), "tokenmill_worker_up") == 0, WITHIN)
        assert until(lambda: not any("_lag_" in name for name, _ in scrape(port)), WITHIN)
        assert "lag unknown" in log.read_text().splitlines()[-1]
        with produce(tmp_path, "unsent.txt") as waiting:
            assert until(lambda: "no broker answers" in (tmp_path / "unsent.txt.log").read_text(), SECONDS)
            assert waiting.poll() is None
            waiting.kill()

        broker.kill()
        assert until(lambda: "Kafka serves again" in log.read_text(), SECONDS), log.read_text()
        assert until(lambda: ask(port, "/readyz").code == 200, SECONDS), log.read_text()
        with produce(tmp_path, "note.txt") as done:
            assert done.wait(SECONDS) == 0
        assert until(lambda: total(scrape(port), "tokenmill_blocks_total", sink="segment") > 0, SECONDS)

        pause(broker)
        assert until(lambda: ask(port, "/readyz").code == 503, WITHIN), log.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0, log.read_text()
    said = [json.loads(line) for line in (tmp_path / "here" / "logs" / "supervisor.log").read_text().splitlines()]
    events = [line["event"] for line in said if "broker" in line["event"] or "Kafka" in line["event"]]
    assert events[:4] == ["no broker answers", "Kafka ended", "Kafka started again", "a broker answers again"]
    logs = "".join(path.read_text() for path in (tmp_path / "here" / "logs").glob("*.log"))
    assert "it did not stop in order" not in logs  # nobody waited for a broker that is not there
    assert marked(mark) == []


class Scripted(Broker):
    """A broker without a process: each start goes as it was told beforehand."""

    def __init__(self, directory: Path, *starts: Callable[[], None]) -> None:
        super().__init__(directory)
        self.up = False
        self.under_way = 0
        self.killed = threading.Event()
        self._starts = list(starts)

    @property
    def running(self) -> bool:
        return self.up

    def start(self, *, detached: bool = False) -> None:
        assert not detached
        self.under_way += 1
        try:
            self._starts.pop(0)()
            self.up = True
        finally:
            self.under_way -= 1

    def kill(self) -> None:
        self.killed.set()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOK_SECONDS", "PAUSE_SECONDS", "END_SECONDS"):
        monkeypatch.setattr(f"tokenmill.app.local.up.{name}", 0.0)


@pytest.mark.usefixtures("at_once")
async def test_a_broker_that_does_not_start_is_tried_again(tmp_path: Path) -> None:
    broker, said = Scripted(tmp_path, Mock(side_effect=BrokerError("port 9092 is taken")), Mock()), list[str]()
    task = asyncio.create_task(keep_broker(broker, said.append))
    while not broker.up:  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.wait([task])
    assert [line.partition(" (")[0].partition(":")[0] for line in said] == [
        "Kafka ended by itself or was killed",
        "Kafka does not start",
        "Kafka ended by itself or was killed",
        f"Kafka serves again at {broker.bootstrap_servers.partition(':')[0]}",
    ]


@pytest.mark.usefixtures("at_once")
async def test_whoever_ends_waits_for_no_start_and_leaves_none(tmp_path: Path) -> None:
    """A start takes up to a minute; it is broken off, and is over when the keeper is."""

    def slowly() -> None:
        broker.killed.wait()
        raise BrokerError("Kafka ended while it started")

    broker = Scripted(tmp_path, slowly)
    task = asyncio.create_task(keep_broker(broker, lambda _: None))
    while not broker.under_way:  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert broker.under_way == 0
    assert not broker.up
