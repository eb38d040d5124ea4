"""The page on all settings, docs/settings.md, from the code (`make docs`)."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from pydantic import BeforeValidator, SecretStr
from pydantic.fields import FieldInfo

from tokenmill.app.milling.decoding import MODES
from tokenmill.app.milling.duplicates.signatures import KINDS
from tokenmill.app.settings.model import (
    ENVIRONMENT_PREFIX,
    SECRETS,
    ConnectionSettings,
    RegistrySettings,
    Settings,
    TopicSettings,
    described,
)
from tokenmill.app.settings.values import (
    as_variable,
    parse_decode,
    parse_dedup,
    parse_names,
    parse_optional_size,
    parse_packing,
    parse_size,
    parse_splits,
    parse_start,
    parse_table,
    parse_token,
)
from tokenmill.packings import PACKINGS
from tokenmill.parameters import parameters_of

OUTSIDE_THE_FINGERPRINT: Final = frozenset({"stream_suffix", "segment_blocks", "era_blocks", "era_max_seconds"})
"""Settings of a topic that change no token: names of its streams, how a store cuts them into files, and its eras."""
SPELLED: Final[Mapping[Callable[..., Any], str]] = {
    parse_decode: f"{', '.join(f'`{mode}`' for mode in MODES)}, `module:function`",
    parse_names: "list: `a,b`",
    parse_size: "size: `262144`, `256KiB`",
    parse_optional_size: "size: `262144`, `256KiB`",
    parse_splits: "table: `train=980,validation=20`",
    parse_start: "`earliest` or a time",
    parse_packing: "name, or a table (JSON)",
    parse_dedup: "name, or a table (JSON)",
    parse_table: "tables",
    parse_token: "token or its id",
}
"""How values of types that have a spelling of their own are written in a variable or a flag."""
PLAIN: Final[Mapping[Any, str]] = {
    bool: "`true` or `false`",
    int: "number",
    float: "number",
    str: "text",
    Path: "path",
    SecretStr: "secret",
}
SIGNS: Final = {"ge": "≥", "gt": ">"}

PAGE: Final = """\
# Settings

Generated from `app/settings/` by `make docs`; do not edit.

A setting has one name everywhere. The first of these that says it decides:

1. a flag, `--sequence-length 2048`,
2. a variable, `TOKENMILL_SEQUENCE_LENGTH=2048`,
3. the file, `sequence_length = 2048`: `tokenmill.toml` where you stand, or the one that `--config` or the variable
   `TOKENMILL_CONFIG` names,
4. the default.

A name that is none, a value that does not fit and two that contradict each other end every command with exit code 2,
saying what was said, where, and what was probably meant. `tokenmill config` prints what is in force and where
each value came from; passwords as asterisks. `--help` of a command lists the settings that it needs first, `--help-all`
all of them.

## Brokers

How all clients reach Kafka, whose own names these are. For a cluster with logins over TLS:

```toml
bootstrap_servers = "kafka-1.example:9093,kafka-2.example:9093"
security_protocol = "SASL_SSL"
sasl_mechanism = "SCRAM-SHA-512"
sasl_username = "miller"
sasl_password_file = "/run/secrets/kafka-password"
ssl_cafile = "/etc/ssl/certs/our-authority.pem"
```

With `security_protocol = "SSL"` brokers know their clients by certificate: set `ssl_certfile` and `ssl_keyfile`.
Passwords ({secrets}) are no flags, because everyone on a machine can read its command lines; variables can be read by
the same user only, and a file is best. Files are read when a process starts. A login or a certificate that is refused
ends a command, and the whole service, with exit code 2 and the setting to look at.

Managed clusters give tokens (`OAUTHBEARER`). With an identity provider, by client credentials; its certificate must be
believed by the system, or by the file that the variable `SSL_CERT_FILE` names; it needs the extra `registry`, which the
image has:

```toml
security_protocol = "SASL_SSL"
sasl_mechanism = "OAUTHBEARER"
oauth_token_url = "https://login.example/oauth2/token"
oauth_scope = "kafka"
sasl_username = "the client's id"
sasl_password_file = "/run/secrets/client-secret"
```

