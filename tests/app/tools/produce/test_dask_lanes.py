"""Produce on a Dask cluster, of whole files and of parts: each document once, whatever is killed."""

import json
import os
import pickle
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.app.sources.files import as_lines, write_csv, write_jsonl
from tests.app.sources.reading import content_of, found_in, reading_of, values
from tests.app.tools.pack.packing import rows
from tests.conftest import TopicFactory
from tests.marked import until
from tests.service import in_own_loop
from tokenmill.app.settings import Settings, load_settings
from tokenmill.app.sources import Reading, file_sources, find_sources
from tokenmill.app.sources.file_sources import FileSource, OpenedSources
from tokenmill.app.sources.formats import text
from tokenmill.app.sources.items import DocumentSource, Place
from tokenmill.app.tools.produce import dask_lanes
from tokenmill.app.tools.produce.producing import RunPlan
from tokenmill.errors import InputError, SettingsError


def told(sources: Sequence[DocumentSource]) -> list[tuple[Any, ...]]:
    """Return all items with their places, those without an id with it, and what was left out."""
    chunks = [chunk for source in sources for chunk in source.chunks(Place())]
    found = [placed for chunk in chunks for placed in chunk.placed()]
    assert [where[1] for _, where in found] == [number for chunk in chunks for number in chunk.numbers]
    return [*found, (sum(chunk.unmet.documents for chunk in chunks),)]


def require_same(source: FileSource, least: int) -> int:
    """Fail unless the parts give what the file gives, from any chunk on; return how many there are."""
    parts = dask_lanes.divided([source], {source.path: dask_lanes.parts_of(source, least)})
    assert told(parts) == told([source])
    assert sum(part.size for part in parts) <= source.size
    for part in parts:
        chunks = [chunk._replace(bytes_read=0) for chunk in part.chunks(Place())]
        for number, chunk in enumerate(chunks[:-1], 1):
            assert [one._replace(bytes_read=0) for one in part.chunks(chunk.after)] == chunks[number:]
    return len(parts)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parts")


LINES = st.sampled_from(
    [b"", b"\r", b"no JSON", b'{"text": 7}', b'{"id": "a", "text": "b"}', b"x" * 280, '{"text": "Mühle"}'.encode()]
)
CELLS = st.sampled_from(["a", "Mühle", 'quo"te', "two\nlines", "", ",", "x" * 290])


