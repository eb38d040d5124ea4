"""What ends the process, and what does not."""

import asyncio
from typing import NoReturn

import pytest

from tokenmill.app.worker import ending


class Panic(BaseException):
    """Stands for a panic of native code, which is no `Exception`."""


class EndedError(BaseException):
    """Stands for the end of the process."""


@pytest.fixture(autouse=True)
def _raised_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def end_for(error: BaseException) -> NoReturn:
        raise EndedError from error

    monkeypatch.setattr(ending, "end_for", end_for)


@pytest.mark.parametrize("error", [RuntimeError("a bug"), Panic(), SystemExit(3)], ids=repr)
async def test_any_error_ends_the_process(error: BaseException) -> None:
    """A panic as well: code that catches errors lets it through, and a task would keep it to itself."""

    async def fails() -> None:
        raise error

    with pytest.raises(EndedError) as ended:
        await ending.or_end(fails())
    assert ended.value.__cause__ is error


async def test_cancelled_work_does_not_end_the_process() -> None:
    """A partition that is revoked while it resumes is cancelled, and others go on."""
    task = asyncio.create_task(ending.or_end(asyncio.Event().wait()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_closed_work_does_not_end_the_process() -> None:
    """A coroutine that nobody finishes is closed when its loop is gone."""
    work = ending.or_end(asyncio.sleep(60))
    waits = work.__await__()
    next(waits)
    waits.close()
