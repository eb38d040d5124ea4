"""``s3://`` and ``gs://`` as sources: on moto, versitygw (where `make test-bucket` built it), fake-gcs-server.

`make test-peers` runs these.
"""

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import obstore
import pytest
from obstore.store import from_url

from tests.app.buckets.scene import uploaded, whole_store
from tests.app.sources.reading import found_in, reading_of, values
from tests.app.tools.pack.packing import content, pack_into, require_equal, small_settings
from tests.bucket.server import PROGRAMS, Server, login
from tests.peers.running import run_with
from tests.store.chains import STREAM
from tokenmill.app.sources import find_sources
from tokenmill.app.sources.items import Place
from tokenmill.bucket.objects import Bucket as Opened
from tokenmill.errors import InputError
from tokenmill.store import open_partition

pytestmark = pytest.mark.peers

LINES = [json.dumps({"id": str(number), "text": f"text {number} " * 30}).encode() for number in range(9000)]
JSONL = b"\n".join(LINES) + b"\n"
FIRST = JSONL[: JSONL.index(b"\n", 100_000) + 1]


@dataclass(frozen=True)
class Bucket:
    address: str
    put: Callable[[str, bytes], object]


@pytest.fixture(scope="module", params=["moto", "versitygw", "fake-gcs-server"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if request.param == "versitygw" and not (PROGRAMS / "versitygw").exists():
        pytest.skip("versitygw is not built: make .venv/.bucket")
    with Server(request.param, tmp_path_factory.mktemp("objects") / "buckets") as running:
        yield running


@pytest.fixture
def bucket(server: Server, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    for name, value in login(server.address).items():
        monkeypatch.setenv(name, value)
    address = f"{server.scheme}://corpus"
    store = from_url(address)
    made = Bucket(address, lambda name, data: obstore.put(store, name, data))
    made.put("text/b.jsonl", JSONL)
    made.put("text/deep/a.jsonl.gz", gzip.compress(FIRST))
    made.put("text/.hidden.jsonl", b"no")
    made.put("other.txt", b"other")
    return made


def test_objects_of_a_prefix_a_pattern_and_a_name_are_read(bucket: Bucket) -> None:
    """By name, without hidden ones; the folder's name is not that of a longer one."""
    at = bucket.address
    names = {
        f"{at}/text/": [f"{at}/text/b.jsonl", f"{at}/text/deep/a.jsonl.gz"],
        f"{at}/text/*.gz": [f"{at}/text/deep/a.jsonl.gz"],
        f"{at}/other.txt": [f"{at}/other.txt"],
    }
    for address, wanted in names.items():
        assert [source.name for source in find_sources([address], reading_of())] == wanted
    found = values(found_in(reading_of(), f"{at}/text/"))
    assert found[: len(LINES)] == LINES
    assert found[len(LINES) :] == LINES[: len(found) - len(LINES)]
    with pytest.raises(InputError, match="matches nothing"):
        find_sources([f"{at}/nothing/"], reading_of())
    with pytest.raises(InputError, match=r"nothing\.txt: .*not found"):
        find_sources([f"{at}/nothing.txt"], reading_of())


def test_reading_goes_on_from_a_chunk_and_a_change_is_seen(bucket: Bucket) -> None:
    """By its entity tag, whatever its length."""
    address = f"{bucket.address}/text/b.jsonl"
    (source,) = find_sources([address], reading_of())
    chunks = list(source.chunks(Place()))
    assert [chunk.items for chunk in source.chunks(chunks[0].after)] == [chunk.items for chunk in chunks[1:]]
    bucket.put("text/b.jsonl", JSONL.replace(b"text 8000 ", b"TEXT 8000 "))
    (now,) = find_sources([address], reading_of())
    assert now.signature() != source.signature()
    with pytest.raises(InputError, match="has changed since the command began"):
        list(source.chunks(chunks[0].after))


def test_packed_is_what_files_of_the_same_content_give(bucket: Bucket, tmp_path: Path) -> None:
    """Goes on behind a limit, too."""
    local = tmp_path / "text"
    (local / "deep").mkdir(parents=True)
    (local / "b.jsonl").write_bytes(JSONL)
    (local / "deep" / "a.jsonl.gz").write_bytes(gzip.compress(FIRST))
    larger = {"sequence_length": 1023, "segment_blocks": 256, "era_blocks": 1024}
    settings, other = (small_settings(tmp_path / name, **larger) for name in ("store", "other"))
    assert pack_into(settings, [f"{bucket.address}/text/"], limit=5000).documents == 5000
    rest = pack_into(settings, [f"{bucket.address}/text/"], flush=True)
    assert (rest.before, rest.documents) == (5000, len(LINES) + FIRST.count(b"\n") - 5000)
    pack_into(other, [local], flush=True)
    require_equal(content(settings.store), content(other.store))


def test_objects_of_a_segment_are_read_by_other_libraries(bucket: Bucket, tmp_path: Path) -> None:
    if bucket.address.startswith("gs://"):
        pytest.skip("Megatron-Core reads none of gs://")
    store = whole_store(tmp_path / "store")
    uploaded(store, Opened.open(f"{bucket.address}/{tmp_path.name}"))
    segment = f"{bucket.address}/{tmp_path.name}/{STREAM}/0/000000000008"
    call = ["-m", "tests.peers.objects.other_readers", segment, tmp_path / "cache"]
    done = run_with("objects", *call, AWS_DEFAULT_REGION="us-east-1")
    wanted = open_partition(store, STREAM, 0).gather(range(8, 16)).tolist()
    assert [json.loads(line) for line in done.stdout.splitlines()] == [wanted, wanted]
