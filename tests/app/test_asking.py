"""Commands that cannot be undone ask on a terminal, and can be tried without doing anything."""

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app.kafka.test_control_topic import settled
from tests.conftest import TopicFactory
from tests.service import service_settings
from tests.store.chains import STREAM, contents, filled_store, make_chain, make_info
from tokenmill.app.cli import main
from tokenmill.app.local.broker import Broker
from tokenmill.store import Store, open_partition

Run = Callable[..., tuple[int, str]]
INFO = make_info()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run a command where somebody answers, or (None) where nobody is; return its code, and all that it said."""
    monkeypatch.chdir(tmp_path)

    def command(answer: str | None, *arguments: str) -> tuple[int, str]:
        said = io.StringIO() if answer is None else Terminal()
        typed = io.StringIO("") if answer is None else Terminal(answer)
        for name, stream in (("stdin", typed), ("stdout", said), ("stderr", said)):
            monkeypatch.setattr(sys, name, stream)
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        code = ended.value.code
        return code if isinstance(code, int) else 0, said.getvalue()

    return command


Command = tuple[str, ...]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store with five sealed segments of four blocks, and two blocks in an open one."""
    return filled_store(tmp_path / "store", INFO, make_chain(INFO, 30), [22])


@pytest.fixture
def retire(store: Store) -> Command:
    return ("retire", STREAM, "--below", "8", "--store", str(store.path))


@pytest.fixture
def close(broker: Broker, topic: TopicFactory, tmp_path: Path) -> Command:
    settings = service_settings(broker, topic(), tmp_path, splits={"all": 1000})
    settled(settings)
    (stream,) = settings.streams()
    return ("close", stream.name, "--bootstrap-servers", broker.bootstrap_servers)


def first(store: Store) -> int:
    return open_partition(store.path, STREAM, 0).first_block


def test_retire_asks_on_a_terminal(store: Store, retire: Command, run: Run) -> None:
    asked = f"this frees 2 segments, 2.8 kB, of {STREAM} in {store.path}. It cannot be undone"
    before = contents(store)
    for answer in ("n\n", "\n", ""):
        code, said = run(answer, *retire)
        assert (code, asked in " ".join(said.split()), contents(store) == before) == (1, True, True)
    code, said = run("y\n", *retire)
    assert (code, first(store)) == (0, 8)
    code, said = run("n\n", *retire)
    assert (code, "cannot be undone" in said, "nothing to free" in said) == (0, False, True)


@pytest.mark.parametrize(("answer", "more"), [(None, ()), ("n\n", ("--yes",)), (None, ("--yes",))])
def test_retire_asks_nobody_who_said_yes_or_is_not_there(
    store: Store, retire: Command, run: Run, answer: str | None, more: tuple[str, ...]
) -> None:
    code, said = run(answer, *retire, *more)
    assert (code, first(store), "Go on?" in said) == (0, 8, False)


@pytest.mark.parametrize("answer", [None, "y\n"])
def test_a_retirement_can_be_tried(store: Store, retire: Command, run: Run, answer: str | None) -> None:
    before = contents(store)
    code, dry = run(answer, *retire, "--dry-run")
    assert (code, contents(store) == before, "Go on?" in dry) == (0, True, False)
    assert dry.endswith("/0: would begin with block 8 (now: 0); 2 segments, 2.8 kB would be freed, nothing was\n")
    assert run(None, *retire)[1].endswith("/0: begins with block 8 now (before: 0); 2 segments, 2.8 kB freed\n")


def test_close_asks_on_a_terminal(close: Command, run: Run) -> None:
    code, said = run("n\n", *close)
    assert (code, "cannot be undone" in " ".join(said.split())) == (1, True)
    code, said = run(None, *close, "--dry-run")
    assert (code, f"{close[1]} has 0 eras, and 0 blocks in none; nothing was done" in said) == (0, True)
    code, said = run("y\n", *close)
    assert (code, f"{close[1]} is closed after 0 eras with 0 blocks" in said) == (0, True), said
    code, said = run("n\n", *close)
    assert (code, "Go on?" in said) == (0, False)
    assert "is closed already, after 0 eras" in run(None, *close, "--dry-run")[1]


@pytest.mark.parametrize("answer", [None, "n\n"])
def test_close_asks_nobody_who_said_yes_or_is_not_there(close: Command, run: Run, answer: str | None) -> None:
    code, said = run(answer, *close, *([] if answer is None else ["--yes"]))
    assert (code, "is closed after" in said, "Go on?" in said) == (0, True, False), said
