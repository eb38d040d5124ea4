"""How a schema registry is reached, where records name schemas: its address, TLS and a login."""

from typing import Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .values import OptionalPath, OptionalSecret, OptionalText


class RegistrySettings(BaseModel):
    """What the client of a registry that speaks Confluent's HTTP interface needs to know.

    None of it is part of a fingerprint: a registry may move. A combination of which a part would have no effect is
    refused, as those of brokers are.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_registry_url: OptionalText = Field(
        default=None,
        description="Address of the schema registry, http:// or https://, for decode = avro, protobuf and json_schema.",
    )
    schema_registry_username: OptionalText = Field(
        default=None, description="Who logs in there; with Confluent Cloud, an API key."
    )
    schema_registry_password: OptionalSecret = Field(
        default=None, description="Password of schema_registry_username; never a flag."
    )
    schema_registry_password_file: OptionalPath = Field(
        default=None, description="File that holds the password instead, as containers mount secrets."
    )
    schema_registry_cafile: OptionalPath = Field(
        default=None, description="PEM file of the authorities that vouch for the registry; not set: the system's."
    )
    schema_registry_certfile: OptionalPath = Field(
        default=None, description="PEM file of our own certificate, for a registry that wants one from its clients."
    )
    schema_registry_keyfile: OptionalPath = Field(
        default=None,
        description="PEM file of the key to that, not encrypted; not set: it is in the same file.",
    )

    @model_validator(mode="after")
    def _check_registry(self) -> Self:
        said = [name for name in RegistrySettings.model_fields if getattr(self, name) is not None]
        if self.schema_registry_url is None:
            if said:
                raise ValueError(f"{said[0]} is set without a registry: set schema_registry_url, or remove {said[0]}")
            return self
        address = urlsplit(self.schema_registry_url)
        if address.scheme not in {"http", "https"} or not address.hostname:
            raise ValueError("schema_registry_url is no address: write it like https://registry.example:8081")
        if address.username is not None or address.password is not None:
            raise ValueError(
                "schema_registry_url has a login in it, which logs would show: set schema_registry_username and "
                "schema_registry_password_file"
            )
        self._check_registry_login()
        tls = [name for name in said if name.endswith(("cafile", "certfile", "keyfile"))]
        if tls and address.scheme != "https":
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
