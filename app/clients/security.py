"""TLS and logins as clients take them, made from the settings; what the settings name is read when a client is made.

So a password or a certificate that was replaced on disk counts from a worker's next start on.
"""

import ssl
from pathlib import Path
from typing import Any

from tokenmill.errors import SettingsError

from ..settings import ConnectionSettings


def client_security(settings: ConnectionSettings) -> dict[str, Any]:
    """Return the keyword arguments by which an aiokafka client encrypts and logs in.

    Raises:
        SettingsError: a file that a setting names cannot be used.

    """
    options: dict[str, Any] = {"security_protocol": settings.security_protocol}
    if settings.encrypts:
        options["ssl_context"] = ssl_context(settings)
    if settings.logs_in:
        options["sasl_mechanism"] = settings.sasl_mechanism
        options["sasl_plain_username"] = settings.sasl_username
        options["sasl_plain_password"] = password(settings)
    return options


def password(settings: ConnectionSettings) -> str:
    """Return the password of ``sasl_username``; of a file without the line end that editors put there.

    Raises:
        SettingsError: the file cannot be read, or is empty.

    """
    if settings.sasl_password is not None:
        return settings.sasl_password.get_secret_value()
    if settings.sasl_password_file is None:
        raise SettingsError("no password is set: set sasl_password_file, or sasl_password")
    content = _read("sasl_password_file", settings.sasl_password_file)
    try:
        found = content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise SettingsError(f"sasl_password_file {settings.sasl_password_file} is not UTF-8; write it anew") from None
    if not found:
        raise SettingsError(f"sasl_password_file {settings.sasl_password_file} is empty; write the password into it")
    return found


def ssl_context(settings: ConnectionSettings) -> ssl.SSLContext:
    """Return what TLS is spoken with: whom we believe, and who we are.

    Raises:
        SettingsError: a file cannot be read, is not PEM, or does not fit its key.

    """
    context = ssl.create_default_context(cadata=_authorities(settings.ssl_cafile))
    context.check_hostname = settings.ssl_check_hostname
    if settings.ssl_certfile is not None:
        _load_certificate(context, settings, settings.ssl_certfile)
    return context


def _authorities(cafile: Path | None) -> str | None:
    if cafile is None:
        return None
    content = _read("ssl_cafile", cafile).decode("ascii", "replace")
    try:
        ssl.create_default_context(cadata=content)
    except (ssl.SSLError, ValueError) as error:
        raise SettingsError(
            f"ssl_cafile {cafile} holds no certificates in PEM ({_reason(error)}); set another"
        ) from None
    return content


def _load_certificate(context: ssl.SSLContext, settings: ConnectionSettings, certfile: Path) -> None:
    keyfile = settings.ssl_keyfile or certfile
    for name, path in (("ssl_certfile", certfile), ("ssl_keyfile", keyfile)):
        _read(name, path)
    secret = settings.ssl_keyfile_password
    try:
        # A function, because without one OpenSSL asks at the terminal.
        context.load_cert_chain(certfile, keyfile, lambda: secret.get_secret_value() if secret else "")
    except (ssl.SSLError, ValueError) as error:
        raise SettingsError(
            f"cannot use ssl_certfile {certfile} with the key in {keyfile} ({_reason(error)}): both must be PEM and "
            "belong together, and an encrypted key needs ssl_keyfile_password"
        ) from None


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or str(error)
    return str(reason).replace("_", " ").lower()


def _read(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"cannot read {name} {path}: {error.strerror}; correct the path or its rights") from None
