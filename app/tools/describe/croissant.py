"""A stream as Croissant 1.1 (ML Commons): JSON-LD that says what the files are and where they came from."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import tokenmill

from .facts import DataSetFacts, SegmentFacts

CONFORMS_TO: Final = "http://mlcommons.org/croissant/1.1"
VERSION: Final = "1.0.0"
"""Of the data set: appending does not change it, and whatever would is another stream."""
CONTEXT: Final = Path(__file__).with_name("croissant_context.json")
"""The specification's own, and the vocabulary of provenance."""


def croissant(facts: DataSetFacts) -> dict[str, Any]:
    """Return the JSON-LD of a stream whose segments have SHA-256s.

    The format has no words for rows of raw integers, so the files stand there without a record set, and their
    descriptions say how they are read. What is not known is left out, and named in the description.
    """
    told: dict[str, Any] = {
        "@context": json.loads(CONTEXT.read_bytes()),
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS_TO,
        "name": facts.info.name,
        "description": _description(facts),
        "version": VERSION,
        "isLiveDataset": facts.live,
        "prov:wasDerivedFrom": list(_derived_from(facts)),
        "prov:wasGeneratedBy": {
            "@type": "prov:Activity",
            "prov:label": f"tokenmill {facts.genesis.get('versions', {}).get('tokenmill', tokenmill.__version__)}",
            "sc:identifier": facts.info.fingerprint.hex(),
        },
        "distribution": [_file(segment, facts) for segment in facts.segments],
    }
    if facts.eras["first_closed"] is not None:
        told["dateCreated"] = day(facts.eras["first_closed"])
        told["dateModified"] = day(facts.eras["last_closed"])
    if facts.languages is not None:
        told["inLanguage"] = list(facts.languages)
    return told


def day(milliseconds: int) -> str:
    """Return a day as ISO 8601 has it, in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).date().isoformat()


def _derived_from(facts: DataSetFacts) -> Iterator[dict[str, str]]:
    if facts.packed is None:
        for one in facts.partitions:
            yield {"@id": f"kafka:{one['topic']}/{one['partition']}", "sc:description": _offsets(one)}
    for one in (source for run in facts.files or () if facts.packed for source in run["sources"]):
        yield {"@id": one["name"], "sc:description": f"{one['bytes']} bytes, xxh3 {one['digest'] or 'not known'}"}


def _offsets(one: dict[str, Any]) -> str:
    return f"offsets {one['first_offset']} to {one['last_offset']} of partition {one['partition']} of {one['topic']}"


def _description(facts: DataSetFacts) -> str:
    unknown = "; ".join(f"{name} ({why})" for name, why in facts.unknown.items())
    return (
        f"Token blocks of the split {facts.recipe.get('split')!r} of {facts.origin}: "
        f"{facts.blocks:,} blocks of {facts.info.block_tokens} tokens, {facts.info.dtype.name}, made by TokenMill with "
        f"the recipe {facts.info.fingerprint.hex()}. Not known: {unknown or 'nothing that this format asks for'}."
    )


def _file(segment: SegmentFacts, facts: DataSetFacts) -> dict[str, Any]:
    manifest = segment.manifest
    return {
        "@type": "cr:FileObject",
        "@id": segment.name,
        "name": segment.name,
        "description": f"blocks {manifest.first} to {manifest.first + manifest.blocks - 1} of partition "
        f"{manifest.partition}: numpy.memmap(file, '{facts.info.dtype.str}').reshape(-1, {manifest.block_tokens})",
        "contentUrl": segment.name,
        "contentSize": f"{manifest.bin_bytes} B",
        "encodingFormat": "application/octet-stream",
        "sha256": segment.sha256,
    }
