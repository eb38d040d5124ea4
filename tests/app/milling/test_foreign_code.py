"""Code of others: a user's function, native code that panics, and what lies in the working directory."""

import ast
import asyncio
import importlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from functools import cache
from itertools import zip_longest
from pathlib import Path

import pytest
from tokenizers import Tokenizer

import tokenmill
from tests.app.milling.tokenizers.panicking import HARMFUL, panicking
from tests.app.test_help import ALL
from tests.conftest import TopicFactory
from tokenmill.app.local.broker import Broker
from tokenmill.app.milling.foreign_code import NativeCode, import_own, is_panic, shown_error
from tokenmill.errors import PanicError, TopicError

ROOT = Path(tokenmill.__file__).parents[1]
MARK = "imported from the working directory"
COMMAND = Path(sys.executable).with_name("tokenmill")
PRODUCE = (str(COMMAND), "produce", "--dry-run", "topic", "a.jsonl")
IMPORTED_BY_M = "import sys; sys.argv = ['-m']; import runpy, importlib.util, pkgutil; print(*sys.modules)"
VERIFYING = """
from tokenmill.app.tools.verify.partition_check import _workers

if __name__ == "__main__":
    with _workers(1) as workers:
        connection, process = *workers, *workers.values()
        connection.send("no task")  # raises in the child, once it has imported all
        process.join()
        assert process.exitcode == 1
"""
LOOKED_FOR = re.compile(r"\b(executable|multiprocessing)\b|\bsys\b(?s:.)*\b(meta_)?path\b")
HELPING = """
import json, sys
from tokenmill.app.cli import main

for command in json.loads(sys.argv[1]):
    try:
        main([*command, "--help"])
    except SystemExit as ended:
        assert ended.code == 0, command
"""


def shadowed() -> set[str]:
    """Return the names of all modules that commands might import: Python's, those that are installed, and others."""
    installed = {name for name in importlib.metadata.packages_distributions() if name.isidentifier()}
    optional = {"uvloop", "robinhood", "simplejson", "raven", "rocksdb", "setproctitle", "yaml"}
    return (installed | set(sys.stdlib_module_names) | optional | {"gpt", "meter"}) - {"tokenmill"}


def lay_traps(folder: Path, names: set[str]) -> None:
    """Write a module of each name that leaves a mark beside it when it is imported."""
    trap = f"open({str(folder / 'sprung')!r}, 'a').write(__name__ + ' ')\nraise SystemExit({MARK!r})\n"
    for name in names:
        (folder / f"{name}.py").write_text(trap)


@pytest.fixture
def traps(tmp_path: Path) -> Path:
    lay_traps(tmp_path, shadowed())
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    (tmp_path / "own_one.py").write_text("def shout(row):\n    return row['text'].upper()\n")
    return tmp_path


def run(folder: Path, *command: str, code: int = 0) -> str:
    """Run a program in a folder with what a shell gives it, and return what it said; none of the traps was sprung."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    said = ended.stdout + ended.stderr
    assert not (folder / "sprung").exists(), f"{command}: {(folder / 'sprung').read_text()}{said}"
    assert ended.returncode == code, said
    return said


@pytest.mark.slow
def test_no_command_imports_what_lies_where_it_is_run(traps: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """All of them by name, in one process, whose script lies elsewhere as `tokenmill` itself does."""
    script = tmp_path_factory.mktemp("elsewhere") / "helping.py"
    script.write_text(HELPING)

    assert run(traps, sys.executable, str(script), json.dumps([*ALL])).count("Usage:") == len(ALL)
    assert "sequence_length" in run(traps, str(COMMAND), "config")


@pytest.mark.needs("minutes")
def test_no_worker_imports_what_lies_where_it_is_run(traps: Path, topic: TopicFactory, broker: Broker) -> None:
    """Nor any command that reads Kafka: what they load when they are at work lies elsewhere."""
    name = topic(1)
    servers = ("--bootstrap-servers", broker.bootstrap_servers, "--raw-topics", name)

    assert "1 document" in run(traps, str(COMMAND), "produce", name, "a.jsonl", *servers)
    assert name in run(traps, str(COMMAND), "mill", *servers, "--tokenizer", "bytes", code=TopicError.exit_code)
    assert name in run(traps, str(COMMAND), "verify", *servers, code=TopicError.exit_code)


@pytest.mark.slow
@pytest.mark.needs("minutes")
def test_produce_reads_a_folder_of_traps_as_data(traps: Path) -> None:
    """And runs a function from there that is named, but none that a settings file names.

    The file there is read, and is trusted with brokers and formats; functions are the mill's, as `decode` is.
    """
    assert '{"text": "one","id":"a.jsonl:1"}' in run(traps, *PRODUCE)
    assert '"ONE"' in run(traps, *PRODUCE, "--map", "own_one:shout", "--map-processes", "1")
    lay_traps(traps, {"own_trap"})
    (traps / "tokenmill.toml").write_text('function = "own_trap:f"\nid_field = "name"\n')
    assert '{"text": "one","name":"a.jsonl:1"}' in run(traps, *PRODUCE)
    (traps / "tokenmill.toml").write_text('decode = "own_trap:f"\n')
    assert "one" in run(traps, *PRODUCE)


@pytest.mark.slow
def test_a_function_there_hides_nothing_that_python_has(traps: Path) -> None:
    """The working directory comes last: a name of the library's means the library's, and the message says which."""
    said = run(traps, *PRODUCE, "--map", "http:shout", code=12)

    assert "the module is that of" in said
    assert str(traps) not in said


@pytest.mark.slow
def test_python_m_imports_nothing_of_ours_from_there(tmp_path: Path) -> None:
    """Only what Python itself imports for ``-m`` is looked for there; ``-P`` spares that, too."""
    own = subprocess.run([sys.executable, "-S", "-c", IMPORTED_BY_M], capture_output=True, text=True, check=True)
    lay_traps(tmp_path, shadowed() - set(own.stdout.split()))

    assert "produce" in run(tmp_path, sys.executable, "-m", "tokenmill.app.cli", "--help")
    lay_traps(tmp_path, shadowed())
    assert "produce" in run(tmp_path, sys.executable, "-P", "-m", "tokenmill.app.cli", "--help")


@pytest.mark.slow
@pytest.mark.needs("minutes")
def test_processes_of_verify_import_nothing_from_there(traps: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nor does the helper that multiprocessing starts for them."""
    script = tmp_path_factory.mktemp("elsewhere") / "verifying.py"
    script.write_text(VERIFYING)

    run(traps, sys.executable, str(script))


