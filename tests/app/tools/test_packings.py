"""Streams of whole documents, of rows and of chunks, milled by the service, and what the commands say of them."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.app.commands import invoke
from tests.conftest import TopicFactory
from tests.milled import all_in_eras, head, records
from tests.milled_store import kept_tokens
from tests.service import Service, equal_files, in_own_loop, mirror_once, raw_records, send, service_settings
from tokenmill.app.kafka.control_topic import settle
from tokenmill.app.local.broker import Broker
from tokenmill.app.mill.recipes import plan_topic
from tokenmill.app.settings import Settings
from tokenmill.app.tools.failed_records import skip
from tokenmill.app.tools.inspect.record_ledger import read_ledger
from tokenmill.app.tools.verify import verify
from tokenmill.consumers import Documents
from tokenmill.errors import FingerprintError, InputError
from tokenmill.recipe import Recipe
from tokenmill.samples.sequence import Position, SequenceId
from tokenmill.store import open_partition, read_stream
from tokenmill.wire.pieces import split_references

SHAPES: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "rows": (
        {"sequence_length": 64, "packing": {"name": "rows", "long": "split", "short": "drop"}, "begin_of_document": 2},
        ["too_short"],
        "rows (long = split, short = drop)",
    ),
    "fit": (
        {"sequence_length": 63, "packing": {"name": "fit", "open_blocks": 4, "max_age_offsets": 50}},
        [],
        "fit (open_blocks = 4, max_age_offsets = 50)",
    ),
    "chunks": (
        {"sequence_length": 8, "packing": {"name": "chunks", "chunk_tokens": 96, "rest": "pad"}},
        [],
        "chunks (chunk_tokens = 96, rest = pad)",
    ),
}
"""Settings, the packing's filters that fire, and the packing in words."""


@pytest.mark.needs("minutes")
@pytest.mark.parametrize("name", SHAPES)
def test_a_stream_of_another_packing_is_milled_and_looked_at_like_any(
    name: str, broker: Broker, topic: TopicFactory, tmp_path: Path
) -> None:
    """Equal to the reference on topic and in store; balanced; found by block; and refused to other settings."""
    shape, reasons, words = SHAPES[name]
    settings = service_settings(broker, topic(2), tmp_path, splits={"train": 1}, **shape)
    with Service(settings, tmp_path) as service:
        service.mill()
        service.segment()
        send(settings, records()[:120])
        chains = service.wait_until_complete()
        service.wait_until(partial(all_in_eras, settings, chains))
        service.stop()
    (stream,) = settings.streams()
    bare = Settings(bootstrap_servers=settings.bootstrap_servers, raw_topics=settings.raw_topics)

    result = verify(bare, store=settings.store, processes=1, reference=True)
    assert result.differences == []
    assert result.complete
    assert result.blocks == sum(map(len, chains.values())) > 0
    assert result.totals.balanced
    assert set(result.totals.filtered) >= set(reasons)

    ledger = in_own_loop(partial(read_ledger, bare))
    assert ledger.balanced
    (account,) = ledger.streams
    assert account.padding == account.totals.packing["padding"]
    assert (account.open_tokens == 0) == (name != "fit")
    assert account.retention.packing is not None
    assert account.totals.flushes == result.totals.flushes == 2

    def shown(*arguments: str) -> str:
        return invoke(*arguments, "--bootstrap-servers", settings.bootstrap_servers, code=0).out

    assert words in shown("inspect", "stream", stream.name)
    block = open_partition(settings.store, stream.name, 0).blocks - 1
    found = json.loads(
        shown("inspect", "block", stream.name, "0", str(block), "--store", str(settings.store), "--json")
    )
    assert len({piece["offset"] for piece in found["pieces"]}) == 1 or name == "fit"

    other = settings.model_copy(update={"packing": "concat"})
    plan = plan_topic(other, settings.raw_topics[0])
    with pytest.raises(FingerprintError, match=rf"packing: the stream has {name} \(.*\), here concat"):
        in_own_loop(lambda: settle(other, stream, plan.recipes[stream], plan.tokenizer.content))

    require_documents(settings, plan_topic(settings, settings.raw_topics[0]).recipes[stream])
    require_traced(settings, tmp_path / "state.json", shown)
    published = head(settings, stream.name, 1)
    assert published is not None
    waiting = split_references(published.references)
    assert bool(waiting.counts) == (name == "fit")
    offset = waiting.rows["offset"].max() if waiting.counts else published.cursor.last_offset
    with pytest.raises(InputError, match=f"offset {offset} of .* or is past it"):
        in_own_loop(lambda: skip(settings, settings.raw_topics[0], 1, int(offset)))
    require_restored(settings, tmp_path, shown)


