"""`tokenmill serve`: its own flags, and its supervisor with real workers on a real broker."""

import asyncio
import os
import re
import signal
import uuid
from pathlib import Path
from unittest.mock import AsyncMock, Mock, create_autospec

import pytest

from tests.app.commands import invoke
from tests.app.conftest import until
from tests.commands import Command, command
from tests.conftest import TopicFactory
from tests.marked import MARK, marked
from tests.marked import until as comes_true
from tests.service import Raw, reference_blocks, send, service_settings, stored_blocks
from tokenmill.app.cli import serving
from tokenmill.app.kafka.control_topic import settle
from tokenmill.app.local.broker import Broker
from tokenmill.app.mill.recipes import plan_topic
from tokenmill.app.settings import Settings
from tokenmill.app.supervisor.supervisor import Event, Supervisor
from tokenmill.app.tasks import beside
from tokenmill.app.worker.watchdog import Cluster, WatchLimits
from tokenmill.errors import FingerprintError, SettingsError


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Start no workers, and find all topics as they should be; return what is called to make the supervisor."""
    monkeypatch.setattr(serving, "require_ready", AsyncMock())
    made: Mock = create_autospec(Supervisor)
    monkeypatch.setattr(serving, "Supervisor", made)
    return made


@pytest.mark.parametrize(
    ("flags", "limits"),
    [
        ((), WatchLimits()),
        (("--heartbeat-seconds", "5.5"), WatchLimits(heartbeat=5.5)),
        (("--grace-seconds", "0.5"), WatchLimits(grace=0.5)),
    ],
)
def test_its_patience_is_a_flag(told: Mock, flags: tuple[str, ...], limits: WatchLimits) -> None:
    invoke("serve", *flags, code=0)
    assert (told.call_args.kwargs["only"], told.call_args.kwargs["limits"]) == (None, limits)


def test_one_role_and_the_settings_reach_the_supervisor(told: Mock) -> None:
    invoke("serve", "--only", "segment", "--workers", "7", code=0)
    assert (told.call_args.kwargs["only"], told.call_args.args[0].workers) == ("segment", 7)
    assert told.call_args.kwargs["origins"]["workers"] == "flag --workers"


@pytest.mark.parametrize("command", [("serve", "--only", "sequencer"), ("sequencer",)])
def test_a_sequencer_alone_needs_something_to_judge(told: Mock, command: tuple[str, ...]) -> None:
    """Else it would seem to work."""
    invoke("serve", "--only", "sequencer", "--dedup", "near", code=0)
    assert told.call_args.kwargs["only"] == "sequencer"
    assert "nothing to judge" in invoke(*command, code=SettingsError.exit_code).err


def test_a_heartbeat_that_no_worker_could_keep_is_refused() -> None:
    """Workers beat twice a second; below two seconds a busy machine would kill them."""
    invoke("serve", "--heartbeat-seconds", "1", code=2)


SECONDS = 60.0
"""How long a wait may take: far longer than it should."""


def documents(first: int) -> list[Raw]:
    return [Raw(f"document {number} ".encode() * 20, number % 2) for number in range(first, first + 200)]


async def check_what_the_group_says(settings: Settings, supervisor: Supervisor) -> None:
    """Check that both partitions are somebody else's for one who has no worker, and not for who has both."""
    cluster = Cluster(settings, settings.raw_topics)
    ours = {slot.child.status["member"] for slot in supervisor._slots.values() if slot.child}
    assert await cluster.owned_by_others(settings.group, ()) == {f"{settings.raw_topics[0]}/{n}" for n in (0, 1)}
    assert await cluster.owned_by_others(settings.group, ours) == set()


