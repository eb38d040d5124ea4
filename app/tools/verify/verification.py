"""A whole verification: marks, eras, partitions in processes, dead letters."""

import asyncio
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from aiokafka import TopicPartition

from tokenmill.errors import StoreError, TopicError
from tokenmill.store import StreamInfo, read_stream, streams_in

from ...kafka.clients import consumer, read_range
from ...kafka.control_topic import Settled, lists_of, settled_streams, tokenizer_of
from ...kafka.dead_letters import RecordPlace, decode_dead_letter
from ...milling.decoding import FORMATS
from ...sequencer.verdict_log import domain_name, settled_domain
from ...settings import Settings, dead_letter_topic
from . import verify_bounds
from .domain_check import DomainCheck, JudgedLog
from .era_check import EraCheck, EraEndsFiles
from .partition_check import ChainTask, PartitionTask, check_partitions
from .sides import ReferenceSample
from .verify_result import Advance, ChainResult, DomainResult, EraResult, VerifyDifference, VerifyProgress, VerifyResult


async def check_dead_letters(
    settings: Settings, raw_topic: str, chains: Sequence[ChainResult], spans: Mapping[int, tuple[int, int]] | None
) -> tuple[list[VerifyDifference], list[str]]:
    """Return the first missing dead letter of each partition of one raw topic, and notes.

    ``spans``: of the dead-letter topic's partitions at the mark, None where there is none. What is more there is no
    difference.
    """
    wanted: dict[int, set[int]] = {}
    for chain in chains:
        wanted.setdefault(chain.partition, set()).update(chain.dead_letters)
    if not any(wanted.values()):
        return [], []
    topic = dead_letter_topic(raw_topic)
    if spans:  # else no broker is asked
        async with consumer(settings) as client:
            for number, span in spans.items():
                async for record in read_range(client, TopicPartition(topic, number), *span):
                    place = letter.place if (letter := decode_dead_letter(record)) is not None else None
                    if isinstance(place, RecordPlace) and place.topic == raw_topic:
                        wanted.get(place.partition, set()).discard(place.offset)
    missing = {partition: offsets for partition, offsets in sorted(wanted.items()) if offsets}
    cut = [(number, first) for number, (first, _) in (spans or {}).items() if first > 0]
    if missing and cut:
        count = sum(map(len, missing.values()))
        starts = ", ".join(f"{topic}[{number}] starts at offset {first}" for number, first in cut)
        return [], [f"{count} dead letters could not be found, for they may have been removed: {starts}"]
    return [_missing(topic, partition, offsets, chains) for partition, offsets in missing.items()], []


def _missing(topic: str, partition: int, offsets: set[int], chains: Sequence[ChainResult]) -> VerifyDifference:
    first = min(offsets)
    stream = next(c.stream for c in chains if c.partition == partition and first in c.dead_letters)
    more = f" (nor {len(offsets) - 1} more of the partition)" if len(offsets) > 1 else ""
    text = f"{topic} does not hold this record, which must be dead-lettered{more}"
    return VerifyDifference("dead letters", "missing", stream, partition, text, offset=first)


Ends = Mapping[tuple[str, int], Path]
"""By stream and partition, where its eras end (`EraEndsFiles`)."""


