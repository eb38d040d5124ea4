"""Dead letters as people see them: listed, counted once a record, shown whole, and sent back once repaired."""

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import TopicFactory
from tests.milled import Milled
from tests.service import Raw, Service, in_own_loop, raw_records, send, service_settings
from tokenmill.app.cli import main
from tokenmill.app.local.broker import Broker
from tokenmill.app.raw.dead_letters import (
    MAX_ORIGINAL_HEADERS_BYTES,
    PREFIX,
    dead_letter_headers,
    parse_dead_letter,
    parse_place,
    place_name,
)
from tokenmill.app.resending import RESENT, Resending, count_dead_letters, find_dead_letter, resend
from tokenmill.app.settings import Settings, dead_letter_topic
from tokenmill.errors import InputError, TopicError
from tokenmill.outcomes import Kind, Outcome
from tokenmill.records import Record

headers = st.lists(
    st.tuples(
        st.text(max_size=9) | st.sampled_from([f"{PREFIX}offset", f"{PREFIX}x"]), st.none() | st.binary(max_size=9)
    ),
    max_size=4,
)


@given(st.none() | st.binary(max_size=9), st.binary(max_size=9), headers, st.text(), st.integers(-1, 2**53))
def test_a_dead_letter_is_read_as_it_was_written(
    key: bytes | None, value: bytes, original: list[tuple[str, bytes | None]], detail: str, number: int
) -> None:
    """Whatever the record's own headers are called, and whatever is in the detail."""
    record = Record(max(0, number), number, key, value, original)
    outcome = Outcome(record, Kind.DEAD_LETTERED, None, "too_deep", detail, exception="ValueError")
    written = SimpleNamespace(key=key, value=value, headers=dead_letter_headers("raw.text", 3, outcome))
    letter = parse_dead_letter(written)
    assert letter is not None
    assert letter.place == ("raw.text", 3, max(0, number))
    assert (letter.timestamp, letter.reason, letter.exception) == (number, "too_deep", "ValueError")
    assert detail.startswith(letter.detail)
    assert (letter.key, letter.value) == (key, value)
    assert letter.headers == [(name, found or b"") for name, found in original]


def test_headers_are_copied_up_to_a_limit() -> None:
    """A header bomb must not make a dead letter larger than its topic takes."""
    record = Record(5, 0, None, b"\xff", [(f"name {n}", b"x" * 100) for n in range(1000)])
    found = dead_letter_headers("raw", 0, Outcome(record, Kind.DEAD_LETTERED, None, "invalid_utf8", "d" * 10_000))
    size = sum(len(name) + len(value) for name, value in found if not name.startswith(PREFIX))
    assert 1900 < size <= MAX_ORIGINAL_HEADERS_BYTES
    assert len(dict(found)[f"{PREFIX}detail"]) == 1024


@given(st.text(max_size=20))
def test_a_place_is_read_as_it_is_written(name: str) -> None:
    """And what is none is none."""
    place = parse_place(name)
    assert place is None or parse_place(place_name(place)) == place
    assert parse_place("raw.text/3/17") == ("raw.text", 3, 17)
    assert parse_place("raw.text/3/") is None
    assert parse_place("raw.text/3/-1") is None


async def test_each_record_is_counted_once(milled: Milled) -> None:
    """By its place, however often it was written."""
    topic = dead_letter_topic(milled.raw_topic)
    counts = await count_dead_letters(milled.settings, milled.raw_topic)
    assert counts.reasons == {"invalid_utf8": 3}
    assert (counts.letters, counts.resent) == (3, 0)
    letter = await find_dead_letter(milled.settings, (milled.raw_topic, 1, 10))
    assert (letter.value, letter.reason, letter.exception) == (b"\xff no UTF-8", "invalid_utf8", "UnicodeDecodeError")
    with pytest.raises(InputError, match=f"{topic} holds no dead letter of {milled.raw_topic}/1/0"):
        await find_dead_letter(milled.settings, (milled.raw_topic, 1, 0))
    with pytest.raises(TopicError, match="missing"):
        await count_dead_letters(milled.settings, "nothing")


