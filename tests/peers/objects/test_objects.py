"""``s3://`` as a source, on moto's server, and on versitygw where it is installed (`go install`).

`make test-peers` runs these.
"""

import gzip
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from obstore.store import S3Store

from tests.sources.reading import found_in, reading_of, values
from tokenmill.errors import InputError
from tokenmill.sources import find_sources
from tokenmill.sources.items import Place

pytestmark = pytest.mark.peers

ROOT = Path(__file__).parents[3]
PACKAGES = ROOT / ".venv" / "peers" / "objects"
LINES = [json.dumps({"id": str(number), "text": f"text {number} " * 30}).encode() for number in range(9000)]
JSONL = b"\n".join(LINES) + b"\n"
KEY, SECRET = "access", "secret-of-tests"


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _answers(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module", params=["moto", "versitygw"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a server."""
    port, folder = free_port(), tmp_path_factory.mktemp("objects")
    if request.param == "moto":
        command = [sys.executable, "-m", "moto.server", "-p", str(port)]
    else:
        program = shutil.which("versitygw")
        if program is None:
            pytest.skip("versitygw is not installed: go install github.com/versity/versitygw/cmd/versitygw@latest")
        address = f"127.0.0.1:{port}"
        command = [program, "--access", KEY, "--secret", SECRET, "--port", address, "posix", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGES)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not _answers(port):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    """Return the client of a bucket with some objects; the environment says how to log in."""
    login = {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": server,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    for name, value in login.items():
        monkeypatch.setenv(name, value)
    _make_bucket(server)
    store = S3Store("corpus")
    obstore.put(store, "text/b.jsonl", JSONL)
    obstore.put(store, "text/deep/a.jsonl.gz", gzip.compress(JSONL[: JSONL.index(b"\n", 100_000) + 1]))
    obstore.put(store, "text/.hidden.jsonl", b"no")
    obstore.put(store, "other.txt", b"other")
    return store


def _make_bucket(server: str) -> None:
    """Make the bucket with boto3, in a process that has it."""
    code = (
        "import boto3, sys\n"
        f"client = boto3.client('s3', endpoint_url={server!r})\n"
        "if not client.list_buckets()['Buckets']: client.create_bucket(Bucket='corpus')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(PACKAGES), "AWS_DEFAULT_REGION": "us-east-1"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


@pytest.mark.usefixtures("bucket")
def test_objects_of_a_prefix_a_pattern_and_a_name_are_read() -> None:
    """By name, without hidden ones; the folder's name is not that of a longer one."""
    names = {
        "s3://corpus/text/": ["s3://corpus/text/b.jsonl", "s3://corpus/text/deep/a.jsonl.gz"],
        "s3://corpus/text/*.gz": ["s3://corpus/text/deep/a.jsonl.gz"],
        "s3://corpus/other.txt": ["s3://corpus/other.txt"],
    }
    for address, wanted in names.items():
        assert [source.name for source in find_sources([address], reading_of())] == wanted
    found = values(found_in(reading_of(), "s3://corpus/text/"))
    assert found[: len(LINES)] == LINES
    assert found[len(LINES) :] == LINES[: len(found) - len(LINES)]
    with pytest.raises(InputError, match="matches nothing"):
        find_sources(["s3://corpus/nothing/"], reading_of())
    with pytest.raises(InputError, match=r"nothing\.txt: .*not found"):
        find_sources(["s3://corpus/nothing.txt"], reading_of())


def test_reading_goes_on_from_a_chunk_and_a_change_is_seen(bucket: S3Store) -> None:
    """By its entity tag, whatever its length."""
    (source,) = find_sources(["s3://corpus/text/b.jsonl"], reading_of())
    chunks = list(source.chunks(Place()))
    assert [chunk.items for chunk in source.chunks(chunks[0].after)] == [chunk.items for chunk in chunks[1:]]
    obstore.put(bucket, "text/b.jsonl", JSONL.replace(b"text 8000 ", b"TEXT 8000 "))
    (now,) = find_sources(["s3://corpus/text/b.jsonl"], reading_of())
    assert now.signature() != source.signature()
    with pytest.raises(InputError, match="has changed since the command began"):
        list(source.chunks(chunks[0].after))
