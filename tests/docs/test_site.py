"""What the site and the SBOMs are made of; `make test-site` builds them."""

from collections import Counter

from docs.generators.sbom import packages, python_of_the_images
from docs.generators.site import ROOT, files_of_the_site, navigation


def test_every_page_is_in_the_navigation_once() -> None:
    there = {str(file.relative_to(ROOT)) for file in files_of_the_site() if file.suffix == ".md"}
    written = {str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")}
    assert Counter(navigation()) == Counter(there | written)


def test_no_page_needs_what_the_site_does_not_draw() -> None:
    pages = [file for file in files_of_the_site() if file.suffix == ".md"]
    assert [page for page in pages if "```mermaid" in page.read_text()] == []


def test_an_image_has_one_version_of_each_distribution_with_its_license() -> None:
    """That of its Python and of Linux; the other images have more than the service."""
    assert python_of_the_images() == "3.11"
    service, train = (list(packages(image)) for image in ("service", "train"))
    assert {"faust-streaming", "numpy", "tokenizers"} < {one.name for one in service}
    assert len(service) == len({one.name for one in service})
    assert not {"colorama", "torch", "pytest"} & {one.name for one in service}
    assert all(one.license for one in train)
    assert set(service) < set(train)
    assert "torch" in {one.name for one in train}
