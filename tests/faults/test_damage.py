"""Damage to a store's files: recovered, or refused by name and repaired; and a reader that never closes meanwhile."""

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Final, Self

import numpy as np
import pytest

from tests.consumers.packed import given_documents, pack
from tests.faults.trial import Trial
from tests.store import chains
from tests.store.harm import ChainDonor
from tokenmill.app.segments.retiring import retire
from tokenmill.app.tools.repair import examine, repair_partition
from tokenmill.errors import DamagedError, StoreError
from tokenmill.reading import Blocks
from tokenmill.recipe import canonical_json
from tokenmill.store import PartitionReader, PartitionWriter, Store, StreamInfo, open_partition
from tokenmill.store.sealing import MAGIC
from tokenmill.store.store import read_start
from tokenmill.wire.chain import genesis_hash, roll
from tokenmill.wire.pieces import PADDING, Piece, decode_entry, encode_entry

ODD: Final = {
    "zeros": b"\0",
    "ones": b"\xff",
    "commit records": MAGIC + (64).to_bytes(4, "little"),
    "manifests": canonical_json({"format": 1, "first": 0}),
    "padding": b"\0\0",
}
"""What the tokens of a chain are made of."""


def odd_chain(name: str, info: StreamInfo, count: int) -> Blocks:
    """Return a chain with these tokens; ``padding`` has no other pieces, and the others spell magic in their metas."""
    size = count * info.block_bytes
    rest = (PADDING, b"") if name == "padding" else (0, canonical_json({"id": MAGIC.decode() * 16}))
    entries = [encode_entry([Piece(0, 100 * number, *rest)]) for number in range(count)]
    return chained(info, (ODD[name] * (size // len(ODD[name]) + 1))[:size], entries)


def packed_chain(name: str, info: StreamInfo, blocks: int) -> Blocks:
    """Return a chain of a packing: documents each a token longer than the one before, up to eleven.

    There are pieces that end in padding, and documents in several blocks.
    """
    lengths = (1 + n % 11 for n in count())
    documents = list(islice(lengths, blocks))
    while len(made := pack(given_documents(documents), name, info.block_tokens)) < blocks:
        documents.append(next(lengths))
    made = made[:blocks]
    tokens = b"".join(token.to_bytes(info.dtype.itemsize, "little") for block in made for token in block.tokens)
    return chained(info, tokens, [encode_entry(block.pieces) for block in made])


def chained(info: StreamInfo, tokens: bytes, entries: list[bytes]) -> Blocks:
    return Blocks(0, tokens, entries, roll(genesis_hash(info.fingerprint, 0), tokens, entries))


PACKINGS: Final = ("fit", "rows", "chunks")


def chain_named(name: str, info: StreamInfo, count: int) -> Blocks:
    """Return an odd chain, that of a packing, or, of another name, an ordinary one."""
    make = odd_chain if name in ODD else packed_chain
    return make(name, info, count) if name in (*ODD, *PACKINGS) else chains.make_chain(info, count)


INFO: Final = chains.make_info(segment_blocks=6)
BLOCKS: Final = 17
OPEN: Final = 12  # where the open segment begins
COMMITS: Final = (9, 13, 15, 16)  # the last two are those of the open segment that truncation takes away byte by byte


@dataclass
class Scene:
    """A store with sealed segments, an open one, and blocks in it that were never committed; files put back at will."""

    store: Store
    chain: Blocks
    files: dict[Path, bytes]
    whole: dict[str, bytes]  # what every store of the stream must become

    @classmethod
    def make(cls, path: Path, name: str) -> Self:
        """Write the stores of a chain (`chain_named`)."""
        chain = chain_named(name, INFO, BLOCKS)
        calm = chains.make_store(path / "calm", INFO)
        chains.fill(calm, INFO, chain, [BLOCKS])
        store = chains.make_store(path / "store", INFO)
        chains.fill(store, INFO, chain, COMMITS)
        for suffix in ("bin", "docs"):
            beyond = (chains.directory_of(calm) / f"{OPEN:012d}.{suffix}").read_bytes()
            (chains.directory_of(store) / f"{OPEN:012d}.{suffix}").write_bytes(beyond)  # block 16, not committed
        files = {
            path: path.read_bytes() for path in sorted(chains.directory_of(store).iterdir()) if path.name != "lock"
        }
        return cls(store, chain, files, chains.contents(calm))

    def restore(self) -> None:
        """Put every file back, and remove all others."""
        for path in chains.directory_of(self.store).iterdir():
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
        with PartitionWriter.open(self.store, chains.STREAM, 0) as writer:
            block = writer.next_block
        chains.fill(self.store, INFO, self.chain, [BLOCKS])
        assert chains.contents(self.store) == self.whole
        return block

    def repaired(self) -> None:
        """Repair; what counted is there again, and writing goes on."""
        repairs = list(repair_partition(chains.directory_of(self.store), INFO, 0, ChainDonor(self.chain, INFO)))
        assert not [repair for repair in repairs if repair.lost]
        self.recovered()

    def examined(self) -> list[str]:
        directory = chains.directory_of(self.store)
        return [damage.what for damage in examine(directory, INFO, 0, read_start(directory, INFO, 0))]

    def refused(self) -> set[int]:
        """Read every block with a checking reader: what is returned is right, or refused by the name of a file."""
        tokens = chains.tokens_of(self.chain, INFO)
        reader = open_partition(self.store.path, chains.STREAM, 0, check=True)
        refused: set[int] = set()
        for number in range(reader.blocks):
            try:
                assert reader.read(number).tobytes() == tokens[number].tobytes()
                assert reader.documents(number)[0].offset == decode_entry(self.chain.entries[number])[0].offset
            except DamagedError as error:
                assert "tokenmill repair raw-text.train 0 --store" in str(error)  # noqa: PT017 - not each is refused
                refused.add(number)
        return refused


def scenes_to_break(path: Path, trial: Trial) -> Iterator[Scene]:
    """Yield one of an ordinary chain, and of odd ones and those of packings: all in a full run, else one of them."""
    others = [*ODD, *PACKINGS]
    for name in ("ordinary", *trial.rng.sample(others, trial.rounds(1, len(others)))):
        yield Scene.make(path / name.replace(" ", "-"), name)


@pytest.mark.needs("minutes")
@pytest.mark.fault("segment-truncated", "odd-tokens")
def test_truncation_at_every_byte_of_the_last_two_commits(tmp_path: Path, trial: Trial) -> None:
    """The log's end counts as never written; committed data that is missing is refused, named, and repaired."""
    for scene in scenes_to_break(tmp_path, trial):
        log = chains.segment_of(scene.store, OPEN).commits
        records = [0, 64 + 32, 64 + 32 + 64 + 64]  # 13 commits one block, 15 two, 16 one
        for length in range(records[1], len(scene.files[log]) + 1):
            scene.restore()
            log.write_bytes(scene.files[log][:length])
            wanted = 16 if length == len(scene.files[log]) else 15 if length >= records[2] else 13
            with PartitionWriter.open(scene.store, chains.STREAM, 0) as writer:
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
        path = chains.segment_of(scene.store, OPEN).directory / f"{OPEN:012d}.{suffix}"
        lengths = range(ends, len(scene.files[path]) + 1)
        repaired = set(trial.rng.sample(lengths, trial.rounds(4, len(lengths))))
        for length in lengths:
            scene.restore()
            path.write_bytes(scene.files[path][:length])
            if length >= committed:
                with PartitionWriter.open(scene.store, chains.STREAM, 0) as writer:
                    assert writer.next_block == 16
                trial.fired("uncommitted data cut off")
                continue
            with pytest.raises(DamagedError, match=rf"{path.name}: it has {length} bytes, but {committed} were"):
                PartitionWriter.open(scene.store, chains.STREAM, 0)
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
                path.unlink()
                path.write_bytes(flipped(data, bit))
                _judge_flip(scene, path, bit // 8, trial)
    trial.held("exact", "loud")


def flipped(data: bytes, bit: int) -> bytes:
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


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
    sizes = [INFO.block_bytes if suffix == "bin" else len(entry) for entry in scene.chain.entries[first:]]
    return first + int(np.searchsorted(np.cumsum(sizes), at, side="right"))


def _lose(*names: str) -> Callable[[Scene, random.Random], None]:
    def lose(scene: Scene, _: random.Random) -> None:
        for path in [path for name in names for path in chains.directory_of(scene.store).glob(name)]:
            path.unlink()

    return lose


def _copy_foreign(scene: Scene, rng: random.Random) -> None:
    """Copy a segment of another partition, sealed or open, over ours."""
    first = rng.choice([0, 6, OPEN])
    foreign = chains.make_store(scene.store.path.parent / "foreign", INFO)
    if not chains.directory_of(foreign, 1).exists():
        chains.fill(foreign, INFO, chains.make_chain(INFO, BLOCKS, partition=1, seed=9), [16], partition=1)
    for path in chains.directory_of(foreign, 1).glob(f"{first:012d}.*"):
        shutil.copy(path, chains.directory_of(scene.store))


def _leave_stale(scene: Scene, rng: random.Random) -> None:
    for name in (f"{OPEN:012d}.json.tmp", "start.json.tmp", f"{0:012d}.bin.broken", "notes.txt", f"{6:012d}.bak"):
        (chains.directory_of(scene.store) / name).write_bytes(rng.randbytes(20))


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
            PartitionWriter.open(scene.store, chains.STREAM, 0).close()
            reader = open_partition(scene.store.path, chains.STREAM, 0, check=True)
            reader.gather(range(reader.blocks))  # opening looks at the newest alone, and readers see the rest
            scene.recovered()
        except DamagedError as error:
            loud[what] = str(error)
            scene.restore()
            harm(scene, trial.rng)
            scene.repaired()
    quiet = {"a manifest", "all manifests", "stale files", "the open segment", "everything"}
    assert FILES.keys() - loud.keys() == quiet
    for text in loud.values():
        assert "run `tokenmill repair raw-text.train 0 --store" in text
        assert f"{chains.directory_of(scene.store)}/" in text
    trial.held("exact", "loud")


@pytest.mark.fault("bits-flipped", "files-missing")
def test_descriptions_that_are_damaged_are_refused(tmp_path: Path, trial: Trial) -> None:
    """A store's identity, a partition's start: each flip is named, or changes nothing that anyone uses."""
    store = chains.make_store(tmp_path, INFO)
    chains.fill(store, INFO, chain_named("ordinary", INFO, BLOCKS), [16])
    retire(store.path, chains.STREAM, 0, 6)
    for path, load in (
        (chains.directory_of(store) / "start.json", lambda: read_start(chains.directory_of(store), INFO, 0)),
        (store.path / "store.json", lambda: Store.open(store.path)),
    ):
        data, right = path.read_bytes(), load()
        said: list[str] = []
        for bit in trial.rng.sample(range(8 * len(data)), trial.rounds(100, 8 * len(data))):
            path.write_bytes(flipped(data, bit))
            try:
                assert path.name == "store.json" or load() == right
                load()
            except (DamagedError, StoreError) as error:
                said.append(str(error))
                trial.fired(f"{path.name} refused")
        assert all(path.name in text or "tokenmill adopt" in text for text in said)
        path.write_bytes(data)
    trial.held("loud")


FOLLOWED: Final = chains.make_info(block_tokens=17, segment_blocks=16)  # as in `WRITE`
NOTICED_SECONDS: Final = 60
"""Readers look at the files under them some twenty times a second, and map those that grew again after five seconds."""
WRITE: Final = """
import random, sys
from tests.store.chains import STREAM, cut, make_chain, make_info
from tokenmill.store import PartitionWriter, Store

info = make_info(block_tokens=17, segment_blocks=16)
chain = make_chain(info, int(sys.argv[2]))
rng = random.Random(int(sys.argv[3]))
writer = PartitionWriter.open(Store.open(sys.argv[1]), STREAM, 0)
print("recovered", writer.truncated_bytes, flush=True)
while writer.next_block < int(sys.argv[2]):
    for _ in range(rng.randint(1, 3)):
        end = min(writer.next_block + rng.randint(1, 20), int(sys.argv[2]))
        if end > writer.next_block:
            writer.append(cut(chain, info, writer.next_block, end), token_offset=end)
    writer.commit()
    print("committed", writer.next_block, flush=True)
    sys.stdin.readline()
"""
"""Writes to the end from what it recovered, and says each commit; goes on when it is told to."""


class Follower:
    """A reader that checks every block as soon as it sees it, keeps some views for good, and looks back."""

    def __init__(self, store: Path, tokens: "np.ndarray[tuple[int, int], np.dtype[np.unsignedinteger]]") -> None:
        self.reader: PartitionReader = open_partition(store, chains.STREAM, 0, check=True)
        self.seen = 0
        self.views: list[tuple[int, np.ndarray[tuple[int], np.dtype[np.unsignedinteger]]]] = []
        self._tokens = tokens

    def follow(self, rng: random.Random) -> None:
        blocks = self.reader.refresh()
        assert blocks >= self.seen
        assert self.reader.gather(range(self.seen, blocks)).tobytes() == self._tokens[self.seen : blocks].tobytes()
        if blocks > self.seen:
            self.views.append((blocks - 1, self.reader.read(blocks - 1)))
            old = rng.randrange(self.reader.first_block, blocks)
            assert self.reader.read(old).tobytes() == self._tokens[old].tobytes()
            assert self.reader.documents(old)[0].offset == 100 * old
        self.seen = blocks


@pytest.mark.fault("reader-follows")
def test_reader_stays_right_whatever_becomes_of_the_files(tmp_path: Path, trial: Trial) -> None:
    """Each block once, in order; a damaged one is refused until it is repaired; no view changes, none is lost."""
    rng, kills = trial.rng, trial.rounds(4, 100)
    blocks = 400 * kills
    chain = chains.make_chain(FOLLOWED, blocks)
    store = chains.make_store(tmp_path / "store", FOLLOWED)
    tokens = chains.tokens_of(chain, FOLLOWED)
    follower = Follower(store.path, tokens)
    for round_ in range(kills):
        until = blocks if round_ == kills - 1 else min(follower.seen + rng.randrange(100, 400), blocks)
        trial.fired("writer SIGKILL", _write(store.path, follower, blocks, until, trial))
        _damage_and_repair(store.path, follower, ChainDonor(chain, FOLLOWED), trial)
        trial.fired("segments rolled", follower.seen // FOLLOWED.segment_blocks - trial.faults["segments rolled"])
    chains.fill(store, FOLLOWED, chain, [blocks])
    follower.follow(rng)
    for number, view in follower.views:  # the files behind most of them have gone
        assert view.tobytes() == tokens[number].tobytes()
    assert follower.seen == blocks
    calm = chains.make_store(tmp_path / "calm", FOLLOWED)
    chains.fill(calm, FOLLOWED, chain, [blocks])
    kept = chains.contents(store)
    kept.pop("start.json", None)
    assert kept == {name: data for name, data in chains.contents(calm).items() if name in kept}
    trial.held("reader", "exact", blocks=blocks, views=len(follower.views))


def _write(store: Path, follower: Follower, blocks: int, until: int, trial: Trial) -> int:
    """Run a writer process, retire now and then beside it, and kill it once the reader has come far enough."""
    rng = trial.rng
    command = [sys.executable, "-c", WRITE, str(store), str(blocks), str(rng.randrange(1 << 30))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        for line in writer.stdout:
            follower.follow(rng)
            word, number = line.split()
            assert word != "committed" or follower.seen >= int(number)
            if rng.random() < 0.05:
                gone = retire(store, chains.STREAM, 0, max(follower.seen - 96, 0)).segments
                trial.fired("segments retired", gone)
            if word == "committed":
                writer.stdin.write("go on\n")
            if follower.seen >= until:
                time.sleep(rng.random() * 0.004)
                writer.kill()
                break
    follower.follow(rng)
    return int(writer.returncode < 0)


def _damage_and_repair(store: Path, follower: Follower, donor: ChainDonor, trial: Trial) -> None:
    """Change a block in the very file that the reader has mapped; it refuses the block, and reads it once repaired."""
    reader = follower.reader
    number = trial.rng.randrange(reader.first_block, follower.seen)
    first = number - number % FOLLOWED.segment_blocks
    path = store / chains.STREAM / "0" / f"{first:012d}.bin"
    at = (number - first) * FOLLOWED.block_bytes + trial.rng.randrange(FOLLOWED.block_bytes)
    before = [view.copy() for _, view in follower.views]
    chains.flip(path, at)
    with pytest.raises(DamagedError, match=rf"{path.name}: block {number}, at byte"):
        _read_again_and_again(reader, number)
    repaired = list(repair_partition(path.parent, FOLLOWED, 0, donor))
    assert [found.first for found in repaired] == [first]
    same = [view.tobytes() == old.tobytes() for (_, view), old in zip(follower.views, before, strict=True)]
    assert same.count(False) <= 1  # a view of the damaged block shows the damage, as maps do
    follower.views = [kept for kept, unchanged in zip(follower.views, same, strict=True) if unchanged]
    assert reader.read(number).tobytes() == next(iter(donor(number, number + 1))).tokens
    trial.fired("block damaged and repaired")


def _read_again_and_again(reader: PartitionReader, number: int) -> None:
    """Read a block that was sound: it is checked again once the file's change was noticed."""
    until = time.monotonic() + NOTICED_SECONDS
    while time.monotonic() < until:
        reader.read(number)
        time.sleep(0.01)
