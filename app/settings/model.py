"""Every setting: its name, type, default, and one line that help and documentation repeat; where values come from."""

import os
import re
import tomllib
from collections import ChainMap
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, TypeAlias, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)

from tokenmill.documents import Limits
from tokenmill.errors import SettingsError, nearest
from tokenmill.packings import CONCAT, PackingParameters, packing_parameters

from ..milling.duplicates.signatures import canonical_dedup, recipe_dedup
from ..milling.splits import SplitRule, division
from ..milling.tokenizers import EngineName, SpecialTokens, TemplateName, text_limit_of
from . import values as kinds


class RegistrySettings(BaseModel):
    """What a client of a registry with Confluent's HTTP interface needs; in no fingerprint, for a registry may move."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    schema_registry_url: kinds.OptionalAddress = None
    """Address of the schema registry, http:// or https://, for decode = avro, protobuf and json_schema."""
    schema_registry_username: kinds.OptionalText = None
    """Who logs in there; with Confluent Cloud, an API key."""
    schema_registry_password: kinds.OptionalSecret = None
    """Password of schema_registry_username; never a flag."""
    schema_registry_password_file: kinds.OptionalPath = None
    """File that holds the password instead, as containers mount secrets."""
    schema_registry_cafile: kinds.OptionalPath = None
    """PEM file of the authorities that vouch for the registry; not set: the system's."""
    schema_registry_certfile: kinds.OptionalPath = None
    """PEM file of our own certificate, for a registry that wants one from its clients."""
    schema_registry_keyfile: kinds.OptionalPath = None
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
OptionalMechanism = Annotated[Mechanism | None, BeforeValidator(kinds.empty_is_none)]


def _without_scheme(given: object) -> object:
    """Return addresses without the ``kafka://`` or ``PLAINTEXT://`` that other programs write before them."""
    return re.sub(r"(?i)(^|,)\s*(?:kafka|plaintext)://", r"\1", given) if isinstance(given, str) else given


Servers = Annotated[str, BeforeValidator(_without_scheme), AfterValidator(kinds.check_servers)]


class ConnectionSettings(BaseModel):
    """What a client needs to know of the brokers; nothing here decides a token.

    A combination of which a part would have no effect is refused: it may send a password unencrypted.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    bootstrap_servers: Servers = "127.0.0.1:9092"
    """Addresses of Kafka brokers, host:port, separated by commas."""
    security_protocol: Protocol = "PLAINTEXT"
    """How brokers are spoken to: SSL encrypts, SASL logs in; SASL_PLAINTEXT logs in unencrypted."""
    sasl_mechanism: OptionalMechanism = Field(
        default=None, description="How to log in with a SASL protocol: one of " + ", ".join(get_args(Mechanism)) + "."
    )
    sasl_username: kinds.OptionalText = None
    """Who logs in; with oauth_token_url, the client's id."""
    sasl_password: kinds.OptionalSecret = None
    """Password of sasl_username; never a flag."""
    sasl_password_file: kinds.OptionalPath = None
    """File that holds the password instead, as containers mount secrets."""
    oauth_token_url: kinds.OptionalAddress = None
    """Token endpoint for OAUTHBEARER by client credentials: sasl_username is the client, the password its secret."""
    oauth_scope: kinds.OptionalText = None
    """Scope that is asked for at oauth_token_url."""
    oauth_function: kinds.OptionalText = None
    """module:function that returns a token for OAUTHBEARER and the seconds for which it holds; for AWS MSK
    tokenmill.app.kafka.oauth:aws_msk_iam."""
    ssl_cafile: kinds.OptionalPath = None
    """PEM file of the authorities that vouch for brokers; not set: the system's."""
    ssl_check_hostname: bool = True
    """Whether a broker's certificate must be for the address that was asked for."""
    ssl_certfile: kinds.OptionalPath = None
    """PEM file of our own certificate, for brokers that want one from their clients."""
    ssl_keyfile: kinds.OptionalPath = None
    """PEM file of the key to ssl_certfile; not set: it is in ssl_certfile."""
    ssl_keyfile_password: kinds.OptionalSecret = None
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
        fields = ConnectionSettings.model_fields
        return next(
            (name for name in fields if name.startswith(prefix) and getattr(self, name) != fields[name].default), None
        )


