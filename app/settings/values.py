"""How a setting's value may be written: as TOML has it, or as one string in a variable or a flag; names of topics."""

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, SecretStr, TypeAdapter

from tokenmill.errors import SettingsError
from tokenmill.packings import canonical_packing

from ..milling.decoding import MODES
from ..milling.duplicates.signatures import canonical_dedup
from ..milling.steps.pipeline import canonical_entries, spelled_out

EARLIEST: Final = "earliest"
_LEGAL: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
"""What a Kafka topic name may hold (org.apache.kafka.common.internals.Topic)."""
_STEPS_EXAMPLE: Final = '[{"name": "length", "min_words": 5}]'
_HOST_AND_PORT: Final = re.compile(r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\])(?::([0-9]{1,5}))?")
_PORTS: Final = range(1, 1 << 16)
_BYTES: Final = TypeAdapter(ByteSize)


def parse_names(value: object) -> object:
    """Return the names of ``"a,b"`` or ``'["a", "b"]'`` as a list; anything but a string as it is."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return json.loads(value)
    return [name.strip() for name in value.split(",") if name.strip()]


def parse_splits(value: object) -> object:
    """Return ``"train=980,validation=20"`` as a table in that order; anything but a string as it is."""
    if not isinstance(value, str):
        return value
    splits: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in value.split(","))):
        name, equals, shards = part.partition("=")
        if not equals:
            raise ValueError(f"{part!r} says no number of shards; write it like train=980,validation=20")
        if name.strip() in splits:
            raise ValueError(f"split {name.strip()!r} is named twice")
        splits[name.strip()] = shards.strip()
    return splits


def parse_decode(value: object) -> object:
    """Return the value unchanged. Raises ValueError: a text that is no mode and no import path."""
    if isinstance(value, str) and value not in MODES and ":" not in value:
        close = get_close_matches(value.lower(), MODES, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise ValueError(f"it must be {', '.join(map(repr, MODES))} or module:function, a decoder of your own{hint}")
    return value


def require_number(value: object) -> object:
    """Return the value unchanged. Raises ValueError: true or false, of which pydantic makes 1 and 0."""
    if value is True or value is False:
        raise ValueError("it must be a number")
    return value


def parse_size(value: object) -> int:
    """Return the bytes of ``262144``, ``"256KiB"`` or ``"1.5 MB"``. Raises ValueError where the value is no size."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("a size is a number of bytes, or a text like 256KiB or 2MB")  # noqa: TRY004 - pydantic's way
    return int(_BYTES.validate_python(value))


def parse_optional_size(value: object) -> int | None:
    """Return what `parse_size` makes of it; None for nothing, as a variable has it or as a default is."""
    return None if value in (None, "") else parse_size(value)


def at_home(path: Path) -> Path:
    """Return a path with ``~`` as the home directory, which a shell leaves in ``--store=~/data``. Raises ValueError."""
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise ValueError(str(error)) from error


def parse_table(value: object) -> object:
    """Return a table written as one JSON object (in a variable); anything but a string as it is."""
    return json.loads(value) if isinstance(value, str) else value


def parse_steps(value: object) -> object:
    """Return steps as a recipe has them, from tables, JSON, or names as ``"gopher,sample"``. Raises ValueError."""
    try:
        return canonical_entries(spelled_out(parse_names(value)))
    except json.JSONDecodeError as error:
        raise ValueError(f"{error}: it is a list of tables in JSON ({_STEPS_EXAMPLE}), or names") from error
    except SettingsError as error:
        bare = isinstance(value, str) and value.lstrip().startswith("{")
        raise ValueError(f"a list of tables stands in [ ], as {_STEPS_EXAMPLE}" if bare else str(error)) from error


def parse_packing(value: object) -> object:
    """Return a packing's name, or a table of it and what differs from the defaults. Raises ValueError: it cannot be."""
    return _name_or_table(value, canonical_packing)


def parse_dedup(value: object) -> object:
    """Return a name, or a table of a name and the parameters that have not their default, as `parse_packing` does."""
    return _name_or_table(value, canonical_dedup)


