"""What a worker does with the partitions that it is given: each resumes by itself, and all are given up together."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import NoReturn

import pytest
from faust.types import TP

from tokenmill.app.kafka.fetched_batches import FetchedBatch
from tokenmill.app.worker import ending
from tokenmill.app.worker.transport import Partitions

ONE, TWO = TP("raw", 0), TP("raw", 1)


class EndedError(BaseException):
    """Stands for the end of the process."""


@dataclass
class Scripted:
    tp: TP
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    resumes: int = 0
    resumed: int = 0
    fed: list[int] = field(default_factory=list)
    stops: int = 0
    halted: bool = False
    error: Exception | None = None

    async def resume(self) -> None:
        self.resumes += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.resumed += 1

    async def feed(self, batch: FetchedBatch) -> None:
        if self.error is not None:
            raise self.error
        self.fed.append(batch.position)

    def may_go_on(self) -> bool:
        return self.halted

    def stop(self) -> None:
        self.stops += 1


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Scripted]:
    """Return the partitions that were opened; the end of the process is an `EndedError`."""

    def end_for(error: BaseException) -> NoReturn:
        raise EndedError from error

    monkeypatch.setattr(ending, "end_for", end_for)
    return []


def handler(made: list[Scripted]) -> Partitions[Scripted]:
    def opened(tp: TP) -> Scripted:
        made.append(Scripted(tp))
        return made[-1]

    return Partitions(opened)


async def rest() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_partitions_resume_side_by_side_in_the_background(made: list[Scripted]) -> None:
    owner = handler(made)
    await owner.assigned({TWO, ONE})
    await rest()
    assert [(one.tp, one.resumes, one.resumed) for one in made] == [(ONE, 1, 0), (TWO, 1, 0)]
    made[1].gate.set()
    await rest()
    assert [one.resumed for one in made] == [0, 1]
    owner.revoked()


async def test_what_is_given_up_is_stopped_and_resumes_no_more(made: list[Scripted]) -> None:
    """Its resume is cancelled; batches that come late are let go; the next assignment begins anew."""
    owner = handler(made)
    await owner.assigned({ONE})
    await rest()
    await owner.assigned({ONE, TWO})
    made[0].gate.set()
    await rest()
    assert (made[0].stops, made[0].resumed) == (1, 0)
    assert [one.resumes for one in made] == [1, 1, 1]
    owner.revoked()
    assert owner.owned == {}
    await owner.feed(FetchedBatch(ONE, [], 5, 1))
    assert [one.fed for one in made] == [[], [], []]
    assert [one.stops for one in made] == [1, 1, 1]


async def test_a_batch_goes_to_its_own_partition(made: list[Scripted]) -> None:
    owner = handler(made)
    await owner.assigned({ONE, TWO})

    async def batches() -> AsyncIterator[FetchedBatch]:
        for position, tp in enumerate((ONE, TWO, TWO, TP("raw", 2))):
            yield FetchedBatch(tp, [], position, 1)

    await owner.feed_all(batches())
    assert [one.fed for one in made] == [[0], [1, 2]]
    owner.revoked()


async def test_an_error_ends_the_process(made: list[Scripted]) -> None:
    owner = handler(made)
    await owner.assigned({ONE})
    await rest()
    made[0].error = RuntimeError("a bug")
    with pytest.raises(EndedError):
        await owner.feed(FetchedBatch(ONE, [], 5, 1))
    (task,) = owner._tasks
    made[0].gate.set()
    await asyncio.wait({task})
    assert isinstance(task.exception(), EndedError)


async def test_an_actor_that_is_cancelled_ends_in_order(made: list[Scripted]) -> None:
    """Faust would take it for one that crashed."""
    owner = handler(made)
    waiting = asyncio.Event()

    async def batches() -> AsyncIterator[FetchedBatch]:
        waiting.set()
        await asyncio.Event().wait()
        yield FetchedBatch(ONE, [], 0, 1)

    task = asyncio.create_task(owner.feed_all(batches()))
    await waiting.wait()
    task.cancel()
    await task
    assert not task.cancelled()


async def test_an_actor_that_is_cancelled_while_it_writes_has_closed_its_stream(made: list[Scripted]) -> None:
    """At once: Faust ends a worker whose stream is still registered for a lost partition at the next assignment."""
    owner = handler(made)
    writing, closed = asyncio.Event(), asyncio.Event()

    async def batches() -> AsyncIterator[FetchedBatch]:
        try:
            yield FetchedBatch(ONE, [], 0, 1)
        finally:
            closed.set()

    async def write(_: FetchedBatch) -> None:
        writing.set()
        await asyncio.Event().wait()

    await owner.assigned({ONE})
    made[0].feed = write  # type: ignore[assignment, method-assign]
    task = asyncio.create_task(owner.feed_all(batches()))
    closed_in_time = []
    task.add_done_callback(lambda _: closed_in_time.append(closed.is_set()))
    await writing.wait()
    task.cancel()
    await task
    await rest()
    assert closed_in_time == [True]
    owner.revoked()


async def test_what_halted_resumes_again_once(made: list[Scripted]) -> None:
    owner = handler(made)
    await owner.assigned({ONE, TWO})
    for one in made:
        one.gate.set()
    await rest()
    owner.look_after_halted()
    await rest()
    assert [one.resumes for one in made] == [1, 1]
    made[1].halted = True
    made[1].gate.clear()
    for _ in range(3):
        owner.look_after_halted()
        await rest()
    assert [one.resumes for one in made] == [1, 2]
    owner.revoked()
    await owner.assigned({TWO})
    await rest()
    assert made[2].resumes == 1
    owner.revoked()
