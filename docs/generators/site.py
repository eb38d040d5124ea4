"""The pages of the site in folders as the repository has them, so that their links hold: ``make site`` builds them."""

import re
import shutil
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
CONFIG: Final = ROOT / "mkdocs.yml"
ASSETS: Final = ("docs/site.css",)
"""What no page links to."""
_LINK: Final = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
_CODE: Final = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_ENTRY: Final = re.compile(r"^ +- [^:\n]+: (\S+\.md)$", re.MULTILINE)


def navigation() -> list[str]:
    """Return the pages that the configuration names, in its order."""
    return _ENTRY.findall(CONFIG.read_text())


def files_of_the_site() -> set[Path]:
    """Return all pages of the navigation, and what they link to in the repository.

    Raises:
        FileNotFoundError: a page of the navigation, or what a page links to, is not there.

    """
    waiting = {ROOT / name for name in (*ASSETS, *navigation())}
    found: set[Path] = set()
    while waiting:
        file = waiting.pop()
        found.add(file)
        if file.suffix == ".md":
            waiting |= _linked_from(file) - found
    return found


def stage(folder: Path) -> None:
    """Fill a folder, which is emptied before, with the configuration and a copy of all files."""
    shutil.rmtree(folder, ignore_errors=True)
    for file in files_of_the_site():
        place = folder / "pages" / file.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)
    shutil.copyfile(CONFIG, folder / CONFIG.name)


def _linked_from(page: Path) -> set[Path]:
    links = _LINK.findall(_CODE.sub("", page.read_text()))
    found = {(page.parent / link).resolve() for link in links}
    if missing := [file for file in found if not file.is_file()]:
        raise FileNotFoundError(f"{page.relative_to(ROOT)} links to what is not there: {missing[0]}")
    return found


if __name__ == "__main__":
    stage(Path(sys.argv[1]))
