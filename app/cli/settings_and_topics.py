"""``tokenmill config``, ``topics``, ``steps`` and ``dedup``: settings in force, and what some of them name."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tokenmill.errors import InputError, SettingsError, TopicError, nearest

from ..milling.duplicates.signatures import SLICES, Near, deduplication_of, row_bytes
from ..milling.steps.pipeline import PROFILES, STEPS, steps_as_toml
from ..settings import Loaded, Settings
from ..settings.values import as_variable
from ..tables import ShownTable
from .options import AsJson, argument, command, option
from .output import count, say, show, show_json, show_table, size


@command("config", "tokenmill config", "tokenmill config --json --sequence-length 2048")
def config(loaded: Loaded, *, as_json: AsJson = False) -> None:
    """Print the settings in force and where each value came from."""
    values = loaded.settings.model_dump(mode="json")
    if as_json:
        show_json({name: {"value": value, "from": loaded.origins[name]} for name, value in values.items()})
        return
    show_table(_config_table(loaded))


def _config_table(loaded: Loaded) -> ShownTable:
    origins, settings = loaded.origins, loaded.settings
    rows = ((name, origin, as_variable(getattr(settings, name))) for name, origin in origins.items())
    return ShownTable(("setting", "from", "value"), rows, words=True)


@command("topics create", "tokenmill topics create --partitions 4", "tokenmill topics create --raw-topics a,b")
def create(
    settings: Settings,
    *,
    partitions: Annotated[
        int | None, option("Create missing raw topics too, with this many partitions.", min=1)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create the topics that are missing: dead letters, each stream's tokens and control, and those of `dedup`.

    All but raw topics are kept for ever. Those of tokens and verdicts also get the partitions that their raw topic has
    gained. Raw topics are created with --partitions.
    """
    from ..kafka.topics import ensure_topics  # noqa: PLC0415 - `config` needs no Kafka client

    changed = asyncio.run(ensure_topics(settings, partitions=partitions))
    if as_json:
        show_json(changed)
        return
    for name in changed:
        show(name)
    say(f"created or extended {count(len(changed), 'topic')}" if changed else "all topics are there")


@command("topics check", "tokenmill topics check", "tokenmill topics check --json")
def check(settings: Settings, *, as_json: AsJson = False) -> None:
    """Say what is wrong with the topics: partitions, compaction, retention, sizes. Exit code 4 on an error."""
    from ..kafka.topics import check_topics  # noqa: PLC0415 - as above

    problems = asyncio.run(check_topics(settings))
    if as_json:
        show_json([problem._asdict() for problem in problems])
    else:
        for problem in problems:
            show(f"{problem.severity}: topic {problem.topic} {problem.text}")
    if any(problem.severity == "error" for problem in problems):
        raise typer.Exit(TopicError.exit_code)
    say("all topics are as the settings need them" if not problems else count(len(problems), "warning"))


@command("steps list", "tokenmill steps list")
def list_steps(*, as_json: AsJson = False) -> None:
    """List all profiles and steps, with what they do."""
    summaries = _summaries()
    if as_json:
        profiles = {
            name: {"version": profile.version, "summary": profile.summary, "steps": profile.steps}
            for name, profile in PROFILES.items()
        }
        show_json({"profiles": profiles, "steps": summaries})
        return
    show_table(_steps_table())


def _summaries() -> dict[str, str]:
    return {name: (one.__doc__ or "").partition("\n")[0] for name, one in STEPS.items()}


def _steps_table() -> ShownTable:
    rows = [(name, f"{profile.summary} Profile, version {profile.version}.") for name, profile in PROFILES.items()]
    rows += [(name, summary.replace("``", "`")) for name, summary in _summaries().items()]
    return ShownTable(("name", "what it does"), rows, words=True)


@command("steps show", "tokenmill steps show fineweb-2024 >> tokenmill.toml", "tokenmill steps show regex")
def show_step(name: Annotated[str, argument("A profile or a step.", "NAME")]) -> None:
    """Write a profile or a step out as TOML, with every parameter, to be pasted into tokenmill.toml and changed."""
    if name in PROFILES:
        profile = PROFILES[name]
        show(f"# {name}, version {profile.version}: {profile.summary}")
        _show_toml(profile.steps)
    elif name in STEPS:
        _show_toml([{"name": name}])
    else:
        known = [*PROFILES, *STEPS]
        raise InputError(f"{name!r} is no profile and no step{nearest(name, known)}: there are {', '.join(known)}")


