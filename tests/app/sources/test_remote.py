"""Files behind addresses, read from a real server on loopback; object stores are in tests/peers/objects."""

import gzip
import io
import json
from pathlib import Path

import obstore
import obstore.store
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.app.sources.reading import found_in, reading_of, values
from tests.app.sources.web import Web, serving
from tokenmill.app.sources import Item, find_sources
from tokenmill.app.sources.items import ItemChunk, Place
from tokenmill.errors import InputError

LINES = [json.dumps({"id": str(number), "text": f"text {number} " * 30}).encode() for number in range(20_000)]
JSONL = b"\n".join(LINES) + b"\n"


def parquet() -> bytes:
    sink = io.BytesIO()
    table = pa.table({"text": [f"row {number}" for number in range(2000)], "id": [str(n) for n in range(2000)]})
    pq.write_table(table, sink, row_group_size=1000)
    return sink.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("ranges", [True, False])
def test_files_of_a_web_server_are_read_like_files(tmp_path: Path, *, ranges: bool) -> None:
    texts = {"a b.jsonl": JSONL, "c.jsonl.gz": gzip.compress(JSONL), "d.parquet": parquet(), "e.txt": b"plain"}
    for name, data in texts.items():
        (tmp_path / name).write_bytes(data)
    with serving(Web(texts, ranges=ranges)) as web:
        for name in texts:
            remote = found_in(reading_of(metadata_fields=[]), f"{web.address}/{name.replace(' ', '%20')}")
            local = found_in(reading_of(metadata_fields=[]), tmp_path / name)
            if name == "e.txt":  # whose id is its name
                assert b'"plain"' in values(remote)[0]
            else:
                assert values(remote) == values(local)
                assert len(values(remote)) >= 2000


@pytest.mark.parametrize("ranges", [True, False])
def test_reading_goes_on_from_any_chunk(*, ranges: bool) -> None:
    with serving(Web({"a.jsonl": JSONL}, ranges=ranges)) as web:
        (source,) = find_sources([f"{web.address}/a.jsonl"], reading_of())
        chunks = list(source.chunks(Place()))
        assert len(chunks) > 4
        web.asked.clear()
        rest = list(source.chunks(chunks[2].after))
        assert [chunk.items for chunk in rest] == [chunk.items for chunk in chunks[3:]]
        assert len(web.asked) <= 2
        assert f"bytes={chunks[2].after.byte}-" in web.asked[-1]


@pytest.mark.parametrize("tags", [True, False])
def test_a_file_that_changes_while_it_is_read_ends_the_run(*, tags: bool) -> None:
    with serving(Web({"a.jsonl": JSONL}, tags=tags)) as web:
        (source,) = find_sources([f"{web.address}/a.jsonl"], reading_of())
        chunks = source.chunks(Place())
        first = next(chunks)
        web.files["a.jsonl"] = JSONL.replace(b"text 1 ", b"text 7! ")
        assert find_sources([f"{web.address}/a.jsonl"], reading_of())[0].signature() != source.signature()
        with pytest.raises(InputError, match=r"a\.jsonl has changed since the command began"):
            list(source.chunks(first.after))


def test_an_answer_that_ends_early_ends_the_run_and_nothing_is_left_out() -> None:
    with serving(Web({"a.jsonl": JSONL}, ranges=False)) as web:
        (source,) = find_sources([f"{web.address}/a.jsonl"], reading_of())
        web.cut = len(JSONL) // 2
        chunks: list[ItemChunk] = []
        with pytest.raises(InputError, match=r"a\.jsonl cannot be read on from byte .*the same command goes on"):
            chunks.extend(source.chunks(Place()))
        found, after = [item for chunk in chunks for item in chunk.items], chunks[-1].after
        assert 0 < len(found) < len(LINES)
        found += [item for chunk in source.chunks(after) for item in chunk.items]
        assert [item.value for item in found if isinstance(item, Item)] == LINES


def test_what_is_not_there_is_named() -> None:
    with serving(Web({})) as web:
        with pytest.raises(InputError, match=r"nothing\.jsonl: .*not found.*check the address"):
            find_sources([f"{web.address}/nothing.jsonl"], reading_of())
        with pytest.raises(InputError, match="an address with a query or a password is not read"):
            find_sources([f"{web.address}/a.jsonl?token=secret"], reading_of())


