"""Dead letters counted, shown and sent back on a real broker; the skip list and the ignore list that people write."""

import io
import json
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.app.commands import invoke
from tests.conftest import TopicFactory
from tests.milled import Milled, all_in_eras
from tests.service import WAIT_SECONDS, Raw, Service, in_own_loop, raw_records, reference_blocks, send, service_settings
from tokenmill.app.kafka.dead_letters import (
    PREFIX,
    RecordPlace,
    cut_letter,
    encode_dead_letter,
)
from tokenmill.app.kafka.topics import ensure_topics
from tokenmill.app.local.broker import Broker
from tokenmill.app.milling.outcomes import SKIPPED
from tokenmill.app.settings import Settings, dead_letter_topic
from tokenmill.app.tools.failed_records import (
    RESENT,
    count_dead_letters,
    find_dead_letter,
    skip,
)
from tokenmill.app.tools.verify import verify
from tokenmill.app.tools.verify.verification import check_dead_letters
from tokenmill.app.tools.verify.verify_result import ChainResult
from tokenmill.errors import InputError, TopicError


async def test_each_record_is_counted_once(milled: Milled) -> None:
    """By its place, however often it was written."""
    topic = dead_letter_topic(milled.raw_topic)
    counts = await count_dead_letters(milled.settings, milled.raw_topic)
    assert counts.reasons == {"invalid_utf8": 3}
    assert (counts.letters, counts.resent) == (3, 0)
    letter = await find_dead_letter(milled.settings, RecordPlace(milled.raw_topic, 1, 10))
    assert (letter.value, letter.reason, letter.exception) == (b"\xff no UTF-8", "invalid_utf8", "UnicodeDecodeError")
    with pytest.raises(InputError, match=f"{topic} holds no dead letter of {milled.raw_topic}/1/0"):
        await find_dead_letter(milled.settings, RecordPlace(milled.raw_topic, 1, 0))
    with pytest.raises(TopicError, match="missing"):
        await count_dead_letters(milled.settings, "nothing")


def test_the_commands_list_count_and_show(milled: Milled) -> None:
    """With filters, as JSON, and the original bytes for a pipe."""
    name = milled.raw_topic
    place = f"{name}/1/10"

    assert place in run(milled.settings, "list", name).decode()
    listed = json.loads(run(milled.settings, "list", name, "--partition", "1", "--json"))
    assert [(one["partition"], one["offset"], one["reason"]) for one in listed] == [
        (1, 10, "invalid_utf8"),
        (1, 11, "invalid_utf8"),
    ]
    assert len(json.loads(run(milled.settings, "list", name, "--limit", "1", "--json"))) == 1
    assert json.loads(run(milled.settings, "list", name, "--reason", "too_deep", "--json")) == []
    counts = json.loads(run(milled.settings, "count", name, "--json"))
    assert counts == {"topic": name, "records": 3, "letters": 3, "resent": 0, "reasons": {"invalid_utf8": 3}}
    assert run(milled.settings, "show", place, "--value") == b"\xff no UTF-8"
    assert json.loads(run(milled.settings, "show", place, "--json"))["value"] == "/yBubyBVVEYtOA=="
    assert b"invalid_utf8" in run(milled.settings, "show", place)
    run(milled.settings, "show", name, code=12)
    run(milled.settings, "resend", name, code=12)
    dry = run(milled.settings, "resend", name, "--reason", "invalid_utf8", "--dry-run")
    assert dry == f"would send 3 records, 30 B, to {name}\n".encode()


