"""Arrow's own files (IPC, also called Feather) and streams, one record batch at a time."""

from collections.abc import Iterator
from io import BufferedReader
from typing import Any, Final

from ..extras import library
from ..items import Place
from .protocol import Bad, Entry, File, Needs
from .rows import rows_of

MAGIC: Final = b"ARROW1"
"""What a file begins with, and a stream does not (Arrow columnar format, IPC file format)."""


def read_arrow(file: File, needs: Needs, start: Place) -> Iterator[Entry]:
    """Yield the rows, numbered from 1."""
    arrow = library("pyarrow", "produce", "reading Arrow files")
    number = 0
    try:
        schema, batches = _open(library("pyarrow.ipc", "produce", "reading Arrow files"), file.stream)
        if bad := needs.missing(schema.names):
            yield 0, 0, bad
            return
        # By number, for names may be there twice.
        columns = [n for n, name in enumerate(schema.names) if needs.columns is None or name in needs.columns]
        for batch in batches:
            skip = min(max(0, start.entry - number), batch.num_rows)
            number += skip
            for row in rows_of(batch.select(columns).slice(skip)):
                number += 1
                yield number, 0, row
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        yield number + 1, 0, Bad(f"no Arrow data, or damaged: {error}", broken=True)


def _open(ipc: Any, stream: "BufferedReader[Any]") -> tuple[Any, Iterator[Any]]:
    """Return schema and record batches."""
    if not stream.peek(len(MAGIC)).startswith(MAGIC):
        reader = ipc.open_stream(stream)
        return reader.schema, iter(reader)
    reader = ipc.open_file(stream)
    return reader.schema, (reader.get_batch(number) for number in range(reader.num_record_batches))