AS_PEOPLE_HAVE_THEM = {
    "wiki_00": b'{"text": "one"}\n{"text": "two"}\n',
    "part-00000": b'id,text\n1,one\n2,"two\n3,three\n',
    "items.jl": gzip.compress(b'{"text": "one"}\n'),
    "wide.csv": "id,text\n1,\u00e9\n".encode("utf-16"),
    "latin.txt": "caf\u00e9".encode("latin-1"),
    "book.txt": b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 1\n",
    "cut.jsonl.gz": gzip.compress(JSONL)[:-20],
    "lang=de/log.json": b'[{"text": "eins"},\n{"text": NaN},\n{"text": "drei"}]',
    "table/_delta_log/00000000000000000000.json": b"{}",
    "table/a.jsonl": b'{"text": "deleted"}\n',
    "rows.parquet": parquet(),
    "_committed_1": b"{}",
}


def test_a_bucket_is_read_like_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = obstore.store.MemoryStore()
    monkeypatch.setattr(obstore.store, "from_url", lambda _: store)
    for name, data in AS_PEOPLE_HAVE_THEM.items():
        obstore.put(store, f"data/{name}", data)
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)

    def told(path: str) -> list[tuple[str, ...]]:
        found = found_in(reading_of(metadata_fields=["lang"]), path)
        return sorted(
            (one.text,) if isinstance(one, Item) else (one.where.removeprefix(path).strip("/"), one.why)
            for one in found
        )

    assert told("s3://bucket/data/") == told(str(tmp_path))
    assert len(told(str(tmp_path))) > len(LINES)


@pytest.mark.parametrize("address", ["s3://", "s3:///key", "gs://", "https:///a.jsonl", "http://[::1"])
def test_an_address_without_a_bucket_or_host_is_said(address: str) -> None:
    with pytest.raises(InputError, match="names no bucket or host: write it as s3://bucket/name"):
        find_sources([address], reading_of())


def test_a_server_that_sends_us_elsewhere_is_followed_on_its_own_host_alone() -> None:
    """What another host has, one of this machine's network for example, was not asked for; nor is a file."""
    with serving(Web({"secret.jsonl": JSONL})) as inner, serving(Web({"a.jsonl": JSONL})) as web:
        port = web.address.rpartition(":")[2]
        web.moved = {
            "/b.jsonl": "/c.jsonl",
            "/c.jsonl": f"{web.address}/a.jsonl",
            "/other.jsonl": f"{inner.address}/secret.jsonl?token=S3cret",
            "/name.jsonl": f"http://localhost:{port}/a.jsonl",
            "/tls.jsonl": f"https://127.0.0.1:{port}/a.jsonl",
            "/file.jsonl": "file:///etc/hostname",
            "/ring.jsonl": "/ring.jsonl",
        }
        assert values(found_in(reading_of(), f"{web.address}/b.jsonl")) == LINES
        for name in ("other", "name", "tls", "file", "ring"):
            with pytest.raises(
                InputError, match=rf"{name}\.jsonl.*(sends us to another host|infinite loop|is not allowed)"
            ) as raised:
                find_sources([f"{web.address}/{name}.jsonl"], reading_of())
            assert "S3cret" not in str(raised.value)
        (source,) = find_sources([f"{web.address}/a.jsonl"], reading_of())
        web.moved["/a.jsonl"] = f"{inner.address}/secret.jsonl"  # once it is trusted
        with pytest.raises(InputError, match="sends us to another host"):
            list(source.chunks(Place()))
        assert not inner.asked


@pytest.mark.parametrize(
    "address", ["http://:S3cret@{}/a", "http://S3cret@{}/a", "HTTP://u:S3cret@{}/a", "http://{}/a#token=S3cret",
                "http://{}/a?X-Amz-Signature=S3cret", "s3://key:S3cret@bucket/a", "http://u:S3cret@{}/a?b#c"]
)  # fmt: skip
def test_an_address_with_a_secret_is_refused_and_the_message_does_not_hold_it(address: str) -> None:
    with serving(Web({"a": b"text"})) as web:
        with pytest.raises(InputError) as raised:
            find_sources([address.format(web.address.removeprefix("http://"))], reading_of())
        assert "S3cret" not in str(raised.value)
        assert not web.asked
