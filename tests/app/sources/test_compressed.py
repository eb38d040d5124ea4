"""Compressed streams."""

import bz2
import io
import lzma
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.app.sources.encodings import DAMAGE, decompressed

PACK: dict[str, Callable[[bytes], bytes]] = {".bz2": bz2.compress, ".xz": lzma.compress}
each = pytest.mark.parametrize("suffix", [*PACK])


def opened(packed: bytes, suffix: str) -> "io.BufferedReader":
    return decompressed(io.BufferedReader(io.BytesIO(packed)), suffix)


@each
@given(parts=st.lists(st.binary(max_size=30), max_size=4), padding=st.integers(0, 2), at=st.integers(0, 99))
def test_streams_behind_each_other_are_one(suffix: str, parts: list[bytes], padding: int, at: int) -> None:
    between = bytes(4 * padding) if suffix == ".xz" else b""
    stream = opened(b"".join(PACK[suffix](part) + between for part in [b"", *parts]), suffix)
    whole = b"".join(parts)
    assert stream.read() == whole
    assert stream.seek(at) == min(at, len(whole))
    assert stream.read() == whole[at:]
    assert stream.seek(0, io.SEEK_END) == len(whole)
    assert stream.seek(-min(3, len(whole)), io.SEEK_END) == max(0, len(whole) - 3)
    assert stream.read() == whole[-3:]


@each
@pytest.mark.parametrize("behind", [b"rubbish", b"\0rubbish", b"BZ", b"\xfd7z", b"\0" * 5])
def test_rubbish_behind_a_stream_is_damage(suffix: str, behind: bytes) -> None:
    """The libraries' own files take it for the end; what is before it is read."""
    stream = opened(PACK[suffix](b"text") + behind, suffix)
    assert stream.read1() == b"text"
    with pytest.raises(DAMAGE):
        stream.read()


@each
@pytest.mark.slow
def test_a_bomb_is_read_in_pieces(suffix: str) -> None:
    stream = opened(PACK[suffix](bytes(32 << 20)), suffix)
    most = max(len(piece) for piece in iter(lambda: stream.read1(1 << 20), b""))
    assert most <= 1 << 20


def test_an_xz_file_that_asks_for_gigabytes_is_damage() -> None:
    """Its dictionary would be in memory as a whole."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 20}]
    packed = bytearray(lzma.compress(b"text", filters=filters))
    assert opened(bytes(packed), ".xz").read() == b"text"
    header = packed[12:24]
    header[4] = 40  # dictionary size 4 GiB - 1, in a block's header, which has a checksum of its own
    header[8:] = zlib.crc32(header[:8]).to_bytes(4, "little")
    packed[12:24] = header
    with pytest.raises(DAMAGE, match=r"[Mm]emory"):
        opened(bytes(packed), ".xz").read()