def verify(
    settings: Settings,
    streams: Sequence[str] = (),
    *,
    store: Path | None = None,
    since: Path | None = None,
    reference: bool = False,
    seed: int | None = None,
    processes: int | None = None,
    progress: Callable[[VerifyProgress], None] = lambda _: None,
) -> VerifyResult:
    """Recompute every chain of ``streams`` and compare token topic, ``store`` (None: no store) and dead letters.

    Without names, all streams of the settings' raw topics. Only the connections, ``raw_topics`` and ``engine`` of the
    settings are used: recipes and tokenizers come from the control topics. What the logs and the store hold when this
    begins is verified, byte for byte, and nothing later: blocks with all that is said of them, carries, eras, and of
    streams with ``dedup`` signatures and verdicts. Memory is bounded by ``processes`` (default: one for each core) and
    the windows of duplicates.

    Blocks are recomputed as the mill computes them. Runs of records that ``seed`` chooses (None: by chance), or with
    ``reference`` all records, are computed by the reference as well, record by record. ``since`` is a file: where it
    says that an earlier verification ended, this one begins, and says there where it ended, if all was right. Call it
    in a thread where an event loop runs. ``progress`` is called in the caller's thread, some times a second.

    Raises as `check_partition`; TopicError where a topic or stream is missing; StoreError where there is no such store,
    or its stream is another; InputError where ``since`` is no such file, or is about other streams or another store;
    BrokerError or RegistryError where brokers or the schema registry do not answer.
    """
    started = time.monotonic()
    sample = ReferenceSample(secrets.randbits(32) if seed is None else seed, reference)
    found = asyncio.run(settled_streams(settings, streams))
    marks = asyncio.run(verify_bounds.take_marks(settings, found, store))
    # Once more: a record that was put on a skip list meanwhile may be below the marks.
    found = asyncio.run(settled_streams(settings, [settled.stream.name for settled in found]))
    notes = _check_store(found, store) if store is not None else []
    known = verify_bounds.load_verified(since, store) if since is not None else verify_bounds.NOTHING
    earlier = known
    if since is not None:
        earlier, moved = asyncio.run(verify_bounds.still_valid(settings, found, marks.chains, known))
        notes += moved
    domains, judged = asyncio.run(_judge_domains(settings, found))
    plain = PartitionTask(settings, None, frozenset(), (), store, sample)
    with TemporaryDirectory(prefix="tokenmill-verify-") as room:
        eras, ends = _check_eras(plain, found, marks, earlier.eras, Path(room))
        tasks = _tasks(found, marks.chains, earlier.chains, ends, judged=judged, plain=plain)
        chains = _run(tasks, processes or len(os.sched_getaffinity(0)), progress)
    looked: list[ChainResult | EraResult | DomainResult] = [*chains, *eras, *domains]
    # Each once: what is wrong with a verdict log may show in several places.
    differences = list(dict.fromkeys(difference for one in looked for difference in one.differences))
    notes += [note for chain in chains for note in chain.notes] + [note for one in domains for note in one.notes]
    for raw_topic in dict.fromkeys(chain.raw_topic for chain in chains):
        own = [chain for chain in chains if chain.raw_topic == raw_topic]
        missing, more = asyncio.run(check_dead_letters(settings, raw_topic, own, marks.dead_letters.get(raw_topic)))
        differences += missing
        notes += more
    if differences and any(settled.genesis.recipe.decode in FORMATS for settled in found):
        notes.append(
            f"records were decoded by the schemas that {settings.schema_registry_url} has under their ids: where that "
            "is not the registry of the mill, or one that was set up again, set schema_registry_url to the mill's"
        )
    result = VerifyResult(chains, differences, notes, time.monotonic() - started, sample.seed, eras, domains)
    if since is not None and result.ok:
        verified = {(chain.stream, chain.partition): chain.verified for chain in chains if chain.verified}
        last = {one.stream: one.verified for one in eras if one.verified}
        verify_bounds.save_verified(since, store, known, verify_bounds.EarlierVerification(verified, last))
    return result


def _check_store(streams: Sequence[Settled], store: Path) -> list[str]:
    if not store.is_dir():
        raise StoreError(f"there is no store {store}: set store to its directory, or leave it out with --no-store")
    notes = []
    for settled in streams:
        name = settled.stream.name
        if name not in streams_in(store):
            notes.append(f"the store {store} does not hold {name} (yet)")
            continue
        wanted = StreamInfo.from_genesis(settled.genesis, settled.genesis.segment_blocks)
        if read_stream(store, name).in_stores().encode() != wanted.encode():
            raise StoreError(
                f"{store / name / 'stream.json'} is not what the genesis of {name} says: the store belongs to other "
                "topics of that name; set store to another directory"
            )
    return notes


