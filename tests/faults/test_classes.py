"""Every fault class has a test, or a reason why none is needed."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.faults.trial import CLASSES
from tests.simulation.test_eras import ERA_RULES
from tests.simulation.test_rules import RULES
from tests.simulation.test_verdicts import NEEDED

NOT_APPLICABLE: Final[dict[str, str]] = {}
"""Class and reason, as docs/reliability.md has it."""
ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = (ROOT / "tests" / "faults", ROOT / "tests" / "simulation")


def test_every_class_is_tested() -> None:
    """A name in the table without a test would be a promise that nothing holds."""
    tested = {name for folder in FOLDERS for path in folder.rglob("test_*.py") for name in marked(path)}
    assert tested <= CLASSES.keys()
    assert tested | NOT_APPLICABLE.keys() == CLASSES.keys()


def test_page_tells_of_every_class() -> None:
    """With the same words, in the same order."""
    page = (ROOT / "docs" / "reliability.md").read_text()
    assert re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", page, re.MULTILINE) == list(CLASSES.items())


def test_page_tells_of_every_rule() -> None:
    """Of chains, of eras and of verdicts, with the violations that its absence was seen to make."""
    page = (ROOT / "docs" / "reliability.md").read_text()
    told = re.findall(
        r"^\| ([a-z].+) \| [\d,]+ \|$", page.partition("## Simulation")[2].partition("\n## ")[0], re.MULTILINE
    )
    verdicts = [f"{rule} (*losses*)" if losses else rule for rule, losses, _ in NEEDED]
    assert sorted(told) == sorted([*(rule.name for rule in (*RULES, *ERA_RULES)), *verdicts])


def test_page_names_tests_that_exist() -> None:
    """A test, or a file of tests; what holds a bug must not be renamed away."""
    named = set(re.findall(r"`(test_[a-z_0-9]+)`", (ROOT / "docs" / "reliability.md").read_text()))
    files = list((ROOT / "tests").rglob("test_*.py"))
    there = {path.stem for path in files}
    there |= {name for path in files for name in re.findall(r"def (test_\w+)", path.read_text())}
    assert named
    assert named <= there


def marked(path: Path) -> Iterator[str]:
    """Yield the classes that the tests of a file name (``pytest.mark.fault(...)``)."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.fault":
            for argument in node.args:
                name = ast.literal_eval(argument)
                assert isinstance(name, str), f"{path}: a class is named by a string"
                yield name
