"""How every client reaches the brokers: addresses, TLS and a login, under the names that Kafka has for them."""

from collections.abc import Iterable
from typing import Annotated, Final, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator

from .registry import RegistrySettings
from .values import OptionalPath, OptionalSecret, OptionalText, empty_is_none

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
OptionalMechanism = Annotated[Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None, BeforeValidator(empty_is_none)]


class ConnectionSettings(BaseModel):
    """What a client needs to know of the brokers; nothing here decides a token.

    A combination of which a part would have no effect is refused: it is a mistake, and here one that may send a
    password unencrypted.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    bootstrap_servers: str = Field(
        default="127.0.0.1:9092",
        min_length=1,
        description="Addresses of Kafka brokers, host:port, separated by commas.",
    )
    security_protocol: Protocol = Field(
        default="PLAINTEXT",
        description="How brokers are spoken to: SSL encrypts, SASL logs in; SASL_PLAINTEXT logs in unencrypted.",
    )
    sasl_mechanism: OptionalMechanism = Field(
        default=None, description="How to log in with a SASL protocol: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512."
    )
    sasl_username: OptionalText = Field(default=None, description="Who logs in.")
    sasl_password: OptionalSecret = Field(default=None, description="Password of sasl_username; never a flag.")
    sasl_password_file: OptionalPath = Field(
        default=None, description="File that holds the password instead, as containers mount secrets."
    )
    ssl_cafile: OptionalPath = Field(
        default=None, description="PEM file of the authorities that vouch for brokers; not set: the system's."
    )
    ssl_check_hostname: bool = Field(
        default=True, description="Whether a broker's certificate must be for the address that was asked for."
    )
    ssl_certfile: OptionalPath = Field(
        default=None, description="PEM file of our own certificate, for brokers that want one from their clients."
    )
    ssl_keyfile: OptionalPath = Field(
        default=None, description="PEM file of the key to ssl_certfile; not set: it is in ssl_certfile."
    )
    ssl_keyfile_password: OptionalSecret = Field(
        default=None, description="Password of an encrypted key; never a flag."
    )

    @property
    def logs_in(self) -> bool:
        """Whether the protocol is one with a login."""
        return self.security_protocol.startswith("SASL_")

    @property
    def encrypts(self) -> bool:
        """Whether the protocol is one with TLS."""
        return self.security_protocol.endswith("SSL")

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        here = f"security_protocol is {self.security_protocol}"
        if self.logs_in:
            self._check_login(here)
        elif useless := self._said("sasl_"):
            raise ValueError(f"{useless} is set and {here}, which logs nobody in: set SASL_SSL, or remove {useless}")
        if not self.encrypts and (useless := self._said("ssl_")):
            wanted = "SASL_SSL" if self.logs_in else "SSL"
            raise ValueError(f"{useless} is set and {here}, without TLS: set {wanted}, or remove {useless}")
        if self.ssl_certfile is None and (useless := self._said("ssl_key")):
            raise ValueError(f"{useless} is set without the certificate that it belongs to: set ssl_certfile")
        return self

    def _check_login(self, here: str) -> None:
        for name in ("sasl_mechanism", "sasl_username"):
            if getattr(self, name) is None:
                raise ValueError(f"{here}, and {name} is not set: the login needs it")
        passwords = [name for name in ("sasl_password", "sasl_password_file") if getattr(self, name) is not None]
        if not passwords:
            raise ValueError(f"{here}, and no password is set: set sasl_password_file, or sasl_password")
        if len(passwords) > 1:
            raise ValueError("sasl_password and sasl_password_file are both set: remove one")

    def _said(self, prefix: str) -> str | None:
        """Return the first setting with this prefix that is not at its default."""
        fields = ConnectionSettings.model_fields
        return next(
            (name for name in fields if name.startswith(prefix) and getattr(self, name) != fields[name].default), None
        )


def _secret(groups: Iterable[type[BaseModel]]) -> frozenset[str]:
    fields = {name: field for group in groups for name, field in group.model_fields.items()}
    return frozenset(name for name, field in fields.items() if SecretStr in get_args(field.annotation))


SECRETS: Final = _secret((ConnectionSettings, RegistrySettings))
"""Settings whose values are shown to nobody, and are no flags: everyone on a machine can read its command lines."""
