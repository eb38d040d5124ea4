"""``tokenmill up``: what it says on an empty state, and its end. tests/test_readme.py pushes text through it."""

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Final

from tests.marked import MARK, marked, until
from tokenmill.app.local.state import State

SECONDS: Final = 60.0


def test_up_says_how_to_push_text_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    """A new state needs no settings at all, and remembers those that it was given."""
    mark = uuid.uuid4().hex
    log = tmp_path / "up.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tokenmill.app.cli", "up", "--state", "here", "--raw-topics", "notes"],
            env={**os.environ, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=tmp_path,
            start_new_session=True,
        )
    assert until(lambda: "2 of 2 mills" in log.read_text(), SECONDS), log.read_text()
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(SECONDS) == 130, log.read_text()

    assert marked(mark) == []
    state = State(tmp_path / "here")
    assert f"produce --config {state.settings_file} notes PATH" in log.read_text()
    saved = state.saved()
    assert saved is not None
    assert (saved.raw_topics, saved.tokenizer, saved.store) == (("notes",), "bytes", state.store)