@given(
    lines=st.lists(LINES, max_size=30), least=st.integers(1, 120), chunk=st.integers(1, 60), piece=st.integers(1, 99)
)
@example(lines=[b"x" * 280, b'{"text": "a"}', b"\r"], least=1, chunk=1, piece=1)
def test_parts_have_all_the_lines(directory: Path, *, lines: list[bytes], least: int, chunk: int, piece: int) -> None:
    path = directory / "a.jsonl"
    path.write_bytes(b"\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_sources, "CHUNK_BYTES", chunk)
        patch.setattr(text, "LOOK_BYTES", piece)
        patch.setattr(text, "BUFFER_BYTES", piece)
        for choice in ("jsonl", "lines"):
            require_same(FileSource(str(path), _small(choice)), least)


@given(
    cells=st.lists(st.tuples(CELLS, CELLS), max_size=20),
    least=st.integers(1, 120),
    chunk=st.integers(1, 60),
    ends=st.sampled_from(["\n", "\r\n"]),
    damage=st.sampled_from(["", 'a,"b', "a", '"a"b,c\nd,e\n', "\n\n"]),
)
def test_parts_of_a_table_are_its_rows(
    directory: Path, *, cells: list[tuple[str, str]], least: int, chunk: int, ends: str, damage: str
) -> None:
    path = directory / "a.csv"
    quoted = [",".join(['"' + cell.replace('"', '""') + '"' for cell in row]) for row in [["text", "id"], *cells]]
    path.write_bytes(("\ufeff" + ends.join(quoted) + ends + damage).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_sources, "CHUNK_BYTES", chunk)
        require_same(FileSource(str(path), _small("auto")), least)


def _small(choice: Any) -> Reading:
    return reading_of(Settings(max_record_bytes=270, max_id_bytes=200), choice)


@pytest.mark.parametrize("options", [{}, {"metadata_fields": ("lang", "score"), "key": "score"}])
def test_parts_of_parquet_are_its_rows(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tmp_path / "a.parquet"
    made = [row | {"id": None if number % 3 else row["id"]} for number, row in enumerate(rows(60))]
    pq.write_table(pa.Table.from_pylist(made), path, row_group_size=7)
    source = FileSource(str(path), reading_of(**options))
    assert require_same(source, 1) > require_same(source, 3000) > 1


def test_small_files_and_those_without_places_are_not_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compressed ones, other formats, tables in other encodings; a damaged one is one part, and says so when read."""
    monkeypatch.setattr(dask_lanes, "PART_BYTES", 10)
    for name in ("a.jsonl.gz", "a.json", "a.warc", "a.txt", "a.parquet", "a.csv"):
        (tmp_path / name).write_bytes(b"text\nsome\nlines\n" * 3)
    (tmp_path / "small.jsonl").write_bytes(b'{"text": 1}\n')
    (tmp_path / "utf-16.csv").write_text("text\n" + "a\n" * 50, "utf-16")
    (tmp_path / "a.jsonl").write_bytes(b'{"text": 1}\n' * 9)
    sources = [FileSource(str(path), reading_of()) for path in sorted(tmp_path.iterdir())]
    large = {Path(source.path).name: source for source in sources if dask_lanes.may_be_divided(source)}
    assert [*large] == ["a.csv", "a.jsonl", "a.parquet"]
    latin = replace(large["a.csv"], reading=reading_of(encoding="latin-1"))
    assert not dask_lanes.may_be_divided(latin)
    counts = {name: len(dask_lanes.parts_of(source, 10).bounds) for name, source in large.items()}
    assert counts == {"a.csv": 5, "a.jsonl": 9, "a.parquet": 0}


def test_a_part_is_known_by_its_bytes_and_refuses_another_file(tmp_path: Path) -> None:
    """A change elsewhere in the file is none of it, and the columns' names are; a file of another length is named."""
    path = tmp_path / "a.csv"
    path.write_bytes(b"text,id\n" + b"".join(b"row %d,%d\n" % (number, number) for number in range(9)))
    source = FileSource(str(path), reading_of())
    parts = dask_lanes.divided([source], {source.path: dask_lanes.parts_of(source, 30)})
    assert len({part.name for part in parts}) == len(parts) > 2
    before = [part.signature() for part in parts]
    for old, new, changed in ((b"row 8", b"ROW 8", parts[-1:]), (b"text,id", b"id,text", parts)):
        path.write_bytes(path.read_bytes().replace(old, new))
        assert [part for part, known in zip(parts, before, strict=True) if part.signature() != known] == changed
    path.write_bytes(path.read_bytes() + b"more,10\n")
    assert isinstance(parts[0], dask_lanes.FilePart)
    for look in (parts[0].signature, lambda: list(parts[1].chunks(Place()))):
        with pytest.raises(InputError, match=r"a\.csv has changed since the command began"):
            look()


WAIT_SECONDS = 60.0
EACH = 1500
PART = 100_000
CLUSTER = """
import sys, time
from distributed import LocalCluster

if __name__ == "__main__":
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50)
    print(cluster.scheduler_address, *(worker.process.pid for worker in cluster.workers.values()), flush=True)
    time.sleep(600)
"""

IN_PARTS = """
from tokenmill.app.tools.produce import dask_lanes

dask_lanes.PART_BYTES = {}
from tokenmill.app.cli import main

main()
"""


@contextmanager
def cluster(directory: Path) -> Iterator[tuple[subprocess.Popen[str], str, list[int]]]:
    """Run a scheduler and two workers in processes of their own; yield the first, the address and the workers' ids."""
    program = directory / "cluster.py"  # a file: its processes are spawned
    program.write_text(CLUSTER)
    process = subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    with process.stdout:
        try:
            address, *workers = process.stdout.readline().split()
            yield process, address, list(map(int, workers))
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def begin(
    settings: Settings, raw: str, files: Path, address: str, *, part_bytes: int | None = None
) -> subprocess.Popen[str]:
    program = ["-m", "tokenmill.app.cli"] if part_bytes is None else ["-c", IN_PARTS.format(part_bytes)]
    command = [sys.executable, *program, "produce", raw, str(files), "--dask", address, "--json"]
    environment = {**os.environ, "TOKENMILL_BOOTSTRAP_SERVERS": settings.bootstrap_servers}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(run: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    out, told = run.communicate(timeout=2 * WAIT_SECONDS)
    assert run.returncode == code, told
    return out, told


def sent(settings: Settings, raw: str) -> Counter[bytes]:
    content = in_own_loop(lambda: content_of(settings, raw, 2))
    return Counter(value or b"" for part in content for _, value in part)


@pytest.mark.needs("minutes")
@pytest.mark.timeout(240)
def test_parts_are_sent_once_though_a_worker_is_killed(settings: Settings, topic: TopicFactory, tmp_path: Path) -> None:
    raw = topic(2)
    files = tmp_path / "files"
    files.mkdir()
    made = [rows(8 * EACH, seed) for seed in (1, 2, 3)]
    write_jsonl(files / "a.jsonl", made[0])
    write_csv(files / "b.csv", [{"text": row["text"] + ' "quoted"\nline'} for row in made[1]])
    pq.write_table(pa.Table.from_pylist([{"text": row["text"]} for row in made[2]]), files / "c.parquet", 2 * EACH)
    reading = reading_of(settings)
    wanted = Counter(values(found_in(reading, files)))
    counts = [len(dask_lanes.parts_of(source, PART).bounds) for source in find_sources([str(files)], reading)]  # type: ignore[arg-type]
    assert min(counts) > 2
    assert sum(counts) > 30
    with cluster(tmp_path) as (_, address, workers):
        produce = partial(begin, settings, raw, files, address, part_bytes=PART)
        run = produce()
        assert until(lambda: sum(sent(settings, raw).values()) > 0, WAIT_SECONDS)
        os.kill(workers[0], signal.SIGKILL)
        ended(run)
        assert sent(settings, raw) == wanted
        assert wanted.total() == len(wanted) == 24 * EACH
        out, told = ended(produce())
        assert json.loads(out)["documents"] == 0
        assert f"{len(wanted):,} documents of this run were in {raw} already" in told
        with (files / "a.jsonl").open("ab") as more:
            more.write(b'{"text": "more"}\n' * (PART // 8))  # some parts more
        _, told = ended(produce(), InputError.exit_code)
        assert "a.jsonl has changed" in told
    assert sent(settings, raw) == wanted


@pytest.mark.needs("minutes")
@pytest.mark.timeout(240)
def test_another_cluster_sends_what_one_that_went_left(settings: Settings, topic: TopicFactory, tmp_path: Path) -> None:
    raw = topic(2)
    made = [rows(EACH, seed, words=4) for seed in range(12)]
    (tmp_path / "files").mkdir()
    for number, some in enumerate(made):
        write_jsonl(tmp_path / "files" / f"{number}.jsonl", some)
    lines = [line for some in made for line in as_lines(some).splitlines()]
    with cluster(tmp_path) as (process, address, _):
        run = begin(settings, raw, tmp_path / "files", address)
        assert until(lambda: sum(sent(settings, raw).values()) > 0, WAIT_SECONDS)
        os.killpg(process.pid, signal.SIGKILL)
        _, told = ended(run, InputError.exit_code)
    assert f"the Dask cluster at {address} is gone" in told
    assert "lanes are sent completely" in told
    assert "sends the rest" in told
    assert 0 < len(sent(settings, raw)) < len(lines)
    _, told = ended(begin(settings, raw, tmp_path / "files", address), InputError.exit_code)
    assert f"no Dask scheduler answers at {address}" in told
    with cluster(tmp_path) as (_, other, _):
        ended(begin(settings, raw, tmp_path / "files", other))
    assert sent(settings, raw) == Counter(lines)


def test_no_task_holds_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler, and whoever looks at it, sees what passes; a worker has its own, or says what it lacks."""
    login = {"sasl_mechanism": "PLAIN", "sasl_username": "me", "sasl_password": "S3cret"}
    registry = {"schema_registry_username": "me", "schema_registry_password": "S3cret"}
    settings = load_settings(
        {"security_protocol": "SASL_SSL", "schema_registry_url": "http://registry", **login, **registry}
    )
    opened = partial(open_nothing, settings.without_secrets())
    sent = pickle.dumps(dask_lanes.LaneTask(0, settings, "raw", (), opened, {}).bare(7))

    assert b"S3cret" not in sent
    task = pickle.loads(sent)  # noqa: S301 - just made
    assert task.lane == 7
    with pytest.raises(SettingsError, match="this process has no TOKENMILL_S"):
        task.run()
    for name in ("SASL_PASSWORD", "SCHEMA_REGISTRY_PASSWORD"):
        monkeypatch.setenv(f"TOKENMILL_{name}", "S3cret")
    assert dask_lanes.with_secrets(task.settings, task.secrets) == settings
    with pytest.raises(InputError, match="an address has a password"):
        dask_lanes.require_lanes(["postgresql://me:S3cret@host/name"], RunPlan(identity="0"))


@contextmanager
def open_nothing(settings: Settings) -> Iterator[OpenedSources]:
    yield OpenedSources(reading_of(settings), [])
