"""What docs/kafka_teams.md says, held against what the code does."""

import re
import tomllib
from pathlib import Path
from typing import Final

import pytest

from docs.generators.site import ROOT
from tests.app.milling.decoding.opened import Registry, answer, avro, framed, opened, written
from tests.strategies import json_bytes
from tokenmill.app.milling.decoding import FORMATS, MODES, REASONS
from tokenmill.app.settings import Settings, load_settings
from tokenmill.documents import Document

PAGE: Final = (ROOT / "docs/kafka_teams.md").read_text()


def tables() -> list[list[list[str]]]:
    found = re.findall(r"(?:^\|.*\|\n)+", PAGE, re.MULTILINE)
    rows = [[line.strip("|").split(" | ") for line in table.strip().split("\n")] for table in found]
    return [[[cell.strip(" |") for cell in row] for row in table[2:]] for table in rows]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]*)`", cell)


def test_its_settings_load(tmp_path: Path) -> None:
    blocks = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        (tmp_path / "tokenmill.toml").write_text(block)
        settings = load_settings(config=tmp_path / "tokenmill.toml")
        values = tomllib.loads(block)
        wanted = {str(tuple(value) if isinstance(value, list) else value) for value in values.values()}
        assert {str(getattr(settings, name)) for name in values} == wanted


def test_it_names_every_mode_and_no_setting_or_reason_that_there_is_not() -> None:
    (table,) = [table for table in tables() if any("kcat" in row[0] for row in table)]
    assert {mode for row in table for mode in quoted(row[1])} == {*MODES, "module:function"}
    names = {name for name in quoted(PAGE) if re.fullmatch(r"[a-z]+(_[a-z]+)+", name)}
    others = {"tokenmill_partitions"} | REASONS | set(FORMATS)
    assert names - others <= set(Settings.model_fields)
    assert {"schema_mismatch", "not_framed", "debezium_envelope"} <= names


ROW = {"id": 7, "body": "Grüße"}
CHANGE = {"before": None, "after": ROW, "op": "c", "source": {"table": "articles"}}
COLUMNS = [{"name": "id", "type": "long"}, {"name": "body", "type": "string"}]
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "namespace": "shop.public.articles",
    "fields": [
        {"name": "before", "type": ["null", {"type": "record", "name": "Value", "fields": COLUMNS}]},
        {"name": "after", "type": ["null", "Value"]},
        {"name": "op", "type": "string"},
    ],
}
VALUES: Final = {
    "Debezium, JSON with schemas": ("json", json_bytes({"schema": {}, "payload": CHANGE})),
    "Debezium, JSON without": ("json", json_bytes(CHANGE)),
    "Debezium, unwrapped": ("json", json_bytes(ROW)),
    "Debezium, Avro": ("avro", framed(written(ENVELOPE, CHANGE))),
    "Connect, `JsonConverter`": ("json", json_bytes({"schema": {}, "payload": ROW})),
}


@pytest.mark.parametrize("beginning", VALUES)
def test_text_is_where_its_table_says(beginning: str) -> None:
    mode, value = VALUES[beginning]
    (row,) = [row for table in tables() for row in table if row[0].startswith(beginning)]
    assert mode in quoted(row[1])
    decoder = opened(mode, text_fields=quoted(row[2])[:1], schemas=Registry({1: avro(ENVELOPE)}))
    assert decoder(value).text == "Grüße"


@pytest.mark.parametrize("mode", ["json", "avro"])
def test_deletes_have_the_reason_that_it_says(mode: str) -> None:
    delete = {"before": ROW, "after": None, "op": "d"}
    value = json_bytes(delete) if mode == "json" else framed(written(ENVELOPE, delete))
    decoder = opened(mode, text_fields=("after.body",), schemas=Registry({1: avro(ENVELOPE)}))
    assert answer(decoder, value) == "debezium_envelope"


def test_settings_for_debezium_read_its_envelope() -> None:
    blocks = [tomllib.loads(block) for block in re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)]
    by_mode = {block["decode"]: block for block in blocks if "id_field" in block}
    values = {"json": json_bytes({"schema": {}, "payload": CHANGE}), "avro": framed(written(ENVELOPE, CHANGE))}
    fields = {"json": {"payload.source.table": "articles", "payload.op": "c"}, "avro": {"op": "c"}}
    assert by_mode.keys() == values.keys()
    for mode, block in by_mode.items():
        chosen = {name: block[name] for name in ("text_fields", "id_field", "metadata_fields")}
        decoder = opened(mode, schemas=Registry({1: avro(ENVELOPE)}), **chosen)
        assert decoder(values[mode]) == Document("Grüße", 7, fields[mode])
