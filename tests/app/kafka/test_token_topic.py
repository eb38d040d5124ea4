"""What readers of a token topic take, pass over and halt at, whatever the ignore list says."""

from dataclasses import replace
from typing import Any

import pytest
from aiokafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from tests.histories import BLOCK_BYTES, FINGERPRINT, PARTITION, make_history
from tokenmill.app.kafka.control_log import ControlLog, IgnoreList, ignore_record, record_hash
from tokenmill.app.kafka.token_topic import REFUSALS, message_of, offered, readable
from tokenmill.documents import Record
from tokenmill.errors import DifferenceError, StrayError, TokenMillError
from tokenmill.reading import Acceptor, Taken
from tokenmill.wire.message import HEADER_NAME, Message, encode_header

LENGTH = 12
TRUE = make_history(LENGTH)
OTHER = make_history(LENGTH, other_from=4)
TOKENS = TopicPartition("tokens.raw.train", PARTITION)


def kafka(offset: int, message: Message) -> Record:
    return Record(offset, 7, None, bytes(message.tokens), [(HEADER_NAME, encode_header(message))])


def foreign(kind: str, offset: int, first: int) -> Record:
    good = TRUE.message(first, first + 1)
    made = {
        "no header": Record(offset, 7, b"key", b"a text", []),
        "no value": Record(offset, 7, None, None, [(HEADER_NAME, None)]),
        "another stream": kafka(offset, replace(good, fingerprint=bytes(16))),
        "another history": kafka(offset, OTHER.message(max(first, 5), max(first, 5) + 1)),
        "changed tokens": kafka(offset, replace(good, tokens=bytes(BLOCK_BYTES - 1) + b"x")),
        "other blocks": kafka(offset, replace(good, tokens=bytes(2 * BLOCK_BYTES))),
        "far away": kafka(offset, replace(good, first=10**12, cursor=replace(good.cursor, block=10**12 + 1))),
        "deep totals": Record(offset, 7, None, b"", [(HEADER_NAME, b"TMm1" + bytes(300))]),
    }
    return made[kind]


KINDS = ("no header", "no value", "another stream", "another history", "changed tokens", "other blocks", "far away")
spans = st.tuples(st.integers(0, LENGTH - 1), st.integers(0, 4)).map(lambda s: (s[0], min(LENGTH, s[0] + s[1])))
logs = st.lists(
    st.one_of(spans, st.tuples(st.sampled_from(KINDS), st.integers(0, LENGTH - 2))), min_size=1, max_size=12
)


def log_of(drawn: list[Any]) -> tuple[list[Record], set[int]]:
    found, others = [], set()
    for offset, (what, at) in enumerate(drawn):
        if isinstance(what, str):
            others.add(offset)
            found.append(foreign(what, offset, at))
        else:
            found.append(kafka(offset, TRUE.message(what, at)))
    return found, others


def listed(records: list[Record]) -> IgnoreList:
    log = ControlLog()
    for record in records:
        log.add(*ignore_record(PARTITION, record.offset, record_hash(record)))
    return log.ignored


def read(records: list[Record], ignored: IgnoreList) -> tuple[list[bytes], int]:
    """Return the blocks that a store takes, which looks from the start until nothing is new, and where it halts."""
    acceptor = Acceptor(FINGERPRINT, PARTITION, BLOCK_BYTES)
    taken: list[bytes] = []
    before = -1
    while acceptor.next_block > before:
        before = acceptor.next_block
        for record in records:
            try:
                found = offered(acceptor, record, TOKENS, ignored)
            except REFUSALS:
                return taken, record.offset
            if found is not None and isinstance(found[1], Taken):
                tokens = bytes(found[1].blocks.tokens)
                taken += [tokens[at : at + BLOCK_BYTES] for at in range(0, len(tokens), BLOCK_BYTES)]
    return taken, len(records)


@given(logs, st.data())
def test_no_list_changes_which_blocks_are_taken(drawn: list[Any], data: st.DataObject) -> None:
    """Readers that know nothing, something, all or legitimate messages as ignored: each has a prefix of the next."""
    records, _ = log_of(drawn)
    some = data.draw(st.lists(st.sampled_from(records), unique_by=lambda record: record.offset))
    more = data.draw(st.lists(st.sampled_from(records), unique_by=lambda record: record.offset))
    few, many = (read(records, listed(chosen)) for chosen in (some, [*some, *more]))
    assert many[0][: len(few[0])] == few[0]


@given(logs)
def test_with_all_that_is_foreign_on_the_list_nothing_halts(drawn: list[Any]) -> None:
    records, others = log_of(drawn)
    alone = read([record for record in records if record.offset not in others], IgnoreList())
    found, end = read(records, listed([records[offset] for offset in others]))
    assert (end, alone[1]) == (len(records), len(records) - len(others))
    assert found == alone[0]


@given(logs)
def test_ignoring_everything_loses_nothing(drawn: list[Any]) -> None:
    records, others = log_of(drawn)
    mine = [record for record in records if record.offset not in others]
    assert read(mine, listed(mine))[0] == read(mine, IgnoreList())[0]


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("no header", StrayError), ("no value", StrayError), ("deep totals", StrayError),
        ("another stream", StrayError), ("another history", DifferenceError), ("changed tokens", StrayError),
        ("other blocks", StrayError),
    ],
)  # fmt: skip
def test_a_halt_names_the_place_and_the_command(kind: str, error: type[TokenMillError]) -> None:
    record = foreign(kind, 5, 4)
    with pytest.raises(error) as caught:
        offered(TRUE.acceptor(5 if kind == "another history" else 4), record, TOKENS, IgnoreList())
    said = str(caught.value)
    assert said.startswith("offset 5 of tokens.raw.train[3]: ")
    assert "`tokenmill ignore tokens.raw.train 3 5`" in said
    assert "?." not in said
    assert "damaged" not in caught.value.brief  # nothing of the stream or its store is


def test_only_the_very_message_is_ignored() -> None:
    record = foreign("no header", 5, 4)
    ignored = listed([record])
    assert offered(TRUE.acceptor(), record, TOKENS, ignored) is None
    for other in (
        record._replace(value=b"another text"), record._replace(key=None), record._replace(offset=6),
        record._replace(headers=[("a", b"b")]),
    ):  # fmt: skip
        with pytest.raises(StrayError):
            offered(TRUE.acceptor(), other, TOKENS, ignored)
    with pytest.raises(StrayError):
        offered(TRUE.acceptor(), record, TopicPartition(TOKENS.topic, PARTITION + 1), ignored)


def test_who_only_looks_passes_over_what_is_no_message() -> None:
    """A search for a block must not end at somebody else's record."""
    assert readable(foreign("no header", 5, 4)) is None
    assert readable(kafka(5, TRUE.message(4, 5))) == message_of(kafka(5, TRUE.message(4, 5)), TOKENS)


@given(st.none() | st.binary(), st.none() | st.binary(), st.lists(st.tuples(st.text(), st.none() | st.binary())))
def test_a_records_hash_is_of_all_of_it(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    """Where and when it stands does not matter; no two records have the same by moving bytes between their parts."""
    try:
        found = record_hash(Record(1, 2, key, value, headers))
    except UnicodeEncodeError:  # no header's name is half a surrogate pair
        return
    assert record_hash(Record(3, 4, key, value, headers)) == found
    if key is not None and value is not None:
        moved = Record(1, 2, key[:-1], key[-1:] + value, headers)
        assert record_hash(moved) != found or not key
    assert record_hash(Record(1, 2, key, value, [*headers, ("", None)])) != found
