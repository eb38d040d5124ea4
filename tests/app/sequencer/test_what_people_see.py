"""What commands tell of duplicates of a service is what a plain order of what was signed gives."""

import json
import random
from collections import Counter
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from tests.app.commands import invoke
from tests.app.sequencer.judged_order import are_signed, domain_settings, feed, judged
from tests.app.tools.test_inspect import plainly
from tests.conftest import topics_on
from tests.service import Raw, Service, in_own_loop, raw_records, send
from tokenmill.app.kafka.dead_letters import RecordPlace, parse_place
from tokenmill.app.local.broker import Broker
from tokenmill.app.milling.steps import Rejected
from tokenmill.app.settings import Domain, Settings
from tokenmill.app.tools.inspect.record_ledger import read_ledger
from tokenmill.app.tools.inspect.tracing import RejectedDocument, outcome_of, read_rejected
from tokenmill.errors import InputError, SequencerError, TopicError

EACH = 200
"""Texts of a raw topic."""


@dataclass(frozen=True)
class JudgedTopics:
    settings: Settings
    found: dict[RecordPlace, Rejected]
    """The duplicates."""

    @property
    def domain(self) -> Domain:
        (domain,) = self.settings.domains()
        return domain

    @property
    def kept(self) -> Counter[RecordPlace]:
        return Counter(resembled(one) for one in self.found.values())

    def command(self, *words: object, code: int = 0) -> str:
        """Return what a command prints whose settings name one of the raw topics, and say nothing of duplicates."""
        flags = ["--bootstrap-servers", self.settings.bootstrap_servers, "--raw-topics", self.settings.raw_topics[0]]
        return invoke(*words, *flags, code=code).out


def resembled(rejected: Rejected) -> RecordPlace:
    place = parse_place(rejected.detail.rpartition(" ")[2])
    assert isinstance(place, RecordPlace)
    return place


