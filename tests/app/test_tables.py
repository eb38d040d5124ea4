"""Tables: at every width, each number, key and place is there as it is."""

import ast
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.cells import cell_len

import tokenmill
from tokenmill.app.cli import dead_letters, inspect, output, status, trying, verify
from tokenmill.app.cli import settings_and_topics as topics
from tokenmill.app.funnel import Retention
from tokenmill.app.kafka.dead_letters import DeadLetter, RecordPlace
from tokenmill.app.settings import load_with_origins
from tokenmill.app.tables import GAP, ShownTable, pairs
from tokenmill.app.tools.inspect.record_ledger import ChainLedger, RecordLedger
from tokenmill.app.tools.pack.packing_run import PackedStream
from tokenmill.app.tools.trial import StageSpeed
from tokenmill.app.tools.verify import ChainResult, VerifyResult
from tokenmill.eras import Era, EraRange
from tokenmill.wire.totals import Totals

APP = Path(tokenmill.__file__).parents[1] / "app"
MANY = 2**62 - 1
LONG = f"{'a-raw-topic-of-somebody-' * 9}.train"
DIGEST = "0123456789abcdef" * 4
REASON = f"gopher_repetition.{'duplicate_line_character_fraction' * 2}"
TOTALS = Totals(
    records=MANY, kept=MANY, tombstones=MANY, flushes=MANY, other_split=MANY, tokens=MANY, value_bytes=MANY,
    filtered=Counter({REASON: MANY}), dead_lettered=Counter({"invalid_utf8": MANY}),
)  # fmt: skip
CHAIN = ChainLedger(LONG, "raw", 9999, MANY, MANY, MANY, MANY, MANY, TOTALS)
CHECKED = ChainResult(LONG, 9999, "raw", (0, MANY), (0, MANY), True, TOTALS, MANY, MANY, (0, MANY), (0, MANY - 5))
REPORT = {
    "partition": 9999, "raw_range": (0, MANY), "token_range": (0, MANY), "next_offset": MANY, "blocks": MANY,
    "totals": TOTALS.to_dict(), "store_first": MANY - 3, "store_blocks": MANY, "segments": MANY, "sample": "text",
}  # fmt: skip
SEGMENT = {
    "stream": LONG, "partition": 9999, "path": f"/data/{LONG}/0.bin", "first": 0, "blocks": MANY, "sealed": True,
    "block_tokens": 2049, "dtype": "uint32", "fingerprint": DIGEST, "token_bytes": MANY, "document_bytes": MANY,
    "documents": MANY, "offsets": (0, MANY), "chain_before": DIGEST, "chain_after": DIGEST, "sample": "",
}  # fmt: skip
WORKER = {"name": "mill-1", "pid": MANY, "state": "running", "restarts": MANY, "restart_in": None, "partitions": [LONG]}
ROW = {
    "topic": LONG, "partition": 9999, "worker": "segment-12", "state": "halted", "position": MANY, "end": None,
    "lag": MANY, "why": f"block {MANY} of {LONG} has other tokens than the store: `tokenmill repair` says which",
}  # fmt: skip
LETTER = DeadLetter(
    RecordPlace(LONG, 9999, MANY), 0, "wrong_type", "", "'text' is a number, not a string", None, b"{}", ()
)
ERA = Era(MANY, b"", (EraRange(0, MANY, b"", b""), EraRange(MANY - 1, MANY, b"", b"")), 0)


def made(**values: Any) -> Any:
    return SimpleNamespace(**values)