def test_repaired_records_go_back_and_are_milled(
    broker: Broker,
    topic: TopicFactory,
    tmp_path: Path,
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
        assert b"sent 1 record" in run(settings, "resend", f"{name}/1/0", "--value", "-")
        assert b"sent 2 records" in run(settings, "resend", name, "--reason", "invalid_utf8")
        service.wait_until(lambda: in_own_loop(lambda: letters(settings)) == 5)
        assert b"sent 0 records" in run(settings, "resend", f"{name}/1/0")
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
    run(settings, "resend", f"{name}/0/0", code=12)
    again = json.loads(run(settings, "resend", f"{name}/1/1", "--again", "--dry-run", "--json"))
    assert (again["sent"], again["sent_before"], again["dry_run"]) == (1, 0, True)


def test_letters_of_produce_are_listed_counted_shown_and_resent(
    broker: Broker, topic: TopicFactory, tmp_path: Path
) -> None:
    """By run, file and line, once however often they were written, over all partitions; the mill's are told apart."""
    name = topic(2)
    settings = with_topics(broker, name)
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"text": "one"}\n' + b"no JSON\n" * 20 + b"x" * 3000)
    produce = ["produce", name, str(file), "--on-error", "dead-letter", "--max-record-bytes", "2000"]
    for more in ([], ["--no-resume"]):
        invoke(*produce, *more, "--bootstrap-servers", settings.bootstrap_servers, code=0)

    dead = dead_letter_topic(name)
    assert all(raw_records(settings, dead)), "letters are spread over both partitions"
    write_again(settings)
    counts = json.loads(run(settings, "count", name, "--json"))
    assert counts == {"topic": name, "records": 42, "letters": 84, "resent": 0, "reasons": {"not_produced": 42}}
    listed = json.loads(run(settings, "list", name, "--json"))
    assert {one["source"] for one in listed} == {f"{file}:{line}" for line in range(2, 23)}
    assert len({one["run"] for one in listed}) == 2
    assert all(one["timestamp"] > 0 for one in listed)
    assert json.loads(run(settings, "list", name, "--partition", "0", "--json")) == []
    bad = next(one for one in listed if one["source"].endswith(":2"))["place"]
    assert bad in run(settings, "list", name).decode()
    assert run(settings, "show", bad, "--value") == b"no JSON"

    long = next(one for one in listed if one["source"].endswith(":22"))["place"]
    run(settings, "resend", long, code=12)
    assert b"sent 40 records" in run(settings, "resend", name, "--reason", "not_produced")
    (tmp_path / "short").write_bytes(b"short")
    assert b"sent 1 record" in run(settings, "resend", long, "--value", str(tmp_path / "short"))
    back = [record for part in raw_records(settings, name) for record in part if dict(record.headers).get(RESENT)]
    assert sorted(record.value or b"" for record in back) == [*[b"no JSON"] * 40, b"short"]
    assert {dict(record.headers)[RESENT] for record in back} >= {bad.encode(), long.encode()}

    chain = ChainResult(f"{name}.train", 0, name, (0, 9), (0, 9))
    chain.dead_letters.extend([2])
    ends = {number: (0, len(part)) for number, part in enumerate(raw_records(settings, dead))}
    differences, _ = in_own_loop(lambda: check_dead_letters(settings, name, [chain], ends))
    assert [(d.partition, d.offset) for d in differences] == [(0, 2)], "no letter of produce is taken for a record's"


def test_a_cut_letter_goes_back_with_a_value_that_a_person_gives(
    broker: Broker, topic: TopicFactory, tmp_path: Path
) -> None:
    """`show` says what is missing and where it is; `resend` sends no half of a record, and says what to do."""
    name = topic()
    settings = with_topics(broker, name)
    place = RecordPlace(name, 0, 3)
    headers = encode_dead_letter(place, reason="too_large", detail="", timestamp=1)
    cut = cut_letter(b"k" * 5000, b"v" * 5000, headers, 4000)
    assert cut.key is not None
    send(settings, [Raw(cut.value, 0, cut.key, cut.headers)], dead_letter_topic(name))

    shown = json.loads(run(settings, "show", f"{name}/0/3", "--json"))
    assert shown["whole_value"] == {"bytes": 5000, "sha256": sha256(b"v" * 5000).hexdigest()}
    assert shown["whole_key"]["bytes"] == 5000
    assert shown["value_bytes"] < 4000
    done = json.loads(run(settings, "resend", name, "--reason", "too_large", "--json"))
    assert (done["sent"], done["without_value"]) == (0, 1)
    run(settings, "resend", f"{name}/0/3", code=12)
    (tmp_path / "value").write_bytes(b"v" * 5000)
    run(settings, "resend", f"{name}/0/3", "--value", str(tmp_path / "value"))
    ((record,),) = raw_records(settings, name)
    assert (record.key, record.value) == (None, b"v" * 5000)