def _show_toml(entries: Iterable[Mapping[str, Any]]) -> None:
    for line in steps_as_toml(entries).rstrip("\n").split("\n"):
        show(line)


SIMILARITIES: Final = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)


@command(
    "dedup explain",
    "tokenmill dedup explain --dedup near",
    """tokenmill dedup explain --dedup '{"name": "near", "window": 1000000, "bands": 20, "rows": 6}'""",
    shown=("dedup", "raw_topics"),
)
def explain(settings: Settings, *, as_json: AsJson = False) -> None:
    """Say what `dedup` finds: how likely at each similarity, among how many documents, with how much memory and disk.

    Similarity is the Jaccard similarity of two documents: of all their different runs of words, the share that both
    have.
    """
    deduplication = deduplication_of(settings.for_topic(settings.raw_topics[0]).dedup_table)
    if deduplication is None:
        raise SettingsError('dedup = "none": nothing is looked for; give --dedup near, or --dedup exact')
    part = deduplication.window // SLICES
    facts = {
        "window": part * SLICES,
        "least_documents": part * (SLICES - 1),
        "memory_bytes": round(deduplication.table_bytes * part * SLICES),
        "disk_bytes": row_bytes(deduplication) * part * SLICES,
    }
    chances = {one: deduplication.chance(one) for one in SIMILARITIES} if isinstance(deduplication, Near) else {}
    if as_json:
        show_json({**facts, "chances": [{"similarity": one, "chance": chance} for one, chance in chances.items()]})
        return
    if isinstance(deduplication, Near):
        shingle, bands, rows = deduplication.shingle, deduplication.bands, deduplication.rows
        show(f"near: runs of {count(shingle, 'word')}, {count(bands, 'band')} of {rows} hashes; the same text always")
        show_table(_chances_table(chances))
    else:
        show("exact: documents whose text behind the steps is the same")
    if deduplication.fold:
        show("fold: texts are compared in small letters (ß stays ß), and white space makes no difference")
    least, most = facts["least_documents"], facts["window"]
    show(f"window: the newest {least:,} to {most:,} kept documents; a copy of an older one is kept")
    show(f"memory: up to {size(facts['memory_bytes'])}, disk: up to {size(facts['disk_bytes'])}, for a full window")


@command(
    "dedup counts",
    "tokenmill dedup counts",
    "tokenmill dedup counts --to times.parquet",
    shown=("bootstrap_servers", "raw_topics"),
)
def counts(
    settings: Settings,
    *,
    to: Annotated[
        Path | None, option("A Parquet file for each document that came again, with how often.", "FILE")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Count the duplicates of each raw topic of a service, and how often kept documents came again.

    All verdicts of the raw topics' domains are read.
    """
    from ..tools.inspect.duplicates import count_duplicates, times_file  # noqa: PLC0415 - as above

    if to is not None and to.suffix not in {"", ".parquet", ".pq"}:
        raise InputError(f"--to {to}: the file is Parquet, whatever its name says: give a name that ends in .parquet")
    with times_file(to) if to is not None else nullcontext() as add:
        found = asyncio.run(count_duplicates(settings, add))
    if as_json:
        show_json(found)
        return
    for one in found:
        show_table(_duplicates_table(**one))
        show_table(_again_table(one["again"]))
    if not found:
        say("no stream of these raw topics leaves out duplicates, or no sequencer has begun")


def _duplicates_table(domain: str, topics: Mapping[str, Mapping[str, int]], **_: object) -> ShownTable:
    rows = ((domain, raw_topic, *counted.values()) for raw_topic, counted in topics.items())
    return ShownTable(("domain", "raw topic", *topics[min(topics)]), rows)


def _again_table(again: Sequence[int]) -> ShownTable:
    """Return how many kept documents came again once, twice, 3 to 4 times, and so on."""
    rows = []
    for row, documents in enumerate(again):
        least, most = (1 << row >> 1) + 1, 1 << row
        rows.append((f"{least:,} to {most:,} times" if least < most else ("once", "twice")[row], documents))
    return ShownTable(("came again", "documents"), rows)


def _chances_table(chances: Mapping[float, float]) -> ShownTable:
    return ShownTable(("similarity", "found"), ((f"{one:.2f}", f"{chance:.1%}") for one, chance in chances.items()))
