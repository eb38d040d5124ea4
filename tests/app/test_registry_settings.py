"""Settings of the schema registry: combinations that cannot be meant, and secrets."""

from typing import Any

import pytest

from tests.app.commands import invoke
from tokenmill.app.settings import Settings, load_settings
from tokenmill.errors import SettingsError

URL = "https://registry.example:8081"
LOGIN = {"schema_registry_url": URL, "schema_registry_username": "miller"}


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"schema_registry_username": "miller"}, "without a registry: set schema_registry_url"),
        ({"schema_registry_url": "registry.example:8081"}, "is no address"),
        ({"schema_registry_url": "ftp://registry.example"}, "is no address"),
        ({"schema_registry_url": "https://"}, "is no address"),
        ({"schema_registry_url": "https://registry.example:port"}, "is no address"),
        ({"schema_registry_url": "https://registry example"}, "is no address"),
        ({"schema_registry_url": "https://registry.example:65536"}, "is no address"),
        ({"schema_registry_url": "https://registry.example:0"}, "is no address"),
        ({"schema_registry_url": "https://miller:gr1st@registry.example"}, "has a login"),
        ({"schema_registry_url": "HTTPS://:gr1st@registry.example"}, "has a login"),
        ({"schema_registry_url": "https://gr1st@registry.example"}, "has a login"),
        ({"schema_registry_url": "https://registry.example?api_key=gr1st"}, "has a login, a query"),
        ({"schema_registry_url": "https://registry.example#token=gr1st"}, "has a login, a query or a fragment"),
        (LOGIN, "without a password"),
        ({"schema_registry_url": URL, "schema_registry_password": "gr1st"}, "without a name"),
        ({**LOGIN, "schema_registry_password": "gr1st", "schema_registry_password_file": "a"}, "remove one"),
        ({"schema_registry_url": "http://registry.example", "schema_registry_cafile": "a"}, "without TLS"),
        ({"schema_registry_url": URL, "schema_registry_keyfile": "a"}, "without its certificate"),
    ],
)
def test_what_would_have_no_effect_is_refused(values: dict[str, Any], part: str) -> None:
    with pytest.raises(SettingsError, match=part) as raised:
        load_settings(values)
    assert "gr1st" not in str(raised.value)


@pytest.mark.parametrize("scheme", ["HTTPS://", "Https://", " https://", "hTtPs://"])
def test_an_address_has_one_spelling(scheme: str) -> None:
    """It is read once: what decides on TLS, what connects and what logs say is the same."""
    url = f"{scheme}Registry.Example:8081/apis/ccompat/v7/"
    settings = load_settings({"schema_registry_url": url, "schema_registry_cafile": "a"})
    assert settings.schema_registry_url == "https://registry.example:8081/apis/ccompat/v7"


@pytest.mark.parametrize(
    "values",
    [
        {"schema_registry_url": "http://localhost:8081/apis/ccompat/v7"},
        {**LOGIN, "schema_registry_password": "gr1st"},
        {**LOGIN, "schema_registry_password_file": "a", "schema_registry_cafile": "b", "schema_registry_certfile": "c"},
    ],
)
def test_a_process_gets_what_its_parent_has(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings(values)
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    assert load_settings() == settings
    assert "gr1st" not in repr(settings)
    assert settings.at("127.0.0.1:1").schema_registry_url == settings.schema_registry_url


def test_registry_changes_no_fingerprint() -> None:
    """It may move; no topic has one of its own."""
    with pytest.raises(SettingsError, match="schema_registry_url holds for all topics"):
        load_settings({"topic": {"raw-text": {"schema_registry_url": URL}}})
    assert Settings(schema_registry_url=URL).for_topic("raw-text") == Settings().for_topic("raw-text")


def test_produce_refuses_a_topic_of_framed_values() -> None:
    """What it would send had no frame, and every record would be a dead letter."""
    told = invoke("produce", "raw-text", "README.md", "--decode", "avro", code=SettingsError.exit_code)
    assert "give them a raw topic of their own" in told.err
