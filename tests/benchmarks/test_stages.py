"""Which stage a sample of a worker belongs to."""

from pathlib import Path

import pytest

from benchmarks.stages import TABLE, Frame, stage_of

SITE = "/somewhere/.venv/lib/python3.11/site-packages"


def test_a_frame_is_read_as_py_spy_writes_it() -> None:
    frame = Frame.parse(f"Fetcher._fetch (inner) ({SITE}/aiokafka/consumer/fetcher.py:12)")
    assert frame == Frame("Fetcher._fetch (inner)", f"{SITE}/aiokafka/consumer/fetcher.py", 12)
    assert frame.name == "aiokafka/consumer/fetcher.py:Fetcher._fetch (inner)"
    assert Frame.parse("thread (123): MainThread") is None


CONNECTION = (f"{SITE}/aiokafka/conn.py:AIOKafkaConnection.send", "/x/socket.py:send")
PACKING = (
    "/x/app/mill/raw_partition.py:RawPartition._feed",
    "/x/app/milling/packing/packed_blocks.py:ConcatPacking.add",
)


@pytest.mark.parametrize(
    ("stage", "names"),
    [
        # What both clients use has no stage of its own.
        ("fetch", [f"{SITE}/aiokafka/consumer/fetcher.py:Fetcher._proc_fetch_request", *CONNECTION]),
        ("publish", [f"{SITE}/aiokafka/producer/sender.py:Sender._send", *CONNECTION]),
        ("pack", [*PACKING, f"{SITE}/numpy/core.py:insert"]),
        ("other", ["/x/app/heartbeat.py:Heartbeat._beat"]),
        # A thread that waits was caught as it fell asleep or woke up.
        (None, ["/x/lib/python3.11/selectors.py:EpollSelector.select"]),
        (None, ["/x/lib/python3.11/concurrent/futures/thread.py:_worker"]),
    ],
)
def test_the_innermost_known_function_decides(stage: str | None, names: list[str]) -> None:
    parts = (name.rpartition(":") for name in names)
    assert stage_of([Frame(function, path, 1) for path, _, function in parts]) == stage


def test_a_line_that_syncs_tells(tmp_path: Path) -> None:
    """Fsync is no Python function, so its caller is the innermost frame."""
    file = tmp_path / "durable.py"
    file.write_text("import os\nos.fdatasync(3)\n")
    assert stage_of([Frame("commit", str(file), 2)]) == "sync"
    assert stage_of([Frame("commit", str(file), 1)]) == "other"


def test_every_module_of_ours_in_the_table_is_there() -> None:
    root = Path(__file__).parents[2]
    ours = [start.partition(":")[0] for start, _ in TABLE if start.startswith(("app/", "benchmarks/", "tokenmill/"))]
    assert ours
    assert not [path for path in ours if not (root / path).exists()]


def test_no_line_of_the_table_hides_a_later_one() -> None:
    starts = [start for start, _ in TABLE]
    assert not [later for at, later in enumerate(starts) if later.startswith(tuple(starts[:at]))]