ENVIRONMENT_PREFIX: Final = "TOKENMILL_"
MAX_TOPIC_NAME: Final = 249
"""Longest topic name (org.apache.kafka.common.internals.Topic): a log's directory must fit a file name of 255."""
MIB: Final = 1024 * 1024


class TopicSettings(BaseModel):
    """What decides the tokens of one raw topic's streams. A changed value needs a new stream name."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    tokenizer: str = ""
    """Path of a tokenizer.json, a name on the Hugging Face hub (hf://owner/model@revision pins one), or 'bytes'."""
    end_of_document: kinds.Token = None
    """Token, or its id, that ends each document; tokenizer: what its own post-processor puts there; none. Not set: the
    one that its files name, else the special token of a usual name, as <|endoftext|>."""
    begin_of_document: kinds.Token = None
    """Token, or its id, that begins each document; tokenizer: what its own post-processor puts there; none, or not set:
    no token."""
    template: TemplateName = "none"
    """tokenizer: documents have around them what the tokenizer's post-processor puts there, as [CLS] and [SEP], and
    nothing else that is not set."""
    padding: kinds.Token = None
    """Token, or its id, that a flush fills blocks with. Not set: the one that ends each document; where none does, the
    tokenizer's own for padding."""
    special_tokens_in_text: SpecialTokens = "text"
    """What <|endoftext|> and its like are inside a text: text as any other, or tokens, for texts whose markup is yours
    alone: whoever writes a document can then write its end."""
    sequence_length: kinds.Whole = Field(default=1024, ge=1)
    """Tokens that a model reads at a time; a block has one more. Of rows it is the row, of chunks a segment."""
    packing: kinds.Packing = CONCAT
    """How documents become blocks: concat (one after the other, cut where a block ends), fit (whole, never cut where
    they fit), rows (one a row), chunks (long ones, in order); or a table with a name and parameters, as {name = "rows",
    long = "drop"}."""
    decode: kinds.Decode = "auto"
    """What a record is: a JSON object (json), plain text (text), either (auto), what your own function makes of its
    bytes (module:function), or a value whose schema a registry has (avro, protobuf, json_schema)."""
    text_fields: kinds.Names = Field(default=("text", "content"), min_length=1)
    """Fields of a JSON object that may hold the text, or paths to them, as payload.after.body; first one wins."""
    id_field: str = Field(default="id", min_length=1)
    """Field of a JSON object that holds the document's id, or a path to it."""
    metadata_fields: kinds.Names = ()
    """Fields, or paths to them, that travel with the tokens, for example label,meta.lang."""
    max_text_bytes: kinds.OptionalSize = Field(default=None, ge=1)
    """Longest text (UTF-8); a longer one is dead-lettered, and so is one that normalizing makes longer than this (or
    1.5 MiB, if that is more). Not set: 1.5 MiB with a tokenizer file, which may take 300 times as much memory; 4 MiB
    with 'bytes'."""
    max_id_bytes: kinds.Size = 128
    """Longest id, as JSON spells it (UTF-8, escapes counted, no quotes); a longer one is dead-lettered."""
    max_fields_bytes: kinds.Size = 256
    """Most bytes (JSON) of carried fields; more are dead-lettered."""
    normalize: Literal["none", "NFC", "NFD", "NFKC", "NFKD"] = "none"
    """Unicode normal form of text."""
    min_chars: kinds.Whole = Field(default=0, ge=0)
    """Filters shorter texts out, in characters; 0 keeps all but empty ones."""
    function: kinds.OptionalText = None
    """A pure function of your own, as module:function, that changes or filters each document."""
    steps: kinds.Steps = ()
    """Filters and changes of documents, in order, after function: tables [[steps]], or names of profiles and steps, as
    fineweb-2024 (`tokenmill steps list`)."""
    dedup: kinds.Dedup = "none"
    """Filters out documents that were seen before, of all partitions and splits: exact (the same text), near (most of
    the same runs of words too), or a table with a name and parameters, as {name = "near", window = 1000000}
    (`tokenmill dedup explain`)."""
    shards: kinds.OptionalNumber = Field(default=None, ge=1)
    """Parts into which a hash divides the documents; splits own ranges. Not set: the sum of splits."""
    splits: kinds.Splits = Field(default={"train": 980, "validation": 20})
    """Name and share of each split, in order: 98 and 2 are per cent. _unused, last: in no split."""
    split_by: Literal["id", "content"] = "id"
    """What decides a document's split; no id: its text."""
    start: kinds.Start = "earliest"
    """Where new streams begin: earliest, or a moment with a time zone."""
    allow_flush: bool = True
    """Whether a flush fills open blocks with padding. Whoever may write to the raw topic may flush: false where those
    are not trusted; a flush is a tombstone then."""
    stream_suffix: str = ""
    """Ends the names of the streams: what new settings need, as -v2."""
    segment_blocks: kinds.Whole = Field(default=32768, ge=1)
    """Blocks in one file of a store: 67 MB of 1,025 two-byte tokens each. Larger files are read faster, and sealed
    later."""
    era_blocks: kinds.Whole = Field(default=8192, ge=1)
    """New blocks that close an era: what is shuffled together, and trainable at once."""
    era_max_seconds: kinds.Number = Field(default=60.0, gt=0)
    """Seconds after which an era is closed, however few blocks it has."""

    @model_validator(mode="after")
    def _check_splits_and_packing(self) -> Self:
        self.split_rule()  # refuses what cannot be kept
        try:
            _ = self.block_tokens
        except ValueError as error:
            raise ValueError(f"packing {self.packing_name}: {error}") from None
        return self

    def split_rule(self) -> SplitRule:
        """Return how documents are divided; raises SettingsError where sizes do not add up, or a split cannot be."""
        return SplitRule(*division(self.shards, self.splits), self.split_by)

    @property
    def block_tokens(self) -> int:
        """Token ids in one block."""
        return self.packing_values.block_tokens(self.sequence_length)

    @property
    def packing_name(self) -> str:
        """The name of the packing."""
        return self.packing if isinstance(self.packing, str) else str(self.packing["name"])

    @property
    def packing_parameters(self) -> dict[str, Any]:
        """The parameters of the packing that have not their default."""
        return {} if isinstance(self.packing, str) else {k: v for k, v in self.packing.items() if k != "name"}

    @property
    def packing_values(self) -> PackingParameters:
        """The parameters of the packing, all of them."""
        return packing_parameters(self.packing_name, self.packing_parameters)

    @property
    def dedup_table(self) -> dict[str, Any]:
        """What a recipe has of ``dedup``; empty where duplicates are kept."""
        return recipe_dedup(canonical_dedup(self.dedup))

    @property
    def limits(self) -> Limits:
        """How long parts of a document may be, as the recipe of the topic's streams will say it."""
        return Limits(self.max_text_bytes or text_limit_of(self.tokenizer), self.max_id_bytes, self.max_fields_bytes)

    @property
    def start_milliseconds(self) -> int | None:
        """Unix milliseconds from which records count, None for all that are there."""
        return None if self.start == kinds.EARLIEST else round(datetime.fromisoformat(self.start).timestamp() * 1000)

    def require_tokenizer(self) -> str:
        """Return the tokenizer's path or name. Raises SettingsError: none is set."""
        if not self.tokenizer:
            raise SettingsError(
                "no tokenizer is set: set tokenizer to a tokenizer.json (`tokenmill train-tokenizer` makes one), "
                "a name on the Hugging Face hub, or 'bytes'"
            )
        return self.tokenizer


class Settings(TopicSettings, RegistrySettings, ConnectionSettings):
    """All settings. The constructor takes what it is given and reads nothing else; `load_settings` reads all layers."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)

    raw_topics: kinds.TopicNames = ("raw-text",)
    """Topics whose records are milled."""
    store: kinds.HomePath = Path("store")
    """Directory of the segments, on a disk of this machine."""
    max_record_bytes: kinds.Size = Field(default=16 * MIB, ge=1)
    """Largest raw record: limit of raw topics when created, and of what produce sends."""
    message_bytes: kinds.Size = Field(default=MIB, ge=1)
    """Size at which a message of blocks is sent; more at once where brokers take long to acknowledge."""
    workers: kinds.Whole = Field(default=2, ge=1)
    """Mill workers that `serve` and `up` start."""
    carry_bytes: kinds.Size = Field(default=64 * MIB, ge=1)
    """Source read without a finished block before a carry."""
    carry_seconds: kinds.Number = Field(default=60.0, gt=0)
    """Time without a finished block before a carry."""
    rejects: Literal["none", "topic"] = "none"
    """topic: what a step filters out is also sent to <raw topic>.rejected, with its reason."""
    engine: EngineName = "auto"
    """What makes the ids: tokenizers, or (auto) gigatoken where it gives the same; then often compared."""
    tokenizer_threads: kinds.Whole = Field(default=1, ge=1)
    """Threads of one worker's tokenizer."""
    group: str = Field(default="tokenmill", min_length=1)
    """Consumer group of the mill; stores add their own id."""
    session_timeout: kinds.Number = Field(default=10.0, ge=1, le=1800)
    """Seconds until Kafka takes a silent worker's partitions away; most brokers allow 6 to 1800."""
    wait_seconds: kinds.Number = Field(default=0.0, ge=0)
    """Seconds that a command waits at its start for a broker and for topics; 0: fail at once."""
    replication_factor: kinds.Whole = Field(default=-1, ge=-1)
    """Copies that Kafka keeps of a topic that is created; -1: the broker's default."""
    metrics_host: str = Field(default="127.0.0.1", min_length=1)
    """Address that serves the page for people (/), /api/status, /metrics, /healthz and /readyz."""
    metrics_port: kinds.Whole = Field(default=9464, ge=0, le=65535)
    """Its port; 0 serves nothing. Of a supervisor and its workers, the supervisor alone serves."""
    http_token: kinds.OptionalSecret = None
    """Who asks there must send it (Authorization: Bearer), but for the probes; never a flag."""
    http_tls_certificate: kinds.OptionalPath = None
    """PEM file of a certificate with its chain: all of it is served by https alone, the probes, too."""
    http_tls_key: kinds.OptionalPath = None
    """PEM file of the key to that, not encrypted; not set: it is in the same file."""
    trainers: kinds.Addresses = ()
    """Where trainers serve their metrics, as host:port; the page for people asks them and shows who trains."""
    log_format: Literal["auto", "json", "console"] = "auto"
    """How log lines look; auto: for people on a terminal, else JSON."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least important line logged."""
    topic: kinds.Tables = Field(default={})
    """Values of one raw topic that differ, as the table [topic."name"]."""

    @model_validator(mode="after")
    def _check_tls_and_topics(self) -> Self:
        if self.http_tls_key is not None and self.http_tls_certificate is None:
            raise ValueError("http_tls_key is set without its certificate: set http_tls_certificate")
        for raw_topic, values in self.topic.items():
            if raw_topic not in self.raw_topics:
                raise ValueError(
                    f'[topic."{raw_topic}"] is not in raw_topics{nearest(raw_topic, self.raw_topics)}: '
                    f"add it there, or remove the table"
                )
            for name in values:
                if name not in TopicSettings.model_fields:
                    why = "holds for all topics" if name in Settings.model_fields else "is no setting"
                    raise ValueError(f'[topic."{raw_topic}"] {name} {why}{nearest(name, TopicSettings.model_fields)}')
            try:
                self.for_topic(raw_topic)
            except ValidationError as error:
                raise ValueError(f'[topic."{raw_topic}"] {explain(error)}') from None
        self._check_names()
        return self

    def _check_names(self) -> None:
        uses = (str, kinds.dead_letter_topic, kinds.produced_topic, kinds.rejected_topic)
        names = [name(raw) for raw in self.raw_topics for name in uses]
        for stream in self.streams():
            kinds.check_topic_name(stream.name)
            names += [stream.tokens_topic, stream.control_topic]
        for domain in self.domains():
            kinds.check_topic_name(domain.name)
            names += [domain.signatures_topic, domain.slices_topic, *map(domain.verdicts_topic, domain.raw_topics)]
        longest = max(names, key=len)
        if len(longest) > MAX_TOPIC_NAME:
            raise ValueError(f"topic name {longest!r} is too long for Kafka: shorten the raw topic's or domain's name")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"topic {twice[0]} would have two uses: list a raw topic once, or rename one or a split")

    def for_topic(self, raw_topic: str) -> TopicSettings:
        """Return what decides the tokens of ``raw_topic``: its own table's values, else those for all topics."""
        values: dict[str, object] = {name: getattr(self, name) for name in TopicSettings.model_fields}
        return TopicSettings.model_validate(values | self.topic.get(raw_topic, {}))

    def streams(self) -> list[kinds.Stream]:
        """Return all streams, by raw topic and split in the order of the settings."""
        return [
            kinds.Stream(f"{raw_topic}.{split}{own.stream_suffix}", raw_topic, split)
            for raw_topic in self.raw_topics
            for own in (self.for_topic(raw_topic),)
            for split in own.split_rule().splits
        ]

    def domains(self) -> list[kinds.Domain]:
        """Return the domains in which the settings look for duplicates, by their names."""
        found: dict[str, kinds.Domain] = {}
        for raw_topic in self.raw_topics:
            own = self.for_topic(raw_topic)
            if table := own.dedup_table:
                name = f"{table.get('domain', raw_topic)}{own.stream_suffix}"
                domain = found.get(name, kinds.Domain(name, (), own.stream_suffix, table))
                if (domain.suffix, domain.dedup) != (own.stream_suffix, table):
                    raise ValueError(
                        f"the topics {', '.join(domain.raw_topics)} and {raw_topic} are of one domain, {name!r}: give "
                        "them the same dedup and stream_suffix"
                    )
                found[name] = domain._replace(raw_topics=(*domain.raw_topics, raw_topic))
        return [found[name] for name in sorted(found)]

    def require_domains(self) -> list[kinds.Domain]:
        """Return what `domains` does. Raises SettingsError: there are none."""
        if not (domains := self.domains()):
            raise SettingsError('dedup is "none" for all raw topics, so a sequencer has nothing to judge')
        return domains

    @property
    def page_url(self) -> str | None:
        """Where a service with these settings answers people of this machine; None where it serves nothing."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.metrics_host, self.metrics_host)  # noqa: S104 - compared
        scheme = "http" if self.http_tls_certificate is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.metrics_port}/" if self.metrics_port else None

    def at(self, bootstrap_servers: str) -> Self:
        """Return the settings for brokers at another address, which are spoken to in plain text."""
        plain = ConnectionSettings(bootstrap_servers=bootstrap_servers)
        return self.model_copy(update={name: getattr(plain, name) for name in ConnectionSettings.model_fields})

    def without_secrets(self) -> Self:
        """Return the settings without the passwords in them; those in files stay named."""
        return self.model_copy(update=dict.fromkeys(SECRETS))

    def environment(self) -> dict[str, str]:
        """Return variables from which a process, whose user alone can read them, loads these settings with secrets."""
        values = {name: getattr(self, name) for name in Settings.model_fields}
        shown = {n: one.get_secret_value() if isinstance(one, SecretStr) else one for n, one in values.items()}
        return {f"{ENVIRONMENT_PREFIX}{name.upper()}": kinds.as_variable(value) for name, value in shown.items()}


SECRETS: Final = frozenset(
    name for name, field in Settings.model_fields.items() if SecretStr in get_args(field.annotation)
)
"""Settings whose values are never shown, and are no flags: everyone on a machine can read its command lines."""


def described(name: str) -> str:
    """Return in one line what help and documentation say of a setting."""
    return " ".join(str(Settings.model_fields[name].description).split())


DEFAULT_ORIGIN: Final = "default"
"""Where a value comes from that was not written anywhere."""


def explain(error: ValidationError, origins: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return one line on the first thing that is wrong, and how many more there are; no secret's value is said.

    ``origins`` says for a setting's name in words where its value was written.
    """
    first, *more = error.errors(include_url=False)
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "literal_error":
        message += nearest(str(first["input"]), re.findall(r"'([^']*)'", first["ctx"]["expected"]))
    rest = f" (and {len(more)} more)" if more else ""
    if not first["loc"]:
        named = dict.fromkeys(re.findall(r"\b[a-z]+_[a-z_]+\b", message))
        said = [f"{name}: {origins[name]}" for name in named if origins.get(name, DEFAULT_ORIGIN) != DEFAULT_ORIGIN]
        return message + (f" ({', '.join(said)})" if said else "") + rest
    path = ".".join(str(part) for part in first["loc"])
    name = str(first["loc"][0])
    value = "" if name in SECRETS else f" = {first['input']!r}"
    origin = origins.get(name)
    return f"setting {path}{value}{f' ({origin})' if origin else ''}: {message}{rest}"


