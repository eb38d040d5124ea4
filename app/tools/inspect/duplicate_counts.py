"""How many documents of a service were left out as duplicates, and how often each kept one came again."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from tokenmill.store.layout import blaming

from ...kafka.clients import consumer
from ...milling.duplicates.parameters import PLACE
from ...milling.duplicates.signatures import Hashes
from ...milling.duplicates.verdicts import REASONS
from ...sequencer.settled_domains import settled_domains
from ...settings import Settings
from ...sources.items import library
from ..export.folder import new_file
from .duplicates import all_ranges

PART: Final = 1 << 20
"""Duplicates that are taken before they are sorted; later on, as many as there are documents that came again."""


class TimesAgain:
    """How often each kept document came again.

    Takes 16 bytes of memory for each document that came again, as much for duplicates that were not sorted yet (or for
    a million), and three times as much while it sorts: 0.6 GB for 10 million that came again once, in one partition.
    """

    def __init__(self) -> None:
        self._times: dict[int, tuple[Hashes, Hashes]] = {}
        """By source: the offsets of documents, ascending, and how often each one came again."""
        self._waiting = np.empty((0, PLACE), np.uint64)
        self._rows = 0

    def add(self, places: Hashes) -> None:
        """Take the places of the kept documents that duplicates resemble; shape ``[duplicates, 2]``."""
        if self._rows + len(places) > len(self._waiting):
            self._sort()
            known = sum(len(offsets) for offsets, _ in self._times.values())
            self._waiting = np.empty((max(PART, known, len(places)), PLACE), np.uint64)
        self._waiting[self._rows : self._rows + len(places)] = places
        self._rows += len(places)

    def _sort(self) -> None:
        places, self._rows = self._waiting[: self._rows], 0
        for source in np.unique(places[:, 0]).tolist():
            come = places[places[:, 0] == source, 1]
            known, times = self._times.pop(source, (come[:0], come[:0]))
            offsets = np.concatenate([known, come])
            order = np.argsort(offsets)
            offsets, times = offsets[order], np.concatenate([times, np.ones_like(come)])[order]
            firsts = np.flatnonzero(np.concatenate([[True], offsets[1:] != offsets[:-1]]))
            self._times[source] = offsets[firsts], np.add.reduceat(times, firsts)

    def rows(self) -> Iterator[tuple[int, Hashes, Hashes]]:
        """Yield the number of each source, the offsets of its documents, ascending, and how often each came again."""
        self._sort()
        for source, (offsets, times) in sorted(self._times.items()):
            yield source, offsets, times

    def histogram(self) -> list[int]:
        """Return how many documents came again once, twice, 3 to 4 times, 5 to 8 times, and so on."""
        self._sort()
        sizes = np.zeros(64, np.int64)
        for _, times in self._times.values():
            sizes += np.bincount(np.frexp(times - np.uint64(1))[1], minlength=len(sizes))
        found: list[int] = np.trim_zeros(sizes, "b").tolist()
        return found


AddTimes: TypeAlias = Callable[[Sequence[str], TimesAgain], None]
"""Takes a domain's raw topics, and how often its documents came again."""


@contextmanager
def times_file(path: Path) -> Iterator[AddTimes]:
    """Write a Parquet file with a row for each document that came again: its place, and how often.

    Its partition and offset are those that an export of documents has. The file has its name once the block is over.
    Raises InputError where pyarrow is not installed, and DiskError where the file cannot be written.
    """
    arrow, parquet = (library(name, "export", "--to") for name in ("pyarrow", "pyarrow.parquet"))
    kinds = {"raw_topic": arrow.string(), "partition": arrow.int32(), "offset": arrow.int64(), "times": arrow.int64()}
    schema = arrow.schema(kinds.items())
    with blaming(path), new_file(path) as file, parquet.ParquetWriter(file, schema) as writer:

        def add(raw_topics: Sequence[str], again: TimesAgain) -> None:
            for source, offsets, times in again.rows():
                place = [raw_topics[source >> 32]] * len(times), [source & 0xFFFFFFFF] * len(times)
                columns = *place, offsets.view(np.int64), times.view(np.int64)
                writer.write_table(arrow.table(list(map(arrow.array, columns, kinds.values())), schema=schema))

        yield add


async def count_duplicates(settings: Settings, add: AddTimes | None) -> list[dict[str, Any]]:
    """Return, as JSON types, what was judged in each domain of the settings' raw topics; all verdicts are read.

    ``topics``: by raw topic, ``offsets judged``, and duplicates by their reason; ``again``: `TimesAgain.histogram`.
    What `times_file` yields gets each domain. Raises TopicError where no raw topic has a stream, and DifferenceError
    where a log holds two histories.
    """
    found = []
    async with consumer(settings) as client:
        for domain in await settled_domains(settings, settings.raw_topics):
            topics = {raw_topic: dict.fromkeys(("offsets judged", *REASONS[1:]), 0) for raw_topic in domain.raw_topics}
            again = TimesAgain()
            async for raw, judged in all_ranges(client, domain):
                topics[raw.topic]["offsets judged"] += judged.end - judged.begin
                for kind, number in enumerate(np.bincount(judged.kinds).tolist()):
                    if number:
                        topics[raw.topic][REASONS[kind]] += number
                again.add(judged.places)
            if add is not None:
                add(domain.raw_topics, again)
            found.append({"domain": domain.name, "topics": topics, "again": again.histogram()})
    return found
