"""A stream as a card, as hubs of data sets show it: YAML in front, then Markdown for people."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tokenmill.canonical import canonical_json

from .croissant import day
from .facts import DataSetFacts


def card(facts: DataSetFacts) -> str:
    """Return the card; what is not known is left out, and listed at its end with the reason."""
    return "\n".join([*_front(facts), *_lines(facts)]) + "\n"


def _front(facts: DataSetFacts) -> Iterator[str]:
    """Yield the front matter: JSON values, which YAML reads as they are."""
    tags = ["tokenmill", "tokenized", *(["live"] if facts.live else [])]
    values: dict[str, Any] = {"pretty_name": facts.info.name, "tags": tags}
    if facts.languages is not None:
        values["language"] = list(facts.languages)
    yield "---"
    yield from (f"{name}: {canonical_json(value).decode()}" for name, value in values.items())
    yield "---"


def _lines(facts: DataSetFacts) -> Iterator[str]:
    info, recipe = facts.info, facts.recipe
    yield f"# {info.name}"
    yield ""
    yield (
        f"{facts.blocks:,} blocks of {info.block_tokens:,} tokens ({facts.blocks * info.block_tokens:,} tokens, "
        f"{info.dtype.name}) of the split `{recipe.get('split')}` of {facts.origin}. "
        f"The data set {'is live: it may still grow' if facts.live else 'is complete'}."
    )
    eras = facts.eras
    if eras["first_closed"] is not None:
        number = "1 era" if eras["eras"] == 1 else f"{eras['eras']:,} eras"
        yield f"Closed from {day(eras['first_closed'])} to {day(eras['last_closed'])}, in {number}."
    yield from _table("Sources", ("topic", "partition", "first_offset", "last_offset", "blocks"), facts.partitions)
    splits = [{"stream": name, **values} for name, values in facts.splits.items()]
    yield from _table("Splits in this store", ("stream", "split", "blocks", "tokens"), splits)
    if facts.counts is not None:
        yield from _retention(facts.counts)
    if facts.languages is not None:
        rows = [{"language": name, **amount} for name, amount in facts.languages.items()]
        yield from _table("Languages", ("language", "documents", "tokens"), rows)
    produced = [source for run in facts.files or () for source in run["sources"]]
    yield from _table("Files that it came from, and their 128-bit XXH3 digests", ("name", "bytes", "digest"), produced)
    yield from _values("Tokenizer", facts.tokenizer)
    yield from _values("Recipe", {"fingerprint": info.fingerprint.hex(), **recipe})
    segments = [segment.to_dict() for segment in facts.segments]
    yield from _table("Sealed segments", ("name", "blocks", "bin_bytes", "bin_crc32", "sha256"), segments)
    yield from _values("Not known", facts.unknown)


def _retention(counts: Mapping[str, Any]) -> Iterator[str]:
    retention = counts["retention"]
    left_out = retention["left_out_tokens"]
    yield from _values(
        "Documents",
        {
            "records": counts["records"],
            "kept": retention["kept"],
            "share of documents kept": f"{100 * retention['share']:.1f} %",
            "tokens": retention["tokens"],
            **({"tokens that the packing leaves out": left_out} if left_out else {}),
            "dead-lettered": sum(counts["dead_lettered"].values()),
            "other splits": counts["other_split"],
        },
    )
    yield from _table("Left out", ("step", "reason", "documents", "text_bytes"), retention["funnel"])


def _values(title: str, values: Mapping[str, Any]) -> Iterator[str]:
    yield from _table(title, ("what", "value"), [{"what": name, "value": value} for name, value in values.items()])


def _table(title: str, columns: tuple[str, ...], rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a table; nothing where it has no rows."""
    found = [[_cell(row.get(column)) for column in columns] for row in rows]
    if found:
        yield from ("", f"## {title}", "", f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}")
        yield from (f"| {' | '.join(row)} |" for row in found)


def _cell(value: Any) -> str:
    """Return a value as text that no table, link or markup is made of, not even of an address, which readers link."""
    if value is None:
        return ""
    text = f"{value:,}" if type(value) is int else value if isinstance(value, str) else canonical_json(value).decode()
    text = "".join(f"\\{c}" if c in "\\`*_{}[]<>|#&~@!" else " " if c in "\r\n" else c for c in text)
    return text.replace("://", "\\://").replace("www.", "www\\.")