CONFIG_VARIABLE: Final = "TOKENMILL_CONFIG"
DEFAULT_CONFIG: Final = Path("tokenmill.toml")


class Loaded(NamedTuple):
    """The settings in force, and for each name where its value came from, in words."""

    settings: Settings
    origins: dict[str, str]


_Layer: TypeAlias = dict[str, tuple[Any, str]]
"""By setting: its value in one place, and in words where that was written."""


def load_settings(flags: Mapping[str, Any] | None = None, config: Path | None = None) -> Settings:
    """Return the settings in force; the first of flags, environment, file and defaults that has a name decides it.

    ``flags`` is a command line's (None: not said), ``config`` the TOML file; else TOKENMILL_CONFIG names that, else
    ``tokenmill.toml`` is read if it is there. Raises SettingsError, which names the place, where anything does not fit.
    """
    return load_with_origins(flags, config).settings


def load_with_origins(flags: Mapping[str, Any] | None = None, config: Path | None = None) -> Loaded:
    """Do as `load_settings`, and say for each setting where its value came from."""
    by_flag = {n: (value, f"flag --{n.replace('_', '-')}") for n, value in (flags or {}).items() if value is not None}
    by_variable = {
        name.removeprefix(ENVIRONMENT_PREFIX).lower(): (value, f"variable {name}")
        for name, value in os.environ.items()
        if name.startswith(ENVIRONMENT_PREFIX) and name != CONFIG_VARIABLE
    }
    said = ChainMap(_known(by_flag), _known(by_variable), _known(_file(config)))
    origins = {name: said[name][1] if name in said else DEFAULT_ORIGIN for name in Settings.model_fields}
    try:
        return Loaded(Settings(**{name: value for name, (value, _) in said.items()}), origins)
    except ValidationError as error:
        raise SettingsError(explain(error, origins)) from None


def _file(config: Path | None) -> _Layer:
    said = config or (Path(os.environ[CONFIG_VARIABLE]) if os.environ.get(CONFIG_VARIABLE) else None)
    if said is None and not DEFAULT_CONFIG.exists():
        return {}
    path = said or DEFAULT_CONFIG
    try:
        values = tomllib.loads(path.read_text("utf-8-sig"))  # some editors write a byte order mark before it
    except OSError as error:
        raise SettingsError(
            f"cannot read the settings file {path}: {error.strerror}; check --config and {CONFIG_VARIABLE}"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not TOML: {error}; correct it, or name another file with --config") from error
    return {name: (value, f"file {path}") for name, value in values.items()}


def _known(layer: _Layer) -> _Layer:
    for name, (_, origin) in layer.items():
        if name not in Settings.model_fields:
            hint = nearest(name, Settings.model_fields) or "; `tokenmill config` lists all"
            raise SettingsError(f"unknown setting {name} ({origin}){hint}")
    return layer
