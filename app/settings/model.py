"""Every setting: its name, type, default, and one line that help and documentation repeat."""

from pathlib import Path
from typing import Any, Final, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator

from tokenmill.documents import Limits
from tokenmill.errors import SettingsError
from tokenmill.packings import CONCAT, PackingParameters, packing_parameters
from tokenmill.spelling import nearest

from ..milling.document_frame import TemplateName
from ..milling.duplicates.parameters import canonical_dedup, recipe_dedup
from ..milling.splits import SplitRule, division
from ..milling.tokenizers import EngineName, SpecialTokens, text_limit_of
from .connections import ConnectionSettings, RegistrySettings
from .explain import explain
from .values import (
    Addresses,
    Decode,
    Dedup,
    Domain,
    HomePath,
    Names,
    OptionalNumber,
    OptionalPath,
    OptionalSecret,
    OptionalSize,
    OptionalText,
    Packing,
    Size,
    Splits,
    Start,
    Steps,
    Stream,
    Tables,
    Token,
    TopicNames,
    as_variable,
    check_topic_name,
    dead_letter_topic,
    in_the_open,
    produced_topic,
    rejected_topic,
    start_milliseconds,
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
    end_of_document: Token = None
    """Token, or its id, that ends each document; tokenizer: what its own post-processor puts there; none. Not set: the
    one that its files name, else the special token of a usual name, as <|endoftext|>."""
    begin_of_document: Token = None
    """Token, or its id, that begins each document; tokenizer: what its own post-processor puts there; none, or not set:
    no token."""
    template: TemplateName = "none"
    """tokenizer: documents have around them what the tokenizer's post-processor puts there, as [CLS] and [SEP], and
    nothing else that is not set."""
    padding: Token = None
    """Token, or its id, that a flush fills blocks with. Not set: the one that ends each document; where none does, the
    tokenizer's own for padding."""
    special_tokens_in_text: SpecialTokens = "text"
    """What <|endoftext|> and its like are inside a text: text as any other, or tokens, for texts whose markup is yours
    alone: whoever writes a document can then write its end."""
    sequence_length: int = Field(default=1024, ge=1)
    """Tokens that a model reads at a time; a block has one more. Of rows it is the row, of chunks a segment."""
    packing: Packing = CONCAT
    """How documents become blocks: concat (one after the other, cut where a block ends), fit (whole, never cut where
    they fit), rows (one a row), chunks (long ones, in order); or a table with a name and parameters, as {name = "rows",
    long = "drop"}."""
    decode: Decode = "auto"
    """What a record is: a JSON object (json), plain text (text), either (auto), what your own function makes of its
    bytes (module:function), or a value whose schema a registry has (avro, protobuf, json_schema)."""
    text_fields: Names = Field(default=("text", "content"), min_length=1)
    """Fields of a JSON object that may hold the text, or paths to them, as payload.after.body; first one wins."""
    id_field: str = Field(default="id", min_length=1)
    """Field of a JSON object that holds the document's id, or a path to it."""
    metadata_fields: Names = ()
    """Fields, or paths to them, that travel with the tokens, for example label,meta.lang."""
    max_text_bytes: OptionalSize = Field(default=None, ge=1)
    """Longest text (UTF-8); a longer one is dead-lettered, and so is one that normalizing makes longer than this (or
    1.5 MiB, if that is more). Not set: 1.5 MiB with a tokenizer file, which may take 300 times as much memory; 4 MiB
    with 'bytes'."""
    max_id_bytes: Size = 128
    """Longest id, as JSON spells it (UTF-8, escapes counted, no quotes); a longer one is dead-lettered."""
    max_fields_bytes: Size = 256
    """Most bytes (JSON) of carried fields; more are dead-lettered."""
    normalize: Literal["none", "NFC", "NFD", "NFKC", "NFKD"] = "none"
    """Unicode normal form of text."""
    min_chars: int = Field(default=0, ge=0)
    """Filters shorter texts out, in characters; 0 keeps all but empty ones."""
    function: OptionalText = None
    """A pure function of your own, as module:function, that changes or filters each document."""
    steps: Steps = ()
    """Filters and changes of documents, in order, after function: tables [[steps]], or names of profiles and steps, as
    fineweb-2024 (`tokenmill steps list`)."""
    dedup: Dedup = "none"
    """Filters out documents that were seen before, of all partitions and splits: exact (the same text), near (most of
    the same runs of words too), or a table with a name and parameters, as {name = "near", window = 1000000}
    (`tokenmill dedup explain`)."""
    shards: OptionalNumber = Field(default=None, ge=1)
    """Parts into which a hash divides the documents; splits own ranges. Not set: the sum of splits."""
    splits: Splits = Field(default={"train": 980, "validation": 20})
    """Name and share of each split, in order: 98 and 2 are per cent. _unused, last: in no split."""
    split_by: Literal["id", "content"] = "id"
    """What decides a document's split; no id: its text."""
    start: Start = "earliest"
    """Where new streams begin: earliest, or a moment with a time zone."""
    allow_flush: bool = True
    """Whether a flush fills open blocks with padding. Whoever may write to the raw topic may flush: false where those
    are not trusted; a flush is a tombstone then."""
    stream_suffix: str = ""
    """Ends the names of the streams: what new settings need, as -v2."""
    segment_blocks: int = Field(default=32768, ge=1)
    """Blocks in one file of a store: 67 MB of 1,025 two-byte tokens each. Larger files are read faster, and sealed
    later."""
    era_blocks: int = Field(default=8192, ge=1)
    """New blocks that close an era: what is shuffled together, and trainable at once."""
    era_max_seconds: float = Field(default=60.0, gt=0)
    """Seconds after which an era is closed, however few blocks it has."""

    @model_validator(mode="after")
    def _check_splits(self) -> Self:
        self.split_rule()  # refuses what cannot be kept
        return self

    @model_validator(mode="after")
    def _check_packing(self) -> Self:
        try:
            _ = self.block_tokens
        except ValueError as error:
            raise ValueError(f"packing {self.packing_name}: {error}") from None
        return self

    def split_rule(self) -> SplitRule:
        """Return how documents are divided: the splits that are streams, and the number of shards in force.

        Raises SettingsError where the sizes do not add up to ``shards``, or a split cannot be.
        """
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
        return start_milliseconds(self.start)

    def require_tokenizer(self) -> str:
        """Return the tokenizer's path or name. Raises SettingsError: none is set."""
        if not self.tokenizer:
            raise SettingsError(
                "no tokenizer is set: set tokenizer to a tokenizer.json (`tokenmill train-tokenizer` makes one), "
                "a name on the Hugging Face hub, or 'bytes'"
            )
        return self.tokenizer


class Settings(TopicSettings, RegistrySettings, ConnectionSettings):
    """All settings. The constructor takes what it is given and reads nothing else; `load_settings` reads all layers.

    The fields of `TopicSettings` hold for every raw topic that has no other value in its ``[topic."name"]`` table.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)

    raw_topics: TopicNames = ("raw-text",)
    """Topics whose records are milled."""
    store: HomePath = Path("store")
    """Directory of the segments, on a disk of this machine."""
    max_record_bytes: Size = Field(default=16 * MIB, ge=1)
    """Largest raw record: limit of raw topics when created, and of what produce sends."""
    message_bytes: Size = Field(default=MIB, ge=1)
    """Size at which a message of blocks is sent; more at once where brokers take long to acknowledge."""
    workers: int = Field(default=2, ge=1)
    """Mill workers that `serve` and `up` start."""
    carry_bytes: Size = Field(default=64 * MIB, ge=1)
    """Source read without a finished block before a carry."""
    carry_seconds: float = Field(default=60.0, gt=0)
    """Time without a finished block before a carry."""
    rejects: Literal["none", "topic"] = "none"
    """topic: what a step filters out is also sent to <raw topic>.rejected, with its reason."""
    engine: EngineName = "auto"
    """What makes the ids: tokenizers, or (auto) gigatoken where it gives the same; then often compared."""
    tokenizer_threads: int = Field(default=1, ge=1)
    """Threads of one worker's tokenizer."""
    group: str = Field(default="tokenmill", min_length=1)
    """Consumer group of the mill; stores add their own id."""
    session_timeout: float = Field(default=10.0, ge=1)
    """Seconds until Kafka takes a silent worker's partitions away; most brokers allow 6 up."""
    wait_seconds: float = Field(default=0.0, ge=0)
    """Seconds that a command waits at its start for a broker and for topics; 0: fail at once."""
    replication_factor: int = Field(default=-1, ge=-1)
    """Copies that Kafka keeps of a topic that is created; -1: the broker's default."""
    metrics_host: str = Field(default="127.0.0.1", min_length=1)
    """Address that serves the page for people (/), /api/status, /metrics, /healthz and /readyz."""
    metrics_port: int = Field(default=9464, ge=0, le=65535)
    """Its port; 0 serves nothing. Of a supervisor and its workers, the supervisor alone serves."""
    http_token: OptionalSecret = None
    """Who asks there must send it (Authorization: Bearer), but for the probes; never a flag."""
    http_tls_certificate: OptionalPath = None
    """PEM file of a certificate with its chain: all of it is served by https alone, the probes, too."""
    http_tls_key: OptionalPath = None
    """PEM file of the key to that, not encrypted; not set: it is in the same file."""
    trainers: Addresses = ()
    """Where trainers serve their metrics, as host:port; the page for people asks them and shows who trains."""
    log_format: Literal["auto", "json", "console"] = "auto"
    """How log lines look; auto: for people on a terminal, else JSON."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least important line logged."""
    topic: Tables = Field(default={})
    """Values of one raw topic that differ, as the table [topic."name"]."""

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if self.http_tls_key is not None and self.http_tls_certificate is None:
            raise ValueError("http_tls_key is set without its certificate: set http_tls_certificate")
        return self

    @model_validator(mode="after")
    def _check_topics(self) -> Self:
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
                raise ValueError(f'[topic."{raw_topic}"] {explain(error, SECRETS)}') from None
        self._check_names()
        return self

    def _check_names(self) -> None:
        uses = (str, dead_letter_topic, produced_topic, rejected_topic)
        names = [name(raw) for raw in self.raw_topics for name in uses]
        for stream in self.streams():
            check_topic_name(stream.name)
            names += [stream.tokens_topic, stream.control_topic]
        for domain in self.domains():
            check_topic_name(domain.name)
            names += [domain.signatures_topic, domain.slices_topic, *map(domain.verdicts_topic, domain.raw_topics)]
        longest = max(names, key=len)
        if len(longest) > MAX_TOPIC_NAME:
            raise ValueError(f"topic name {longest!r} is too long for Kafka: shorten the raw topic's or domain's name")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"topic {twice[0]} would have two uses: rename a raw topic or a split")

    def for_topic(self, raw_topic: str) -> TopicSettings:
        """Return what decides the tokens of ``raw_topic``: its own table's values, else those for all topics."""
        values: dict[str, object] = {name: getattr(self, name) for name in TopicSettings.model_fields}
        return TopicSettings.model_validate(values | self.topic.get(raw_topic, {}))

    def streams(self) -> list[Stream]:
        """Return all streams, by raw topic and split in the order of the settings.

        A stream's name is ``<raw topic>.<split>``, followed by ``stream_suffix``.
        """
        return [
            Stream(f"{raw_topic}.{split}{own.stream_suffix}", raw_topic, split)
            for raw_topic in self.raw_topics
            for own in (self.for_topic(raw_topic),)
            for split in own.split_rule().splits
        ]

    def domains(self) -> list[Domain]:
        """Return the domains in which the settings look for duplicates, by their names."""
        found: dict[str, Domain] = {}
        for raw_topic in self.raw_topics:
            own = self.for_topic(raw_topic)
            if table := own.dedup_table:
                name = f"{table.get('domain', raw_topic)}{own.stream_suffix}"
                domain = found.get(name, Domain(name, (), own.stream_suffix, table))
                if (domain.suffix, domain.dedup) != (own.stream_suffix, table):
                    raise ValueError(
                        f"the topics {', '.join(domain.raw_topics)} and {raw_topic} are of one domain, {name!r}: give "
                        "them the same dedup and stream_suffix"
                    )
                found[name] = domain._replace(raw_topics=(*domain.raw_topics, raw_topic))
        return [found[name] for name in sorted(found)]

    def require_domains(self) -> list[Domain]:
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
        """Return variables from which a process started with them loads exactly these settings, secrets included.

        Only a process's own user can read its variables; a password in a file stays there.
        """
        values = {name: in_the_open(getattr(self, name)) for name in Settings.model_fields}
        return {f"{ENVIRONMENT_PREFIX}{name.upper()}": as_variable(value) for name, value in values.items()}


SECRETS: Final = frozenset(
    name for name, field in Settings.model_fields.items() if SecretStr in get_args(field.annotation)
)
"""Settings whose values are never shown, and are no flags: everyone on a machine can read its command lines."""


def described(name: str) -> str:
    """Return in one line what help and documentation say of a setting."""
    return " ".join(str(Settings.model_fields[name].description).split())
