"""TLS and logins as clients take them, and why brokers refuse us: an error that names the setting to check.

A client reads what the settings name when it is made: a password that was replaced on disk counts from the next start
on.
"""

import asyncio
import re
import ssl
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from aiokafka.conn import AIOKafkaConnection, collect_hosts
from aiokafka.errors import IllegalSaslStateError, KafkaError, SaslAuthenticationFailed, UnsupportedSaslMechanismError
from aiokafka.protocol.metadata import MetadataRequest
from pydantic import SecretStr

from tokenmill.errors import BrokerError, ClockError, SettingsError, TokenMillError

from ..settings import ConnectionSettings, Settings
from ..settings.model import RegistrySettings
from .oauth import TokenError, TokenSource, token_source

UNENCRYPTED: Final = "the key must not be encrypted"


def client_security(settings: ConnectionSettings) -> dict[str, Any]:
    """Return the keyword arguments by which an aiokafka client encrypts and logs in."""
    options: dict[str, Any] = {"security_protocol": settings.security_protocol}
    if settings.encrypts:
        options["ssl_context"] = ssl_context(settings)
    if settings.logs_in:
        options["sasl_mechanism"] = settings.sasl_mechanism
        if settings.sasl_mechanism == "OAUTHBEARER":
            options["sasl_oauth_token_provider"] = login_tokens(settings)
        else:
            options["sasl_plain_username"] = settings.sasl_username
            options["sasl_plain_password"] = password(settings, "sasl")
    return options


def login_tokens(settings: ConnectionSettings) -> TokenSource:
    """Return where tokens for OAUTHBEARER come from."""
    return token_source(settings, None if settings.sasl_username is None else password(settings, "sasl"))


def password(settings: ConnectionSettings | RegistrySettings, prefix: str) -> str:
    """Return the password of a login, by the settings that begin with ``prefix``; of a file without the line end."""
    name = f"{prefix}_password"
    secret, path = getattr(settings, name), getattr(settings, f"{name}_file")
    if secret is not None:
        return str(secret.get_secret_value())
    if path is None:
        raise SettingsError(f"no password is set: set {name}_file, or {name}")
    try:
        found = _read(f"{name}_file", path).decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise SettingsError(f"{name}_file {path} is not UTF-8; write it again") from None
    if not found:
        raise SettingsError(f"{name}_file {path} is empty; write the password into it")
    return found


def ssl_context(settings: ConnectionSettings | RegistrySettings, prefix: str = "ssl_") -> ssl.SSLContext:
    """Return what TLS is spoken with: whom we believe, and who we are, by the settings that begin with ``prefix``."""
    cafile, certfile, keyfile, secret = (
        getattr(settings, prefix + name, None) for name in ("cafile", "certfile", "keyfile", "keyfile_password")
    )
    context = ssl.create_default_context(cadata=_authorities(f"{prefix}cafile", cafile))
    context.check_hostname = getattr(settings, f"{prefix}check_hostname", True)
    if certfile is not None:
        advice = "an encrypted key needs ssl_keyfile_password" if prefix == "ssl_" else UNENCRYPTED
        files = {f"{prefix}certfile": certfile, f"{prefix}keyfile": keyfile or certfile}
        load_certificate(context, files, advice, secret)
    return context


def _authorities(name: str, cafile: Path | None) -> str | None:
    if cafile is None:
        return None
    content = _read(name, cafile).decode("ascii", "backslashreplace")
    if not content.strip():  # which Python takes for none, and then believes whom the system does
        raise SettingsError(f"{name} {cafile} is empty; set another")
    try:
        ssl.create_default_context(cadata=content)
    except (ssl.SSLError, ValueError) as error:
        raise SettingsError(f"{name} {cafile} holds no certificates in PEM ({_reason(error)}); set another") from None
    return content


def load_certificate(
    context: ssl.SSLContext, files: Mapping[str, Path], advice: str = UNENCRYPTED, secret: SecretStr | None = None
) -> None:
    """Load our certificate and its key from the files of two settings, by their names; ``advice`` is on keys."""
    for name, path in files.items():
        _read(name, path)
    (name, certfile), (_, keyfile) = files.items()
    try:
        # A function, because without one OpenSSL asks at the terminal.
        context.load_cert_chain(certfile, keyfile, lambda: secret.get_secret_value() if secret else "")
    except (ssl.SSLError, ValueError) as error:
        raise SettingsError(
            f"cannot use {name} {certfile} with the key in {keyfile} ({_reason(error)}): both must be PEM "
            f"and belong together, and {advice}"
        ) from None


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error).replace("_", " ").lower()


def _read(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"cannot read {name} {path}: {error.strerror}; correct the path or its rights") from None


WRONG_NAME: Final = frozenset({62, 64})
"""X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH of OpenSSL's x509_vfy.h."""
_ABOUT_US: Final = re.compile("ALERT.*(CERT|UNKNOWN_CA)")
"""Reasons of OpenSSL by which the other side says that it does not believe us (RFC 8446, section 6.2)."""


async def why_not(settings: ConnectionSettings) -> TokenMillError | None:
    """Return why brokers refuse us, None where none says: a `SettingsError` before a `BrokerError`, which may pass."""
    found: list[TokenMillError] = []
    for host, port, _ in collect_hosts(settings.bootstrap_servers):
        try:
            async with asyncio.timeout(15.0):  # a refusal takes half a second, and more where there is no processor
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
        answer = await connection.send(MetadataRequest([]))
        if settings.sasl_mechanism == "OAUTHBEARER" and not answer.brokers:
            # aiokafka takes a broker's refusal of a token (RFC 7628, section 3.2.3) for the end of the login
            raise SaslAuthenticationFailed("it names no brokers to us")
    finally:
        connection.close()


