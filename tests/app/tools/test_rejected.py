"""What steps filter out, on a real broker: counted as it is, shown again from the raw topic, and kept on a topic."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.app.commands import invoke
from tests.conftest import topics_on
from tests.faults.oracle import read_topic
from tests.service import Raw, Service, in_own_loop, send, service_settings
from tokenmill.app.kafka.dead_letters import RecordPlace, decode_dead_letter
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings, rejected_topic
from tokenmill.app.tools.inspect.record_ledger import read_ledger
from tokenmill.app.tools.inspect.tracing import RejectedDocument, read_rejected
from tokenmill.errors import InputError

PARTITIONS = 2
FEWEST_WORDS, MOST_CHARS = 5, 90
NASTY = "\x1b[31mred\x00"


@dataclass(frozen=True)
class Filtered:
    """A raw topic that was milled by a worker that was killed, and by its successor."""

    settings: Settings
    texts: dict[tuple[int, int], str]
    """By partition and offset."""

    @property
    def raw_topic(self) -> str:
        """The only raw topic."""
        return self.settings.raw_topics[0]

    @property
    def reasons(self) -> dict[tuple[int, int], str]:
        """Why each document that is filtered out is: a count that shares no code with the mill."""
        short = {place: "length.min_words" for place, text in self.texts.items() if len(text.split()) < FEWEST_WORDS}
        return short | {place: "length.max_chars" for place, text in self.texts.items() if len(text) > MOST_CHARS}


@pytest.fixture(scope="module")
def filtered(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Filtered:
    """Mill documents of many lengths; kill the mill once it has sent something that it filtered out."""
    directory = tmp_path_factory.mktemp("filtered")
    settings = service_settings(
        *(broker, topics_on(broker, "filtered")(PARTITIONS), directory),
        splits={"train": 1000},
        steps=[{"name": "length", "min_words": FEWEST_WORDS, "max_chars": MOST_CHARS}],
        rejects="topic",
        carry_seconds=0.5,
    )
    texts = [f"{NASTY if n % 40 == 3 else ''}{'word ' * (n * 7 % 23)}" for n in range(400)]
    sent = [Raw(json.dumps({"id": f"d{n}", "text": text}).encode(), n % PARTITIONS) for n, text in enumerate(texts)]
    with Service(settings, directory) as service:
        send(settings, sent[:200])
        (mill,) = service.mill()
        service.wait_until(lambda: bool(letters(settings)))
        mill.kill()
        send(settings, sent[200:])
        service.mill()
        service.wait_until(partial(_all_published, settings))
    return Filtered(settings, {(n % PARTITIONS, n // PARTITIONS): text for n, text in enumerate(texts)})


def _all_published(settings: Settings) -> bool:
    ledger = in_own_loop(lambda: read_ledger(settings))
    return sum(chain.totals.records for chain in ledger.chains) == 400


def letters(settings: Settings) -> list[tuple[RecordPlace, str, bytes | None]]:
    """Return place, reason and value of all that is on the rejected topic."""
    found = []
    for partition in range(PARTITIONS):
        for record in read_topic(settings, rejected_topic(settings.raw_topics[0]), partition):
            letter = decode_dead_letter(record)
            assert letter is not None
            assert isinstance(letter.place, RecordPlace)
            found.append((letter.place, letter.reason, letter.value))
    return found


@pytest.mark.needs("minutes")
def test_the_rejected_topic_has_each_record_after_a_kill(filtered: Filtered) -> None:
    """Whole, with its place and the reason that the totals count; some may be there twice, and nothing else is."""
    found = letters(filtered.settings)
    assert {(place.partition, place.offset): reason for place, reason, _ in found} == filtered.reasons
    for place, _, value in found:
        assert json.loads(value or b"")["text"] == filtered.texts[place.partition, place.offset]


def test_the_ledger_counts_as_a_count_over_the_raw_topic(filtered: Filtered) -> None:
    """Documents and bytes: of each step, of each reason, of what is kept, and by their lengths."""
    ledger = in_own_loop(lambda: read_ledger(filtered.settings))
    (stream,) = ledger.streams
    assert stream.totals.filtered == Counter(filtered.reasons.values())
    retention = stream.retention
    assert (retention.documents, retention.totals.kept) == (400, 400 - len(filtered.reasons))
    assert {row.reason: row.documents for row in retention.funnel()} == Counter(filtered.reasons.values())
    kept = [text for place, text in filtered.texts.items() if place not in filtered.reasons]
    figures, sizes = stream.totals.figures, {place: len(text.encode()) for place, text in filtered.texts.items()}
    assert figures.entered == (400, sum(sizes.values()))
    assert [step.step for step in figures.steps] == ["length", "not_empty"]
    for reason, amount in figures.filtered.items():
        places = [place for place, why in filtered.reasons.items() if why == reason]
        assert amount == (len(places), sum(sizes[place] for place in places))
    assert figures.steps[-1].passed == (len(kept), sum(len(text.encode()) for text in kept))
    assert figures.text_lengths == Counter(len(text.encode()).bit_length() - 1 for text in kept)
    assert figures.token_lengths == Counter((len(text.encode()) + 1).bit_length() - 1 for text in kept)
    assert retention.tokens_per_second is None or retention.tokens_per_second > 0
    assert ledger.balanced


def found(filtered: Filtered, reasons: Sequence[str] = (), limit: int = 3) -> list[RejectedDocument]:
    """Return what `read_rejected` yields."""

    async def read() -> list[RejectedDocument]:
        return [one async for one in read_rejected(filtered.settings, reasons=reasons, limit=limit)]

    return in_own_loop(read)


def test_the_first_documents_of_each_reason_are_shown(filtered: Filtered) -> None:
    """In the order of the raw topic, partition by partition, with the texts that are there."""
    for reasons in ((), ("length.max_chars",)):
        wanted: dict[str, list[tuple[int, int]]] = {}
        for place, reason in sorted(filtered.reasons.items()):
            if not reasons or reason in reasons:
                wanted.setdefault(reason, []).append(place)
        shown = found(filtered, reasons)
        assert {(one.place.partition, one.place.offset): one.reason for one in shown} == {
            place: reason for reason, places in wanted.items() for place in places[:3]
        }
        for one in shown:
            text = filtered.texts[one.place.partition, one.place.offset]
            number = f"{len(text)} chars" if one.reason == "length.max_chars" else f"{len(text.split())} words"
            assert (one.document.text, one.detail.partition(",")[0]) == (text, number)


def test_a_reason_that_nothing_has_is_named(filtered: Filtered) -> None:
    """With those that there are."""
    with pytest.raises(InputError, match=r"'emtpy'; reasons here: length\.max_chars, length\.min_words"):
        found(filtered, ["emtpy"])


def test_a_text_cannot_write_to_the_terminal(filtered: Filtered) -> None:
    """Control characters are escaped; with --json they are JSON's."""
    place = ["--bootstrap-servers", filtered.settings.bootstrap_servers, "--raw-topics", filtered.raw_topic]
    command = ["rejects", *place, "--reason", "length.min_words", "--limit", "100"]
    shown = invoke(*command).out
    texts = [one["text"] for one in json.loads(invoke(*command, "--json").out)]
    assert "\x1b" not in shown
    assert "\\x1b[31mred" in shown or "\\u001b[31mred" in shown
    assert any(text.startswith(NASTY) for text in texts)


def test_the_command_prints_what_people_quote_and_draws_it(filtered: Filtered, tmp_path: Path) -> None:
    """Retention, tokens, efficiency; a PNG, and bars on the terminal."""
    place = ["--bootstrap-servers", filtered.settings.bootstrap_servers, "--raw-topics", filtered.raw_topic]
    kept = 400 - len(filtered.reasons)
    for plot in (str(tmp_path / "funnel.png"), "-"):
        said = invoke("ledger", *place, "--plot", plot, code=0).out
        assert f"Data retention: {kept / 400:.1%}".replace("%", " %") + f" ({kept} of 400 documents)" in said
    assert "█" in said
    assert (tmp_path / "funnel.png").read_bytes().startswith(b"\x89PNG")
