"""TLS and logins as clients take them, made from the settings; what the settings name is read when a client is made.

So a password or a certificate that was replaced on disk counts from a worker's next start on.
"""

import ssl
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from tokenmill.errors import SettingsError

from ..settings import ConnectionSettings, RegistrySettings


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
    return _password_in("sasl_password_file", settings.sasl_password_file)


def registry_login(settings: RegistrySettings) -> tuple[str, str] | None:
    """Return who logs in at the schema registry, and the password; None where nobody does.

    Raises:
        SettingsError: the file with the password cannot be read, or is empty.

    """
    if settings.schema_registry_username is None:
        return None
    if settings.schema_registry_password is not None:
        return settings.schema_registry_username, settings.schema_registry_password.get_secret_value()
    if settings.schema_registry_password_file is None:
        raise SettingsError("no password is set: set schema_registry_password_file, or schema_registry_password")
    path = settings.schema_registry_password_file
    return settings.schema_registry_username, _password_in("schema_registry_password_file", path)


def registry_ssl_context(settings: RegistrySettings) -> ssl.SSLContext:
    """Return what TLS is spoken with to the schema registry.

    Raises:
        SettingsError: a file cannot be read, is not PEM, or does not fit its key.

    """
    cafile = settings.schema_registry_cafile
    context = ssl.create_default_context(cadata=_authorities("schema_registry_cafile", cafile))
    if settings.schema_registry_certfile is not None:
        keyfile = settings.schema_registry_keyfile
        _load_certificate(context, "schema_registry_", settings.schema_registry_certfile, keyfile, None)
    return context


def _password_in(name: str, path: Path) -> str:
    try:
        found = _read(name, path).decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise SettingsError(f"{name} {path} is not UTF-8; write it again") from None
    if not found:
        raise SettingsError(f"{name} {path} is empty; write the password into it")
    return found


def ssl_context(settings: ConnectionSettings) -> ssl.SSLContext:
    """Return what TLS is spoken with: whom we believe, and who we are.

    Raises:
        SettingsError: a file cannot be read, is not PEM, or does not fit its key.

    """
    context = ssl.create_default_context(cadata=_authorities("ssl_cafile", settings.ssl_cafile))
    context.check_hostname = settings.ssl_check_hostname
    if settings.ssl_certfile is not None:
        secret = settings.ssl_keyfile_password
        _load_certificate(context, "ssl_", settings.ssl_certfile, settings.ssl_keyfile, secret)
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


def _load_certificate(
    context: ssl.SSLContext, prefix: str, certfile: Path, keyfile: Path | None, secret: SecretStr | None
) -> None:
    """Load our own certificate; ``prefix`` is that of the settings' names."""
    keyfile = keyfile or certfile
    encrypted = "an encrypted key needs ssl_keyfile_password" if prefix == "ssl_" else "the key must not be encrypted"
    for name, path in (("certfile", certfile), ("keyfile", keyfile)):
        _read(prefix + name, path)
    try:
        # A function, because without one OpenSSL asks at the terminal.
        context.load_cert_chain(certfile, keyfile, lambda: secret.get_secret_value() if secret else "")
    except (ssl.SSLError, ValueError) as error:
        raise SettingsError(
            f"cannot use {prefix}certfile {certfile} with the key in {keyfile} ({_reason(error)}): both must be PEM "
            f"and belong together, and {encrypted}"
        ) from None


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or str(error)
    return str(reason).replace("_", " ").lower()


def _read(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"cannot read {name} {path}: {error.strerror}; correct the path or its rights") from None