@pytest.mark.usefixtures("logging_restored")
def test_the_commands_list_count_and_show(milled: Milled, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """With filters, as JSON, and the original bytes for a pipe."""
    name = milled.raw_topic
    place = f"{name}/1/10"

    assert place in run(capfdbinary, milled.settings, "list", name).decode()
    listed = json.loads(run(capfdbinary, milled.settings, "list", name, "--partition", "1", "--json"))
    assert [(one["partition"], one["offset"], one["reason"]) for one in listed] == [
        (1, 10, "invalid_utf8"),
        (1, 11, "invalid_utf8"),
    ]
    assert len(json.loads(run(capfdbinary, milled.settings, "list", name, "--limit", "1", "--json"))) == 1
    assert json.loads(run(capfdbinary, milled.settings, "list", name, "--reason", "too_deep", "--json")) == []
    counts = json.loads(run(capfdbinary, milled.settings, "count", name, "--json"))
    assert counts == {"topic": name, "records": 3, "letters": 3, "resent": 0, "reasons": {"invalid_utf8": 3}}
    assert run(capfdbinary, milled.settings, "show", place, "--value") == b"\xff no UTF-8"
    assert json.loads(run(capfdbinary, milled.settings, "show", place, "--json"))["value"] == "/yBubyBVVEYtOA=="
    assert b"invalid_utf8" in run(capfdbinary, milled.settings, "show", place)
    run(capfdbinary, milled.settings, "show", name, code=12)
    run(capfdbinary, milled.settings, "resend", name, code=12)
    dry = run(capfdbinary, milled.settings, "resend", name, "--reason", "invalid_utf8", "--dry-run")
    assert dry == f"would send 3 records, 30 B, to {name}\n".encode()


@pytest.mark.usefixtures("logging_restored")
def test_repaired_records_go_back_and_are_milled(
    broker: Broker,
    topic: TopicFactory,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One with a repaired value, then all of a reason as they were: marked, to their partition, and once."""
    settings = service_settings(broker, topic(2), tmp_path, splits={"train": 1000})
    (name,) = settings.raw_topics
    own = [("mine", b"header")]
    send(settings, [Raw(b"good"), Raw(b"caf\xe9", 1, b"key", own), Raw(b"\xff", 1), Raw(b"\xfe", 0)])
    with Service(settings, tmp_path) as service:
        service.mill()
        service.wait_until(lambda: in_own_loop(lambda: letters(settings)) == 3)
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO("café".encode())))
        assert b"sent 1 record" in run(capfdbinary, settings, "resend", f"{name}/1/0", "--value", "-")
        assert b"sent 2 records" in run(capfdbinary, settings, "resend", name, "--reason", "invalid_utf8")
        service.wait_until(lambda: in_own_loop(lambda: letters(settings)) == 5)
        assert b"sent 0 records" in run(capfdbinary, settings, "resend", f"{name}/1/0")
        service.stop()
    back = {record.value: record for part in raw_records(settings, name) for record in part[1:]}
    repaired = back["café".encode()]
    assert (repaired.offset, repaired.key) == (2, b"key")
    assert list(repaired.headers) == [*own, (RESENT, f"{name}/1/0".encode())]
    counts = in_own_loop(lambda: count_dead_letters(settings, name))
    assert (counts.letters, counts.reasons, counts.resent) == (5, {"invalid_utf8": 5}, 3)
    write_again(settings)
    counts = in_own_loop(lambda: count_dead_letters(settings, name))
    assert (counts.letters, counts.reasons) == (10, {"invalid_utf8": 5})
    with pytest.raises(InputError, match=f"holds no dead letter of {name}/0/0"):
        in_own_loop(lambda: resend(settings, Resending(name, places=[(name, 0, 0)])))
    again = in_own_loop(lambda: resend(settings, Resending(name, places=[(name, 1, 1)], again=True), dry_run=True))
    assert (again.sent, again.before) == (1, 0)


def write_again(settings: Settings) -> None:
    """Write every dead letter once more, as a mill does that does not know that they are there."""
    dead_letters = dead_letter_topic(settings.raw_topics[0])
    (found,) = raw_records(settings, dead_letters)
    marked = [record for record in found if f"{PREFIX}offset" in dict(record.headers)]
    again = [Raw(record.value, 0, record.key, [(k, v or b"") for k, v in record.headers]) for record in marked]
    send(settings, again, dead_letters)


async def letters(settings: Settings) -> int:
    """Return how many records were dead-lettered."""
    return (await count_dead_letters(settings, settings.raw_topics[0])).reasons.total()


def run(capture: pytest.CaptureFixture[bytes], settings: Settings, *arguments: str, code: int = 0) -> bytes:
    """Run a command of the group; return what it wrote to standard output."""
    capture.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["dead-letters", *arguments, "--bootstrap-servers", settings.bootstrap_servers])
    assert (ended.value.code or 0) == code
    return capture.readouterr().out
