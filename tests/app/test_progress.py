"""Progress: how far, how fast, and how long it takes; and work that is interrupted."""

import asyncio
import io
import os
import re
import signal
import sys
from collections.abc import Callable

import pytest

from tests.outages import Hands
from tokenmill.app.cli import output
from tokenmill.app.cli.output import with_outage_messages
from tokenmill.app.cli.reading_options import ProduceProgress, say_refusals
from tokenmill.app.sources import Refused
from tokenmill.app.tasks import STOPPING, until_interrupted
from tokenmill.app.tools.produce.sending import Acknowledged, Summary


def test_a_log_hears_how_much_was_read_and_what_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "PLAIN_SECONDS", 0.0)
    summary = Summary("raw", {0: Acknowledged(1000, 4_000_000)}, seconds=2.0, bytes_total=1000, bytes_read=250)
    summary.refuse(Refused("a:1", "why"))
    with ProduceProgress() as report:
        report(summary)
        summary.bytes_read = 750
        report(summary)
    summary.refuse(Refused("a:2", "why not"))
    say_refusals(summary, summary.told)
    refused, first, second, *rest = capsys.readouterr().err.splitlines()
    assert (refused, rest) == ("tokenmill: a:1: why", ["tokenmill: a:2: why not"])
    assert first == "tokenmill: 1,000 documents, 4.0 MB, 2.0 MB/s, 1 passed over, 25% read"
    assert re.fullmatch(r".*, 75% read, 0:00:0\d left", second)


def test_a_limit_is_where_the_bar_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[int, int]] = []
    told: list[str] = []

    def show(_line: output.ProgressLine, _described: str, done: int, total: int, plain: Callable[[], str]) -> None:
        shown.append((done, total))
        told.append(plain())

    monkeypatch.setattr(output.ProgressLine, "show", show)
    summary = Summary("raw", {0: Acknowledged(30, 300)}, before=20, limit=200, bytes_total=1000, bytes_read=10)
    with ProduceProgress() as report:
        report(summary)
        summary.bytes_total = 0
        report(summary)
        summary.bytes_read, summary.bytes_total = 500, 1000
        report(summary)
        summary.partitions[0].documents = 180
        report(summary)
    assert shown == [(50, 200), (50, 200), (100, 200), (200, 200)]
    assert told[0].endswith(", 25% of the limit of 200")


def test_nothing_is_said_of_what_nobody_knows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipe has no size."""
    monkeypatch.setattr(output, "PLAIN_SECONDS", 0.0)
    with ProduceProgress() as report:
        report(Summary("raw", {0: Acknowledged(1, 10)}, seconds=1.0))
    assert capsys.readouterr().err == "tokenmill: 1 document, 10 B, 10 B/s\n"


@pytest.mark.parametrize("place", ["pipe", "notebook", "terminal"])
def test_only_a_terminal_gets_what_moves_the_cursor(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """FORCE_COLOR, which notebooks set, makes none of anything; a notebook gets one line that is written over."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    if place == "notebook":
        monkeypatch.setenv("JPY_PARENT_PID", "1")
    shown = io.StringIO()
    shown.isatty = lambda: place != "pipe"  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", shown)
    summary = Summary("raw", {0: Acknowledged(1000, 4_000_000)}, seconds=2.0, bytes_total=1000, bytes_read=250)
    with ProduceProgress() as report:
        report(summary)
        summary.bytes_read = 1000
        report(summary)

    told = shown.getvalue()
    assert ("\x1b" in told) == (place == "terminal")
    if place == "pipe":
        assert told == ""  # nothing yet: a line every few seconds
    elif place == "notebook":
        first, second = told.strip("\r\n").split("\r")
        assert first.startswith("[#####               ] 1,000 documents, 4.0 MB")
        assert second.startswith("[####################] ")


async def test_a_log_hears_that_no_broker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    hands = Hands()
    contact = hands.contact()
    monkeypatch.setattr(output, "CONTACT", contact)
    monkeypatch.setattr(output, "LOOK_SECONDS", 0.0)
    told: list[str] = []

    async def work() -> int:
        for _ in range(60):
            hands.turn(1)
            await asyncio.sleep(0)
        await until(lambda: len(told) == 1)
        contact.heard()
        await until(lambda: len(told) == 2)
        return 7

    assert await with_outage_messages(work(), "broker:9092", told.append) == 7
    assert told == [
        "no broker answers at broker:9092 since 1970-01-01T00:16:40Z; waiting for one",
        "a broker answers again at broker:9092",
    ]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(0)


@pytest.mark.parametrize("number", STOPPING)
@pytest.mark.usefixtures("hangup")
def test_a_signal_cancels_work_once(number: signal.Signals) -> None:
    before = [signal.getsignal(one) for one in STOPPING]
    ended: list[bool] = []

    async def work() -> None:
        os.kill(os.getpid(), number)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    assert until_interrupted(work()) == (None, number)
    assert ended == [True]
    assert [signal.getsignal(one) for one in STOPPING] == before


def test_a_second_signal_ends_it_at_once() -> None:
    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(0)

    with pytest.raises(KeyboardInterrupt):
        until_interrupted(work())


def test_what_was_ignored_stays_ignored() -> None:
    """A terminal that closes does not end what `nohup` began."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:

        async def work() -> str:
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0)
            return "done"

        assert until_interrupted(work()) == ("done", None)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_work_raises_is_raised() -> None:
    async def fail(error: BaseException) -> None:
        raise error

    for error in (ValueError("why"), asyncio.CancelledError()):
        with pytest.raises(type(error)):
            until_interrupted(fail(error))
