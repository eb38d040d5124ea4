"""Produce on a Dask cluster: each document once, though workers are killed and the cluster goes."""

import json
import os
import pickle
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.app.sources.files import write_csv, write_jsonl
from tests.app.sources.reading import content_of, found_in, reading_of, values
from tests.app.tools.pack.packing import rows
from tests.conftest import TopicFactory
from tests.marked import until
from tests.service import in_own_loop
from tokenmill.app.settings import Settings, load_settings
from tokenmill.app.sources import find_sources
from tokenmill.app.sources.file_sources import OpenedSources
from tokenmill.app.tools.produce.dask_lanes import LaneTask, parts_of, require_lanes, with_secrets
from tokenmill.app.tools.produce.producing import RunPlan
from tokenmill.errors import InputError, SettingsError

WAIT_SECONDS = 60.0
FILES, LINES = 12, 1500
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
    (directory / "cluster.py").write_text(CLUSTER)
    process = subprocess.Popen(
        [sys.executable, str(directory / "cluster.py")], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        address, *workers = process.stdout.readline().split()
        yield process, address, list(map(int, workers))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def documents(directory: Path) -> list[bytes]:
    """Write files of lines; return all lines."""
    directory.mkdir()
    lines = []
    for file in range(FILES):
        own = [json.dumps({"id": f"{file}-{n}", "text": f"text {n} of {file}"}).encode() for n in range(LINES)]
        (directory / f"{file}.jsonl").write_bytes(b"\n".join(own) + b"\n")
        lines += own
    return lines


def begin(
    settings: Settings, raw: str, files: Path, address: str, *, part_bytes: int | None = None
) -> subprocess.Popen[str]:
    """Start the command; files have parts of ``part_bytes``."""
    program = ["-m", "tokenmill.app.cli"] if part_bytes is None else ["-c", IN_PARTS.format(part_bytes)]
    command = [sys.executable, *program, "produce", raw, str(files), "--dask", address, "--json"]
    environment = {**os.environ, "TOKENMILL_BOOTSTRAP_SERVERS": settings.bootstrap_servers}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(run: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    """Wait for the end of a command, which has this exit code; return what it wrote, and what it said of that."""
    out, told = run.communicate(timeout=2 * WAIT_SECONDS)
    assert run.returncode == code, told
    return out, told


def sent(settings: Settings, raw: str) -> Counter[bytes]:
    """Return how often each document is in the topic."""
    content = in_own_loop(lambda: content_of(settings, raw, 2))
    return Counter(value or b"" for part in content for _, value in part)


@pytest.mark.needs("minutes")
@pytest.mark.timeout(240)
def test_large_files_are_sent_in_parts_once_though_a_worker_is_killed(
    settings: Settings, topic: TopicFactory, tmp_path: Path
) -> None:
    """Lines, a table and parquet: the documents, with the ids, that one reader makes; a second call sends nothing."""
    raw = topic(2)
    files = tmp_path / "files"
    files.mkdir()
    made = [rows(8 * LINES, seed) for seed in (1, 2, 3)]
    write_jsonl(files / "a.jsonl", made[0])
    write_csv(files / "b.csv", [{"text": row["text"] + ' "quoted"\nline'} for row in made[1]])
    pq.write_table(pa.Table.from_pylist([{"text": row["text"]} for row in made[2]]), files / "c.parquet", 2 * LINES)
    reading = reading_of(settings)
    wanted = Counter(values(found_in(reading, files)))
    counts = [len(parts_of(source, PART).bounds) for source in find_sources([str(files)], reading)]  # type: ignore[arg-type]
    assert min(counts) > 2
    assert sum(counts) > 30
    with cluster(tmp_path) as (_, address, workers):
        produce = partial(begin, settings, raw, files, address, part_bytes=PART)
        run = produce()
        assert until(lambda: sum(sent(settings, raw).values()) > 0, WAIT_SECONDS)
        os.kill(workers[0], signal.SIGKILL)
        ended(run)
        assert sent(settings, raw) == wanted
        assert wanted.total() == len(wanted) == 24 * LINES
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
def test_a_cluster_that_goes_is_named_and_another_one_sends_the_rest(
    settings: Settings, topic: TopicFactory, tmp_path: Path
) -> None:
    """With what was sent; where none answers, nothing was."""
    raw = topic(2)
    lines = documents(tmp_path / "files")
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
    sent = pickle.dumps(LaneTask(0, settings, "raw", (), opened, {}).bare(7))

    assert b"S3cret" not in sent
    task = pickle.loads(sent)  # noqa: S301 - just made
    assert task.lane == 7
    with pytest.raises(SettingsError, match="this process has no TOKENMILL_S"):
        task.run()
    for name in ("SASL_PASSWORD", "SCHEMA_REGISTRY_PASSWORD"):
        monkeypatch.setenv(f"TOKENMILL_{name}", "S3cret")
    assert with_secrets(task.settings, task.secrets) == settings
    with pytest.raises(InputError, match="an address has a password"):
        require_lanes(["postgresql://me:S3cret@host/name"], RunPlan(identity="0"))


@contextmanager
def open_nothing(settings: Settings) -> Iterator[OpenedSources]:
    """Yield no sources."""
    yield OpenedSources(reading_of(settings), [])
