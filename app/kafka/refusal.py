"""Why brokers refuse us. aiokafka only logs it; here it becomes an error that names the setting to check."""

import asyncio
import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from aiokafka.conn import AIOKafkaConnection, collect_hosts
from aiokafka.errors import (
    IllegalSaslStateError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka.protocol.metadata import MetadataRequest

from tokenmill.errors import BrokerError, ClockError, SettingsError, TokenMillError

from ..settings import ConnectionSettings
from .security import client_security

ASK_SECONDS: Final = 15.0
"""How long one broker may take to refuse us; it takes half a second, and more where there is no processor to be had."""
WRONG_NAME: Final = frozenset({62, 64})
"""X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH of OpenSSL's x509_vfy.h."""
_ABOUT_US: Final = re.compile("ALERT.*(CERT|UNKNOWN_CA)")
"""Reasons of OpenSSL by which the other side says that it does not believe us (RFC 8446, section 6.2)."""


async def why_not(settings: ConnectionSettings) -> TokenMillError | None:
    """Ask each broker once and return why it refuses us; None where none of them says anything.

    A `SettingsError` needs a person; a `BrokerError` may pass, for a broker that stops closes
    connections as well.
    """
    found: list[TokenMillError] = []
    for host, port, _ in collect_hosts(settings.bootstrap_servers):
        try:
            async with asyncio.timeout(ASK_SECONDS):
                await _ask(settings, host, port)
        except (OSError, KafkaError) as error:  # TimeoutError is an OSError
            reason = explain_refusal(error, settings, f"{host}:{port}")
            found += [reason] if reason is not None else []
    hopeless = (reason for reason in found if isinstance(reason, SettingsError))
    return next(hopeless, found[0] if found else None)


async def _ask(settings: ConnectionSettings, host: str, port: int) -> None:
    """Connect, log in, and ask for what any client asks first: some refusals come only then."""
    connection = AIOKafkaConnection(host, port, **client_security(settings))
    try:
        await connection.connect()
        await connection.send(MetadataRequest([]))
    finally:
        connection.close()


def explain_refusal(error: BaseException, settings: ConnectionSettings, address: str) -> TokenMillError | None:
    """Return what an attempt to connect to a broker that ended with ``error`` means; None if nobody is there."""
    for cause in _causes(error):
        if words := _about(cause, settings, address):
            return SettingsError(words)
    if isinstance(error, TimeoutError | ConnectionRefusedError) or _never_connected(error):
        return None
    return BrokerError(
        f"something listens at {address} and closes our connections: either the broker is stopping, or it wants "
        f"another security_protocol than {settings.security_protocol}"
    )


def refused_time(topic: str = "") -> ClockError:
    """Return the error for records that brokers do not take because of their time, which is now."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return ClockError(
        f"the brokers refuse the time of records for {f'topic {topic}' if topic else 'a topic'}: this machine's clock "
        f"says {now}, too far from theirs. Set the clocks (does NTP run, here and there?), or let the brokers set the "
        "time: message.timestamp.type=LogAppendTime on the topic"
    )


def _about(cause: BaseException, settings: ConnectionSettings, address: str) -> str | None:
    """Return words for what only a person can correct; None for all else."""
    if isinstance(cause, ssl.SSLCertVerificationError):
        return _about_its_certificate(cause, settings, address)
    if isinstance(cause, ssl.SSLError) and _ABOUT_US.search(cause.reason or ""):
        return _about_our_certificate(cause, settings, address)
    if isinstance(cause, SaslAuthenticationFailed):
        return _about_the_login(cause, settings, address)
    if isinstance(cause, UnsupportedSaslMechanismError):
        return f"the broker at {address} does not know sasl_mechanism {settings.sasl_mechanism}; set another one"
    if isinstance(cause, IllegalSaslStateError):
        return (
            f"the broker at {address} takes no logins, and security_protocol is {settings.security_protocol}; "
            "set it to PLAINTEXT or SSL, or bootstrap_servers to a listener that does"
        )
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _never_connected(error: BaseException) -> bool:
    """Return whether it ended before TCP did its work: no such host, no route."""
    return isinstance(error, OSError) and not isinstance(error, ConnectionError | ssl.SSLError)


def _about_its_certificate(error: ssl.SSLCertVerificationError, settings: ConnectionSettings, address: str) -> str:
    said = f"the certificate of the broker at {address} is not believed ({error.verify_message.rstrip('.')}): "
    if error.verify_code in WRONG_NAME:
        return (
            f"{said}set bootstrap_servers to a name that it is for; ssl_check_hostname = false does without the check"
        )
    known = f"the authorities in {settings.ssl_cafile}" if settings.ssl_cafile else "the system's authorities"
    return f"{said}{known} did not sign it; set ssl_cafile to the file of those that did"


def _about_our_certificate(error: ssl.SSLError, settings: ConnectionSettings, address: str) -> str:
    said = str(error.reason).lower().replace("_", " ")
    if settings.ssl_certfile is None:
        return f"the broker at {address} wants a certificate of its clients ({said}); set ssl_certfile and ssl_keyfile"
    return (
        f"the broker at {address} refuses our certificate {settings.ssl_certfile} ({said}); set ssl_certfile and "
        "ssl_keyfile to one that it trusts"
    )


def _about_the_login(error: SaslAuthenticationFailed, settings: ConnectionSettings, address: str) -> str:
    where = (
        "sasl_password" if settings.sasl_password is not None else f"sasl_password_file {settings.sasl_password_file}"
    )
    return (
        f"the broker at {address} refuses the login of {settings.sasl_username} by {settings.sasl_mechanism} "
        f"({error.args[0]}); correct sasl_username, {where}, or sasl_mechanism"
    )