def require_documents(settings: Settings, recipe: Recipe) -> None:
    """Check that the documents are the records' texts, each token once: those before the flush, and perhaps later."""
    (stream,) = settings.streams()
    wanted: dict[tuple[int, int], list[int]] = {}
    flushed: dict[int, int] = {}
    for partition, sent in enumerate(raw_records(settings, settings.raw_topics[0])):
        flushed[partition] = next(record.offset for record in sent if record.headers)
        for record in sent:
            if record.value and b"\xff" not in record.value:
                text = json.loads(record.value)["text"] if record.value.startswith(b"{") else record.value.decode()
                tokens = kept_tokens(list(text.encode()), recipe) if text else []
                wanted |= {(partition, record.offset): tokens} if tokens else {}
    documents = Documents(settings.store, stream.name)
    found = {(one.partition, one.offset): one.tokens.tolist() for one in documents}
    assert found == {place: wanted[place] for place in found}
    assert len(found) == len(documents)
    for partition, offset in set(wanted) - set(found):
        if offset < flushed[partition]:  # with `fit`, what ends with a block may have a rest in an open one
            reader = open_partition(settings.store, stream.name, partition)
            pieces = [piece for number in range(reader.blocks) for piece in reader.documents(number)]
            ends = [piece.stop for piece in pieces if piece.offset == offset and piece.position >= 0]
            assert (recipe.packing, ends[-1]) == ("fit", recipe.block_tokens)


def require_traced(settings: Settings, state: Path, shown: Callable[..., str]) -> None:
    """Check that a step of a run leads to records, and each of these back to it."""
    (stream,) = settings.streams()
    length = min(settings.sequence_length, 21)
    info = read_stream(settings.store, stream.name)
    sequence = SequenceId(stream.name, info.fingerprint.hex(), length, 5, shuffle=True, eras=(0, 1), passes=1)
    state.write_text(json.dumps(Position.beginning(sequence, 4).after(2).to_dict()))
    place = ("--store", str(settings.store), "--state", str(state), "--json")
    samples = json.loads(shown("trace", *place, "--step", "1"))["samples"]
    sources = [(sample, source) for sample in samples for source in sample["sources"]]
    assert sources
    for sample, source in sources[:2]:
        where = (str(source["partition"]), str(source["offset"]))
        (record,) = json.loads(shown("trace", *place, "--record", *where))["records"]
        assert sample["use"] in [use for view in record["views"] for use in view["uses"]]
        if source["id"] is not None:
            assert json.loads(shown("trace", *place, "--document", source["id"]))["records"] == [record]


def require_restored(settings: Settings, directory: Path, shown: Callable[..., str]) -> None:
    """Check that a mirror is equal, and a damaged one again so, of the topic and of a store; and that it retires."""
    (stream,) = settings.streams()
    copy = directory / "mirror"
    code, said = mirror_once(settings, copy)
    assert code == 0, said
    wanted = equal_files(settings.store, stream.name)
    assert equal_files(copy, stream.name) == wanted
    for more in ((), ("--from", str(settings.store))):
        for suffix in ("bin", "docs"):
            file = copy / stream.name / "0" / f"000000000000.{suffix}"
            file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])
        for file in (copy / stream.name / "1").glob("000000000000.*"):
            file.unlink()
        shown("repair", stream.name, "--store", str(copy), *more)
        assert equal_files(copy, stream.name) == wanted
    shown("retire", stream.name, "--store", str(copy), "--below", "16")
    assert equal_files(copy, stream.name) == equal_files(settings.store, stream.name, first=16)
    bare = Settings(bootstrap_servers=settings.bootstrap_servers, raw_topics=settings.raw_topics)
    assert verify(bare, store=copy, processes=1).ok
