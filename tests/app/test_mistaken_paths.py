"""Paths that cannot be used, a file for a folder, a folder for a file, or nothing: one line each, no traceback."""

from itertools import product
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.app.commands import invoke
from tests.consumers.scenes import era_store
from tests.store.chains import STREAM
from tokenmill.app.cli import main
from tokenmill.errors import InputError

NOWHERE = "127.0.0.1:1"
WRONG = ("a file", "under a file", "no folder can be made there")

pytestmark = pytest.mark.usefixtures("nothing_around")


def given(kind: str) -> Path:
    """Return a path at which, or above which, this lies."""
    place = Path("given").absolute()
    if kind == "a directory":
        place.mkdir()
    elif kind != "missing":
        place.write_bytes({"bytes": bytes(range(256)), "empty": b""}.get(kind, b"a file"))
    return {"under a file": place / "below", "no folder can be made there": Path("/proc/here")}.get(kind, place)


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize(
    "command", [("up", "--state"), ("demo", "--no-train", "--state"), ("broker", "start", "--directory")]
)
def test_a_state_that_is_no_directory_is_named(kind: str, command: tuple[str, ...]) -> None:
    place = given(kind)
    code, _, said = invoke(*command, place)
    assert code == InputError.exit_code
    assert said.startswith(f"tokenmill: {command[-1]} {place} ")
    assert said.endswith(": name a directory, new or old, to write to\n")


@pytest.mark.parametrize("kind", ["a directory", "under a file", "no folder can be made there"])
def test_an_output_that_cannot_be_written_is_named_before_the_work(kind: str) -> None:
    place = given(kind) / ("" if kind == "a directory" else "tokenizer.json")
    for command in (("train-tokenizer", "missing", "--output"), ("verify", "--bootstrap-servers", NOWHERE, "--since")):
        code, _, said = invoke(*command, place)
        assert code == InputError.exit_code
        assert said.startswith(f"tokenmill: {command[-1]} {place}"), said
        assert said.count("\n") == 1


def test_an_output_stays_as_it_is_until_there_is_a_new_one() -> None:
    Path("tokenizer.json").write_text("a file")
    assert invoke("train-tokenizer", "missing").code == InputError.exit_code
    assert [(path.name, path.read_text()) for path in Path().iterdir()] == [("tokenizer.json", "a file")]


STORE = {
    "adopt": (),
    "mirror": ("--bootstrap-servers", NOWHERE, "--once"),
    "retire": (STREAM, "--keep", "1"),
    "repair": (STREAM, "--check"),
    "segment": ("--bootstrap-servers", NOWHERE),
}
THERE = [*product(STORE, WRONG), *product(STORE.keys() - {"mirror", "segment"}, ("missing", "a directory"))]
"""Commands, and what is where their store should be; where nothing is, the two that are left out make one."""


@pytest.mark.cases(12)
@pytest.mark.parametrize(("command", "kind"), sorted(THERE))
def test_a_store_that_is_none_is_named(kind: str, command: str) -> None:
    place = given(kind)
    code, _, said = invoke(command, *STORE[command], "--store", place)
    assert 0 < code < 126
    assert said.startswith("tokenmill: "), said
    assert str(place) in said
    assert "Traceback" not in said


FILES = {
    "trace": ("--step", "0", "--state"),
    "retire": (STREAM, "--keep-from"),
    "inspect": ("segment",),
    "dead-letters": ("resend", "raw-text/0/1", "--value"),
    "config": ("--config",),
    "tokenizer": (),
    "produce": ("raw-text", "--dry-run"),
    "repair": (STREAM, "--from"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["a directory", "under a file", "missing", "bytes", "empty"])
@pytest.mark.parametrize("command", FILES)
@pytest.mark.cases(8)
def test_a_file_that_is_none_is_named(kind: str, command: str) -> None:
    store = ("--store", era_store(Path("store").absolute()).path, "--bootstrap-servers", NOWHERE)
    place = given(kind)
    settings = () if command in {"config", "inspect"} else store
    code, _, said = invoke(command, *FILES[command], place, *settings)
    if (command, kind) == ("config", "empty"):
        assert code == 0  # no settings are settings
        return
    assert 0 < code < 126
    assert "Traceback" not in said
    assert said.strip().splitlines()[-1].startswith("tokenmill: "), said


@pytest.mark.parametrize("name", ["", "a file that no place knew better"])
def test_an_error_of_the_system_with_a_path_is_one_line(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """For all places that are still to come; one that names no path keeps its traceback."""
    fails = Mock(side_effect=PermissionError(13, "Permission denied", *filter(None, [name])))
    monkeypatch.setattr("tokenmill.app.cli.settings_and_topics.show_json", fails)
    if not name:
        with pytest.raises(PermissionError):
            main(["config", "--json"])
        return
    code, _, said = invoke("config", "--json")
    assert code == InputError.exit_code
    assert said.startswith("tokenmill: a file that no place knew better cannot be used (Permission denied): check ")
    assert said.count("\n") == 1
