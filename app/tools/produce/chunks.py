"""From a format's entries to chunks of items: the unit in which files are read side by side, and found again."""

from collections.abc import Iterable, Iterator
from typing import Final

from .formats.protocol import Bad, Entry, Text
from .items import Chunk, Item, Place, Refused, Unmet
from .shape import Shape

CHUNK_BYTES: Final = 1 << 20
"""Of values, and of what is refused, in a chunk; one more may be on top. Runs remember places between chunks: changed,
they start anew."""
CHUNK_ENTRIES: Final = 4096
"""Entries in a chunk, used or not, so that a condition that hardly ever holds does not hide how far a file was read."""
CUT: Final = 2
"""Version of the rule by which chunks end: no run goes on in chunks that end otherwise. In 1, refusals had no size."""


class Chunker:
    """Makes items of entries, and chunks of items.

    Where a chunk ends is settled by the entries and the shape: from its end on, all later chunks come out the same.
    """

    def __init__(self, shape: Shape, name: str, start: Place, *, one_by_one: bool = False) -> None:
        """Make items of the entries of ``name`` behind ``start``; ``one_by_one``: do not wait for a full chunk."""
        self.place = start
        self._shape = shape
        self._name = name
        self._limit = 0 if one_by_one else CHUNK_BYTES
        self._items: list[Item | Refused] = []
        self.size = 0
        """Bytes of the last chunk, as `CHUNK_BYTES` counts them; once the entries have ended, of `rest`."""
        self.unmet = Unmet()
        """What was left out between the items of the last chunk; once the entries have ended, of `rest`."""

    def chunks(self, entries: Iterable[Entry]) -> Iterator[list[Item | Refused]]:
        """Yield the items of full chunks; `place` is behind each while it is yielded. What is left is in `rest`."""
        items, size, count, limit = self._items, 0, 0, self._limit
        unmet = without_field = 0
        quick = self._shape.quick
        try:
            for number, at, content in entries:
                # The usual case first, for what is done here is done for every line.
                item = (quick(content) if type(content) is bytes else None) or self._item(number, content)
                count += 1
                if isinstance(item, Unmet):
                    unmet += item.documents
                    without_field += item.without_field
                elif item is not None:
                    items.append(item)
                    size += len(item.data if isinstance(item, Refused) else item.value)
                if size >= limit or count >= CHUNK_ENTRIES:
                    self.place, self.size, self.unmet = Place(number, at), size, Unmet(unmet, without_field)
                    self._items = []
                    yield items
                    items, size, count = self._items, 0, 0
                    unmet = without_field = 0
        finally:
            self.size, self.unmet = size, Unmet(unmet, without_field)

    def chunk(self, items: list[Item | Refused], bytes_read: int, *, last: bool = False) -> Chunk:
        """Return the chunk that these items are, the last that were yielded or the `rest`."""
        return Chunk(items, self.place, bytes_read, self.size, last, self.unmet)

    @property
    def rest(self) -> list[Item | Refused]:
        """The items behind the last full chunk."""
        return self._items

    def where(self, number: int) -> str:
        """Return the name of an entry's place, for people."""
        return f"{self._name}:{number}" if number else self._name

    def _item(self, number: int, content: object) -> Item | Refused | Unmet | None:
        if type(content) is bytes:
            return self._shape.of_json(f"{self._name}:{number}", content)
        if isinstance(content, dict):
            where = self.where(number)
            return self._shape.of_row(where, content, where)
        if isinstance(content, Text):
            where = self._name if content.whole else self.where(number)
            return self._shape.of_text(where, where, content.data)
        if content is None:
            return None
        if isinstance(content, Bad):
            return Refused(self.where(number), content.why, content.data, content.broken)
        raise TypeError(content)
