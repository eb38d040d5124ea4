"""A user's step that raises, hangs or kills its process; and the skip list, by which a person gets past it."""

import re
from pathlib import Path

import pytest
from aiokafka import TopicPartition

from tests.commands import run
from tests.eras.judging import stops_of
from tests.faults.conftest import Configured
from tests.faults.failpoints import SIDES, SKIPPING, Failpoint
from tests.faults.feeding import document, flush_all
from tests.faults.harmful_step import HANGS, KILLS, RAISES
from tests.faults.oracle import PREFIX, eras_of, judge, read_control, read_letters
from tests.faults.test_step_kills import Breakable
from tests.faults.trial import Trial
from tests.faults.working import working
from tests.service import Raw, Service, in_own_loop, send
from tokenmill.app.kafka.clients import consumer
from tokenmill.app.kafka.control_log import skip_request_record
from tokenmill.app.kafka.control_topic import write_control
from tokenmill.app.kafka.token_topic import published_head
from tokenmill.app.mill.topic_changes import has_passed
from tokenmill.app.settings import Settings
from tokenmill.app.tools.failed_records import skip
from tokenmill.app.tools.verify import verify
from tokenmill.app.worker.ending import RESUME_CODE
from tokenmill.errors import InputError
from tokenmill.wire.chain import Cursor

pytestmark = [pytest.mark.fault("step-fails"), pytest.mark.needs("minutes")]

FUNCTION = "tests.faults.harmful_step:harmful"
TEXT = b"a text of some length, so that a few of them fill a block; "
BURST = 800
"""Records of a partition that come at once, and take a mill seconds."""
SKIPS = 3
COMMAND = re.compile(r"`tokenmill (skip \S+ \d+ \d+)`")


def texts(*harmful: str) -> list[bytes]:
    """Return records with harmful ones in the middle."""
    return [TEXT] * 20 + [text.encode() for text in harmful] + [TEXT] * 20


def obey(settings: Settings, said: str) -> None:
    """Run the command that a message names."""
    found = COMMAND.search(said)
    assert found, said
    ended = run(found[1].split(), settings.store.parent / "command.log", settings.environment())
    assert ended.code == 0, ended.said


def in_force(settings: Settings, partition: int) -> list[set[int]]:
    """Return the skip list of each stream."""
    return [read_control(settings, stream).skips.get(partition, set()) for stream in settings.streams()]


def test_hanging_step_stops_its_partition_until_its_record_is_skipped(configured: Configured, trial: Trial) -> None:
    """The record and the command are named, the other partition goes on; one that raises is a dead letter by itself."""
    settings = configured(2, function=FUNCTION, session_timeout=2.0, carry_seconds=1.0)
    (raw_topic,) = settings.raw_topics
    send(settings, [*(Raw(text) for text in texts(RAISES, HANGS)), *(Raw(TEXT, 1) for _ in range(20))])
    with working(settings) as service:
        mill, _ = service.workers
        service.wait_until(lambda: "hung" in str(mill.partitions.get(f"{raw_topic}/0", {}).get("halted")))
        reason = str(mill.partitions[f"{raw_topic}/0"]["halted"])
        assert reason in mill.log
        assert f"offset 21 of {raw_topic}[0]" in reason
        trial.fired("step hung")
        send(settings, [Raw(TEXT, 1) for _ in range(20)])
        service.wait_until(lambda: mill.partitions[f"{raw_topic}/1"]["position"] == 40)
        service.wait_until(lambda: any(stops_of(eras_of(settings, s))[1:] > [0] for s in settings.streams()))
        trial.fired("era closed by an owner whose chain stands")
        assert mill.stop() == RESUME_CODE, "it ends at once, though a thread of it hangs"
        (mill,) = service.mill()
        service.wait_until(lambda: f"{raw_topic}/0" in mill.partitions)
        obey(settings, reason)
        assert service.wait_until_ended(mill) == RESUME_CODE
        assert "offset 21" in (mill.beats.words or "")
        service.mill()
        service.wait_until(lambda: in_force(settings, 0) == [{21}] * len(settings.streams()))
        flush_all(settings)
        _, chains = judge(service, trial)
        assert chains[0].dead == {20: "function_failed", 21: "skipped"}
        letters = [dict(record.headers) for record in read_letters(settings, raw_topic)]
        (failed,) = {h[f"{PREFIX}detail"] for h in letters if h[f"{PREFIX}reason"] == b"function_failed"}
        assert failed == b"ValueError: the step's own words"
        trial.held("loud")
        trial.fired("step raised")


