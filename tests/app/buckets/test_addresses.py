"""Commands that read a store say of a bucket, by its address, what they say of the store that was uploaded."""

import json
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.app.buckets import scene
from tests.app.commands import Told, invoke
from tests.milled import Milled
from tests.store.chains import STREAM, make_store
from tokenmill.app.buckets import needs_of
from tokenmill.app.tools.verify import verify
from tokenmill.bucket import cache as folders
from tokenmill.bucket.cache import open_folder
from tokenmill.bucket.objects import Bucket, address_of
from tokenmill.consumers import Batches
from tokenmill.errors import BucketError, DifferenceError, StoreError
from tokenmill.store import open_partition

Run = Callable[..., Told]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Return what runs a command; whatever it laid down for a while is gone at the end."""
    (rooms := tmp_path / "rooms").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(rooms))
    yield invoke
    for room in folders._temporary:
        room.cleanup()
    folders._temporary.clear()
    folders._folders.clear()
    assert list(rooms.iterdir()) == []


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    scene.small_segments(monkeypatch)
    return scene.whole_store(tmp_path / "store")


@pytest.fixture
def address(store: Path, tmp_path: Path) -> str:
    return scene.uploaded_to(store, tmp_path / "share").as_uri()


def test_what_needs_no_broker(store: Path, address: str, tmp_path: Path, run: Run) -> None:
    words = ("describe", STREAM, "--format", "json", "--offline", "--store")
    there, here = (json.loads(run(*words, at).out) for at in (address, store))
    assert there | (own := {"segments": 0, "segment_blocks": 0}) == here | own  # a bucket has segments of its own
    told = run("eras", STREAM, "--store", address)
    assert told.code == 0
    assert len(re.findall("^ *[0-5] ", told.out, re.MULTILINE)) == 6
    for name, at in (("theirs", store), ("mine", address)):
        assert run("export", STREAM, "--to", "parquet", "--out", tmp_path / name, "--store", at).code == 0
    mine, theirs = (
        [row for file in (tmp_path / name).rglob("*.parquet") for row in pq.read_table(file).to_pylist()]
        for name in ("mine", "theirs")
    )
    assert len(mine) == 50
    assert sorted(map(repr, mine)) == sorted(map(repr, theirs))  # the files are cut where segments end
    state = tmp_path / "state.json"
    batches = Batches(store, STREAM, batch_size=2, sequence_length=4)
    for _ in zip(range(3), batches, strict=False):
        pass
    state.write_text(json.dumps(batches.state_dict()))
    assert (
        run("trace", "--state", state, "--step", 1, "--store", address).out
        == run("trace", "--state", state, "--step", 1, "--store", store).out
    )


def test_a_bucket_repairs_a_store(store: Path, address: str, run: Run) -> None:
    before = {path: path.read_bytes() for path in store.glob(f"{STREAM}/**/*.*")}
    (store / STREAM / "0" / "000000000008.bin").write_bytes(b"")
    (store / STREAM / "stream.json").write_bytes(b"{}")
    told = run("repair", STREAM, "--from", address, "--store", store)
    assert told.code == 0, told
    assert {path: path.read_bytes() for path in before} == before


def test_what_the_bucket_has_is_freed(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.small_segments(monkeypatch)
    store = make_store(tmp_path / "store", scene.INFO)
    scene.grow(store, 4)
    address = scene.uploaded_to(store.path, tmp_path / "share").as_uri()
    scene.grow(store, 6)
    retire = ("retire", STREAM, "--json", "--store", store.path, "--uploaded-to")
    firsts = [{"first": 8, "segments": 1}, {"first": 8, "segments": 1}]  # of 15 and 9 blocks in the bucket
    assert freed(run(*retire, address, "--dry-run")) == firsts
    assert freed(run(*retire, address, "--keep", 22)) == [{"first": 0, "segments": 0}] * 2
    other = scene.uploaded_to(scene.other_history(tmp_path / "other", 25, end=True), tmp_path / "elsewhere").as_uri()
    assert run(*retire, other).code == DifferenceError.exit_code
    (tmp_path / "empty").mkdir()
    told = run(*retire, (tmp_path / "empty").as_uri())
    assert (told.code, f"holds no stream '{STREAM}'" in told.err) == (BucketError.exit_code, True)
    heads = tmp_path / "share" / STREAM / "heads"
    before = (heads / "00000000").read_bytes()
    (heads / "00000000").write_bytes(b"{}")
    assert run(*retire, address).code == BucketError.exit_code
    assert open_partition(store.path, STREAM, 0).first_block == 0
    (heads / "00000000").write_bytes(before)
    assert freed(run(*retire, address)) == firsts
    scene.uploaded_to(store.path, tmp_path / "share")  # goes on, and then more may go
    assert freed(run(*retire, address)) == [{"first": 16, "segments": 1}] * 2
    late = scene.uploaded_to(store.path, tmp_path / "late").as_uri()  # has not what was retired, and all that is left
    assert freed(run(*retire, late)) == [{"first": 16, "segments": 0}] * 2


def freed(told: Told) -> list[dict[str, int]]:
    assert told.code == 0, told
    return [{name: one[name] for name in ("first", "segments")} for one in json.loads(told.out).values()]


def test_what_a_run_will_need(address: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the heads alone: what a mirror then asks for, what a pass then keeps, and the bandwidth by hand."""
    asked = scene.counted_reads(monkeypatch)
    words = ("mirror", "--store", tmp_path / "copy", "--from", address)
    told = run(*words, "--dry-run", "--tokens-per-second", 10)
    assert {path.rpartition("/")[0] for path in asked} == {STREAM, f"{STREAM}/heads"}
    assert not (tmp_path / "copy").exists()
    needs = needs_of(Bucket.open(address), STREAM, 10)
    assert needs[:2] == (7, 18)
    assert (needs.bytes, needs.cache) == (
        50 * scene.INFO.block_bytes,
        10 * scene.SEGMENT_BLOCKS * scene.INFO.block_bytes,
    )
    # new segments of an era, and the blocks of the era before, of which two are read in a second
    new = [(3, 2), (2, 6), (5, 8), (3, 10), (5, 12)]
    assert needs.rate == max(
        segments * scene.SEGMENT_BLOCKS * scene.INFO.block_bytes * 2 / blocks for segments, blocks in new
    )
    assert f"7 eras in 18 segments: 500 B of tokens in {needs.requests} requests" in told.out
    asked.clear()
    assert run(*words, "--once").code == 0
    assert len(asked) + 1 == needs.requests
    assert run("mirror", "--dry-run").code == run(*words, "--tokens-per-second", 1).code == 12


