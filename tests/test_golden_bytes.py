"""What is on Kafka and on disk for one raw topic, by every packing and every step, is what it was when it was recorded.

A change of `test_golden_bytes.json` changes what settled streams become: it needs new rules, or it is a mistake.
"""

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pytest

from tests.every_step import EXTRAS, every_step, record_of, text_of
from tests.milled_store import DRAFT, SHAPES
from tests.mills import PARTITION, RAW, RECIPE, Source, tiny_bpe
from tests.store.chains import make_eras, with_offsets, write_eras
from tokenmill.app.kafka.control_log import LIST_PREFIX, file_parts, ignore_record, skip_record, skip_request_record
from tokenmill.app.kafka.dead_letters import RecordPlace
from tokenmill.app.mill.publisher import letter_of
from tokenmill.app.milling.outcomes import Outcome
from tokenmill.app.milling.recipe_stages import complete, open_stages
from tokenmill.app.milling.steps.pipeline import read_pipeline
from tokenmill.documents import FLUSH_HEADER, Record
from tokenmill.reading import Blocks
from tokenmill.recipe import GENESIS_KEY, Genesis, Recipe
from tokenmill.store import PartitionWriter, Store, StreamInfo
from tokenmill.wire.message import Message, encode_header

GOLDEN: Final = json.loads(Path(__file__).with_suffix(".json").read_text())
PACKINGS: Final = {"concat": {"packing": "concat"}, **SHAPES}
FEED: Final = 7
"""Records at a time: fewer than fill a message of `MESSAGE_BYTES`."""
MESSAGE_BYTES: Final = 1000
SEGMENT_BLOCKS: Final = 16
OF_ITS_OWN: Final = {"lock", "store.json"}
"""Files that tell one store from another: who writes it, and its id."""


