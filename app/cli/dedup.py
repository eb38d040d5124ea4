"""``tokenmill dedup``: what the setting of that name finds, and what it costs."""

from collections.abc import Mapping
from typing import Final

from tokenmill.errors import SettingsError

from ..milling.duplicates.parameters import SLICES, Deduplication, Near, deduplication_of
from ..settings import Settings
from ..tables import ShownTable
from .options import command
from .output import AsJson, count, show, show_json, show_table, size

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
    facts = _facts(deduplication)
    chances = {one: deduplication.chance(one) for one in SIMILARITIES} if isinstance(deduplication, Near) else {}
    if as_json:
        show_json({**facts, "chances": [{"similarity": one, "chance": chance} for one, chance in chances.items()]})
        return
    if isinstance(deduplication, Near):
        shingle, bands, rows = deduplication.shingle, deduplication.bands, deduplication.rows
        show(f"near: runs of {count(shingle, 'word')}, {count(bands, 'band')} of {rows} hashes; the same text always")
        show_table(chances_table(chances))
    else:
        show("exact: documents whose text behind the steps is the same")
    if deduplication.fold:
        show("fold: capitals and white space make no difference")
    least, most = facts["least_documents"], facts["window"]
    show(f"window: the newest {least:,} to {most:,} kept documents; a copy of an older one is kept")
    show(f"memory: up to {size(facts['memory_bytes'])}, disk: up to {size(facts['disk_bytes'])}, for a full window")


def chances_table(chances: Mapping[float, float]) -> ShownTable:
    """Return how likely a duplicate is found at each similarity."""
    table = ShownTable(("similarity", "found"))
    for one, chance in chances.items():
        table.add(f"{one:.2f}", f"{chance:.1%}")
    return table


def _facts(deduplication: Deduplication) -> dict[str, int]:
    """Return what a window takes, as JSON types."""
    part = deduplication.window // SLICES
    return {
        "window": part * SLICES,
        "least_documents": part * (SLICES - 1),
        "memory_bytes": round(deduplication.table_bytes * part * SLICES),
        "disk_bytes": deduplication.row_bytes * part * SLICES,
    }