def explain_refusal(error: BaseException, settings: ConnectionSettings, address: str) -> TokenMillError | None:
    """Return what an attempt to connect to a broker that ended with ``error`` means; None: no broker is there."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, TokenError):
            return SettingsError(cause.words) if cause.definite else BrokerError(cause.words)
        if words := _about(cause, settings, address):
            return SettingsError(words)
        cause = cause.__cause__ or cause.__context__
    connected = isinstance(error, ConnectionError | ssl.SSLError) or not isinstance(error, OSError)
    if isinstance(error, TimeoutError | ConnectionRefusedError) or not connected:  # no such host, no route
        return None
    return BrokerError(
        f"something listens at {address} and closes our connections: either the broker is stopping, or it wants "
        f"another security_protocol than {settings.security_protocol}"
    )


def refused_time(topic: str = "", more: str = "") -> ClockError:
    """Return the error for records that brokers do not take because of their time, which is now."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    where = f"topic {topic}" if topic else "a topic"
    return ClockError(
        f"the brokers refuse the time of records for {where}{more and f' ({more})'}: this machine's clock "
        f"says {now}, too far from theirs. Set the clocks (does NTP run, here and there?), or let the brokers set the "
        "time: message.timestamp.type=LogAppendTime on the topic"
    )


def _about(cause: BaseException, settings: ConnectionSettings, address: str) -> str | None:
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


def _about_its_certificate(error: ssl.SSLCertVerificationError, settings: ConnectionSettings, address: str) -> str:
    known = f"the authorities in {settings.ssl_cafile}" if settings.ssl_cafile else "the system's authorities"
    advice = f"{known} did not sign it; set ssl_cafile to the file of those that did"
    if error.verify_code in WRONG_NAME:
        advice = "set bootstrap_servers to a name that it is for; ssl_check_hostname = false does without the check"
    return f"the certificate of the broker at {address} is not believed ({error.verify_message.rstrip('.')}): {advice}"


def _about_our_certificate(error: ssl.SSLError, settings: ConnectionSettings, address: str) -> str:
    said = _reason(error)
    if settings.ssl_certfile is None:
        return f"the broker at {address} wants a certificate of its clients ({said}); set ssl_certfile and ssl_keyfile"
    return (
        f"the broker at {address} refuses our certificate {settings.ssl_certfile} ({said}); set ssl_certfile and "
        "ssl_keyfile to one that it trusts"
    )


def _about_the_login(error: SaslAuthenticationFailed, settings: ConnectionSettings, address: str) -> str:
    if settings.sasl_mechanism == "OAUTHBEARER":
        return (
            f"the broker at {address} refuses our token ({error.args[0]}); correct who may log in there, its clock, or "
            f"{'oauth_function' if settings.oauth_function else 'oauth_token_url and oauth_scope'}"
        )
    file = f"sasl_password_file {settings.sasl_password_file}"
    where = file if settings.sasl_password is None else "sasl_password"
    return (
        f"the broker at {address} refuses the login of {settings.sasl_username} by {settings.sasl_mechanism} "
        f"({error.args[0]}); correct sasl_username, {where}, or sasl_mechanism"
    )


_CERTIFICATE: Final = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_VERSION: Final = 0xA0
"""The tag of the only part that a certificate may lack, of those before its times (RFC 5280, 4.1)."""
_UTC_TIME: Final = 0x17
"""The tag of a time whose year has two digits."""


def certificate_ends(settings: Settings) -> dict[str, float]:
    """Return for each setting that names certificates when these end, in seconds since 1970.

    Of a chain of ours the first end counts, of authorities the last. A file that cannot be read is left out. Files are
    read here, because Python's ssl says it of the other side's certificate, and of authorities; not of one's own.
    """
    found = {}
    for name in Settings.model_fields:
        path = getattr(settings, name) if name.endswith(("_certfile", "_cafile", "_certificate")) else None
        if path is not None:
            with suppress(OSError, ValueError, IndexError):  # ValueError also where it holds none
                certificates = _CERTIFICATE.findall(path.read_text("ascii", "replace"))
                ends = [_end(ssl.PEM_cert_to_DER_cert(one)) for one in certificates]
                found[name] = (max if name.endswith("_cafile") else min)(ends)
    return found


def _end(der: bytes) -> float:
    """Return when a certificate ends; raises ValueError or IndexError where it is none."""
    signed = _parts(_parts(der)[0][1])[0][1]
    _, _, _, (_, times), *_ = (part for part in _parts(signed) if part[0] != _VERSION)
    kind, said = _parts(times)[1]
    form = "%y%m%d%H%M%SZ" if kind == _UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(said.decode("ascii"), form).replace(tzinfo=UTC).timestamp()


def _parts(der: bytes) -> list[tuple[int, bytes]]:
    """Return tag and content of each part of what DER puts together."""
    found, at = [], 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:  # the length of the length
            size = length & 0x7F
            length, at = int.from_bytes(der[at : at + size], "big"), at + size
        found.append((tag, der[at : at + length]))
        at += length
    return found
