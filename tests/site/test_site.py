"""Pages as a browser gets them: no link leads nowhere, and nothing is asked of another server."""

import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import pytest

from docs.generators.sbom import IMAGES
from docs.generators.site import ROOT, navigation

pytestmark = pytest.mark.site

SITE: Final = ROOT / "build/site/html"


class Page(HTMLParser):
    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.names: set[str] = set()
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = {name: value or "" for name, value in attrs}
        self.names |= {said.get("id", "")}
        if "src" in said or tag == "link":
            self.loads.append(said.get("src") or said["href"])
        elif "href" in said:
            self.links.append(said["href"])


@pytest.fixture(scope="module")
def pages() -> dict[Path, Page]:
    return {file: Page(file) for file in SITE.rglob("*.html") if file.name != "404.html"}


def inside(file: Path, addresses: list[str]) -> Iterator[tuple[Path, str]]:
    for address in addresses:
        parts = urlsplit(address)
        if not parts.scheme:
            yield (file.parent / unquote(parts.path)).resolve() if parts.path else file, unquote(parts.fragment)


def test_every_page_of_the_navigation_is_there(pages: dict[Path, Page]) -> None:
    listed = [Path(page).with_suffix(".html") for page in navigation()]
    assert {SITE / page.with_name(page.name.replace("README", "index")) for page in listed} == set(pages)


def test_every_link_and_picture_leads_somewhere(pages: dict[Path, Page]) -> None:
    lost = [
        (str(file.relative_to(SITE)), str(to), place)
        for file, page in pages.items()
        for to, place in inside(file, page.links + page.loads)
        if not ((to / "index.html" if to.is_dir() else to).exists())
        or (place and to in pages and place not in pages[to].names)
    ]
    assert lost == []


def test_no_page_loads_anything_from_elsewhere(pages: dict[Path, Page]) -> None:
    assert [(file, load) for file, page in pages.items() for load in page.loads if urlsplit(load).netloc] == []


@pytest.mark.parametrize("image", IMAGES)
def test_an_sbom_names_what_an_image_installs(image: str) -> None:
    made = json.loads((ROOT / f"build/sbom/{image}.cdx.json").read_text())
    assert made["specVersion"] == "1.6"
    assert {"faust-streaming", "numpy"} < {one["name"] for one in made["components"]}
    assert all(one["licenses"] for one in made["components"])
    edges = {one["ref"]: one.get("dependsOn", []) for one in made["dependencies"]}
    assert set(edges[made["metadata"]["component"]["bom-ref"]]) == {one["bom-ref"] for one in made["components"]}
