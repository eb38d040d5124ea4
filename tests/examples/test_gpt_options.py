"""The command line of the small GPT: a value that cannot be is refused before anything is opened."""

import importlib
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
import torch

from tests.examples.test_train_gpt import BATCH, ERAS, EXAMPLE, GrowingStore
from tests.store.chains import STREAM
from tokenmill.errors import InputError, StoreError

Train = Callable[..., None]
NO_WHOLES: Final = ("", "x", "1.5", "4.0", "nan", "inf", "True", "1e3", "0x10", "٤", "9" * 5000)
WHOLES: Final = (*NO_WHOLES, "0", "-1", str(1 << 63))
NUMBERS: Final = ("", "x", "nan", "inf", "-inf", "-1", "0", "True", "1e999")
FILES: Final = ("", ".", "/", "missing/file", "\0")
NO_SPANS: Final = ("", "0", "0:0", "4:2", "-1:4", "0:1.5", "0:4:1", "a:b", "0:" + "9" * 99)
NO_ERAS: Final = ("", "x", ":4", *(f"x@{span}" for span in NO_SPANS))
WRONG: Final[dict[str, tuple[str, ...]]] = {
    "--mix": ("web", "web=", "web=0", "web=-1", "=1", "web=x", "web=1=2", "web=1,", "missing.toml", "web=nan"),
    "--steps": (*NO_WHOLES, "-1", str(1 << 63)),
    "--seconds": NUMBERS,
    "--timeout": NUMBERS,
    "--validation": NO_ERAS,
    "--validate-every": WHOLES,
    "--test": NO_ERAS,
    "--checkpoint": FILES,
    "--save-every": WHOLES,
    "--samples-log": FILES,
    "--metrics-port": (*NO_WHOLES, "-1", "65536"),
    "--threads": (*NO_WHOLES, "-1", "1025"),
    "--seed": (*NO_WHOLES, str(1 << 63), str(-(1 << 63) - 1)),
    "--batch-size": WHOLES,
    "--sequence-length": WHOLES,
    **dict.fromkeys(("--width", "--layers", "--heads", "--warmup"), WHOLES),
    "--learning-rate": NUMBERS,
}
ANYTHING: Final = {"--metrics-host", "--json", "--cpu", "--compile", "--no-compile", "--documents-apart", "--help"}
"""Flags, and an address, which is looked at when it is served at."""


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    return importlib.import_module


@pytest.fixture
def parse(load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Namespace]:
    def parsed(*arguments: str) -> Namespace:
        monkeypatch.setattr(sys, "argv", ["train_gpt.py", *arguments])
        found: Namespace = load("gpt_options").parse_arguments()
        return found

    return parsed


def test_every_option_is_tried(load: Callable[[str], ModuleType]) -> None:
    options = {name for action in load("gpt_options").parser()._actions for name in action.option_strings}
    assert options - {"-h"} == set(WRONG) | ANYTHING


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_is_refused_with_its_name(
    parse: Callable[..., Namespace], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    for value in WRONG[name]:
        with pytest.raises(SystemExit, match="2"):
            parse("store", STREAM, f"{name}={value}")
        told = capsys.readouterr().err.splitlines()[-1]
        assert f"argument {name}: {value!r} is given: give " in told


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--width", "16", "--heads", "3"], "--width 16 is shared by --heads 3"),
        (["--batch-size", "5"], "--batch-size 5 is shared by 2 processes"),
        (["--seconds", "5"], "--seconds would end each process at another step"),
    ],
)
def test_values_that_contradict_each_other_are_refused(
    parse: Callable[..., Namespace],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    given: list[str],
    told: str,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit, match="2"):
        parse("store", STREAM, *given)
    assert told in capsys.readouterr().err


def test_right_values_are_what_they_say(parse: Callable[..., Namespace], tmp_path: Path) -> None:
    given = ["--steps=0", "--seed=-1", "--timeout=0.5", "--validation=a@0:4", f"--checkpoint={tmp_path / 'new'}"]
    found = parse("store", STREAM, *given)
    assert (found.steps, found.seed, found.timeout, found.validation) == (0, -1, 0.5, ("a", range(4)))
    assert found.checkpoint == tmp_path / "new"


@pytest.fixture
def train(load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Return what runs the example in this process, on a store that is complete and a CPU, with a model of no size."""
    store = GrowingStore(tmp_path / "store")
    store.grow_to(len(ERAS))

    def run(*given: str, stream: str = STREAM) -> None:
        tiny = [
            "--cpu",
            "--timeout=20",
            "--width=8",
            "--heads=2",
            "--layers=1",
            "--no-compile",
            f"--batch-size={BATCH}",
        ]
        monkeypatch.setattr(sys, "argv", ["train_gpt.py", str(store.path), stream, *tiny, *given])
        load("train_gpt").main()

    return run


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--batch-size=4096"], r"batch_size is 4096 .* give a smaller batch_size, or more eras"),
        (
            ["--steps=4", "--validate-every=1", "--validation=raw-text.validation@0:1", "--batch-size=6"],
            "have 5 samples",
        ),
        (["--sequence-length=5"], "sequence_length is 5"),
        (["--validation=other@0:1"], "no stream 'other'"),
        (["--metrics-port=80", "--metrics-host=203.0.113.1"], r"host is '203\.0\.113\.1' and port 80"),
    ],
)
def test_what_only_the_store_can_tell_is_refused_by_name(train: Train, given: list[str], told: str) -> None:
    """As one line; a run that cannot make one step does not end as if it had."""
    with pytest.raises((InputError, StoreError), match=told):
        train(*given)


def test_a_stream_that_cannot_be_is_not_waited_for(train: Train) -> None:
    with pytest.raises(StoreError, match="is no stream name"):
        train(stream="raw/text")


@pytest.mark.parametrize(
    "content", [b"", b"no checkpoint", {"model": {}}, {"model": {}, "optimizer": {}, "data": {}}, [1], {"model": 5}]
)
def test_a_file_that_is_no_checkpoint_is_named(train: Train, tmp_path: Path, content: Any) -> None:
    file = tmp_path / "gpt.pt"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        torch.save(content, file)
    with pytest.raises(InputError, match=rf"--checkpoint {file} holds no such model .* or another file"):
        train(f"--checkpoint={file}")


def test_steps_that_were_made_are_not_made_again(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = f"--checkpoint={tmp_path / 'gpt.pt'}"
    train(checkpoint, "--steps=3")
    assert "step      3" in capsys.readouterr().out
    for steps in (3, 2):
        train(checkpoint, f"--steps={steps}")
        assert capsys.readouterr().out == ""
    with pytest.raises(InputError, match="holds no such model"):
        train(checkpoint, "--layers=2")


def test_a_mix_is_weights_or_a_schedule(parse: Callable[..., Namespace], tmp_path: Path) -> None:
    assert parse("s", "web.train", "--mix", "").mix is None
    assert parse("s", "web.train", "--mix", "web=0.7,code=3/10").mix.weights == [(0, {"web": "0.7", "code": "3/10"})]
    file = tmp_path / "mix.toml"
    points: list[tuple[int, dict[str, float]]] = [(0, {"web": 1}), (100, {"web": 0.5, "books": 0.5})]
    file.write_text(
        'unit = "step"\nlinear = true\n[[point]]\nfrom = 0\nweights = { web = 1 }\n'
        "[[point]]\nfrom = 100\nweights = { web = 0.5, books = 0.5 }\n"
    )
    assert parse("s", "web.train", "--mix", str(file)).mix == (("books", "web"), points, "step", True)