@cache
def sources() -> list[tuple[Path, list[ast.AST]]]:
    files = (file for folder in ("app", "consumers", "tokenmill") for file in sorted((ROOT / folder).rglob("*.py")))
    texts = ((file, file.read_text()) for file in files)
    return [(file, list(ast.walk(ast.parse(text)))) for file, text in texts if LOOKED_FOR.search(text)]


def is_of_sys(node: ast.AST, *names: str) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr in names
        and isinstance(node.value, ast.Name)
        and node.value.id == "sys"
    )


@pytest.mark.slow
def test_every_python_that_is_started_is_kept_from_the_working_directory() -> None:
    """By ``-P`` or ``-I``, the first of its arguments; a script has its own folder there in place of that."""
    found = []
    for file, nodes in sources():
        for node in nodes:
            if not isinstance(node, (ast.List, ast.Tuple)):
                continue
            for element, following in zip_longest(node.elts, node.elts[1:]):
                if is_of_sys(element, "executable"):
                    found.append((file.name, "" if following is None else ast.unparse(following)))
    script = ("demo.py", "str(_example())")
    assert script in found
    assert {started[1] for started in found if started != script} == {"'-P'", "'-I'"}


@pytest.mark.slow
def test_one_module_looks_in_the_working_directory() -> None:
    """One takes it off the path; nothing else changes where modules are found, or spawns processes unseen."""
    found = [(str(file.relative_to(ROOT)), node) for file, nodes in sources() for node in nodes]
    touching = {file for file, node in found if is_of_sys(node, "path", "meta_path")}
    spawning = {
        file
        for file, node in found
        if isinstance(node, ast.Import) and any(one.name.startswith("multiprocessing") for one in node.names)
    }

    assert touching == {"app/milling/foreign_code.py", "app/__init__.py", "app/sources/mapping.py"}
    assert spawning == {"app/processes.py"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, in which nobody has named a function yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


def test_a_named_module_is_found_there_with_what_it_imports(here: Path) -> None:
    (here / "own_two.py").write_text(
        "import own_three\nclass A:\n    value = own_three.seven\ndef later():\n    import own_four\n    return 4\n"
    )
    (here / "own_three.py").write_text("seven = 7\n")
    (here / "own_four.py").write_text("")
    (here / "own_package" / "deep").mkdir(parents=True)
    (here / "own_package" / "deep" / "five.py").write_text("import own_four\nfive = 5\n")

    assert import_own("own_two:A.value") == import_own("own_two:A.value") == 7
    assert import_own("own_two:later")() == 4
    assert import_own("own_package.deep.five:five") == 5
    # nobody else finds a module there, even once a function is named: libraries try modules that may not be there
    (here / "own_trap.py").write_text("")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("own_trap")


def test_log_says_which_file_a_function_is_from(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    (here / "own_seven.py").write_text("def seven(document):\n    return document\n")
    with caplog.at_level("INFO"):
        import_own("own_seven:seven")
        import_own("time:sleep")
    assert caplog.messages == [
        f"own_seven:seven is code of {here / 'own_seven.py'}",
        "time:sleep is code of the interpreter",
    ]


def test_a_working_directory_that_was_removed_is_no_error(here: Path) -> None:
    (here / "gone").mkdir()
    os.chdir("gone")
    (here / "gone").rmdir()

    assert import_own("json:loads")("1") == 1


@pytest.mark.parametrize("path", ["json", "json:", ":loads", ""])
def test_a_path_of_another_kind_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="module:function"):
        import_own(path)


CODE = NativeCode("the library")


def test_panic_becomes_an_error() -> None:
    """With the library's own words; `except Exception` sees it, which passes by what the library raises."""
    tokenizer = Tokenizer.from_str(panicking().decode())
    with pytest.raises(BaseException, match="retry-limit-in-match") as raw:
        tokenizer.encode(HARMFUL)
    assert is_panic(raw.value)
    assert not isinstance(raw.value, Exception)
    with pytest.raises(PanicError, match=r"^the library panicked \(.*retry-limit-in-match") as caught, CODE:
        tokenizer.encode(HARMFUL)
    assert is_panic(caught.value.__cause__ or ValueError())


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(3), asyncio.CancelledError(), GeneratorExit(), ValueError("own words")]
)
def test_everything_else_passes_as_it_is(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, CODE:
        raise error
    assert caught.value is error


def test_what_an_error_says_is_short_and_ascii() -> None:
    assert shown_error(ValueError("é\x1b" + "x" * 10_000)).startswith(r"ValueError: \xe9")
    assert len(shown_error(ValueError("é" * 10_000))) == 500
