"""Messages of Arrow, of files and streams, weighed one by one and served as they are."""

import io
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.sources.test_recoding import Drops
from tokenmill.app.sources.formats.columnar import Messages, messages_of
from tokenmill.app.sources.items import MEMORY_BYTES, TooMuchMemoryError

TABLE = pa.table(
    {
        "text": [None, *(f"text {number}" * number for number in range(200))],
        "entry": pa.array([None, *(f"entry {number % 9}" for number in range(200))]).dictionary_encode(),
        "list": [[{"a": number}] * (number % 4) for number in range(201)],
    }
)


def written(*, file: bool, compression: str | None, rows: int, legacy: bool = False) -> bytes:
    made = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression, use_legacy_format=legacy)
    with (pa.ipc.new_file if file else pa.ipc.new_stream)(made, TABLE.schema, options=options) as writer:
        writer.write_table(TABLE, max_chunksize=rows)
    return made.getvalue()


@given(
    file=st.booleans(),
    compression=st.sampled_from([None, "lz4", "zstd"]),
    rows=st.integers(1, 300),
    legacy=st.booleans(),
)
def test_all_messages_are_served(**options: Any) -> None:
    stream = io.BufferedReader(Drops(written(**options)), 64)
    found = pa.ipc.open_stream(pa.PythonFile(Messages(messages_of(stream, MEMORY_BYTES)), "r")).read_all()
    assert found.equals(TABLE)


@pytest.mark.parametrize("file", [True, False])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_a_batch_is_weighed_before_it_is_served(compression: str | None, *, file: bool) -> None:
    data = written(file=file, compression=compression, rows=300)
    size = pa.Table.from_batches(TABLE.to_batches()).nbytes
    served = [*messages_of(io.BufferedReader(io.BytesIO(data)), MEMORY_BYTES)]
    assert len(served) in {8, 9}
    with pytest.raises(TooMuchMemoryError, match=r"a record batch takes .* bytes of memory, over"):
        list(messages_of(io.BufferedReader(io.BytesIO(data)), size - 10_000))


@pytest.mark.parametrize("data", [b"text", b"FEA1\0\0\0\0", b"\xff\xff\xff\xff\x08\0\0\0\xff\xff\xff\xff\0\0\0\0"])
def test_what_is_no_message_is_said(data: bytes) -> None:
    with pytest.raises(OSError, match=r"no message begins here|contradicts itself|cut off"):
        list(messages_of(io.BufferedReader(io.BytesIO(data)), MEMORY_BYTES))