def _name_or_table(value: object, canonical: Callable[[object], dict[str, Any]]) -> object:
    try:
        table = canonical(json.loads(value) if isinstance(value, str) and value.lstrip().startswith("{") else value)
    except json.JSONDecodeError as error:
        raise ValueError(f'{error}: in a flag or a variable a table is JSON, as {{"name": "…", "…": 5}}') from error
    except SettingsError as error:
        raise ValueError(str(error)) from error
    return table if len(table) > 1 else table["name"]


def parse_token(value: object) -> object:
    """Return a token as text, or its id where the text is all digits; None where nothing is said."""
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdecimal() else value or None
    return value


def parse_web_address(value: str | None) -> str | None:
    """Return a web server's address in one spelling; raises ValueError where it is none, or logs would show it."""
    if value is None:
        return None
    parts = urlsplit(value.strip())
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(
            "it has a login, a query or a fragment in it, which logs would show: leave it out; names and passwords "
            "have settings of their own (…_username, …_password_file)"
        )
    found = _HOST_AND_PORT.fullmatch(parts.netloc)
    if parts.scheme not in {"http", "https"} or found is None or int(found[1] or 1) not in _PORTS:
        raise ValueError("it is no address: write it like https://registry.example:8081")
    return urlunsplit((parts.scheme, parts.netloc.lower(), parts.path.rstrip("/"), "", ""))


def check_address(address: str) -> str:
    """Return the address unchanged. Raises ValueError where it is no host with a port."""
    found = _HOST_AND_PORT.fullmatch(address)
    if found is None or int(found[1] or 0) not in _PORTS:
        raise ValueError(f"{address!r} is no address: write it like trainer:9465")
    return address


def check_servers(addresses: str) -> str:
    """Return brokers' addresses without blanks. Raises ValueError where there is none, or one is none, as ``a;b``."""
    given = [address.strip() for address in addresses.split(",") if address.strip()]
    for address in given:
        found = _HOST_AND_PORT.fullmatch(address)
        is_bare = re.fullmatch("[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*", address)  # of IPv6, without a port
        if not is_bare and (found is None or int(found[1] or 1) not in _PORTS):
            raise ValueError(f"{address!r} is no address: write it like kafka-1:9092, and a comma between two")
    if not given:
        raise ValueError("there is no address in it: write one like kafka-1:9092")
    return ",".join(given)  # an empty one would be the broker at port 9092 of this host


def require_path(value: object) -> object:
    """Return the value unchanged. Raises ValueError where it is empty, which is no path, or holds a NUL."""
    if value == "" or "\0" in str(value):
        raise ValueError("it names no directory: give one; a dot is the one where you stand")
    return value


def empty_is_none(value: object) -> object:
    """Return None for an empty string: a variable cannot be null otherwise."""
    return None if value == "" else value


def check_topic_name(name: str) -> str:
    """Return the name unchanged. Raises ValueError where Kafka would refuse it as (part of) a topic's name."""
    if not name or not _LEGAL.issuperset(name) or name in {".", ".."}:
        raise ValueError(f"{name!r} cannot name a topic: use ASCII letters, digits, '.', '_' and '-'")
    return name


def parse_start(value: object) -> object:
    """Return ``earliest``, or the moment in one spelling, in UTC. Raises ValueError: none, or without a time zone."""
    if isinstance(value, str) and value != EARLIEST:
        value = datetime.fromisoformat(value)
    if not isinstance(value, datetime):
        return value
    if value.tzinfo is None:
        raise ValueError("the moment has no time zone; add one, as in 2026-01-31T12:00:00Z")
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def as_variable(value: object) -> str:
    """Return the value as a variable that reads back equal; a secret comes as asterisks."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple) and any(isinstance(item, Mapping) for item in value):
        return json.dumps(value)
    if isinstance(value, tuple):
        plain = ",".join(value)
        is_json = plain.lstrip().startswith("[")
        return plain if not is_json and parse_names(plain) == list(value) else json.dumps(value)
    if isinstance(value, Mapping):
        is_splits = value and all(isinstance(shards, int) for shards in value.values())
        return ",".join(f"{name}={shards}" for name, shards in value.items()) if is_splits else json.dumps(value)
    return str(value)


class Stream(NamedTuple):
    """One packing of one split of one raw topic."""

    name: str
    raw_topic: str
    split: str

    @property
    def suffix(self) -> str:
        """The ``stream_suffix``."""
        return self.name.removeprefix(f"{self.raw_topic}.{self.split}")

    @property
    def tokens_topic(self) -> str:
        """The topic of the stream's blocks, with as many partitions as the raw topic."""
        return f"tokens.{self.name}"

    @property
    def control_topic(self) -> str:
        """The topic of the stream's genesis, skip list and eras: one partition, kept for ever."""
        return f"control.{self.name}"