def test_what_the_raw_topic_does_not_take_is_said(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    """In one line, with the settings that decide."""
    name = topic(max_message_bytes=1000)
    settings = with_topics(broker, name)
    headers = encode_dead_letter(RecordPlace(name, 0, 3), reason="too_large", detail="", timestamp=1)
    send(settings, [Raw(b"", 0, None, headers)], dead_letter_topic(name))
    for large in (b"v" * 2000, b"v" * 20_000_000):
        (tmp_path / "value").write_bytes(large)
        run(settings, "resend", f"{name}/0/3", "--value", str(tmp_path / "value"), code=4)


def with_topics(broker: Broker, raw_topic: str) -> Settings:
    """Make the topics beside a raw one; return settings that name it."""
    settings = Settings(bootstrap_servers=broker.bootstrap_servers, raw_topics=(raw_topic,))
    in_own_loop(lambda: ensure_topics(settings))
    return settings


def write_again(settings: Settings) -> None:
    """Write every dead letter once more, as a mill does that does not know that they are there."""
    dead_letters = dead_letter_topic(settings.raw_topics[0])
    found = [record for part in raw_records(settings, dead_letters) for record in part]
    marked = [record for record in found if f"{PREFIX}reason" in dict(record.headers)]
    again = [Raw(record.value, 0, record.key, [(k, v or b"") for k, v in record.headers]) for record in marked]
    send(settings, again, dead_letters)


async def letters(settings: Settings) -> int:
    """Return how many records were dead-lettered."""
    return (await count_dead_letters(settings, settings.raw_topics[0])).reasons.total()


def run(settings: Settings, *arguments: str, code: int = 0) -> bytes:
    """Run a command of the group; return what it wrote to standard output."""
    told = invoke("dead-letters", *arguments, "--bootstrap-servers", settings.bootstrap_servers, code=code)
    return told.out.encode(errors="surrogateescape")


POISON = 20


def test_a_skipped_record_no_longer_kills_workers(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    """A worker dies of a record, again; skipped, it is dead-lettered, its neighbours are milled, and verify agrees."""
    settings = service_settings(
        broker, topic(), tmp_path, function="tests.app.own_functions:fragile", splits={"train": 500, "validation": 500}
    )
    texts = [f"a text of some length, number {number}" for number in range(40)]
    texts[POISON] = "poison"
    send(settings, [Raw(text.encode()) for text in texts])
    with Service(settings, tmp_path) as service:
        first = service.mill()[0]
        assert first.process.wait(WAIT_SECONDS) == 13

        skipped, _ = in_own_loop(lambda: skip(settings, settings.raw_topics[0], 0, POISON))

        assert skipped == [stream.name for stream in settings.streams()]
        service.mill()
        service.segment()
        chains = service.wait_until_complete(skips=[POISON])
        service.wait_until(lambda: all_in_eras(settings, chains))
        service.stop()
    result = verify(settings, store=settings.store, processes=1)
    assert result.complete
    assert result.blocks == sum(map(len, reference_blocks(settings, [POISON]).values()))
    assert result.totals.dead_lettered == {SKIPPED: 1}


async def test_a_topic_without_streams_has_nothing_to_skip(milled: Milled) -> None:
    """It may be misspelt."""
    with pytest.raises(TopicError, match="no stream of nothing is settled"):
        await skip(milled.settings, "nothing", 0, 0)
