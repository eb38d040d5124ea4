"""Work that is interrupted."""

import asyncio
import os
import signal

import pytest

from tokenmill.app.cli.interrupted import SIGNALS, until_interrupted


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_cancels_work_once(number: signal.Signals) -> None:
    """It may end in order; afterwards the signal is what it was before."""
    before = [signal.getsignal(one) for one in SIGNALS]
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
    assert [signal.getsignal(one) for one in SIGNALS] == before


def test_a_second_signal_ends_it_at_once() -> None:
    """Where the end in order takes too long: Ctrl-C again."""

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
    """Also that it was cancelled by somebody else."""

    async def fail(error: BaseException) -> None:
        raise error

    for error in (ValueError("why"), asyncio.CancelledError()):
        with pytest.raises(type(error)):
            until_interrupted(fail(error))