class Domain(NamedTuple):
    """Raw topics among whose documents duplicates are looked for together."""

    name: str
    """The setting's, or the raw topic's where it has none; with the ``stream_suffix``."""
    raw_topics: tuple[str, ...]
    """In the order of the settings: a place names its topic by the number in it."""
    suffix: str
    dedup: Mapping[str, Any]
    """The parameters, as recipes have them."""

    @property
    def signatures_topic(self) -> str:
        """The topic of what mills have signed: one partition, whose order is that in which documents are judged."""
        return f"signatures.{self.name}"

    @property
    def slices_topic(self) -> str:
        """The topic of where the slices of the window begin: one partition, kept for ever."""
        return f"slices.{self.name}"

    def verdicts_topic(self, raw_topic: str) -> str:
        """Return the topic of the verdicts on a raw topic's documents, with as many partitions."""
        return f"verdicts.{raw_topic}{self.suffix}"


def dead_letter_topic(raw_topic: str) -> str:
    """Return the topic that takes the records of ``raw_topic`` that cannot be documents."""
    return f"{raw_topic}.dead-letters"


def rejected_topic(raw_topic: str) -> str:
    """Return the topic that takes the documents of ``raw_topic`` that steps filter out, where `rejects` asks for it."""
    return f"{raw_topic}.rejected"


def produced_topic(raw_topic: str) -> str:
    """Return the name of the topic on which `produce` notes what it has sent to ``raw_topic``."""
    return f"{raw_topic}.produced"


Whole = Annotated[int, BeforeValidator(require_number)]
Number = Annotated[float, BeforeValidator(require_number)]
Size = Annotated[int, BeforeValidator(parse_size), Field(ge=0)]
Names = Annotated[tuple[str, ...], BeforeValidator(parse_names)]
Addresses = Annotated[tuple[Annotated[str, AfterValidator(check_address)], ...], BeforeValidator(parse_names)]
TopicName = Annotated[str, AfterValidator(check_topic_name)]
TopicNames = Annotated[tuple[TopicName, ...], BeforeValidator(parse_names), Field(min_length=1)]
Splits = Annotated[dict[str, Whole], BeforeValidator(parse_splits), Field(min_length=1)]
Decode = Annotated[str, BeforeValidator(parse_decode)]
Steps = Annotated[tuple[dict[str, Any], ...], BeforeValidator(parse_steps)]
Packing = Annotated[str | dict[str, Any], BeforeValidator(parse_packing)]
Dedup = Annotated[str | dict[str, Any], BeforeValidator(parse_dedup)]
Start = Annotated[str, BeforeValidator(parse_start)]
Token = Annotated[int | str | None, BeforeValidator(parse_token)]
OptionalText = Annotated[str | None, BeforeValidator(empty_is_none)]
OptionalAddress = Annotated[OptionalText, AfterValidator(parse_web_address)]
OptionalNumber = Annotated[Whole | None, BeforeValidator(empty_is_none)]
OptionalSize = Annotated[int | None, BeforeValidator(parse_optional_size)]
HomePath = Annotated[Path, BeforeValidator(require_path), AfterValidator(at_home)]
OptionalPath = Annotated[HomePath | None, BeforeValidator(empty_is_none)]
OptionalSecret = Annotated[SecretStr | None, BeforeValidator(empty_is_none)]
Tables = Annotated[dict[TopicName, dict[str, Any]], BeforeValidator(parse_table)]