@pytest.mark.parametrize(
    "words",
    [("serve",), ("segment",), ("retire", STREAM, "--keep", 1), ("adopt",), ("mirror",), ("upload", "--to", "s3://x")],
)
def test_who_writes_to_a_store_refuses(words: tuple[object, ...], run: Run) -> None:
    told = run(*words, "--store", "s3://bucket/prefix")
    assert told.code == 12
    assert "store is s3://bucket/prefix, and" in told.err
    assert "`tokenmill mirror --store DIRECTORY --from s3://bucket/prefix`" in told.err


def test_a_directory_is_a_store_or_a_bucket(store: Path, address: str, tmp_path: Path, run: Run) -> None:
    (empty := tmp_path / "empty").mkdir()
    before, share = sorted(tmp_path.rglob("*")), tmp_path / "share"
    for words in (
        ("retire", STREAM, "--store", share, "--uploaded-to", address, "--yes"),
        ("mirror", "--once", "--store", share, "--from", address),
        ("repair", STREAM, "--store", share, "--from", store),
        ("adopt", "--store", share),
    ):
        told = run(*words)
        assert told.code == StoreError.exit_code
        assert "is a bucket, to which nothing but `tokenmill upload` writes" in told.err
    told = run("upload", "--store", store, "--to", store.as_uri())
    assert (told.code, "is a store, and no bucket" in told.err) == (BucketError.exit_code, True)
    told = run("mirror", "--dry-run", "--from", empty.as_uri())
    assert (told.code, "holds no stream" in told.err) == (BucketError.exit_code, True)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_mirror_that_fails_lets_go_of_the_store(tmp_path: Path, run: Run) -> None:
    (empty := tmp_path / "empty").mkdir()
    for _ in range(2):
        told = run("mirror", "--once", "--store", tmp_path / "copy", "--from", empty.as_uri())
        assert (told.code, "holds no stream" in told.err) == (BucketError.exit_code, True), told.err


def test_what_came_from_a_bucket_may_be_in_no_topic(store: Path, address: str, tmp_path: Path, run: Run) -> None:
    """Nothing in a copy says whether files or a topic were packed."""
    scene.copied(tmp_path / "copy", Bucket.open(address))
    for at, is_copy in ((tmp_path / "copy", True), (address, True), (store, False)):
        told = run("inspect", "stream", STREAM, "--store", at, "--bootstrap-servers", "127.0.0.1:1", code=3).err
        assert (f"{STREAM} in {at} came from a bucket: if it was packed from files, it is in no" in told) == is_copy


@pytest.mark.needs("minutes")
def test_verify_and_inspect(milled: Milled, tmp_path: Path, run: Run) -> None:
    share = tmp_path / "share"
    share.mkdir()
    scene.uploaded(milled.settings.store, Bucket.open(share.as_uri()), milled.train)
    path = open_folder(share.as_uri(), tmp_path / "folder", 1)
    result = verify(milled.settings, [milled.train], store=path, processes=2)
    assert result.differences == []
    blocks = [open_partition(path, milled.train, number).blocks for number in (0, 1)]
    assert [chain.store_equal for chain in result.chains] == blocks
    assert min(blocks) >= 16
    place = f"{share.as_uri()}/{milled.train}/1"
    reports = json.loads(run("inspect", "segment", place, "--json").out)
    assert sum(report["blocks"] for report in reports) == blocks[1]
    (report,) = json.loads(run("inspect", "segment", f"{place}/000000000000.bin", "--json").out)
    assert report == reports[0]
    assert report["path"] == f"{place}/000000000000.bin"  # not of the folder that stands for it
    scene.copied(tmp_path / "copy", Bucket.open(share.as_uri()), milled.train)
    result = verify(milled.settings, [milled.train], store=tmp_path / "copy", processes=1)
    assert result.differences == []
    assert [chain.store_equal for chain in result.chains] == blocks


@pytest.mark.parametrize(
    ("store", "address"),
    [
        ("s3://b/prefix", "s3://b/prefix"),
        (Path("s3://b/prefix"), "s3://b/prefix"),
        (Path("file:///share/b"), "file:///share/b"),
        ("s3", None),
        (Path("s3"), None),
        (Path("./gs/store"), None),
        (Path("file"), None),
        (Path("a:/b"), None),
    ],
)
def test_a_folder_with_the_name_of_a_scheme_is_a_folder(store: str | Path, address: str | None) -> None:
    assert address_of(store) == address
