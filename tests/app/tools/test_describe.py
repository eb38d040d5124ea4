"""A data set described: every figure is that of the store or the ledger, and what is not known is named."""

import hashlib
import json
from pathlib import Path

import pytest
import yaml

from tests.app.commands import invoke
from tests.app.tools.pack.packing import corpus, pack_into, rows, small_settings
from tests.milled import Milled
from tests.milled_store import STREAM, MilledStore, milled_store
from tests.service import in_own_loop
from tokenmill.app.settings import Settings
from tokenmill.app.tools.describe import _cell, add_broker_facts, card, croissant, store_facts
from tokenmill.app.tools.inspect.record_ledger import read_ledger
from tokenmill.errors import DamagedError, StoreError
from tokenmill.store import open_partition


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> MilledStore:
    return milled_store(tmp_path_factory.mktemp("store"), dtype="uint16")


def test_a_store_tells_what_it_has_without_a_broker(store: MilledStore) -> None:
    options = ("--offline", "--hashes", "--format", "json")
    told = json.loads(invoke("describe", STREAM, "--store", store.path, *options, code=0).out)
    assert told["isLiveDataset"] is True
    assert told["fingerprint"] == store.info.fingerprint.hex()
    assert told["blocks"] == sum(map(len, store.blocks.values()))
    assert told["tokens"] == told["blocks"] * 9
    assert (told["recipe"]["raw_topic"], told["counts"]) == ("raw-text", None)
    assert {one["name"] for one in told["unknown"]} >= {"license", "counts", "languages", "retention"}
    assert all("no broker was asked" in one["why"] for one in told["unknown"] if one["name"] == "counts")
    for one in told["sources"]:
        reader = open_partition(store.path, STREAM, one["partition"])
        pieces = [piece for number in (0, one["blocks"] - 1) for piece in reader.documents(number)]
        offsets = [piece.offset for piece in pieces if piece.position >= 0]
        assert (one["first_offset"], one["last_offset"]) == (min(offsets), max(offsets))
    sealed = sum(store.exported(partition) // 16 for partition in store.blocks)
    assert len(told["segments"]) == sealed > 4
    for segment in told["segments"]:
        data = (store.path / STREAM / segment["name"]).read_bytes()
        assert (segment["sha256"], segment["bin_bytes"]) == (hashlib.sha256(data).hexdigest(), len(data))


def test_offsets_are_those_of_all_blocks_where_the_packing_keeps_no_order(tmp_path: Path) -> None:
    """The last document may be in a block that was full before the last one."""
    settings = small_settings(tmp_path / "store", packing="fit")
    pack_into(settings, corpus(tmp_path, rows(300)), flush=True)
    told = store_facts(settings.store, STREAM, with_sha256=False).partitions
    assert [(one["first_offset"], one["last_offset"]) for one in told] == [(1, 150), (1, 150)]


def test_brokers_tell_counts_retention_and_times(milled: Milled) -> None:
    facts = store_facts(milled.settings.store, milled.train, with_sha256=False)
    in_own_loop(lambda: add_broker_facts(facts, milled.settings))
    (ledger,) = [one for one in in_own_loop(lambda: read_ledger(milled.settings)).streams if one.stream == milled.train]
    told = facts.to_dict()
    assert told["counts"] == ledger.to_dict()
    assert told["counts"]["retention"]["kept"] == ledger.totals.kept > 0
    splits = {f"{milled.raw_topic}.{split}": split for split in ("train", "validation")}
    assert {name: one["split"] for name, one in told["splits"].items()} == splits
    assert sum(one["counts"]["records"] for one in told["sources"]) == ledger.totals.records
    assert all(one["last_record_time"] > 0 for one in told["sources"])
    assert told["eras"]["eras"] > 0
    assert told["eras"]["first_closed"] < told["eras"]["last_closed"]
    named = {one["name"]: one["why"] for one in told["unknown"]}
    assert set(named) == {"license", "creator", "citeAs", "datePublished", "url", "languages", "produced"}
    assert "noted no run" in named["produced"]
    text = card(facts)
    assert f"{ledger.totals.kept:,}" in text
    assert yaml.safe_load(text.split("---")[1])["pretty_name"] == milled.train


def test_brokers_that_do_not_answer_are_named_and_nothing_becomes_markup(store: MilledStore) -> None:
    facts = store_facts(store.path, STREAM, with_sha256=False)
    in_own_loop(lambda: add_broker_facts(facts, Settings(bootstrap_servers="127.0.0.1:1")))
    assert "no broker answers at 127.0.0.1:1" in facts.unknown["counts"]
    facts.unknown["produced"] = "a|b\n# [link](x) <b>"
    assert r"| a\|b \# \[link\](x) \<b\> |" in card(facts)
    # Nor an address, which hubs make a link of; nor an entity, a mention, or an image.
    assert _cell("https://evil.example www.evil.example me@evil.example &lt; ~~x~~ ![i](y)") == (
        r"https\://evil.example www\.evil.example me\@evil.example \&lt; \~\~x\~\~ \!\[i\](y)"
    )


def test_croissant_names_every_sealed_file(store: MilledStore) -> None:
    """With its SHA-256; tests/peers/formats lets mlcroissant judge it."""
    facts = store_facts(store.path, STREAM, with_sha256=True)
    told = croissant(facts)
    assert told["isLiveDataset"] is True
    assert [file["sha256"] for file in told["distribution"]] == [segment["sha256"] for segment in facts.segments]
    assert "license (" in told["description"]


def test_damage_and_missing_streams_are_refused(tmp_path: Path) -> None:
    milled = milled_store(tmp_path / "store", records=12)
    with pytest.raises(StoreError, match="holds no stream 'other'"):
        store_facts(milled.path, "other", with_sha256=False)
    manifest = milled.path / STREAM / "0" / "000000000000.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"blocks":16', b'"blocks":17'))
    with pytest.raises(DamagedError, match=r"000000000000\.json"):
        store_facts(milled.path, STREAM, with_sha256=False)
