"""The processes that mill for a pack, as they start and end."""

import threading
from typing import Any

import pytest

from tokenmill.app.tools.pack.mill_processes import Millers


def test_an_end_while_processes_are_told_their_task_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by Ctrl-C: the task is more than a pipe holds, and a thread still writes it when the pipe is closed."""
    failed: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    task: Any = b"a large tokenizer" * 100_000
    for _ in range(4):
        with Millers(task, 4, 4) as millers:
            pass
        assert not any(thread.name.startswith("pack ") for thread in threading.enumerate())
        assert not millers._processes[0].process.is_alive()
    assert not failed, [one.exc_value for one in failed]
