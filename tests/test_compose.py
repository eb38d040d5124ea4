"""The compose file keeps its promises: pinned, limited, on loopback, and with every setting explained."""

import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tokenmill.app.settings import Settings

ROOT: Final = Path(__file__).parents[1]
TEXT: Final = (ROOT / "docker-compose.yml").read_text()
STACK: Final[dict[str, Any]] = yaml.safe_load(TEXT)
SERVICES: Final[dict[str, dict[str, Any]]] = STACK["services"]
EXAMPLE: Final = (ROOT / ".env.example").read_text()
PAGES: Final = "\n".join((ROOT / page).read_text() for page in ("docs/deploy.md", "README.md"))
REQUIRED: Final = re.findall(r"\$\{(\w+):\?[^}]+\}", TEXT)
"""Variables without which compose ends, saying what to do."""
OWN_COMMANDS: Final = re.compile(r"docker compose (?:[\w-]+ )*?(?:run --rm|exec -T) (?:--\S+ (?:\"[^\"]*\" )?)*(\w+)")


def example_settings() -> dict[str, str]:
    return dict(line.split("=", 1) for line in EXAMPLE.splitlines() if line and not line.startswith("#"))


def test_the_example_explains_every_variable_with_its_default() -> None:
    """What is copied to .env changes nothing, and nothing that can be set is missing there."""
    used = dict(re.findall(r"\$\{(\w+):-([^}]*)\}", TEXT))
    assert example_settings() == used | dict.fromkeys(REQUIRED, "")
    assert not re.search(r"\$\{\w+\}", TEXT), "a variable without a default"


def test_the_examples_settings_are_settings() -> None:
    variables = {name for name in SERVICES["mill"]["environment"] if name.startswith("TOKENMILL_")}
    assert {name.removeprefix("TOKENMILL_").lower() for name in variables} <= set(Settings.model_fields)
    values = {name.removeprefix("TOKENMILL_").lower(): value for name, value in example_settings().items()}
    Settings.model_validate({name: value for name, value in values.items() if name in Settings.model_fields})


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_pinned_limited_and_stripped(name: str) -> None:
    """Root file systems are read-only, but for that of Kafka, whose image writes its own configuration at its start."""
    service = SERVICES[name]
    assert re.search(r":(v?\d+\.\d+\.\d+\}|\$\{IMAGE_TAG:-dev\})$", service["image"])
    assert service["mem_limit"]
    assert service["cpus"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges"]
    assert service["restart"]
    assert "container_name" not in service
    assert name == "kafka" or service["read_only"] is True


@pytest.mark.parametrize("name", ["mill", "segments", "sequencer"])
def test_workers_are_watched_by_their_supervisor(name: str) -> None:
    assert SERVICES[name]["command"][0] == "serve"
    assert SERVICES[name]["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_published_on_loopback_only(name: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))


@pytest.mark.parametrize("variable", ["KAFKA_IMAGE", "PROMETHEUS_IMAGE", "GRAFANA_IMAGE", "PYTHON_IMAGE"])
def test_images_of_others_can_be_named_by_digest(variable: str) -> None:
    """Each by a variable of its own that is the whole name; all that is built here has the one base."""
    pinned = TEXT.replace(f"${{{variable}:-{example_settings()[variable]}}}", "other/name@sha256:0123")
    services = yaml.safe_load(pinned)["services"]
    bases = [service["build"]["args"]["PYTHON_IMAGE"] for service in services.values() if "build" in service]
    if variable == "PYTHON_IMAGE":
        assert bases == ["other/name@sha256:0123"] * 3
    else:
        assert services[variable.removesuffix("_IMAGE").lower()]["image"] == "other/name@sha256:0123"
    assert variable in PAGES


def test_grafana_has_no_password_that_everybody_knows(tmp_path: Path) -> None:
    """Compose refuses to start without one, and `make env` makes one, once, for its owner's eyes."""
    assert REQUIRED == ["GRAFANA_PASSWORD"]
    assert SERVICES["grafana"]["environment"]["GF_SECURITY_ADMIN_PASSWORD"].startswith("${GRAFANA_PASSWORD:?")
    made = []
    for name in ("one", "other"):
        directory = tmp_path / name
        directory.mkdir()
        (directory / ".env.example").write_text(EXAMPLE)
        make = ["make", "--silent", "--directory", str(directory), "--file", str(ROOT / "Makefile"), "env"]
        assert "is written" in subprocess.run(make, capture_output=True, text=True, check=True).stdout
        made.append((directory / ".env").read_text())
        assert "stays as it is" in subprocess.run(make, capture_output=True, text=True, check=True).stdout
        assert (directory / ".env").read_text() == made[-1]
        assert (directory / ".env").stat().st_mode & 0o077 == 0
        assert sorted(path.name for path in directory.iterdir()) == [".env", ".env.example"]
    passwords = re.findall(r"^GRAFANA_PASSWORD=([0-9a-f]{32})$", "".join(made), re.MULTILINE)
    assert len(set(passwords)) == 2
    assert [text.replace(password, "") for text, password in zip(made, passwords, strict=True)] == [EXAMPLE] * 2


def test_images_are_built_for_nobodys_root_and_without_secrets() -> None:
    """Each ends as user 10001; what a private index needs is mounted for one step, and nothing else is copied in."""
    text = (ROOT / "Dockerfile").read_text()
    stages = dict(re.findall(r"^FROM \S+ AS (\w+)\n(.*?)(?=^FROM |\Z)", text, re.MULTILINE | re.DOTALL))
    assert set(stages) >= {"tools", "train", "service"}
    for name in ("tools", "train", "service"):
        behind = stages[name].rpartition("\nRUN ")[2]
        assert re.findall(r"^USER (.*)$", behind, re.MULTILINE) == ["10001:10001"], name
        assert behind.index("\nUSER ") < behind.index("\nENTRYPOINT ")
    assert not re.findall(r"^(?:ARG|ENV) .*(?:PASSWORD|SECRET|TOKEN=|KEY)", text, re.MULTILINE)
    assert not re.findall(r"^(?:COPY|ADD) .*(?:pip\.conf|\.env|\.netrc| \. )", text, re.MULTILINE)
    steps = [step for stage in stages.values() for step in re.findall(r"(?ms)^RUN .*?(?<!\\)$", stage)]
    assert all("--mount=type=secret,id=pip.conf" in step for step in steps if "pip.conf" in step)
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert [line for line in ignored if line and not line.startswith(("#", "!"))] == ["*", "**/__pycache__"]


def test_the_stores_host_keeps_its_name() -> None:
    """A store is bound to its host: a container that takes the place of another must be the same one."""
    assert SERVICES["segments"]["hostname"] == "segments"


def test_the_image_is_made_of_the_lock_that_the_service_has() -> None:
    locks = ((ROOT / "requirements" / name).read_text() for name in ("service.txt", "checkout.txt"))
    ours, everything = (set(re.findall(r"^([\w.-]+)==([^ ;\\]+)", lock, re.MULTILINE)) for lock in locks)
    assert ours <= everything
    assert not {name for name, _ in ours} & {"torch", "pytest", "jgo"}


def test_the_pages_name_services_that_there_are() -> None:
    named = OWN_COMMANDS.findall(PAGES)
    assert len(named) > 5
    assert set(named) <= SERVICES.keys()