def raw_topic() -> Iterator[Record]:
    for n in range(32):
        text = text_of([n * 37 % 1000 + at for at in range(4 + n % 9)], EXTRAS[n % len(EXTRAS)])
        odd = {5: "http://bad.example/", 6: "http://good.example/casino", 7: "http://["}
        values = (
            record_of(n, text, odd.get(n % 8, "http://good.example/page")),
            text.encode(),
            json.dumps({"id": f"name {n}", "content": text, "label": "ä" * (n % 3)}).encode(),
            json.dumps({"id": n, "text": text * 2 if n % 11 == 3 else text[:900]}).encode(),
        )
        yield Record(3 * n, 1000 + n, None if n % 5 else b"key", values[n % 4], [("header", b"of a record")])
        if n % 8 == 5:
            yield Record(3 * n + 1, 1000 + n, b"key", None)
            yield Record(3 * n + 2, 1000 + n, None, (b"\xff", b"{", b'{"id": 1}', b'{"text": ""}')[n // 8])
    yield Record(100, 2000, None, None, (FLUSH_HEADER,))


def recorded(source: Source, recipe: Recipe, folder: Path) -> dict[str, str]:
    mill, records = source.mill(message_bytes=MESSAGE_BYTES), list(raw_topic())
    messages: list[Message] = []
    letters: list[Outcome] = []
    for first in range(0, len(records), FEED):
        milled = mill.feed(records[first : first + FEED])
        letters += milled.dead_letters
        messages += milled.messages[recipe.split]
        carry = mill.chains[recipe.split].carry(records[min(first + FEED, len(records)) - 1].offset + 1)
        messages += [carry] if carry is not None and first % 3 == 0 else []
    control = [*genesis_records(recipe), *into_store(recipe, messages, folder)]
    return {
        "messages": digest(part for message in messages for part in (encode_header(message), bytes(message.tokens))),
        "dead letters": digest(part for letter in letters for part in written(letter)),
        "control": digest(control),
        "figures": digest([json.dumps(mill.chains[recipe.split].totals.figures.to_dict()).encode()]),
        **{f"store, {kind}": digest(parts) for kind, parts in files(folder).items()},
    }


def written(outcome: Outcome) -> Iterator[bytes]:
    """Yield the parts of a dead letter, as the mill writes it; a topic of 1,000 bytes cuts some."""
    letter = letter_of(outcome, RecordPlace("raw-text", PARTITION, outcome.record.offset), 1000)
    yield from (letter.key or b"none", letter.value or b"none")
    yield from (part for name, value in letter.headers for part in (name.encode(), value))


def genesis_records(recipe: Recipe) -> Iterator[bytes]:
    """Yield keys and values of a control topic; what is compressed, as it was, since libraries differ."""
    yield from (GENESIS_KEY, genesis_of(recipe).pack())
    yield from (*skip_record(PARTITION, 3), *skip_request_record(PARTITION, 6), *ignore_record(PARTITION, 9, bytes(16)))
    for key, value in (*file_parts(b"a tokenizer"), *file_parts(b"a list", LIST_PREFIX)):
        yield from (key, zlib.decompress(value))


def genesis_of(recipe: Recipe) -> Genesis:
    return Genesis("raw-text.train", recipe, (0,) * (PARTITION + 1), SEGMENT_BLOCKS, {"tokenmill": "0"})


def into_store(recipe: Recipe, messages: Sequence[Message], folder: Path) -> Iterator[bytes]:
    info = StreamInfo.from_genesis(genesis_of(recipe), SEGMENT_BLOCKS)
    store = Store.open_or_create(folder)
    store.add_stream(info, None)
    sent = [message for message in messages if not message.is_carry]
    blocks = Blocks(
        0,
        b"".join(bytes(message.tokens) for message in sent),
        [bytes(entry) for message in sent for entry in message.entries],
        [bytes(chain) for message in sent for chain in message.chains],
    )
    with PartitionWriter.open(store, info.name, PARTITION) as writer:
        for number, message in enumerate(sent):
            part = slice(message.first, message.end)
            mine = Blocks(message.first, message.tokens, blocks.entries[part], blocks.chains[part])
            writer.append(mine, token_offset=number)
            writer.commit()
    count = len(blocks.entries)
    eras = make_eras(info, {PARTITION: blocks}, [{PARTITION: count // 2}, {PARTITION: count}], end=True)
    write_eras(store, eras, stream=info.name)
    for era, offset in with_offsets(eras):
        yield from (era.pack(), str(offset).encode())


def files(folder: Path) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.name not in OF_ITS_OWN:
            parts = (str(file.relative_to(folder)).encode(), file.read_bytes())
            found.setdefault(file.suffix or file.name, []).extend(parts)
    return found


def digest(parts: Iterable[bytes]) -> str:
    joined = sha256()
    for part in parts:
        joined.update(len(part).to_bytes(8, "little") + part)
    return joined.hexdigest()[:24]


def of_packing(name: str, engine: str) -> tuple[Source, Recipe]:
    shape: dict[str, Any] = PACKINGS[name]
    draft = replace(DRAFT, packing=shape["packing"], packing_parameters=dict(shape.get("parameters", {})))
    draft = replace(draft, steps=({"name": "decode", "rules": 3},))  # the recording's: a settled stream keeps its own
    draft = replace(draft, block_tokens=65, max_text_bytes=3000, normalize="NFKC", min_chars=3)
    recipe, stages = complete(draft, RAW, None, begin_of_document=shape.get("begin"))
    if engine == "merges":
        stages, recipe = replace(stages, engine=tiny_bpe()), replace(recipe, dtype="uint16")
    return Source(stages, (recipe,)), recipe


@pytest.mark.parametrize("engine", ["raw bytes", "merges"])
@pytest.mark.parametrize("packing", PACKINGS)
def test_every_packing_leaves_what_was_recorded(packing: str, engine: str, tmp_path: Path) -> None:
    source, recipe = of_packing(packing, engine)
    assert recorded(source, recipe, tmp_path / "store") == GOLDEN[f"{packing}, {engine}"]


def test_every_step_leaves_what_was_recorded(tmp_path: Path) -> None:
    for library in ("spacy", "numba", "ftfy", "re2", "fasttext"):
        pytest.importorskip(library)
    entries, lists = read_pipeline(every_step(tmp_path))
    fields = ("url", "language")
    recipe = replace(
        RECIPE, pipeline=entries, metadata_fields=fields, max_text_bytes=4000, max_fields_bytes=70, block_tokens=64
    )
    source = Source(open_stages(recipe, RAW, lists=lists), (recipe,))
    assert recorded(source, recipe, tmp_path / "store") == GOLDEN["every step"]