Where tokens come in another way (AWS MSK with IAM, Google, Entra), `oauth_function` names a function that returns a
token and the seconds for which it holds. The one for MSK is here, `tokenmill.app.kafka.oauth:aws_msk_iam`. It needs the
extra `msk` (in no image: add it to yours), the variable `AWS_REGION`, and credentials as AWS's own tools find them. A
token is shared by a process's clients and asked for again when most of its time is over. Brokers end a connection when
its token ends; what was under way is sent again, and the log has a line at most. Kerberos (GSSAPI) is not offered.

{brokers}

### Rights

Where brokers check rights (ACLs), the table by role in [kafka_teams.md](kafka_teams.md#acls) says which; a login for
all commands has the rows of all its roles. What is missing is named when it is wanted. Whoever may write to a raw topic
may flush it, unless its streams have `allow_flush = false`.

## Schema registry

Where `decode` is `avro`, `protobuf` or `json_schema`, records name their schemas by id, as Confluent's serializers
frame them. A registry with Confluent's HTTP interface has these: Confluent's own, Apicurio's (under
`/apis/ccompat/v7`), Karapace, Redpanda's. They need the extra `registry`: `pip install '.[registry]'`; the
container image has it.

```toml
decode = "avro"
schema_registry_url = "https://registry.example:8081"
schema_registry_username = "miller"
schema_registry_password_file = "/run/secrets/registry-password"
```

Each schema is fetched once by each process. A partition waits for a registry that is away, and for one that lacks the
schema of a record; [kafka_teams.md](kafka_teams.md) says more.

{registry}

## Tokens

What decides the tokens of a raw topic's streams, and so is part of their **fingerprint**: a running stream refuses
other values, give it a new name (`stream_suffix`). Each may have another value for one raw topic:

```toml
raw_topics = ["web", "code"]
sequence_length = 2048

[topic."code"]
text_fields = ["code"]
metadata_fields = ["lang"]
```

{tokens}

### What is a document

- `auto`, for any producer: a JSON object with a text is that document, other UTF-8 is plain text. **What begins like a
  JSON object or array and is no such document is a dead letter**, and so is a value that a schema registry's
  serializer framed, or one with NULs or full of control characters. Its detail says what it looks like, and which
  setting reads it. Plain text that merely begins with a brace (code, templates), or with `[` and then what JSON has
  there (`[1] a footnote`), needs `decode = "text"`; `[link](address)` and `[INFO] started` are text in `auto`, too.