JUDGED = {LONG: {"judged": MANY, "duplicate_exact": MANY, "duplicate_near": MANY}}
TABLES: dict[str, Callable[[], ShownTable]] = {
    "again_table": lambda: topics._again_table([MANY, MANY, MANY]),
    "chains_table of verify": lambda: verify._chains_table(cast("VerifyResult", made(chains=[CHECKED, CHECKED]))),
    "chains_table of inspect": lambda: inspect._chains_table([REPORT]),
    "chances_table": lambda: topics._chances_table(dict.fromkeys(topics.SIMILARITIES, 0.5)),
    "config_table": lambda: topics._config_table(load_with_origins()),
    "copies_table": lambda: dead_letters._copies_table([(cast("RecordPlace", LETTER.place), REASON)]),
    "duplicates_table": lambda: topics._duplicates_table(LONG, JUDGED),
    "counts_table": lambda: dead_letters._counts_table(Counter({REASON: MANY})),
    "eras_table": lambda: dead_letters._eras_table([ERA]),
    "funnel_table": lambda: output._funnel_table(Retention(TOTALS), {REASON: MANY}),
    "ledger_table": lambda: status._ledger_table(RecordLedger([CHAIN, CHAIN], [])),
    "letters_table": lambda: dead_letters._letters_table([LETTER]),
    "pairs": lambda: pairs(inspect._segment_facts(**cast("Any", SEGMENT))),
    "partitions_table": lambda: status._partitions_table([ROW, ROW]),
    "speed_table": lambda: trying._speed_table(made(speeds={REASON: StageSpeed(MANY, 1.0)}, changes={REASON: MANY})),
    "steps_table": topics._steps_table,
    "streams_table": lambda: verify._streams_table(made(streams={LONG: PackedStream(TOTALS, MANY, MANY, MANY)})),
    "workers_table": lambda: status._workers_table([WORKER]),
}


@pytest.mark.parametrize("width", [60, 80, 120, 200, None])
@pytest.mark.parametrize("name", TABLES)
def test_nothing_in_a_table_is_cut(name: str, width: int | None) -> None:
    table = TABLES[name]()
    lines = table.lines(width)
    assert table.rows
    shown = Counter(word for line in lines for word in line.replace("; ", " ").rstrip(";").split())
    assert shown >= Counter(word for row in table.rows for cell in row for word in cell.replace("; ", " ").split())
    words = [part for row in table.rows for part in (row[-1].split() if table.words else [row[-1]])]
    named = [f"{name} {value}" for row in table.rows for name, value in zip(table.columns, row[:-1], strict=False)]
    longest = max(map(cell_len, (*words, *named))) + GAP + cell_len(f"{table.columns[-1]} ;")
    if table.words:  # a word that is wider than its column goes beyond it
        longest += sum(max(cell_len(row[n]) + GAP for row in table.rows) for n in range(len(table.columns) - 1))
    assert width is None or all(cell_len(line) <= max(width, longest) for line in lines)


def test_a_table_is_columns_where_they_fit_and_else_paragraphs() -> None:
    rows = [("a/0", 1234, "it waits for a block that the topic has not got any more"), ("b/10\x1b[2J", 5, None)]
    table = ShownTable(("chain", "blocks", "why"), rows, words=True)
    wide, narrow = table.lines(50), table.lines(30)
    assert wide == [
        "chain        blocks  why",
        "a/0           1,234  it waits for a block that the",
        "                     topic has not got any more",
        "b/10\\x1b[2J       5",
    ]
    assert narrow == [
        "a/0",
        "  blocks 1,234",
        "  why it waits for a block",
        "  that the topic has not got",
        "  any more",
        "b/10\\x1b[2J",
        "  blocks 5",
    ]
    assert table.lines()[1] == "a/0           1,234  it waits for a block that the topic has not got any more"


def test_every_table_of_the_command_line_is_tested_here() -> None:
    made_by = Counter[str]()
    for file in (APP / "tables.py", *sorted((APP / "cli").glob("*.py"))):
        module = ".".join(("tokenmill.app", *file.relative_to(APP).with_suffix("").parts))
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.FunctionDef(returns=ast.Name(id="ShownTable")):
                    made_by[node.name.removeprefix("_")] += 1
                    assert hasattr(import_module(module), node.name)
                case ast.Call(func=ast.Name(id="ShownTable")):
                    made_by["calls"] += 1
    assert made_by.pop("calls") == made_by.total()
    assert made_by == Counter(name.split()[0] for name in TABLES)
