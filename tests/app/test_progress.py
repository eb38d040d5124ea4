"""Progress: how far, how fast, and how long it takes; work that is interrupted, and the pauses before it goes on."""

import asyncio
import io
import os
import re
import signal
import sys
from unittest.mock import AsyncMock, create_autospec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.conftest import until
from tests.outages import Hands
from tokenmill.app.cli import output
from tokenmill.app.cli.output import with_outage_messages
from tokenmill.app.cli.reading_options import ProduceProgress, say_refusals
from tokenmill.app.sources import Refused
from tokenmill.app.tasks import STOPPING, Backoff, until_interrupted
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
    shown = create_autospec(output.ProgressLine.show)
    monkeypatch.setattr(output.ProgressLine, "show", shown)
    summary = Summary("raw", {0: Acknowledged(30, 300)}, before=20, limit=200, bytes_total=1000, bytes_read=10)
    with ProduceProgress() as report:
        report(summary)
        said = shown.call_args.args[4]()
        summary.bytes_total = 0
        report(summary)
        summary.bytes_read, summary.bytes_total = 500, 1000
        report(summary)
        summary.partitions[0].documents = 180
        report(summary)
    assert [call.args[2:4] for call in shown.call_args_list] == [(50, 200), (50, 200), (100, 200), (200, 200)]
    assert said.endswith(", 25% of the limit of 200")


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

    async def work() -> str:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0)
        return "done"

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert until_interrupted(work()) == ("done", None)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("error", [ValueError("why"), asyncio.CancelledError()])
def test_what_work_raises_is_raised(error: BaseException) -> None:
    with pytest.raises(type(error)):
        until_interrupted(AsyncMock(side_effect=error)())


def test_pauses_double_up_to_the_longest_and_begin_anew_after_a_healthy_life() -> None:
    backoff = Backoff(1.0, 10.0, 60.0)
    assert [backoff.next(0.5) for _ in range(7)] == [1, 2, 4, 8, 10, 10, 10]
    assert [backoff.next(60.0), backoff.next(0.5)] == [1, 2]


@given(st.integers(0, 2000), st.integers(0, 20))
def test_a_reset_makes_the_next_pause_the_first(before: int, after: int) -> None:
    """However often it failed before, also after more failures than a float can count in powers of two."""
    backoff = Backoff(1.0, 10.0)
    for _ in range(before):
        backoff.next(1e9)
    backoff.reset()
    assert [backoff.next() for _ in range(after)] == [min(2**number, 10.0) for number in range(after)]
