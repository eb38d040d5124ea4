"""The processes that check partitions: threads here, at real pipes. Each is answered once, or it is said why not."""

import multiprocessing
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.commands import die_while_starting
from tokenmill.app import processes
from tokenmill.app.tools.verify import partition_check
from tokenmill.app.tools.verify.partition_check import PartitionTask, check_partitions
from tokenmill.app.tools.verify.verify_result import Advance, ChainResult
from tokenmill.errors import SourceError, TokenMillError


class Crew:
    """In the place of a verification's processes; what one does with a partition is in ``script``."""

    def __init__(self, script: dict[int, Sequence[Advance] | Exception]) -> None:
        self.script = script
        self.opened: list[bytes] = []
        self.sizes: list[int] = []
        self._threads: list[threading.Thread] = []

    async def check(self, task: Any, stages: Any, report: Any) -> list[ChainResult]:
        """Do what the script says; `partition_check._work` calls it for each partition."""
        stages(task)
        said = self.script[task.partition]
        if isinstance(said, Exception):
            raise said
        for advance in said:
            report(advance)
        return [ChainResult("raw.train", task.partition, "raw", (0, 1), (0, 1))]

    @contextmanager
    def workers(self, count: int) -> Iterator[dict[Any, Any]]:
        """Start so many; they end when their pipes close, and one whose script says so ends without a word."""
        self.sizes.append(count)
        mine = {}
        for _ in range(count):
            here, there = multiprocessing.Pipe()
            here.send((1, False))
            thread = threading.Thread(target=self._work, args=(there,))
            thread.start()
            self._threads.append(thread)
            mine[here] = SimpleNamespace(join=thread.join, exitcode=-9)
        try:
            yield mine
        finally:
            for here in mine:
                here.close()
            for thread in self._threads:
                thread.join()

    def _work(self, pipe: Any) -> None:
        try:
            partition_check._work(pipe)
        except KeyboardInterrupt:
            pass  # it died: the pipe closes, and nothing was said
        finally:
            pipe.close()


def task(partition: int, key: bytes = b"one") -> PartitionTask:
    """Return a partition, as far as a process looks at it."""
    genesis = SimpleNamespace(recipe=SimpleNamespace(decode="auto", key=key))
    chain = SimpleNamespace(tokens_topic="tokens", genesis=genesis)
    settings = SimpleNamespace(engine="auto")
    found = SimpleNamespace(
        partition=partition,
        raw_topic="raw",
        stages_key=key,
        chains=[chain],
        tokenizer=None,
        settings=settings,
        lists={},
    )
    return cast("PartitionTask", found)


@pytest.fixture
def crew(monkeypatch: pytest.MonkeyPatch) -> Crew:
    """Return a crew that works for verifications from now on; each task's stages are only noted."""
    crew = Crew({})
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")
    monkeypatch.setattr(partition_check, "_workers", crew.workers)
    monkeypatch.setattr(partition_check, "check_partition", crew.check)
    monkeypatch.setattr(partition_check, "schemas_for_command", lambda *_: None)
    monkeypatch.setattr(partition_check, "reopen_stages", lambda recipe, *_: crew.opened.append(recipe.key))
    for name in ("collect_seldom", "keep_loaded"):
        monkeypatch.setattr(partition_check, name, lambda: None)
    return crew


@pytest.mark.slow  # one process begins a report between any two results: seconds, on a machine that does other things
@pytest.mark.parametrize("count", [1, 2, 9])
def test_every_partition_is_answered_once_with_all_its_advances(crew: Crew, count: int) -> None:
    """However many processes there are, and never more than partitions; a raw topic's stages are opened once each."""
    numbers = [4, 7, 1, 2, 3]
    crew.script = {number: [Advance(number, 1, 10)] * 3 for number in numbers}
    answers = list(check_partitions([task(n, b"odd" if n % 2 else b"even") for n in numbers], count))
    assert crew.sizes == [min(count, len(numbers))]
    results = [(index, answer[0].partition) for index, answer in answers if isinstance(answer, list)]
    assert sorted(results) == list(enumerate(numbers))
    for index, number in enumerate(numbers):
        own = [answer for at, answer in answers if at == index]
        assert isinstance(own[-1], list)
        advances = [answer for answer in own if isinstance(answer, Advance)]
        assert Advance(*map(sum, zip(*advances, strict=True))) == Advance(3 * number, 3, 30)
    assert set(crew.opened) == {b"odd", b"even"}
    assert len(crew.opened) <= 2 * min(count, len(numbers))


def test_what_a_check_raised_is_raised_here(crew: Crew) -> None:
    """It is no answer that says that all is well."""
    crew.script = {0: [], 1: SourceError("retention removed it"), 2: []}
    with pytest.raises(SourceError, match="retention removed it"):
        list(check_partitions([task(0), task(1), task(2)], 1))


def test_a_process_that_ended_without_an_answer_is_named(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its partition, its code, and what to do."""

    async def die(*_: Any) -> list[ChainResult]:
        raise KeyboardInterrupt

    monkeypatch.setattr(partition_check, "check_partition", die)
    with pytest.raises(TokenMillError, match=r"verified raw partition 5 ended with code -9 .*fewer processes"):
        list(check_partitions([task(5)], 1))


def test_a_process_that_ends_while_it_starts_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the middle of its work."""
    die_while_starting(monkeypatch)
    with pytest.raises(TokenMillError, match=r"verified raw partition 5 ended with code 0 .*fewer processes"):
        list(check_partitions([task(5, b"x" * (1 << 20))], 1))


def test_processes_that_are_started_never_see_ctrl_c() -> None:
    """They inherit the mask; this process has its own again."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with processes._shielded():
        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_no_process_is_waited_for_in_the_middle_of_a_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever leaves kills them all, and then waits for their ends; each has its share of the cores."""
    done: list[str] = []

    class Process:
        def __init__(self, *, name: str, **_: Any) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            return lambda: done.append(f"{name} {self._name}")

    context = SimpleNamespace(Pipe=multiprocessing.Pipe, Process=Process)
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: context)
    with partition_check._workers(2) as workers:
        assert len(workers) == 2
        assert done == ["start verify 0", "start verify 1"]
        done.clear()
    assert done == ["kill verify 0", "kill verify 1", "join verify 0", "join verify 1"]
    assert all(pipe.closed for pipe in workers)
