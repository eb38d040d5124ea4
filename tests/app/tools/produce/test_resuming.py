"""A run that was interrupted goes on; one that was changed, or whose traces are gone, is refused."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import NewPartitions

from tests.app.sources.reading import content_of, reading_of
from tests.app.tools.produce.test_producing import dealt, jsonl
from tests.conftest import TopicFactory
from tokenmill.app.kafka import clients
from tokenmill.app.kafka.clients import admin
from tokenmill.app.kafka.topics import partition_count
from tokenmill.app.settings import Settings
from tokenmill.app.sources import DocumentSource, find_sources
from tokenmill.app.tools.produce import run_notes
from tokenmill.app.tools.produce.producing import Resuming, RunPlan, produce
from tokenmill.app.tools.produce.run_notes import NOTHING_BEFORE, RunEnd, RunStart, run_identity
from tokenmill.app.tools.produce.sending import Summary
from tokenmill.errors import BrokerError, InputError


def plan_of(topic: str, *paths: Path, **options: Any) -> tuple[list[DocumentSource], RunPlan]:
    """Return sources, and a plan with their identity."""
    names = [str(path) for path in paths]
    sources = find_sources(names, reading_of())
    return sources, RunPlan(identity=run_identity(topic, {}, names), **options)


async def run(settings: Settings, topic: str, *paths: Path, **options: Any) -> Summary:
    """Run produce over the paths."""
    sources, plan = plan_of(topic, *paths, **options)
    return await produce(settings, topic, sources, plan)


async def test_a_run_goes_on_behind_what_was_sent(settings: Settings, topic: TopicFactory, tmp_path: Path) -> None:
    """After a limit, the next call sends the others; then there is nothing left; and all again only on purpose."""
    raw = topic(3)
    lines = jsonl(tmp_path / "a.jsonl", 5000)
    expected = dealt(lines, 3)

    first = await run(settings, raw, tmp_path / "a.jsonl", limit=1234)
    second = await run(settings, raw, tmp_path / "a.jsonl")
    third = await run(settings, raw, tmp_path / "a.jsonl")
    assert [(s.before, s.documents) for s in (first, second, third)] == [(0, 1234), (1234, 3766), (5000, 0)]
    assert await content_of(settings, raw, 3) == expected

    again = await run(settings, raw, tmp_path / "a.jsonl", restart=True)
    assert again.documents == 5000
    assert await content_of(settings, raw, 3) == [[*part, *part] for part in expected]
    after = await run(settings, raw, tmp_path / "a.jsonl")
    assert (after.before, after.documents) == (5000, 0)


async def test_a_changed_source_is_refused(settings: Settings, topic: TopicFactory, tmp_path: Path) -> None:
    """It is named, with what changed and what to do, and nothing is sent; another time alone is no change."""
    raw = topic()
    lines = jsonl(tmp_path / "a.jsonl", 10)
    await run(settings, raw, tmp_path, limit=5)

    jsonl(tmp_path / "b.jsonl", 10)
    with pytest.raises(InputError, match=r"have changed: .*b\.jsonl is new\. --only-new .*--restart"):
        await run(settings, raw, tmp_path)
    (tmp_path / "b.jsonl").unlink()
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([*lines[:3], lines[3].upper(), *lines[4:]]))
    with pytest.raises(InputError, match=r"a\.jsonl has changed \(\d+ bytes then, \d+ now\): its content is another"):
        await run(settings, raw, tmp_path)
    with pytest.raises(InputError, match=r"interrupted, .*a\.jsonl has changed"):
        await run(settings, raw, tmp_path, only_new=True)
    assert len((await content_of(settings, raw, 1))[0]) == 5

    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    os.utime(tmp_path / "a.jsonl", (1, 1))
    assert (await run(settings, raw, tmp_path)).documents == 5
    assert (await run(settings, raw, tmp_path, restart=True)).documents == 10


async def test_what_is_new_is_sent_on_request(settings: Settings, topic: TopicFactory, tmp_path: Path) -> None:
    """New files, and lines behind others, of a run that was interrupted or done; renamed and gone ones are told."""
    raw = topic(2)
    for name in "abcd":
        (tmp_path / f"{name}.jsonl").write_text(f'{{"text": "{name}1"}}\n')
    await run(settings, raw, tmp_path, limit=2)
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"text": "a2"}\n{"text": "a3, which nobody has end')
    (tmp_path / "e.jsonl").write_text('{"text": "e1"}\n')

    first = await run(settings, raw, tmp_path, only_new=True)
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('ed"}\n')
    (tmp_path / "d.jsonl").write_text('{"text": "another"}\n')
    (tmp_path / "b.jsonl").rename(tmp_path / "f.jsonl")
    (tmp_path / "c.jsonl").unlink()
    second = await run(settings, raw, tmp_path, only_new=True)
    third = await run(settings, raw, tmp_path, only_new=True)

    assert [(one.before, one.documents) for one in (first, second, third)] == [(2, 4), (6, 1), (7, 0)]
    assert [change.kind for change in second.left_out] == ["changed", "renamed", "gone"]
    texts = [[json.loads(value or b"")["text"] for _, value in part] for part in await content_of(settings, raw, 2)]
    in_order = [b"a1", b"b1", b"c1", b"d1", b"a2", b"e1", b"a3, which nobody has ended"]
    assert texts == [[value.decode() for _, value in part] for part in dealt(in_order, 2)]


async def test_no_consumer_group_is_made(settings: Settings, topic: TopicFactory, tmp_path: Path) -> None:
    """Of which others would think that it lags: neither by a run that is interrupted, nor by one that is done."""
    raw = topic()
    jsonl(tmp_path / "a.jsonl", 10)
    for limit in (5, None):
        await run(settings, raw, tmp_path, limit=limit)
        async with admin(settings) as client:
            assert [name for name, *_ in await client.list_consumer_groups() if ".produce." in name] == []


async def test_a_run_keeps_its_partitions(settings: Settings, topic: TopicFactory, tmp_path: Path) -> None:
    """A partition that is added meanwhile gets nothing of it, for it is not known what it would have got."""
    raw = topic(2)
    lines = jsonl(tmp_path / "a.jsonl", 100)
    await run(settings, raw, tmp_path, limit=50)
    async with admin(settings) as client:
        await client.create_partitions({raw: NewPartitions(3)})
    while await partition_count(settings, raw) < 3:  # noqa: ASYNC110 - Kafka tells nobody; one has to ask
        await asyncio.sleep(0.05)

    await run(settings, raw, tmp_path)

    assert await content_of(settings, raw, 3) == [*dealt(lines, 2), []]


async def test_what_ended_at_a_bad_line_goes_on_without_it(
    settings: Settings, topic: TopicFactory, tmp_path: Path
) -> None:
    """As the message says: with --on-error skip; each document is there once, and the bad line is counted."""
    raw = topic()
    lines = jsonl(tmp_path / "a.jsonl", 10)
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([*lines[:4], b"[]", *lines[4:]]))
    with pytest.raises(InputError, match=r"a\.jsonl:5: not_an_object.* same command with --on-error skip .*goes on"):
        await run(settings, raw, tmp_path, on_error="fail")

    summary = await run(settings, raw, tmp_path, on_error="skip")

    assert (summary.before, summary.documents, summary.refused) == (4, 6, 1)
    assert await content_of(settings, raw, 1) == [[(None, line) for line in lines]]


async def test_a_later_call_takes_the_run_over(settings: Settings, topic: TopicFactory, tmp_path: Path) -> None:
    """The one before can write nothing any more and ends, whatever it had on its way; each document is there once."""
    raw = topic(2)
    lines = jsonl(tmp_path / "a.jsonl", 3000)
    sources, plan = plan_of(raw, tmp_path)
    slow = RunPlan(identity=plan.identity, rate=sum(map(len, lines)) / 20)
    started = asyncio.Event()
    first = asyncio.create_task(
        produce(settings, raw, sources, slow, lambda now: started.set() if now.documents else None)
    )
    await started.wait()

    second = await produce(settings, raw, sources, plan)

    with pytest.raises(InputError, match="has taken over"):
        await first
    assert second.before > 0
    assert await content_of(settings, raw, 2) == dealt(lines, 2)


async def test_a_broker_that_is_away_at_the_end_of_a_run_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """All is acknowledged by then: the run does not fail for the note of it."""
    looks: list[str] = []
    noted: list[RunStart] = []

    async def ends(_settings: Settings, topic: str, _partitions: int) -> dict[int, int]:
        looks.append(topic)
        if len(looks) < 3:
            raise BrokerError("no broker answers")
        return {0: 7}

    async def settle(_client: object, _topic: str, _run: str, run_start: RunStart) -> None:
        noted.append(run_start)

    monkeypatch.setattr(run_notes, "partition_ends", ends)
    monkeypatch.setattr(clients, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(run_notes, "settle_note", settle)
    client: Any = object()
    run_start = RunStart(1, {0: 0}, ())
    await Resuming(Settings(), client, "raw", "run", []).settle(run_start, {0: 6}, NOTHING_BEFORE)
    assert looks == ["raw"] * 3
    assert noted == [run_start._replace(run_end=RunEnd({0: 6}, {0: 7}, NOTHING_BEFORE))]