@pytest.fixture(scope="module")
def topics(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> JudgedTopics:
    """Mill texts of which many come again; at first there is no sequencer, for which mills wait loudly."""
    directory = tmp_path_factory.mktemp("seen")
    settings = domain_settings(broker, topics_on(broker, "seen"), directory).model_copy(update={"carry_seconds": 0.5})
    (domain,) = settings.domains()
    feed(settings, random.Random(5), EACH)
    with Service(settings, directory) as service:
        (mill,) = service.mill()
        service.wait_until(lambda: SequencerError.brief in {one["waiting_by"] for one in mill.partitions.values()})
        service.sequencer()
        service.wait_until(lambda: are_signed(settings, domain))
        service.wait_until(partial(_all_published, settings))
    found = {
        RecordPlace(domain.raw_topics[number], partition, offset): rejected
        for (number, partition), duplicates in judged(settings, domain).items()
        for offset, rejected in duplicates.items()
    }
    return JudgedTopics(settings, found)


def _all_published(settings: Settings) -> bool:
    try:
        ledger = in_own_loop(lambda: read_ledger(settings))
    except TopicError:
        return False
    rows = [chain for chain in ledger.chains if chain.stream.endswith(".train")]
    return sum(chain.totals.records for chain in rows) == 2 * EACH


@pytest.mark.needs("minutes")
def test_rejects_shows_duplicates_with_the_document_that_each_resembles(topics: JudgedTopics) -> None:
    async def read() -> list[RejectedDocument]:
        return [one async for one in read_rejected(topics.settings, limit=2 * EACH)]

    every = in_own_loop(read)
    assert {one.place: Rejected(one.reason, one.detail) for one in every} == topics.found
    assert len(every) == len(topics.found)
    assert "resembles " in topics.command("rejects", "--reason", "duplicate_near", "--limit", 1)


@pytest.mark.needs("minutes")
def test_the_later_copies_of_a_document_are_listed(topics: JudgedTopics) -> None:
    ((place, times),) = topics.kept.most_common(1)
    wanted = {copy: one.reason for copy, one in topics.found.items() if resembled(one) == place}
    listed = json.loads(topics.command("rejects", "--of", place, "--limit", EACH, "--json"))
    found = [(RecordPlace(one["topic"], one["partition"], one["offset"]), one["reason"]) for one in listed]
    assert len(found) == times
    assert dict(found) == wanted
    near = {copy for copy, reason in wanted.items() if reason == "duplicate_near"}
    told = topics.command("rejects", "--of", place, "--limit", EACH, "--reason", "duplicate_near")
    assert {copy for copy in topics.found if str(copy) in told.split()} == near
    topics.command("rejects", "--of", f"{topics.settings.raw_topics[0]}:1:file:3", code=InputError.exit_code)
    topics.command("rejects", "--of", "nothing/0/3", code=TopicError.exit_code)


def seen(topics: JudgedTopics, place: RecordPlace) -> Any:
    return json.loads(topics.command("inspect", "message", *place, "--json"))["seen_before"][topics.domain.name]


def test_inspect_says_whether_a_record_was_seen_before_and_how_often_it_came_again(topics: JudgedTopics) -> None:
    place, rejected = max(topics.found.items())
    assert seen(topics, place) == {"reason": rejected.reason, "detail": rejected.detail, "again": {}}
    assert f"{rejected.reason}: {rejected.detail}" in topics.command("inspect", "message", *place)
    ((kept, times),) = topics.kept.most_common(1)
    copies = Counter(one.reason for one in topics.found.values() if resembled(one) == kept)
    assert seen(topics, kept) == {"reason": "", "detail": "", "again": dict(copies)}
    assert f"no; seen {times} times since (" in topics.command("inspect", "message", *kept)
    raw_topic = topics.settings.raw_topics[0]
    new = RecordPlace(raw_topic, 1, len(raw_records(topics.settings, raw_topic)[1]))
    send(topics.settings, [Raw(b"new", new.partition)])
    assert seen(topics, new) is None
    assert "not judged" in topics.command("inspect", "message", *new)


@pytest.mark.needs("minutes")
def test_what_became_of_a_record_is_what_was_judged_of_it(topics: JudgedTopics) -> None:
    """As `tail` tells it of many, and `trace --text` of one; of what is not judged yet, that too is told."""
    raw_topic = topics.settings.raw_topics[0]
    ends = [len(records) for records in raw_records(topics.settings, raw_topic)]
    send(topics.settings, [Raw(b"of which there is no verdict", 1)])
    new = RecordPlace(raw_topic, 1, ends[1])
    tail = topics.command("tail", raw_topic, "--last", 2 * EACH, "--json")
    told = {RecordPlace(**one["place"]): one["outcome"] for one in map(json.loads, tail.splitlines())}
    judged_of = {place: one for place, one in topics.found.items() if place.topic == raw_topic}
    of_duplicates = {place: (told[place]["kind"], told[place]["reason"], told[place]["tokens"]) for place in judged_of}
    assert of_duplicates == {place: ("filtered", f"{one.reason}: {one.detail}", []) for place, one in judged_of.items()}
    kept = {place for place, outcome in told.items() if outcome["kind"] == "kept"}
    assert len(kept) == EACH - len(judged_of)
    assert (told[new]["kind"], told[new]["reason"]) == ("unjudged", "there is no verdict on duplicates yet")
    lines = topics.command("tail", raw_topic, "--last", 2 * EACH)
    assert ": duplicate_near: resembles " in lines
    assert ": there is no verdict on duplicates yet, " in lines
    for place in (min(judged_of), max(judged_of), new, min(kept)):
        stream = f"{raw_topic}.{told[place]['split']}"
        outcome = in_own_loop(partial(outcome_of, topics.settings, stream, (place.partition, place.offset)))
        assert asdict(outcome) == {**told[place], "split": "", "tokens": outcome.tokens}
        assert list(outcome.tokens) == told[place]["tokens"]


@pytest.mark.needs("minutes")
def test_counts_are_those_of_the_verdicts(topics: JudgedTopics, tmp_path: Path) -> None:
    file = tmp_path / "times.parquet"
    (counted,) = json.loads(topics.command("dedup", "counts", "--json", "--to", str(file)))
    rows = parquet.read_table(file).to_pylist()
    assert {RecordPlace(one["raw_topic"], one["partition"], one["offset"]): one["times"] for one in rows} == topics.kept
    assert len(rows) == len(topics.kept)
    assert counted["domain"] == topics.domain.name
    for raw_topic in topics.settings.raw_topics:
        kinds = Counter(one.reason for place, one in topics.found.items() if place.topic == raw_topic)
        assert counted["topics"][raw_topic] == {"offsets judged": EACH, **kinds}
    assert counted["again"] == plainly(topics.kept)
    lines = [line.split() for line in topics.command("dedup", "counts").splitlines()]
    assert ["3", "to", "4", "times", str(counted["again"][2])] in lines