def test_request_that_comes_too_late_changes_nothing(configured: Configured, trial: Trial) -> None:
    """A worker passed the record after `tokenmill skip` had looked: it stays milled, for workers and for verify."""
    settings = configured(session_timeout=2.0)
    send(settings, [Raw(TEXT)] * 20)
    flush_all(settings)
    with working(settings) as service:
        mill, _ = service.workers
        service.wait_until_complete()
        for stream in settings.streams():
            in_own_loop(lambda: write_control(settings, stream.control_topic, [skip_request_record(0, 7)]))  # noqa: B023
        trial.fired("request behind the cursor")
        mill.kill()
        (mill,) = service.mill()
        send(settings, [Raw(TEXT)] * 20)
        flush_all(settings)
        _, chains = judge(service, trial)
        assert mill.running
        assert not any(chain.dead for chain in chains)
        assert verify(settings, store=settings.store, processes=1).ok


def test_skips_race_with_mills(configured: Configured, tmp_path: Path, trial: Trial) -> None:
    """Records are skipped while mills run past them: each is skipped by all, or milled by all."""
    # Small messages: one of a chain is in flight at a time, so that publishing takes seconds.
    settings = configured(2, session_timeout=2.0, splits={"train": 900, "dev": 100}, message_bytes=200)
    (raw_topic,) = settings.raw_topics
    with Service(settings, tmp_path) as service:
        service.segment()
        service.mill(2)
        for number in range(trial.rounds(1, 30)):
            service.wait_until(lambda: len([w for w in service.workers if w.role == "mill" and w.partitions]) == 2)
            send(settings, [Raw(document(trial.rng), partition) for _ in range(BURST) for partition in (0, 1)])
            for _ in range(SKIPS):
                partition, offset = trial.rng.randrange(2), number * BURST + trial.rng.randrange(BURST)
                try:
                    in_own_loop(lambda: skip(settings, raw_topic, partition, offset))  # noqa: B023
                except InputError as error:
                    assert "is settled" in str(error)  # noqa: PT017 - either answer is right
                else:
                    trial.fired("record skipped while it was milled")
            service.wait_until(lambda: is_decided(service))
        flush_all(settings)
        _, chains = judge(service, trial)
        trial.held(skipped=sum(list(chain.dead.values()).count("skipped") for chain in chains))


def is_decided(service: Service) -> bool:
    """Start workers anew where need be; return whether each request is in force or lies behind all chains."""
    service.tend()
    settings = service.settings
    for stream in settings.streams():
        control = read_control(settings, stream)
        for partition, offsets in control.skip_requests.items():
            left = offsets - control.skips.get(partition, set())
            cursor = in_own_loop(lambda: head_of(settings, stream.tokens_topic, partition))  # noqa: B023
            if any(cursor is None or not has_passed(cursor, offset) for offset in left):
                return False
    return True


async def head_of(settings: Settings, tokens_topic: str, partition: int) -> Cursor | None:
    """Return the furthest published cursor."""
    async with consumer(settings) as client:
        head = await published_head(client, TopicPartition(tokens_topic, partition))
    return head.cursor if head is not None else None


@pytest.mark.fault("step-killed")
def test_mill_killed_while_it_takes_over_a_skip(configured: Configured, tmp_path: Path, trial: Trial) -> None:
    """The record stands on the skip list of none of its streams, of one, or of both: it is skipped in both."""
    points = [Failpoint(SKIPPING[0], side, nth) for side in SIDES for nth in (1, 2)]
    for number, point in enumerate(trial.rng.sample(points, trial.rounds(1, 4))):
        directory = tmp_path / str(number)
        directory.mkdir()
        settings = configured(
            store=directory / "store", session_timeout=1.5, splits={"train": 500, "dev": 500}, function=FUNCTION
        )
        with Breakable(settings, directory) as service:
            service.segment()
            (mill,) = service.mill()
            service.wait_until(lambda: bool(mill.partitions))  # noqa: B023
            mill.kill()
            send(settings, [Raw(text) for text in texts(KILLS)])
            flush_all(settings)
            in_own_loop(lambda: skip(settings, settings.raw_topics[0], 0, 20))  # noqa: B023
            service.mill_until(point)
            trial.fired(f"mill SIGKILL {point}")
            service.mill()
            service.wait_until(lambda: in_force(settings, 0) == [{20}] * 2)  # noqa: B023
            _, chains = judge(service, trial)
            assert all(chain.dead == {20: "skipped"} for chain in chains)
