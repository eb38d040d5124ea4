"""Damage to a store's files, at every byte or at random ones: recovered, or refused by name and then repaired."""

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
import pytest

from tests.faults.packings import CHAINS
from tests.faults.trial import Trial
from tests.store.chains import (
    STREAM,
    contents,
    directory_of,
    fill,
    make_chain,
    make_info,
    make_store,
    segment_of,
    tokens_of,
)
from tests.store.giving import ChainDonor
from tokenmill.app.segments.retiring import retire
from tokenmill.app.tools.repair import examine, repair_partition
from tokenmill.errors import DamagedError, StoreError
from tokenmill.reading import Blocks
from tokenmill.recipe import canonical_json
from tokenmill.store import PartitionWriter, Store, StreamInfo, open_partition
from tokenmill.store.sealing import MAGIC
from tokenmill.store.store import read_start
from tokenmill.wire.chain import genesis_hash, roll
from tokenmill.wire.pieces import PADDING, Piece, decode_entry, encode_entry


def _of_bytes(pattern: bytes) -> Callable[[StreamInfo, int], bytes]:
    return lambda info, count: (pattern * (count * info.block_bytes // len(pattern) + 1))[: count * info.block_bytes]


ODD: Final[dict[str, Callable[[StreamInfo, int], bytes]]] = {
    "zeros": _of_bytes(b"\0"),
    "ones": _of_bytes(b"\xff"),
    "commit records": _of_bytes(MAGIC + (64).to_bytes(4, "little")),
    "manifests": _of_bytes(canonical_json({"format": 1, "first": 0})),
    "padding": _of_bytes(b"\0\0"),
}


def odd_chain(name: str, info: StreamInfo, count: int) -> Blocks:
    """Return a chain with these tokens; ``padding`` has no other pieces, and the others spell magic in their metas."""
    tokens = ODD[name](info, count)
    entries = [encode_entry(_pieces(name, number)) for number in range(count)]
    return Blocks(0, tokens, entries, roll(genesis_hash(info.fingerprint, 0), tokens, entries))


def _pieces(name: str, number: int) -> Sequence[Piece]:
    if name == "padding":
        return [Piece(0, 100 * number, PADDING, b"")]
    return [Piece(0, 100 * number, 0, canonical_json({"id": MAGIC.decode() * 16}))]


def chain_named(name: str, info: StreamInfo, count: int) -> Blocks:
    """Return an odd chain, that of a packing (`tests.faults.packings`), or, of another name, an ordinary one."""
    if name in CHAINS:
        return CHAINS[name](info, count)
    return odd_chain(name, info, count) if name in ODD else make_chain(info, count)


INFO: Final = make_info(segment_blocks=6)
BLOCKS: Final = 17
OPEN: Final = 12
"""Where the open segment begins."""
COMMITS: Final = (9, 13, 15, 16)
"""The last two are those of the open segment that truncation takes away byte by byte."""


@dataclass
class Scene:
    """A store with sealed segments, an open one, and blocks in it that were never committed; files put back at will."""

    store: Store
    chain: Blocks
    files: dict[Path, bytes]
    whole: dict[str, bytes]
    """What every store of the stream must become."""

    @classmethod
    def make(cls, path: Path, name: str) -> Self:
        """Write the stores of a chain (`chain_named`)."""
        chain = chain_named(name, INFO, BLOCKS)
        calm = make_store(path / "calm", INFO)
        fill(calm, INFO, chain, [BLOCKS])
        store = make_store(path / "store", INFO)
        fill(store, INFO, chain, COMMITS)
        for suffix in ("bin", "docs"):
            beyond = (directory_of(calm) / f"{OPEN:012d}.{suffix}").read_bytes()
            (directory_of(store) / f"{OPEN:012d}.{suffix}").write_bytes(beyond)  # block 16, not committed
        files = {path: path.read_bytes() for path in sorted(directory_of(store).iterdir()) if path.name != "lock"}
        return cls(store, chain, files, contents(calm))

    def restore(self) -> None:
        """Put every file back, and remove all others."""
        for path in directory_of(self.store).iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path not in self.files and path.name != "lock":
                path.unlink()
        for path, data in self.files.items():
            if not path.exists() or path.read_bytes() != data:
                path.unlink(missing_ok=True)
                path.write_bytes(data)

    def recovered(self) -> int:
        """Open the store for writing, go on to the chain's end, and compare all files; return where it went on."""
        with PartitionWriter.open(self.store, STREAM, 0) as writer:
            block = writer.next_block
        fill(self.store, INFO, self.chain, [BLOCKS])
        assert contents(self.store) == self.whole
        return block

    def repaired(self) -> None:
        """Repair; what counted is there again, and writing goes on."""
        repairs = list(repair_partition(directory_of(self.store), INFO, 0, ChainDonor(self.chain, INFO)))
        assert not [repair for repair in repairs if repair.lost]
        self.recovered()

    def examined(self) -> list[str]:
        """Return what an examination says is damaged."""
        directory = directory_of(self.store)
        return [damage.what for damage in examine(directory, INFO, 0, read_start(directory, INFO, 0))]

    def refused(self) -> set[int]:
        """Read every block with a checking reader: what is returned is right, or refused by the name of a file."""
        tokens = tokens_of(self.chain, INFO)
        reader = open_partition(self.store.path, STREAM, 0, check=True)
        refused: set[int] = set()
        said: list[str] = []
        for number in range(reader.blocks):
            try:
                assert reader.read(number).tobytes() == tokens[number].tobytes()
                assert reader.documents(number)[0].offset == decode_entry(self.chain.entries[number])[0].offset
            except DamagedError as error:
                said.append(str(error))
                refused.add(number)
        assert all("tokenmill repair raw-text.train 0 --store" in text for text in said)
        return refused


def scenes_to_break(path: Path, trial: Trial) -> Iterator[Scene]:
    """Yield one of an ordinary chain, and of odd ones and those of packings: all in a full run, else one of them."""
    others = [*ODD, *CHAINS]
    for name in ("ordinary", *trial.rng.sample(others, trial.rounds(1, len(others)))):
        yield Scene.make(path / name.replace(" ", "-"), name)


@pytest.mark.needs("minutes")
@pytest.mark.fault("segment-truncated", "odd-tokens")
def test_truncation_at_every_byte_of_the_last_two_commits(tmp_path: Path, trial: Trial) -> None:
    """The log's end counts as never written; committed data that is missing is refused, named, and repaired."""
    for scene in scenes_to_break(tmp_path, trial):
        log = segment_of(scene.store, OPEN).commits
        records = [0, 64 + 32, 64 + 32 + 64 + 64]  # 13 commits one block, 15 two, 16 one
        for length in range(records[1], len(scene.files[log]) + 1):
            scene.restore()
            log.write_bytes(scene.files[log][:length])
            wanted = 16 if length == len(scene.files[log]) else 15 if length >= records[2] else 13
            with PartitionWriter.open(scene.store, STREAM, 0) as writer:
                assert (writer.next_block, writer.chain) == (wanted, scene.chain.chains[wanted - 1])
            trial.fired("log cut off")
        _cut_data(scene, trial)
    trial.held("exact", "loud")


def _cut_data(scene: Scene, trial: Trial) -> None:
    """Cut tokens and document table at every byte: refused below what was committed, recovered above."""
    for suffix, committed, ends in (
        ("bin", 4 * INFO.block_bytes, 1 * INFO.block_bytes),
        ("docs", sum(map(len, scene.chain.entries[OPEN:16])), len(scene.chain.entries[OPEN])),
    ):
        path = segment_of(scene.store, OPEN).directory / f"{OPEN:012d}.{suffix}"
        lengths = range(ends, len(scene.files[path]) + 1)
        repaired = set(trial.rng.sample(lengths, trial.rounds(4, len(lengths))))
        for length in lengths:
            scene.restore()
            path.write_bytes(scene.files[path][:length])
            if length >= committed:
                with PartitionWriter.open(scene.store, STREAM, 0) as writer:
                    assert writer.next_block == 16
                trial.fired("uncommitted data cut off")
                continue
            with pytest.raises(DamagedError, match=rf"{path.name}: it has {length} bytes, but {committed} were"):
                PartitionWriter.open(scene.store, STREAM, 0)
            trial.fired("committed data cut off")
            if length in repaired:
                scene.repaired()


@pytest.mark.needs("minutes")
@pytest.mark.fault("bits-flipped", "odd-tokens")
def test_flipped_bits_are_recovered_or_refused_and_repaired(tmp_path: Path, trial: Trial) -> None:
    """In every kind of file: a reader never returns a wrong block, refuses no other, and a repair restores all."""
    for scene in scenes_to_break(tmp_path, trial):
        for path, data in scene.files.items():
            for bit in trial.rng.sample(range(8 * len(data)), min(trial.rounds(3, 300), 8 * len(data))):
                scene.restore()
                damaged = bytearray(data)
                damaged[bit // 8] ^= 1 << bit % 8
                path.unlink()
                path.write_bytes(damaged)
                _judge_flip(scene, path, bit // 8, trial)
    trial.held("exact", "loud")


def _judge_flip(scene: Scene, path: Path, at: int, trial: Trial) -> None:
    first, suffix = int(path.name[:12]), path.suffix[1:]
    found = scene.examined()
    if suffix == "commits":
        trial.fired("commit log")
        if found:
            assert path.name in found[0]
            scene.repaired()
        else:  # the last record, which counts as never written; or a sealed segment's, which counts no more
            assert scene.recovered() == (16 if first < OPEN else 15)
        return
    uncommitted = {"bin": 4 * INFO.block_bytes, "docs": sum(map(len, scene.chain.entries[OPEN:16]))}
    if first == OPEN and at >= uncommitted[suffix]:
        trial.fired("uncommitted")
        assert not found
        assert scene.refused() == set()
        assert scene.recovered() == 16
        return
    trial.fired(f"committed {suffix}")
    assert any(path.name in what for what in found) or suffix in {"index", "json"}
    assert found
    refused = scene.refused()
    if suffix in {"bin", "docs"}:
        assert refused == {_block_at(scene, first, suffix, at)}
    else:
        assert refused <= set(range(first, first + INFO.segment_blocks))
    scene.repaired()


def _block_at(scene: Scene, first: int, suffix: str, at: int) -> int:
    """Return the block in which a byte of a segment's file lies."""
    sizes = [INFO.block_bytes if suffix == "bin" else len(entry) for entry in scene.chain.entries[first:]]
    return first + int(np.searchsorted(np.cumsum(sizes), at, side="right"))


def _lose(*names: str) -> Callable[[Scene, random.Random], None]:
    def lose(scene: Scene, _: random.Random) -> None:
        for path in list(directory_of(scene.store).iterdir()):
            if any(path.match(name) for name in names):
                path.unlink()

    return lose


def _copy_foreign(scene: Scene, rng: random.Random) -> None:
    """Copy a segment of another partition, sealed or open, over ours."""
    first = rng.choice([0, 6, OPEN])
    foreign = make_store(scene.store.path.parent / "foreign", INFO)
    if not directory_of(foreign, 1).exists():
        fill(foreign, INFO, make_chain(INFO, BLOCKS, partition=1, seed=9), [16], partition=1)
    for path in directory_of(foreign, 1).glob(f"{first:012d}.*"):
        shutil.copy(path, directory_of(scene.store))


def _leave_stale(scene: Scene, rng: random.Random) -> None:
    """Leave what crashes and people leave."""
    for name in (f"{OPEN:012d}.json.tmp", "start.json.tmp", f"{0:012d}.bin.broken", "notes.txt", f"{6:012d}.bak"):
        (directory_of(scene.store) / name).write_bytes(rng.randbytes(20))


FILES: Final[dict[str, Callable[[Scene, random.Random], None]]] = {
    "a manifest": _lose("000000000006.json"),
    "a manifest and its log": _lose("000000000006.json", "000000000006.commits"),
    "an index": _lose("000000000000.index"),
    "a Megatron index": _lose("000000000000.idx"),
    "tokens": _lose("000000000006.bin"),
    "a document table": _lose("000000000000.docs"),
    "the open segment's tokens": _lose("000000000012.bin"),
    "the open segment's log": _lose("000000000012.commits"),
    "the first segment": _lose("000000000000.*"),
    "a middle segment": _lose("000000000006.*"),
    "the open segment": _lose("000000000012.*"),
    "all commit logs": _lose("*.commits"),
    "all manifests": _lose("*.json"),
    "everything": _lose("0*"),
    "a foreign segment": _copy_foreign,
    "stale files": _leave_stale,
}


@pytest.mark.needs("minutes")
@pytest.mark.fault("files-missing")
def test_missing_foreign_and_stale_files_are_no_matter_or_refused_and_repaired(tmp_path: Path, trial: Trial) -> None:
    """A store that opens has all that it had, or takes it again; one that does not says which file, and is mended."""
    scene = Scene.make(tmp_path, "ordinary")
    loud: dict[str, str] = {}
    for what, harm in FILES.items():
        scene.restore()
        harm(scene, trial.rng)
        trial.fired("files gone or foreign")
        try:
            PartitionWriter.open(scene.store, STREAM, 0).close()
            reader = open_partition(scene.store.path, STREAM, 0, check=True)
            reader.gather(range(reader.blocks))  # opening looks at the newest alone, and readers see the rest
            scene.recovered()
        except DamagedError as error:
            loud[what] = str(error)
            scene.restore()
            harm(scene, trial.rng)
            scene.repaired()
    assert FILES.keys() - loud.keys() == {
        "a manifest",
        "all manifests",
        "stale files",
        "the open segment",
        "everything",
    }
    for text in loud.values():
        assert "run `tokenmill repair raw-text.train 0 --store" in text
        assert f"{directory_of(scene.store)}/" in text
    trial.held("exact", "loud")


@pytest.mark.fault("bits-flipped", "files-missing")
def test_descriptions_that_are_damaged_are_refused(tmp_path: Path, trial: Trial) -> None:
    """A store's identity, a partition's start: each flip is named, or changes nothing that anyone uses."""
    store = make_store(tmp_path, INFO)
    fill(store, INFO, chain_named("ordinary", INFO, BLOCKS), [16])
    retire(store.path, STREAM, 0, 6)
    for path, load in (
        (directory_of(store) / "start.json", lambda: read_start(directory_of(store), INFO, 0)),
        (store.path / "store.json", lambda: Store.open(store.path)),
    ):
        data, right = path.read_bytes(), load()
        said: list[str] = []
        for bit in trial.rng.sample(range(8 * len(data)), trial.rounds(100, 8 * len(data))):
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            try:
                assert path.name == "store.json" or load() == right
                load()
            except (DamagedError, StoreError) as error:
                said.append(str(error))
                trial.fired(f"{path.name} refused")
        assert all(path.name in text or "tokenmill adopt" in text for text in said)
        path.write_bytes(data)
    trial.held("loud")
