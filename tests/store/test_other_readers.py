"""Sealed segments as others read them, who know nothing of TokenMill.

Each reader here is written from the layout that the project documents, in as few lines as it takes. That the real ones
(megatron-core 0.16.1, ai2-olmo-core 3.0.0, datatrove 0.10.1) read the same was seen by hand: they bring dozens of
packages.
"""

import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.store.chains import STREAM, directory_of, fill, make_chain, make_info, make_store, tokens_of
from tokenmill.store import StreamInfo

LENGTH = 8
Tokens = npt.NDArray[np.unsignedinteger]


def written(path: Path, dtype: str) -> tuple[StreamInfo, list[Path], Tokens]:
    """Write two sealed segments of four blocks and an open one; return the sealed files, and the tokens in them."""
    info = make_info(block_tokens=LENGTH + 1, dtype=dtype)
    store = make_store(path, info)
    chain = make_chain(info, 10)
    fill(store, info, chain, [10])
    files = sorted(file for file in directory_of(store).glob("*.bin") if file.with_suffix(".json").exists())
    assert len(files) == 2
    return info, files, tokens_of(chain, info)[:8]


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
def test_nanogpt_takes_windows_anywhere(tmp_path: Path, dtype: str) -> None:
    """`get_batch`: one memmap, random offsets, y one token on."""
    info, files, tokens = written(tmp_path, dtype)
    data = np.memmap(files[0], dtype=info.dtype, mode="r")
    flat = tokens[:4].reshape(-1).astype(np.int64)
    places = np.random.default_rng(0).integers(0, len(data) - LENGTH, 16)
    x = np.stack([data[i : i + LENGTH].astype(np.int64) for i in places])
    y = np.stack([data[i + 1 : i + 1 + LENGTH].astype(np.int64) for i in places])
    assert x.tolist() == [flat[i : i + LENGTH].tolist() for i in places]
    assert y[:, :-1].tolist() == x[:, 1:].tolist()
    assert len(data) == flat.size


class MegatronDataset:
    """Megatron-LM's `IndexedDataset`: a path without its suffix; `get(sequence, offset, length)`."""

    DTYPES = (None, "<u1", "<i1", "<i2", "<i4", "<i8", "<f8", "<f4", "<u2")

    def __init__(self, prefix: Path) -> None:
        index = prefix.with_suffix(".idx").read_bytes()
        magic, version, code, sequences, documents = struct.unpack_from("<9sQBQQ", index)
        assert (magic, version) == (b"MMIDIDX\x00\x00", 1)
        at = struct.calcsize("<9sQBQQ")
        self.lengths = np.frombuffer(index, "<i4", sequences, at)
        self.pointers = np.frombuffer(index, "<i8", sequences, at + self.lengths.nbytes)
        self.documents = np.frombuffer(index, "<i8", documents, at + self.lengths.nbytes + self.pointers.nbytes)
        assert at + self.lengths.nbytes + self.pointers.nbytes + self.documents.nbytes == len(index)
        self.dtype = np.dtype(self.DTYPES[code])
        self.data = prefix.with_suffix(".bin").read_bytes()

    def get(self, sequence: int, offset: int = 0, length: int | None = None) -> npt.NDArray[np.integer]:
        count = self.lengths[sequence] - offset if length is None else length
        return np.frombuffer(self.data, self.dtype, count, self.pointers[sequence] + offset * self.dtype.itemsize)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
def test_megatron_opens_a_segment_by_its_prefix(tmp_path: Path, dtype: str) -> None:
    """Every block is a sequence and a document; of 32 bits, ids below 2**31 are what they are."""
    info, files, tokens = written(tmp_path, dtype)
    for number, file in enumerate(files):
        dataset = MegatronDataset(file.with_suffix(""))
        blocks = tokens[4 * number : 4 * number + 4]
        assert dataset.documents.tolist() == list(range(5))
        for block, row in enumerate(blocks):
            assert dataset.get(block).astype(info.dtype).tolist() == row.tolist()
            assert dataset.get(block, offset=3, length=4).astype(info.dtype).tolist() == row[3:7].tolist()


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
def test_olmo_core_and_datatrove_have_a_block_for_an_instance(tmp_path: Path, dtype: str) -> None:
    """`NumpyFSLDataset` with ``sequence_length=block_tokens``; `DatatroveFolderDataset` with ``seq_len`` one less."""
    info, files, tokens = written(tmp_path, dtype)
    size = info.block_tokens * info.dtype.itemsize
    instances = []
    for file in files:
        for index in range(file.stat().st_size // size):
            with file.open("rb") as data:
                data.seek(index * size)
                instances.append(np.frombuffer(data.read(size), info.dtype))
    assert np.array_equal(instances, tokens)


def test_an_open_segment_is_told_from_a_sealed_one(tmp_path: Path) -> None:
    written(tmp_path, "uint16")
    directory = tmp_path / STREAM / "0"
    sealed = {file.stem for file in directory.glob("*.json")}
    assert sealed == {file.stem for file in directory.glob("*.idx")} == {f"{first:012d}" for first in (0, 4)}
    assert {file.stem for file in directory.glob("*.bin")} - sealed == {f"{8:012d}"}
