"""Tokens for logins by OAUTHBEARER: from a token endpoint, by client credentials, or from a function.

aiokafka does not log in again on a connection that is open (KIP-368), so a broker ends each one when its token does,
and the next one asks here. Records that were on their way are sent again, as after any other lost connection.
"""

import asyncio
import os
import time
from collections.abc import Callable
from functools import cache
from threading import Lock
from typing import Any, Final, NamedTuple

from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError

from tokenmill.errors import SettingsError, missing_extra

from ..milling.foreign_code import import_own
from ..settings import ConnectionSettings

KEPT_SHARE: Final = 0.8
"""Of its time, a token is used for new connections: the broker's clock may be ahead of ours."""
OK: Final = 200
REFUSALS: Final = frozenset({400, 401, 403})
"""RFC 6749, section 5.2: what the endpoint answers to a wrong client, secret or scope."""


class Token(NamedTuple):
    """A token and for how long it holds."""

    value: str
    seconds: float


class TokenError(KafkaConnectionError):  # type: ignore[misc]  # untyped there
    """No token was to be had, so there is no connection: clients try again."""

    def __init__(self, words: str, *, definite: bool = False) -> None:
        super().__init__(words)
        self.words = words
        self.definite = definite
        """Whether only a person can help."""


class TokenSource(AbstractTokenProvider):  # type: ignore[misc]  # untyped there
    """Gives clients one token until most of its time is over; may be used from several threads and event loops."""

    def __init__(self, ask: Callable[[], Token]) -> None:
        self._ask = ask
        self._lock = Lock()
        self._token, self._until = "", 0.0

    async def token(self) -> str:
        """Return a token that holds. Raises TokenError where none is to be had."""
        return await asyncio.to_thread(self._current)

    def _current(self) -> str:
        with self._lock:
            if time.monotonic() >= self._until:
                asked = time.monotonic()
                self._token, seconds = self._ask()
                self._until = asked + KEPT_SHARE * seconds
            return self._token


def token_source(settings: ConnectionSettings, secret: str | None) -> TokenSource:
    """Return the source of tokens that settings with ``sasl_mechanism`` OAUTHBEARER ask for, the same for the same."""
    if settings.oauth_function is not None:
        return _by_function(settings.oauth_function)
    return _by_credentials(str(settings.oauth_token_url), settings.sasl_username, secret, settings.oauth_scope)


@cache
def _by_function(path: str) -> TokenSource:
    try:
        function = import_own(path)
    except Exception as error:
        raise SettingsError(f"oauth_function {path} cannot be imported ({error}): correct it") from error

    def ask() -> Token:
        try:
            value, seconds = function()
            return Token(str(value), float(seconds))
        except Exception as error:
            raise TokenError(
                f"oauth_function {path} gave no token ({type(error).__name__}: {error}): it must return a token and "
                "the seconds for which it holds"
            ) from error

    return TokenSource(ask)


@cache
def _by_credentials(url: str, client: str, secret: str, scope: str | None) -> TokenSource:
    try:
        import httpx  # noqa: PLC0415 - of an extra
    except ModuleNotFoundError as error:
        raise SettingsError(f"oauth_token_url cannot be asked: {missing_extra('httpx')}") from error
    form = {"grant_type": "client_credentials"} | ({"scope": scope} if scope else {})

    def ask() -> Token:
        try:
            answer = httpx.post(url, data=form, auth=(client, secret), timeout=10.0)  # endpoints take a second
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            said = str(error) or type(error).__name__
            raise TokenError(f"{url} does not answer ({said}): look after it, or set oauth_token_url") from error
        return _answered(url, client, answer)

    return TokenSource(ask)


def _answered(url: str, client: str, answer: Any) -> Token:
    """Return the token of an answer (RFC 6749, section 5.1)."""
    try:
        found = answer.json()
        if answer.status_code == OK:
            return Token(str(found["access_token"]), float(found.get("expires_in", 0.0)))
        why = str(found["error"])[:200]
    except (ValueError, TypeError, KeyError, AttributeError):
        why = "not what token endpoints answer"
    raise TokenError(
        f"{url} gives {client} no token (status {answer.status_code}, {why}): correct oauth_token_url, sasl_username, "
        "the password, or oauth_scope",
        definite=answer.status_code in REFUSALS,
    )


def aws_msk_iam() -> tuple[str, float]:
    """Return a token for AWS MSK with IAM, in the region and with the credentials that AWS's tools would take."""
    import boto3  # noqa: PLC0415 - comes with the signer, of an extra
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider  # noqa: PLC0415

    region = os.environ.get("AWS_REGION") or boto3.session.Session().region_name
    if not region:
        raise ValueError("no region is known: set AWS_REGION")
    value, until = MSKAuthTokenProvider.generate_auth_token(region)
    return value, until / 1000 - time.time()