- `json`: nothing but JSON objects with a text. `text`: any UTF-8 as it is, braces, keys and NULs included.
- `module:function`: a function of your own on the raw bytes, which returns a `tokenmill.documents.Document` or a
  reason. Like `function` it states its `version`, and its module is imported from the environment, `PYTHONPATH`, or,
  last, the working directory ([architecture.md](architecture.md#adding-to-it) has an example).

`text_fields`, `id_field` and `metadata_fields` name keys of the object, or **paths** into it: with
`text_fields = ["payload.after.body"]` an event of Debezium is the text of its row. A key of exactly that name goes
first, dots included, as with `tokenmill produce --field`. [record_to_tokens.md](record_to_tokens.md) says all of it
exactly, and what happens to streams that were made by earlier rules.

### Packings

`packing = "rows"`, or with parameters a table, in a variable or a flag as JSON:

```toml
sequence_length = 256
packing = {{name = "rows", long = "truncate", short = "pad"}}
```

{packings}

With the defaults, a row of `rows` is what a Hugging Face tokenizer gives with `truncation=True, padding="max_length"`
and `max_length` = `sequence_length`; set `template = "tokenizer"` for `[CLS]` and `[SEP]`. Padding is the tokenizer's
own, unless `padding` is set. A chunk of `chunks` has `sequence_length` times a whole number of tokens, and one more,
the last one's label. [format.md](format.md#packings) says what a reader sees.

### Duplicates

`dedup = "near"` leaves out documents that were seen before, in any partition and split: the first one is kept, and each
later one is filtered, as `duplicate_exact` or `duplicate_near`, with the place of the one that it resembles. With
parameters it is a table, as `packing` is:

```toml
dedup = {{name = "near", window = 1000000, fold = true}}
```

{duplicates}

`tokenmill dedup explain` says how likely a document is found at each similarity, and what a window takes of memory and
disk. **What is promised:** a document whose text (behind the steps) is that of one among the newest three quarters of
`window` kept documents is always left out; one that resembles such a document, with the chance that `explain` shows. A
copy of an older document is kept, and counts as new from then on. The less two texts share, the rarer one is taken for
the other: of pairs with a similarity of 0.5 one in twenty, of 0.3 one in a thousand. The window counts kept documents,
never time. [format.md](format.md#duplicates) has the arithmetic.

`pack` and `try` judge documents in the order in which they are read, so equal files give equal streams, with any number
of processes and over kills ([pack.md](pack.md#duplicates)). In a service, mills send the hashes of what they read to
a log, whose order is the one that counts; a *sequencer*, which `serve` and `up` start, judges in that order, and mills
go on with a record when its verdict is there ([reliability.md](reliability.md#duplicates-across-partitions)). Raw
topics whose `dedup` names the same domain, as `{{name = "near", domain = "web"}}`, are judged together; all else of it,
and their `stream_suffix`, must be equal, too. The extra `curation` is needed.

### Splits

The sizes of `splits` are shares: `train=98,validation=2` are per cent, `train=980,validation=20` the same in steps of
0.1 %. Where `shards` is set, they must add up to it. A share that is to be in no split is named `_unused` and comes
last: `train=10,_unused=90` mills a tenth. The number of shards, set or not, is part of the fingerprint.

## Service

What can be changed at any time.

{service}
"""


def page() -> str:
    """Return docs/settings.md."""
    service = [name for name in Settings.model_fields if name not in _TOPIC | _BROKERS | _REGISTRY]
    return PAGE.format(
        secrets=", ".join(f"`{name}`" for name in sorted(SECRETS)),
        brokers=_table(_BROKERS),
        registry=_table(_REGISTRY),
        tokens=_table(_TOPIC, fingerprint=True),
        packings=_kinds("packing", PACKINGS),
        duplicates=_kinds("dedup", KINDS),
        service=_table(service),
    )


_TOPIC: Final = TopicSettings.model_fields.keys()
_BROKERS: Final = ConnectionSettings.model_fields.keys()
_REGISTRY: Final = RegistrySettings.model_fields.keys()


def _kinds(setting: str, kinds: Mapping[str, type[Any]]) -> str:
    """Return a table of all kinds that a setting may name, and their parameters."""
    rows = [f"| {setting} | parameter | default | what it does |", "|---|---|---|---|"]
    for name, packing in kinds.items():
        rows.append(f"| `{name}` | | | {' '.join(str(packing.__doc__).split())} |")
        rows += [
            f"| | `{one.name}`: {one.kind_in_words} | `{one.default}` | {one.description} |"
            for one in parameters_of(packing)
        ]
    return "\n".join(rows).replace("| `` |", "| |").replace("``", "`")


def _table(names: Iterable[str], *, fingerprint: bool = False) -> str:
    head = ["setting", "variable", "type", "default", *(["fingerprint"] if fingerprint else []), "what it does"]
    rows = [head, ["---"] * len(head)]
    for name in names:
        field = Settings.model_fields[name]
        default = as_variable(field.default)
        inside = ["no" if name in OUTSIDE_THE_FINGERPRINT else "yes"] if fingerprint else []
        shown = f"`{default}`" if default and default != "{}" else ""
        variable = f"`{ENVIRONMENT_PREFIX}{name.upper()}`"
        rows.append([f"`{name}`", variable, _type(field), shown, *inside, described(name).replace("|", r"\|")])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _type(field: FieldInfo) -> str:
    """Return in words what a value may be."""
    parsers = [SPELLED.get(part.func) for part in field.metadata if isinstance(part, BeforeValidator)]
    words = next((spelled for spelled in parsers if spelled), None) or _plain(field.annotation)
    limits = [
        (getattr(part, name), sign) for part in field.metadata for name, sign in SIGNS.items() if hasattr(part, name)
    ]
    strictest = sorted(limits)[-1:]  # all are lower bounds; a type's own comes beside the setting's
    return ", ".join([words, *(f"{sign} {bound}" for bound, sign in strictest)])


def _plain(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(annotation))
    alternatives = [kind for kind in get_args(annotation) if kind is not type(None)]
    return PLAIN[annotation] if annotation in PLAIN else _plain(alternatives[0])


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201 - the page is this program's output
