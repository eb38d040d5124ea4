"""Settings that reach the brokers: which go together, how secrets are kept, and how they are handed on."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tokenmill.app.local.local_state import LocalState
from tokenmill.app.settings import SECRETS, ConnectionSettings, Settings, load_settings
from tokenmill.app.settings.values import as_variable
from tokenmill.errors import SettingsError

pytestmark = pytest.mark.usefixtures("nothing_around")

LOGIN: dict[str, Any] = {
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "SCRAM-SHA-256",
    "sasl_username": "miller",
    "sasl_password": "gr1st",
}


def refusal(**flags: object) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(flags)
    return str(caught.value)


def test_passwords_are_the_secrets() -> None:
    """Found by their type, so that the next one is not forgotten."""
    assert {"sasl_password", "ssl_keyfile_password", "schema_registry_password", "http_token"} == SECRETS
    assert {name for name in Settings.model_fields if re.search("(password|_token)$", name)} == SECRETS


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sasl_mechanism": None}, "sasl_mechanism is not set: the login needs it"),
        ({"sasl_username": None}, "sasl_username is not set: the login needs it"),
        ({"sasl_password": None}, "no password is set: set sasl_password_file, or sasl_password"),
        ({"sasl_password_file": "file"}, "sasl_password and sasl_password_file are both set: remove one"),
        ({"security_protocol": "SSL"}, "sasl_mechanism is set and security_protocol is SSL, which has no login"),
        (
            {"security_protocol": "SASL_PLAINTEXT", "ssl_cafile": "ca.pem"},
            "ssl_cafile is set and security_protocol is SASL_PLAINTEXT, without TLS: set SASL_SSL, or remove",
        ),
        (
            {"security_protocol": "SASL_PLAINTEXT", "ssl_check_hostname": "false"},
            "ssl_check_hostname is set and security_protocol is SASL_PLAINTEXT, without TLS",
        ),
        ({"ssl_keyfile": "key.pem"}, "ssl_keyfile is set without the certificate that it belongs to: set ssl_certfile"),
        ({"ssl_keyfile_password": "x"}, "ssl_keyfile_password is set without the certificate"),
        ({"security_protocol": "sasl-ssl"}, "(did you mean SASL_SSL?)"),
        ({"sasl_mechanism": "SCRAM_SHA_256"}, "(did you mean SCRAM-SHA-256?)"),
        ({"sasl_mechanism": "GSSAPI"}, "Input should be 'PLAIN', 'SCRAM-SHA-256', 'SCRAM-SHA-512' or 'OAUTHBEARER'"),
    ],
)
def test_combinations_that_cannot_work_are_refused(changes: dict[str, object], words: str) -> None:
    message = refusal(**(LOGIN | changes))
    assert words in message
    assert "gr1st" not in message


def test_a_password_without_login_is_refused() -> None:
    """Else a forgotten protocol would speak in plain text and nobody would notice."""
    assert "sasl_password is set and security_protocol is PLAINTEXT" in refusal(sasl_password="gr1st")  # noqa: S106


def test_a_contradiction_says_where_both_were_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable and a file contradict each other more often than two lines of one file."""
    Path("tokenmill.toml").write_text('security_protocol = "SSL"')
    monkeypatch.setenv("TOKENMILL_SASL_USERNAME", "miller")
    assert refusal().endswith(
        "(sasl_username: variable TOKENMILL_SASL_USERNAME, security_protocol: file tokenmill.toml)"
    )


@pytest.mark.parametrize("value", ["sasl_password = 12345", "sasl_password = ['gr1st']"])
def test_a_wrong_password_setting_is_named_and_not_shown(value: str) -> None:
    Path("tokenmill.toml").write_text(value)
    message = refusal()
    assert message.startswith("setting sasl_password (file tokenmill.toml): ")
    assert "gr1st" not in message
    assert "12345" not in message


def test_nothing_that_is_printed_holds_the_password() -> None:
    settings = load_settings(LOGIN)
    shown = (repr(settings), str(settings), settings.model_dump_json(), as_variable(settings.sasl_password))
    assert not [text for text in shown if "gr1st" in text]
    assert json.loads(settings.model_dump_json())["sasl_password"] == "*" * 10


def test_the_environment_hands_passwords_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers log in too; a password in a file stays in the file."""
    certificate: dict[str, Any] = {"ssl_certfile": "a", "ssl_keyfile_password": " with spaces,\nand lines "}
    for settings in (
        Settings(**LOGIN, **certificate, ssl_check_hostname=False),
        Settings(**(LOGIN | {"sasl_password": None}), sasl_password_file=Path("secret")),
    ):
        for name, value in settings.environment().items():
            monkeypatch.setenv(name, value)
        assert load_settings() == settings
    assert settings.environment()["TOKENMILL_SASL_PASSWORD"] == ""


def test_saved_settings_hold_no_password_and_are_their_owners_alone(tmp_path: Path) -> None:
    state = LocalState(tmp_path)
    state.settings_file.write_text("old")
    state.settings_file.chmod(0o644)
    state.save(Settings(**LOGIN))
    assert "gr1st" not in state.settings_file.read_text()
    assert state.settings_file.stat().st_mode & 0o777 == 0o600


def test_a_local_broker_is_spoken_to_in_plain_text() -> None:
    """`up` starts one, whatever is said for the cluster; all other settings stay."""
    settings = Settings(**LOGIN, ssl_cafile=Path("ca.pem"), workers=7).at("127.0.0.1:1234")
    found = {name: getattr(settings, name) for name in ConnectionSettings.model_fields}
    assert found == ConnectionSettings(bootstrap_servers="127.0.0.1:1234").model_dump()
    assert settings.workers == 7


def test_brokers_may_be_written_with_the_scheme_of_other_programs() -> None:
    found = ConnectionSettings(bootstrap_servers="kafka://a:9092, KAFKA://b:9092,c:9092")
    assert found.bootstrap_servers == "a:9092,b:9092,c:9092"


@pytest.mark.parametrize("servers", ["", ",", "a:b", "a:0", "a:99999", "a:1;b:2", "a:1 b:2", "http://a:1"])
def test_what_is_no_address_is_not_taken_for_brokers_that_do_not_answer(servers: str) -> None:
    with pytest.raises(ValidationError, match=r"write (it|one) like kafka-1:9092"):
        ConnectionSettings(bootstrap_servers=servers)


@pytest.mark.parametrize("servers", ["a", "a:1,b_c:2", "::1", "[::1]:9092,[fe80::1%eth0]:1"])
def test_addresses_are_taken_as_clients_of_kafka_take_them(servers: str) -> None:
    assert ConnectionSettings(bootstrap_servers=f" {servers} , ").bootstrap_servers == servers
