"""Repairing, retiring and adopting a store by command: what they do, what they say, and how they end."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app.commands import Told, invoke
from tests.milled import Milled
from tests.service import equal_files
from tests.store.chains import flip
from tokenmill.app.tools.inspect.reports import inspect_segments
from tokenmill.app.tools.verify import verify
from tokenmill.store import PartitionWriter, Store, open_partition

Run = Callable[..., Told]


@pytest.fixture
def store(milled: Milled, tmp_path: Path) -> Path:
    """Return a store of its own that holds what was milled; it is no copy for itself."""
    path = tmp_path / "store"
    shutil.copytree(milled.settings.store, path)
    Store.adopt(path)
    return path


@pytest.fixture
def run(milled: Milled, store: Path) -> Run:
    """Run a command of this process on that store."""

    def run(*arguments: str, brokers: str = milled.settings.bootstrap_servers) -> Told:
        place = [] if "--store" in arguments else ["--store", store]
        return invoke(*arguments, "--bootstrap-servers", brokers, *place)

    return run


def test_what_is_damaged_is_rebuilt_from_the_token_topic(milled: Milled, store: Path, run: Run) -> None:
    """A changed token, a lost segment, a damaged description: byte for byte what it was, and only that is touched."""
    stream = milled.train
    flip(store / stream / "0" / "000000000016.bin", 64 * 3 + 5)
    for path in (store / stream / "1").glob("000000000000.*"):
        path.unlink()
    flip(store / stream / "stream.json", 40)
    assert run("repair", stream, "--check").code == 8

    mended = run("repair", stream)

    kept = "the damaged files are kept: 000000000016.bin.broken"
    assert mended.code == 0
    assert mended.out.splitlines() == [
        f"{store / stream / 'stream.json'}: written again",
        f"{stream}/0: segment 000000000016 is whole: 16 blocks, 1 block of them given back; {kept}",
        f"{stream}/1: segment 000000000000 is whole: 16 blocks, 16 blocks of them given back",
    ]
    assert "000000000016.bin: block 19, at byte 192, is not what was committed" in mended.err
    assert equal_files(store, stream) == equal_files(milled.settings.store, stream)
    assert run("repair", stream, "--check") == (
        0,
        f"{stream}/0: nothing is damaged\n{stream}/1: nothing is damaged\n",
        "",
    )
    assert verify(milled.settings, [stream], store=store).ok


def test_another_store_gives_back_without_a_broker(milled: Milled, store: Path, run: Run) -> None:
    """What is not damaged there; the rest is named, with exit code 10, and stays."""
    stream, other = milled.train, store.parent / "other"
    shutil.copytree(store, other)
    flip(store / stream / "0" / "000000000000.bin", 64 * 7)
    flip(store / stream / "0" / "000000000016.docs", 0)
    flip(other / stream / "0" / "000000000016.bin", 0)

    found = run("repair", stream, "0", "--from", str(other), "--json", brokers="127.0.0.1:1")

    assert found.code == 10
    assert "nothing gives back block 16 of " in found.err
    segments = json.loads(found.out)["partitions"][0]["segments"]
    assert [(s["first"], s["blocks"], s["given"], s["lost"]) for s in segments] == [
        (0, 16, 1, []),
        (16, 0, 0, [[16, 17]]),
    ]
    assert run("repair", stream, "0").code == 0
    assert equal_files(store, stream) == equal_files(milled.settings.store, stream)


def test_what_cannot_be_repaired_is_refused(milled: Milled, store: Path, run: Run) -> None:
    """A partition that is written to, one that is not there, another stream's store."""
    stream = milled.train
    with PartitionWriter.open(Store.open(store), stream, 0):
        locked = run("repair", stream)
    assert (locked.code, "is being written by process" in locked.err) == (7, True)
    assert run("repair", stream, "9").code == 12
    assert run("repair", "nothing").code == 4
    assert run("repair", "nothing", "--check").code == 6
    foreign = store.parent / "foreign"
    shutil.copytree(store / milled.settings.streams()[1].name, foreign / stream)
    assert run("repair", stream, "--store", str(foreign), "--check").code == 6


def test_old_segments_are_retired_by_command(milled: Milled, store: Path, run: Run) -> None:
    """In every partition, by number or by how much is kept; verify, inspect and repair go on with what is there."""
    stream = milled.train
    blocks = [len(milled.chains[stream, partition]) for partition in (0, 1)]

    assert run("retire", stream).code == 12
    first = run("retire", stream, "0", "--below", "20")
    assert (first.code, first.out.startswith(f"{stream}/0: begins with block 16 now (before: 0); 1 segment, ")) == (
        0,
        True,
    )
    again = run("retire", stream, "0", "--below", "20")
    assert again.out == f"{stream}/0: begins with block 16 as before, nothing to free\n"
    kept = json.loads(run("retire", stream, "--keep", str(blocks[1] - 16), "--json").out)
    assert kept["1"]["first"] == 16

    reader = open_partition(store, stream, 1, check=True)
    assert reader.read(16).tobytes() == milled.chains[stream, 1][16].tokens
    result = verify(milled.settings, [stream], store=store)
    assert result.ok
    assert [chain.store_blocks for chain in result.chains] == [(kept["0"]["first"], blocks[0]), (16, blocks[1])]
    assert f"the store's {stream} partition 1 starts with block 16" in result.notes
    assert run("inspect", "block", stream, "1", "3").code == 0  # the topic has it
    assert inspect_segments(store / stream / "1")[0]["chain_before"] == milled.chains[stream, 1][15].chain.hex()
    flip(store / stream / "1" / "000000000016.bin", 5)
    assert run("repair", stream).code == 0
    assert verify(milled.settings, [stream], store=store).ok


def test_a_stream_tells_where_its_store_begins(milled: Milled, run: Run) -> None:
    """In numbers, and in the table for people."""
    run("retire", milled.train, "0", "--below", "16")
    report = json.loads(run("inspect", "stream", milled.train, "--json").out)
    assert [chain["store_first"] for chain in report["chains"]] == [16, 0]
    blocks = len(milled.chains[milled.train, 0])
    assert f"16 to {blocks - 1} " in run("inspect", "stream", milled.train).out


def test_a_copy_is_adopted_by_command(milled: Milled, store: Path, run: Run) -> None:
    """It gets an identity of its own; what is no store is refused."""
    copy = store.parent / "copy"
    shutil.copytree(store, copy)
    adopted = run("adopt", "--store", str(copy))
    assert (adopted.code, adopted.out.strip()) == (0, Store.open(copy).id)
    assert Store.open(copy).id != Store.open(store).id
    assert json.loads(run("adopt", "--store", str(copy), "--json").out)["store"] == str(copy)
    assert run("adopt", "--store", str(store.parent)).code == 6
