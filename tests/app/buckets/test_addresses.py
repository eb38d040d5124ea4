"""Commands that read a store say of a bucket, by its address, what they say of the store that was uploaded."""

import json
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest

from tests.app.buckets.scene import small_segments, uploaded_to, whole_store
from tests.milled import Milled
from tests.store.chains import STREAM
from tokenmill.app.buckets.mirroring import StreamCopy
from tokenmill.app.buckets.upload import Upload
from tokenmill.app.cli import main
from tokenmill.app.tools.verify import verify
from tokenmill.bucket import folder as folders
from tokenmill.bucket.folder import open_folder
from tokenmill.bucket.objects import Bucket
from tokenmill.consumers import Batches
from tokenmill.store import Store, open_partition


class Told(NamedTuple):
    """What a command ended with, and said."""

    code: int
    out: str
    err: str


Run = Callable[..., Told]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Run a command in this process."""
    (rooms := tmp_path / "rooms").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(rooms))

    def run(*words: object) -> Told:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        code = ended.value.code
        return Told(code if isinstance(code, int) else 0, *capsys.readouterr())

    yield run
    for room in folders._temporary:
        room.cleanup()
    folders._temporary.clear()
    folders._folders.clear()
    assert list(rooms.iterdir()) == []


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a store whose segments are small in a bucket."""
    small_segments(monkeypatch)
    return whole_store(tmp_path / "store")


@pytest.fixture
def address(store: Path, tmp_path: Path) -> str:
    """Return the bucket of it."""
    return uploaded_to(store, tmp_path / "share").as_uri()


@pytest.mark.usefixtures("logging_restored")
def test_what_needs_no_broker(store: Path, address: str, tmp_path: Path, run: Run) -> None:
    """Describe, eras, export and trace."""
    facts = [
        json.loads(run("describe", STREAM, "--format", "json", "--offline", "--store", at).out)
        for at in (address, store)
    ]
    for one in facts:
        for changing in ("segments", "segment_blocks"):  # the bucket's own
            one.pop(changing, None)
    assert facts[0] == facts[1]
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


@pytest.mark.usefixtures("logging_restored")
def test_a_bucket_repairs_a_store(store: Path, address: str, run: Run) -> None:
    """Also its description."""
    before = {path: path.read_bytes() for path in store.glob(f"{STREAM}/**/*.*")}
    (store / STREAM / "0" / "000000000008.bin").write_bytes(b"")
    (store / STREAM / "stream.json").write_bytes(b"{}")
    told = run("repair", STREAM, "--from", address, "--store", store)
    assert told.code == 0, told
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.usefixtures("logging_restored")
@pytest.mark.parametrize(
    "words",
    [("serve",), ("segment",), ("retire", STREAM, "--keep", 1), ("adopt",), ("mirror",), ("upload", "--to", "s3://x")],
)
def test_who_writes_to_a_store_refuses(words: tuple[object, ...], run: Run) -> None:
    """With what to do."""
    told = run(*words, "--store", "s3://bucket/prefix")
    assert told.code == 12
    assert "store is s3://bucket/prefix, and" in told.err
    assert "`tokenmill mirror --store DIRECTORY --from s3://bucket/prefix`" in told.err


@pytest.mark.usefixtures("logging_restored")
def test_verify_and_inspect(milled: Milled, tmp_path: Path, run: Run) -> None:
    """All that is in the bucket is what the mill makes, there and in a store that was made of it."""
    share = tmp_path / "share"
    share.mkdir()
    upload = Upload(milled.settings.store, milled.train, Bucket.open(share.as_uri()))
    upload.begin()
    while upload.step():
        pass
    path = open_folder(share.as_uri(), tmp_path / "folder", 1)
    result = verify(milled.settings, [milled.train], store=path, processes=1)
    assert result.differences == []
    blocks = [open_partition(path, milled.train, number).blocks for number in (0, 1)]
    assert [chain.store_equal for chain in result.chains] == blocks
    assert min(blocks) >= 16
    place = f"{share.as_uri()}/{milled.train}/1"
    reports = json.loads(run("inspect", "segment", place, "--json").out)
    assert sum(report["blocks"] for report in reports) == blocks[1]
    (report,) = json.loads(run("inspect", "segment", f"{place}/000000000000.bin", "--json").out)
    assert report == reports[0] | {"path": report["path"]}
    copy = StreamCopy(Store.open_or_create(tmp_path / "copy"), milled.train, Bucket.open(share.as_uri()))
    copy.copy(lambda: None)
    copy.close()
    result = verify(milled.settings, [milled.train], store=tmp_path / "copy", processes=1)
    assert result.differences == []
    assert [chain.store_equal for chain in result.chains] == blocks
