"""The Megatron index."""

import struct

import numpy as np
import pytest

from tokenmill.store.sealing import megatron_index


@pytest.mark.parametrize(("dtype", "code", "theirs"), [("uint8", 1, "u1"), ("uint16", 8, "<u2"), ("uint32", 4, "<i4")])
def test_megatron_finds_each_block_as_a_document(dtype: str, code: int, theirs: str) -> None:
    """Read as Megatron's own reader does: header, lengths, pointers, document ends."""
    tokens = np.arange(3 * 7, dtype=dtype).reshape(3, 7)
    index = megatron_index(3, 7, tokens.dtype)
    magic, version, found, sequences, documents = struct.unpack_from("<9sQBQQ", index)
    assert (magic, version, found, sequences, documents) == (b"MMIDIDX\x00\x00", 1, code, 3, 4)
    lengths = np.frombuffer(index, "<i4", count=3, offset=34)
    pointers = np.frombuffer(index, "<i8", count=3, offset=34 + 12)
    assert np.frombuffer(index, "<i8", offset=34 + 12 + 24).tolist() == [0, 1, 2, 3]
    data = tokens.tobytes()
    for number in range(3):
        sequence = np.frombuffer(data, theirs, count=lengths[number], offset=pointers[number])
        assert sequence.tolist() == tokens[number].tolist()
