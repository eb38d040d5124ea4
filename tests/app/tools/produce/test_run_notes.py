"""What makes two calls the same run."""

import os
import tracemalloc
import zlib
from contextlib import closing

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.sources.reading import reading_of
from tests.conftest import TopicFactory
from tokenmill.app.kafka.clients import producer
from tokenmill.app.kafka.topics import ensure_produced
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings, produced_topic
from tokenmill.app.sources.mapping import Mapping
from tokenmill.app.sources.source_changes import KnownSource
from tokenmill.app.tools.produce import run_notes
from tokenmill.app.tools.produce.run_notes import (
    RunStart,
    deciding_options,
    produced_runs,
    read_note,
    run_identity,
    write_note,
)

file_names = st.binary(min_size=1, max_size=4).filter(lambda name: b"/" not in name and name != b".")


@given(names=st.lists(file_names, min_size=2, max_size=2))
def test_any_name_of_a_file_makes_a_run_of_its_own(names: list[bytes]) -> None:
    """Names are bytes; the same ones make the same run, and others another one."""
    runs = [run_identity("raw", {}, [os.fsdecode(b"/in/" + name)]) for name in names]

    assert (runs[0] == runs[1]) == (names[0] == names[1])
    assert runs[0] == run_identity("raw", {}, [os.fsdecode(b"/in/" + names[0])])


def test_options_that_are_no_utf_8_name_a_run_too() -> None:
    """The same one each time."""
    first, second = (run_identity("raw", {"where": [["name", "\udce9"]]}, ["/in"]) for _ in range(2))

    assert first == second
    assert first != run_identity("raw", {"where": [["name", "e"]]}, ["/in"])


def test_ordinary_runs_are_known_again_by_later_versions() -> None:
    """How a run is called must not change, or what was begun before an update would be sent twice."""
    identity = run_identity("raw", {"plain": True, "where": [["language", "Python"]]}, ["/in/a.txt", "hf://a/b"])

    assert identity == "ccef24a8991aeead"


BOMB = zlib.compress(b" " * (64 << 20))
START = RunStart(5, {0: 1}, (KnownSource("a", 3, 4, "d"),))


def decoded(sources: bytes, **head: object) -> RunStart | None:
    """Return what becomes of a note with these bytes as its sources, and this in its head."""
    written, parts = run_notes.encode_start("r", START)
    return run_notes.decode_start(orjson.dumps(orjson.loads(written) | head), dict.fromkeys(parts, sources))


def test_a_note_that_anybody_wrote_is_read_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much it would be decompressed; nor does what is of another kind end who reads it."""
    monkeypatch.setattr(run_notes, "MOST_BYTES", 1 << 20)
    good = zlib.compress(b'[["a", 3, 4, "d"]]')
    assert decoded(good) == START
    tracemalloc.start()
    assert decoded(BOMB) is None
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
    for sources in (b'[["a", "3", 4, "d"]]', b'[[1, 3, 4, "d"]]', b"[7]", b"{}", b"[[]]", b"[" * 9999, b"null"):
        assert decoded(zlib.compress(sources)) in (None, START._replace(sources=()))
    for head in ({"begun": "x"}, {"begun": None}, {"offsets": ["x"]}, {"before": ["x"]}, {"settled": [["x"], [], []]}):
        assert decoded(good, **head) is None
    for odd in (b"7", b"[]", b"nonsense", b"\xff", b"[" * 9999):
        assert run_notes.decode_start(odd, {b"r/5/0": good}) is None


def test_options_make_another_run_where_they_are_given_alone() -> None:
    """So what was begun before they existed goes on; how many processes there are makes no other run."""
    plain = deciding_options(reading_of(), None, 0, 0)

    assert not {"delimiter", "encoding", "map_lists"} & set(plain)
    assert deciding_options(reading_of(delimiter=";", encoding="utf-16"), None, 0, 0) == {
        **plain,
        "delimiter": ";",
        "encoding": "utf-16",
    }
    mapped = []
    for batch, processes in ((None, 1), (None, 2), (8, 1), (9, 1)):
        with closing(Mapping("json:dumps", processes, batch)) as mapping:
            mapped.append(deciding_options(reading_of(mapping=mapping), None, 0, 0))
    assert mapped == [{**plain, "map": "json:dumps"}] * 2 + [{**plain, "map": "json:dumps", "map_lists": True}] * 2


NOTE = RunStart(7, {0: 5, 1: 6}, (KnownSource("a.txt", 1, 2, "f"),))
STRAYS = [
    *((key, value) for key in (b"\xff\xfe", b"", b"/", b"run/x/0") for value in (b"\xff", b"{}", None)),
    *((b"other", head) for head in (b"{}", b"[]", b"7", b'{"begun": "x", "parts": 0}', b'{"begun": 1, "parts": "x"}')),
    (b"other", orjson.dumps({"begun": None, "order": "x", "offsets": [0], "before": [0], "parts": 1, "settled": None})),
    (b"other/None/0", zlib.compress(b"[]")),
]


async def test_stray_records_among_the_notes_of_runs_are_no_runs(broker: Broker, topic: TopicFactory) -> None:
    """Whatever anybody writes there: the notes of runs are read, by those who list them and by the run itself."""
    raw = topic()
    settings = Settings(bootstrap_servers=broker.bootstrap_servers, raw_topics=(raw,))
    await ensure_produced(settings, raw)
    async with producer(settings) as client:
        await write_note(client, raw, "run", NOTE)
        for key, value in STRAYS:
            await client.send_and_wait(produced_topic(raw), value, key, 0)
    assert await produced_runs(settings, raw) == {"run": NOTE}
    assert await read_note(settings, raw, "run") == NOTE