def _check_eras(
    plain: PartitionTask,
    streams: Sequence[Settled],
    marks: verify_bounds.VerifyMarks,
    earlier: Mapping[str, verify_bounds.VerifiedEras],
    room: Path,
) -> tuple[list[EraResult], Ends]:
    """Compare the eras of the streams, topic and store; return as well where they end, in files under ``room``."""
    results: list[EraResult] = []
    ends: dict[tuple[str, int], Path] = {}
    for number, settled in enumerate(streams):
        name = settled.stream.name
        files = EraEndsFiles(room / str(number))
        check = EraCheck(settled, marks.eras[name], plain.store, earlier.get(name), files)
        results.append(asyncio.run(check.run(plain.settings)))
        ends |= {(name, partition): path for partition, path in files.close().items()}
    return results, ends


Judged = Mapping[tuple[str, str, int], JudgedLog]
"""By domain, raw topic and partition."""


async def _judge_domains(settings: Settings, streams: Sequence[Settled]) -> tuple[list[DomainResult], Judged]:
    results: list[DomainResult] = []
    judged: dict[tuple[str, str, int], JudgedLog] = {}
    named = {domain_name(settled): settled for settled in streams}
    for name in sorted(named.keys() - {""}):
        check = DomainCheck(settings, await settled_domain(settings, named[name]))
        await check.run()
        results.append(check.result)
        judged |= {(name, one.raw_topic, one.source[1]): one for one in check.logs.values()}
    return results, judged


def _tasks(
    streams: Sequence[Settled],
    marks: Sequence[verify_bounds.ChainMarks],
    earlier: verify_bounds.Chains,
    ends: Ends,
    *,
    judged: Judged,
    plain: PartitionTask,
) -> list[PartitionTask]:
    """Return the partitions, each with the chains that one pass over its records can serve; else they are ``plain``."""
    by_name = {settled.stream.name: settled for settled in streams}
    tasks: dict[tuple[int, bytes, str, frozenset[int], int], PartitionTask] = {}
    passes: Counter[tuple[int, bytes, str, frozenset[int], str]] = Counter()
    for chain in marks:
        settled = by_name[chain.stream]
        genesis = settled.genesis
        skips = frozenset(settled.control.skips.get(chain.partition, ()))
        # One pass makes one chain of each split: streams that differ in their suffix alone take one each.
        domain = domain_name(settled)
        split = chain.partition, genesis.recipe.division, domain, skips, genesis.recipe.split
        key = *split[:4], passes[split]
        passes[split] += 1
        if key not in tasks:
            tasks[key] = replace(plain, tokenizer=tokenizer_of(settled).content, lists=lists_of(settled), skips=skips)
        since, path = earlier.get((chain.stream, chain.partition)), ends.get((chain.stream, chain.partition))
        known = judged.get((domain, genesis.recipe.raw_topic, chain.partition))
        if domain and known is None:
            raise TopicError(
                f"there is no topic yet for verdicts on partition {chain.partition} of {genesis.recipe.raw_topic}: "
                "`tokenmill topics create` makes it, and so does a mill"
            )
        one = ChainTask(genesis, settled.stream.tokens_topic, chain, settled.control.ignored, since, path, known)
        tasks[key] = replace(tasks[key], chains=(*tasks[key].chains, one))
    return list(tasks.values())


def _run(
    tasks: Sequence[PartitionTask], processes: int, progress: Callable[[VerifyProgress], None]
) -> list[ChainResult]:
    """Verify the longest partitions first, so that the last ones to end are short; return their chains in order."""
    order = sorted(range(len(tasks)), key=lambda i: -len(range(*tasks[i].span)))
    results: dict[tuple[str, int], ChainResult] = {}
    of_offsets = sum(len(range(*task.span)) for task in tasks)
    offsets = blocks = size = 0
    for _, answer in check_partitions([tasks[i] for i in order], processes):
        if isinstance(answer, Advance):
            offsets, blocks = offsets + answer.records, blocks + answer.blocks
            size += answer.value_bytes
        else:
            results |= {(chain.stream, chain.partition): chain for chain in answer}
        progress(VerifyProgress(offsets, of_offsets, blocks, size))
    return [results[key] for key in sorted(results)]