async def test_workers_that_are_killed_or_stopped_are_replaced(
    broker: Broker, topic: TopicFactory, tmp_path: Path
) -> None:
    settings = service_settings(broker, topic(2), tmp_path, session_timeout=2.0)
    events: list[Event] = []
    limits = WatchLimits(heartbeat=4.0, first_backoff=10.0)  # the other mill takes over before
    supervisor = Supervisor(settings, limits=limits, log_directory=tmp_path, on_event=events.append)

    def pid(worker: str) -> int:
        return next(status.pid or 0 for status in supervisor.status().workers if status.name == worker)

    def running() -> bool:
        status = supervisor.status()
        return (
            all(worker.state == "running" for worker in status.workers)
            and len({partition["worker"] for partition in status.partitions} - {None}) == 2
        )

    async with beside(supervisor.run()):
        await until(running)
        await check_what_the_group_says(settings, supervisor)
        await asyncio.to_thread(send, settings, documents(0))
        killed = pid("mill-1")
        os.kill(killed, signal.SIGKILL)
        await until(lambda: any(event.kind == "took over" for event in events))
        counted = supervisor.status().counters
        await until(running)

        stopped = pid("segment")
        os.kill(stopped, signal.SIGSTOP)
        await asyncio.to_thread(send, settings, documents(200))
        await until(lambda: pid("segment") not in {0, stopped})
        wanted = {chain: len(blocks) for chain, blocks in reference_blocks(settings).items()}
        await until(lambda: stored_blocks(settings, wanted) == wanted)

    told = [event.text for event in events]
    assert f"mill-1, process {killed}, ended (killed by SIGKILL); the next one starts in 10 s" in told
    assert f"segment, process {stopped}, ended (no heartbeat for 4 s); the next one starts in 10 s" in told
    now = supervisor.status()
    assert all(now.counters[name] >= counted[name] for name in counted)
    assert sum(chain["documents"] for chain in now.chains) == 400
    assert [worker.pid for worker in now.workers] == [None, None, None]


async def test_a_fingerprint_that_cannot_be_mended_ends_all(
    broker: Broker, topic: TopicFactory, tmp_path: Path
) -> None:
    settings = service_settings(broker, topic(1), tmp_path)
    other = settings.model_copy(update={"sequence_length": 31})
    plan = plan_topic(settings, settings.raw_topics[0])
    for stream, recipe in plan.recipes.items():
        await settle(settings, stream, recipe, plan.tokenizer.content)
    with pytest.raises(FingerprintError, match=r"(mill-\d|segment) cannot go on: .*stream_suffix"):
        async with asyncio.timeout(SECONDS):
            await Supervisor(other, log_directory=tmp_path).run()


def serve(settings: Settings, directory: Path, mark: str = "") -> Command:
    return command(["serve"], directory / "serve.log", {**settings.environment(), MARK: mark})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.cases(1)
def test_no_worker_outlives_serve(broker: Broker, topic: TopicFactory, tmp_path: Path, number: signal.Signals) -> None:
    settings = service_settings(broker, topic(1), tmp_path)
    mark = uuid.uuid4().hex
    with serve(settings, tmp_path, mark) as process:
        assert comes_true(lambda: len(marked(mark)) == 4, SECONDS)
        process.send_signal(number)
        assert process.wait(SECONDS) == (0 if number == signal.SIGTERM else -number)  # as a worker's own
    assert comes_true(lambda: marked(mark) == [], 0.0 if number == signal.SIGTERM else 5.0)


def test_serve_ends_with_a_code_that_tells(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    there = Settings(
        bootstrap_servers=broker.bootstrap_servers, raw_topics=("nowhere",), tokenizer="bytes", store=tmp_path / "store"
    )
    unreadable = service_settings(broker, topic(1), tmp_path).model_copy(update={"tokenizer": "there-is-none.json"})
    cases = [
        (there.model_copy(update={"bootstrap_servers": "127.0.0.1:1"}), 3, "tokenmill broker start"),
        (there, 4, "tokenmill topics create"),
        (unreadable, 2, "mill-1 cannot go on: |mill-2 cannot go on: "),
    ]
    for settings, code, words in cases:
        with serve(settings, tmp_path) as process:
            assert process.wait(SECONDS) == code
        last = (tmp_path / "serve.log").read_text().splitlines()[-1]
        assert re.search(f"^tokenmill: .*({words})", last)
