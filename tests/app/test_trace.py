"""``tokenmill trace``: over a store of the service, with its broker and without, and with states over other content."""

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.app.commands import invoke
from tests.consumers.mixtures import open_mixture, stores_of
from tests.consumers.scenes import ERAS, era_store, open_batches, other_chains, other_eras
from tests.milled import Milled, records
from tokenmill.app.tools.inspect.tracing import outcome_of
from tokenmill.errors import InputError
from tokenmill.samples.sequence import Position, SequenceId
from tokenmill.store import Store, open_eras, open_partition, read_stream

LENGTH = 21
"""A third of the blocks' 63."""


Trace = Callable[..., str]


@pytest.fixture
def trace(milled: Milled, tmp_path: Path) -> Trace:
    """Return the command, with the state of a run over all eras that made 4 steps of 6 samples."""
    info = read_stream(milled.settings.store, milled.train)
    eras = (0, open_eras(milled.settings.store, milled.train).eras)
    sequence = SequenceId(milled.train, info.fingerprint.hex(), LENGTH, 5, shuffle=True, eras=eras, passes=2)
    state = tmp_path / "state.json"
    state.write_text(json.dumps(Position.beginning(sequence, 6).after(4).to_dict()))

    def command(*arguments: object, brokers: bool = False, code: int = 0) -> str:
        where = milled.settings.bootstrap_servers if brokers else "127.0.0.1:1"
        place = ("--store", milled.settings.store, "--state", state, "--bootstrap-servers", where)
        printed = invoke("trace", *place, *arguments, code=code)
        return printed.err if code else printed.out

    return command


def require_texts(milled: Milled, found: Sequence[dict[str, Any]], texts: dict[tuple[int, int], str]) -> None:
    for sample in found:
        reader = open_partition(milled.settings.store, milled.train, sample["partition"])
        tokens = np.asarray(reader.read(sample["block"]))[sample["view"] * LENGTH :]
        for source in sample["sources"]:
            whole = texts[source["partition"], source["offset"]].encode() + b"\0"
            wanted = whole[source["position"] : source["position"] + source["stop"] - source["start"]]
            assert tokens[source["start"] : source["stop"]].tobytes() == wanted


def test_a_step_leads_to_its_records_and_these_lead_back(milled: Milled, trace: Trace) -> None:
    found = json.loads(trace("--step", "3", "--text", "--json", brokers=True))
    samples = found["samples"]
    assert [sample["use"]["sample"] for sample in samples] == list(range(18, 24))
    assert [(sample["use"]["step"], sample["use"]["row"]) for sample in samples] == [(3, row) for row in range(6)]
    texts = {(text["partition"], text["offset"]): text["text"] for text in found["texts"]}
    require_texts(milled, samples, texts)
    sample = samples[2]
    assert json.loads(trace("--sample", "20", "--json"))["samples"] == [sample]
    views = json.loads(trace("--block", sample["partition"], sample["block"], "--json"))["views"]
    (view,) = [view for view in views if view["view"] == sample["view"]]
    assert view["uses"][0] == sample["use"]
    assert [use["passed"] for use in view["uses"]] == [0, 1]
    assert view["uses"][1]["step"] is None
    source = next(source for one in samples for source in one["sources"] if source["id"] is not None)
    for asked in (["--record", source["partition"], source["offset"]], ["--document", source["id"]]):
        (record,) = json.loads(trace(*asked, "--json"))["records"]
        assert (record["partition"], record["offset"]) == (source["partition"], source["offset"])
        assert 3 in [use["step"] for view in record["views"] for use in view["uses"]]


def test_people_are_told_in_lines(trace: Trace) -> None:
    plain, told = trace("--step", "0"), trace("--step", "0", "--text", brokers=True)
    assert plain.startswith("step 0 of ")
    assert "sample 0, step 0 row 0, era 0 position 0: partition " in plain
    assert set(plain.splitlines()) < set(told.splitlines())
    assert any(line.startswith("    '") for line in told.splitlines())


async def test_what_has_no_tokens_is_told_by_the_raw_topic(milled: Milled) -> None:
    names = [stream.name for stream in milled.settings.streams()]
    places: dict[bytes | str | None, tuple[int, int]] = {}
    ends = [0, 0]
    for record in records():
        places.setdefault("flush" if record.headers else record.value, (record.partition, ends[record.partition]))
        ends[record.partition] += 1

    async def outcomes(value: bytes | str | None) -> set[str]:
        return {(await outcome_of(milled.settings, name, places[value])).kind for name in names}

    assert await outcomes(None) == {"tombstone"}
    assert await outcomes("flush") == {"flush"}
    assert await outcomes(b'{"text": ""}') == {"filtered", "other_split"}
    assert await outcomes(b"\xff no UTF-8") == {"dead_lettered", "other_split"}
    assert (await outcome_of(milled.settings, milled.train, (0, 10**6))).kind == "missing"


