"""Help: a command's own options first, the few settings that it needs, and all of them when asked for."""

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import click
import pytest
import typer
from typer.testing import CliRunner

from tokenmill.app.cli import COMMANDS, create_cli
from tokenmill.app.cli.options import FLAGS, FOLDED
from tokenmill.app.settings import SECRETS, Settings


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    found = getattr(command, "commands", None)
    if found is None:
        yield path, command
        return
    for name, child in found.items():
        yield from leaves(child, (*path, name))


ALL = dict(leaves(typer.main.get_command(create_cli())))


def helped(*arguments: str) -> list[str]:
    told = CliRunner().invoke(create_cli(arguments[0]), list(arguments), env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    assert told.exit_code == 0, told.output
    return told.output.splitlines()


def flags(lines: list[str]) -> list[str]:
    return [found[1] for line in lines if (found := re.match(r"│ \*? *(--[a-z-]+)", line))]


def test_every_command_and_setting_is_tried() -> None:
    assert {path[0] for path in ALL} == set(COMMANDS)
    assert set(FLAGS) == set(Settings.model_fields) - {"topic"} - SECRETS


def test_the_list_of_commands_that_are_not_loaded_is_that_of_those_that_are() -> None:
    told = [CliRunner().invoke(create_cli(word), ["--help"]).output for word in (None, "--help", "")]
    assert len(set(told)) == 1
    assert all(name in told[0] for name in COMMANDS)
    assert "Did you mean 'produce'?" in CliRunner().invoke(create_cli("produze"), ["produze"]).output
    groups = [dict(leaves(typer.main.get_command(create_cli(word)))).keys() for word in (None, "--help")]
    assert groups[0] == groups[1]


def modules_after(code: str) -> set[str]:
    command = [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["version"], ["--", "version"], ["produze"], []])
@pytest.mark.cases(3)
def test_who_asks_what_there_is_waits_for_no_library_of_the_service(arguments: list[str]) -> None:
    """Settings take half a second, all commands a second more; typer itself may load pydantic."""
    loaded = modules_after(f"from tokenmill.app.cli import _exit_code_of as run; run({arguments})")
    assert "typer" in loaded
    heavy = {"tokenmill.app.settings", "numpy", "structlog", "asyncio", "aiokafka", "faust", "multiprocessing"}
    assert heavy & loaded == set()


def test_a_worker_loads_nothing_of_other_commands_and_no_library_that_its_settings_do_not_name() -> None:
    """It holds in memory what it loads, as many times as there are workers."""
    imports = "import tokenmill.app.mill.app, tokenmill.app.worker.run"
    loaded = modules_after(f"from tokenmill.app.cli import create_cli; create_cli('mill'); {imports}")
    assert "tokenmill.app.cli.workers" in loaded
    own = {f"tokenmill.{name}" for name in ("samples", "store", "app.segments", "app.supervisor", "app.cli.output")}
    texts = {"awkward", "gigatoken", "huggingface_hub", "numba", "spacy", "tokenizers"}
    others = {"httpx", "pyarrow", "rich.progress", "sqlalchemy", "torch"}
    assert (own | texts | others) & loaded == set()


def test_a_process_that_packs_loads_no_settings_and_no_client_of_kafka() -> None:
    """What loads them is the command, once, and not each process that it starts."""
    loaded = modules_after("import tokenmill.app.tools.pack.mill_processes")
    assert "tokenmill.app.tools.pack.packed_partition" in loaded
    heavy = {"tokenmill.app.settings", "tokenmill.app.tools.verify", "pydantic", "aiokafka", "awkward"}
    assert heavy & loaded == set()


@pytest.mark.slow
@pytest.mark.parametrize("path", ALL, ids=" ".join)
@pytest.mark.cases(16)
def test_own_options_come_first_and_fit_a_screen_or_two(path: tuple[str, ...]) -> None:
    lines = helped(*path, "--help")
    listed = flags(lines)
    assert len(lines) <= 120  # settings, which take 200, are not among them
    assert max(map(len, lines)) <= 80
    own = [
        name
        for param in ALL[path].params
        if isinstance(param, click.Option) or hasattr(param, "secondary_opts")
        for name in param.opts[:1]
        if name.startswith("--")
        and not param.hidden
        and getattr(param, "rich_help_panel", None) not in {*FOLDED, "Settings"}
    ]
    assert set(own) <= set(listed)
    if "--help-all" in listed:
        behind = listed[listed.index("--config") :]
        assert not set(own) & set(behind)
        assert len(behind) <= 8
        assert "docs/settings.md" in " ".join(lines)


@pytest.mark.parametrize(
    "path", [path for path in ALL if any(p.name == "help_all" for p in ALL[path].params)], ids=" ".join
)
@pytest.mark.slow
@pytest.mark.cases(20)
def test_all_settings_are_shown_when_asked_for(path: tuple[str, ...]) -> None:
    lines = helped(*path, "--help-all")
    listed = set(flags(lines))
    assert "--config" in listed
    assert any("Examples" in line for line in lines)
    for name in FLAGS:
        assert f"--{name.replace('_', '-')}" in listed


@pytest.mark.slow
def test_what_is_suggested_is_an_option_of_this_command() -> None:
    """Whatever option of another command was given; each command is tried with another fifth of them."""
    options = {
        path: {name for param in ALL[path].params for name in (*param.opts, *param.secondary_opts) if "--" in name}
        for path in ALL
    }
    suggested = 0
    for number, (path, command) in enumerate(ALL.items()):
        hidden = {name for param in command.params if param.hidden for name in param.opts}
        for name in sorted(set().union(*options.values()) - options[path])[number % 5 :: 5]:
            with pytest.raises(Exception, match="No such option") as refused:
                command.make_context(path[-1], [name, "1"])
            found = set(getattr(refused.value, "possibilities", None) or ())
            assert found <= {"--help", "-h", *options[path] - hidden}, (path, name)
            suggested += len(found)
    assert suggested
