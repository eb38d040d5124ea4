"""How clients reach brokers and a schema registry: addresses, TLS and a login, named as Kafka names them."""

import re
from typing import Annotated, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from .values import OptionalAddress, OptionalPath, OptionalSecret, OptionalText, empty_is_none


class RegistrySettings(BaseModel):
    """What the client of a registry that speaks Confluent's HTTP interface needs to know.

    None of it is part of a fingerprint: a registry may move. A combination of which a part would have no effect is
    refused, as those of brokers are.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    schema_registry_url: OptionalAddress = None
    """Address of the schema registry, http:// or https://, for decode = avro, protobuf and json_schema."""
    schema_registry_username: OptionalText = None
    """Who logs in there; with Confluent Cloud, an API key."""
    schema_registry_password: OptionalSecret = None
    """Password of schema_registry_username; never a flag."""
    schema_registry_password_file: OptionalPath = None
    """File that holds the password instead, as containers mount secrets."""
    schema_registry_cafile: OptionalPath = None
    """PEM file of the authorities that vouch for the registry; not set: the system's."""
    schema_registry_certfile: OptionalPath = None
    """PEM file of our own certificate, for a registry that wants one from its clients."""
    schema_registry_keyfile: OptionalPath = None
    """PEM file of the key to that, not encrypted; not set: it is in the same file."""

    @model_validator(mode="after")
    def _check_registry(self) -> Self:
        said = [name for name in RegistrySettings.model_fields if getattr(self, name) is not None]
        if self.schema_registry_url is None:
            if said:
                raise ValueError(f"{said[0]} is set without a registry: set schema_registry_url, or remove {said[0]}")
            return self
        self._check_registry_login()
        tls = [name for name in said if name.endswith(("cafile", "certfile", "keyfile"))]
        if tls and not self.schema_registry_url.startswith("https://"):
            raise ValueError(f"{tls[0]} is set and schema_registry_url is without TLS: write https://, or remove it")
        if self.schema_registry_keyfile is not None and self.schema_registry_certfile is None:
            raise ValueError("schema_registry_keyfile is set without its certificate: set schema_registry_certfile")
        return self

    def _check_registry_login(self) -> None:
        passwords = [self.schema_registry_password, self.schema_registry_password_file]
        given = sum(password is not None for password in passwords)
        if given > 1:
            raise ValueError("schema_registry_password and schema_registry_password_file are both set: remove one")
        if given and self.schema_registry_username is None:
            raise ValueError("a password is set without a name: set schema_registry_username")
        if self.schema_registry_username is not None and not given:
            raise ValueError(
                "schema_registry_username is set without a password: set schema_registry_password_file, or "
                "schema_registry_password"
            )


Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
OptionalMechanism = Annotated[Mechanism | None, BeforeValidator(empty_is_none)]


def _without_scheme(given: object) -> object:
    """Return addresses without the ``kafka://`` or ``PLAINTEXT://`` that other programs write before them."""
    return re.sub(r"(?i)(^|,)\s*(?:kafka|plaintext)://", r"\1", given) if isinstance(given, str) else given


class ConnectionSettings(BaseModel):
    """What a client needs to know of the brokers; nothing here decides a token.

    A combination of which a part would have no effect is refused: it is a mistake, and here one that may send a
    password unencrypted.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    bootstrap_servers: Annotated[str, BeforeValidator(_without_scheme)] = Field(default="127.0.0.1:9092", min_length=1)
    """Addresses of Kafka brokers, host:port, separated by commas."""
    security_protocol: Protocol = "PLAINTEXT"
    """How brokers are spoken to: SSL encrypts, SASL logs in; SASL_PLAINTEXT logs in unencrypted."""
    sasl_mechanism: OptionalMechanism = Field(
        default=None, description="How to log in with a SASL protocol: one of " + ", ".join(get_args(Mechanism)) + "."
    )
    sasl_username: OptionalText = None
    """Who logs in; with oauth_token_url, the client's id."""
    sasl_password: OptionalSecret = None
    """Password of sasl_username; never a flag."""
    sasl_password_file: OptionalPath = None
    """File that holds the password instead, as containers mount secrets."""
    oauth_token_url: OptionalAddress = None
    """Token endpoint for OAUTHBEARER by client credentials: sasl_username is the client, the password its secret."""
    oauth_scope: OptionalText = None
    """Scope that is asked for at oauth_token_url."""
    oauth_function: OptionalText = None
    """module:function that returns a token for OAUTHBEARER and the seconds for which it holds; for AWS MSK
    tokenmill.app.kafka.oauth:aws_msk_iam."""
    ssl_cafile: OptionalPath = None
    """PEM file of the authorities that vouch for brokers; not set: the system's."""
    ssl_check_hostname: bool = True
    """Whether a broker's certificate must be for the address that was asked for."""
    ssl_certfile: OptionalPath = None
    """PEM file of our own certificate, for brokers that want one from their clients."""
    ssl_keyfile: OptionalPath = None
    """PEM file of the key to ssl_certfile; not set: it is in ssl_certfile."""
    ssl_keyfile_password: OptionalSecret = None
    """Password of an encrypted key; never a flag."""

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
        elif useless := self._said("sasl_") or self._said("oauth_"):
            raise ValueError(f"{useless} is set and {here}, which has no login: set SASL_SSL, or remove {useless}")
        if not self.encrypts and (useless := self._said("ssl_")):
            wanted = "SASL_SSL" if self.logs_in else "SSL"
            raise ValueError(f"{useless} is set and {here}, without TLS: set {wanted}, or remove {useless}")
        if self.ssl_certfile is None and (useless := self._said("ssl_key")):
            raise ValueError(f"{useless} is set without the certificate that it belongs to: set ssl_certfile")
        return self

    def _check_login(self, here: str) -> None:
        if self.sasl_mechanism is None:
            raise ValueError(f"{here}, and sasl_mechanism is not set: the login needs it")
        if self.sasl_mechanism == "OAUTHBEARER":
            if (self.oauth_token_url is None) == (self.oauth_function is None):
                raise ValueError("sasl_mechanism is OAUTHBEARER: set either oauth_token_url or oauth_function")
            if self.oauth_function is not None:
                if useless := self._said("sasl_user") or self._said("sasl_pass") or self._said("oauth_scope"):
                    raise ValueError(f"{useless} is set, and oauth_function says who logs in: remove one")
                return
        elif useless := self._said("oauth_"):
            raise ValueError(
                f"{useless} is set and sasl_mechanism is {self.sasl_mechanism}: set OAUTHBEARER, or remove it"
            )
        if self.sasl_username is None:
            raise ValueError(f"{here}, and sasl_username is not set: the login needs it")
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