def test_a_record_of_another_split_is_named_so(milled: Milled, trace: Trace) -> None:
    other = milled.settings.streams()[1].name
    reader = open_partition(milled.settings.store, other, 0)
    offset = reader.documents(reader.blocks // 2)[0].offset
    (record,) = json.loads(trace("--record", "0", offset, "--json"))["records"]
    assert (record["views"], record["outcome"]) == ([], None)
    assert "yielded no tokens" in record["verdict"]
    assert "by the raw topic: other_split (validation)" in trace("--record", "0", offset, "--text", brokers=True)
    assert trace("--document", "nobody") == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give one of --step"),
        (["--step", "1", "--sample", "1"], "give one of --step"),
        (["--step", "4"], "step 4 was not made"),
        (["--sample", "100000"], "the sequence ends before it"),
        (["--sample", "-1"], "give a number from 0 on"),
        (["--block", "0", "99999"], "give one of these"),
        (["--record", "7", "0"], r"has the partitions \[0, 1\]"),
    ],
)
def test_what_cannot_be_traced_is_refused(trace: Trace, arguments: list[str], message: str) -> None:
    assert re.search(message, trace(*arguments, code=InputError.exit_code))


def test_a_step_of_a_mixture_over_several_stores_is_traced(tmp_path: Path) -> None:
    stores = stores_of(tmp_path, {"books": 2, "web": 2})
    mixture = open_mixture(stores, {"books": 1, "web": 2})
    batch = next(iter(mixture))
    state = tmp_path / "state.json"
    state.write_text(json.dumps(mixture.state_dict()))
    trace = partial(invoke, "trace", "--state", state, "--store", stores["books"], "--step", "0")
    found = json.loads(trace("--store-of", f"web={stores['web']}", "--json", code=0).out)["samples"]
    assert [one["of"] for one in found] == list(batch.streams)
    assert [[source["offset"] for source in one["sources"]] for one in found] == [
        [source.offset for source in row] for row in batch.sources()
    ]
    code, _, said = trace()
    assert code
    assert "The mixture calls it 'web'; if it is in another store, say --store-of web=DIRECTORY" in said
    for wrong, told in (("web", "give NAME=DIRECTORY"), ("other=x", "the mixture has no stream 'other'")):
        assert told in trace("--store-of", wrong).err
    assert "the stream that you mean (--of NAME)" in trace("--text").err


def traced(store: Store, state: dict[str, Any], directory: Path) -> tuple[int, str]:
    """Trace step 1 without a broker; return the exit code, and what is said beside the answer."""
    file = directory / "state.json"
    file.write_text(json.dumps(state))
    code, out, err = invoke("trace", "--store", store.path, "--state", file, "--step", "1")
    assert out.startswith("step 1 of raw-text.train: samples 2 to 3") is (code == 0)
    return code, err


def test_a_state_over_other_content_is_refused_or_warned_of(tmp_path: Path) -> None:
    """Refused where it is known to be other, of a stream with the same recipe in another cluster."""
    state = open_batches(era_store(tmp_path / "whole")).skip(7).state_dict()  # of 2 samples; the last is in era 2
    for kept in (0, 2):
        other = era_store(tmp_path / str(kept), other_eras(kept), other_chains(kept))
        code, said = traced(other, state, tmp_path)
        assert code == InputError.exit_code
        assert f"(state: era 2 hash {ERAS[2].hash.hex()}; store: era 2 hash {other_eras(kept)[2].hash.hex()})" in said
        assert str(other.path) in said
        assert "give the store that the run read, or a copy of it" in said
    same = era_store(tmp_path / "3", other_eras(3), other_chains(3))
    assert traced(same, state, tmp_path) == (0, "")
    code, said = traced(era_store(tmp_path / "behind", ERAS[:2]), state, tmp_path)
    assert code == 0
    assert f"warning: the state was saved after era 2 hash {ERAS[2].hash.hex()}, which is not in" in said
    del state["content"]
    code, said = traced(era_store(tmp_path / "again"), state, tmp_path)
    assert code == 0
    assert "warning: a state does not say over which content it was saved" in said
