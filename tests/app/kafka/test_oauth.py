"""Logins by OAUTHBEARER: tokens from an endpoint and from a function, kept, asked for again, and refused."""

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import pytest

from tests.secured import USER, Secured, TokenEndpoint, unsigned_token
from tokenmill.app.kafka.clients import admin
from tokenmill.app.kafka.oauth import KEPT_SHARE, Token, TokenError, TokenSource
from tokenmill.app.kafka.security import client_security, why_not
from tokenmill.app.settings import Settings, load_settings
from tokenmill.errors import BrokerError, SettingsError

WRONG = "ch4ff-not-grain"


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    with TokenEndpoint() as running:
        yield running


@pytest.fixture
def by_function(secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Settings]:
    """Return what gives settings whose tokens come from a function in the working directory, by its last line."""
    monkeypatch.chdir(tmp_path)
    module = f"login_{uuid4().hex}"  # a process imports a module once, and keeps the tokens of a function

    def by_function(line: str) -> Settings:
        (tmp_path / f"{module}.py").write_text(f"def token():\n    {line}\n")
        nobody: dict[str, Any] = {"sasl_username": None, "sasl_password": None, "sasl_mechanism": "OAUTHBEARER"}
        return secured.settings("SASL_SSL", **nobody, oauth_function=f"{module}:token")

    return by_function


async def brokers_of(settings: Settings) -> int:
    """Return how many brokers a client finds that logs in."""
    async with admin(settings) as client:
        return len((await client.describe_cluster())["brokers"])


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.cases(1)
async def test_a_client_logs_in_with_a_token_of_the_endpoint(
    secured: Secured, endpoint: TokenEndpoint, protocol: str
) -> None:
    """By client credentials, for the scope that is set; all clients of a process share the token."""
    settings = secured.settings(protocol, **endpoint.values)
    assert [await brokers_of(settings), await brokers_of(settings)] == [1, 1]
    assert endpoint.asked == ["grant_type=client_credentials&scope=mill"]


@pytest.mark.needs("minutes")
async def test_a_client_logs_in_with_a_token_of_a_function(by_function: Callable[[str], Settings]) -> None:
    assert await brokers_of(by_function(f"return {unsigned_token(USER, 3600)!r}, 3600")) == 1


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"sasl_password": WRONG}, 200, "gives miller no token .status 401, invalid_client.: correct oauth_token_url"),
        ({}, 503, "gives miller no token .status 503, temporarily_unavailable."),
        ({"oauth_token_url": "http://127.0.0.1:1/token"}, 200, "http://127.0.0.1:1/token does not answer .*look after"),
    ],
)
async def test_an_endpoint_that_gives_no_token_is_named(
    secured: Secured, endpoint: TokenEndpoint, changes: dict[str, Any], status: int, words: str
) -> None:
    """A person must mend what was refused; an endpoint that is away may come back; no secret is shown."""
    endpoint.status = status
    reason = await why_not(secured.settings("SASL_PLAINTEXT", **endpoint.values | changes))
    assert reason is not None
    assert isinstance(reason, SettingsError if status == 200 and "sasl_password" in changes else BrokerError)
    assert re.search(words, str(reason))
    assert WRONG not in str(reason)


async def test_a_token_that_the_broker_refuses_is_a_settings_error(by_function: Callable[[str], Settings]) -> None:
    settings = by_function(f"return {unsigned_token(USER, -600)!r}, 3600").model_copy(update={"wait_seconds": 5.0})
    with pytest.raises(SettingsError, match=r"refuses our token .*; correct who may log in there, .*oauth_function"):
        await brokers_of(settings)


@pytest.mark.needs("minutes")
async def test_a_function_that_fails_is_named_and_asked_again(by_function: Callable[[str], Settings]) -> None:
    """It may be a service of somebody else that is away."""
    settings = by_function("raise OSError('vault is sealed')")
    reason = await why_not(settings)
    assert isinstance(reason, BrokerError)
    assert f"{settings.oauth_function} gave no token (OSError: vault is sealed)" in str(reason)
    with pytest.raises(SettingsError, match="oauth_function nowhere:token cannot be imported"):
        client_security(settings.model_copy(update={"oauth_function": "nowhere:token"}))


def test_a_token_is_kept_for_most_of_its_time() -> None:
    """Threads and event loops share it; of a short one, each connection gets another."""
    source = TokenSource(Mock(side_effect=[Token("1", 3600.0), *(Token(name, 0.0) for name in "234")]))
    assert [asyncio.run(source.token()) for _ in range(3)] == ["1", "1", "1"]
    source._until -= KEPT_SHARE * 3600.0
    assert [asyncio.run(source.token()) for _ in range(3)] == ["2", "3", "4"]


def test_an_error_is_not_kept() -> None:
    source = TokenSource(Mock(side_effect=[TokenError("away", definite=False), Token("back", 60.0)]))
    with pytest.raises(TokenError):
        asyncio.run(source.token())
    assert asyncio.run(source.token()) == "back"


BASE: dict[str, object] = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}
URL = "https://login.example/token"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({}, "set either oauth_token_url or oauth_function"),
        ({"oauth_token_url": URL, "oauth_function": "a:b"}, "set either oauth_token_url or oauth_function"),
        ({"oauth_token_url": URL}, "sasl_username is not set: the login needs it"),
        ({"oauth_token_url": URL, "sasl_username": "me"}, "no password is set"),
        ({"oauth_function": "a:b", "sasl_username": "me"}, "sasl_username is set, and oauth_function says who logs in"),
        ({"oauth_function": "a:b", "oauth_scope": "x"}, "oauth_scope is set, and oauth_function says who logs in"),
        ({"sasl_mechanism": "PLAIN", "oauth_token_url": URL}, "oauth_token_url is set and sasl_mechanism is PLAIN"),
        ({"security_protocol": "PLAINTEXT", "sasl_mechanism": None, "oauth_scope": "x"}, "oauth_scope is set and"),
    ],
)
def test_combinations_that_cannot_work_are_refused(
    flags: dict[str, object], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=words):
        load_settings(BASE | flags)
