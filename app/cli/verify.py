"""``tokenmill verify``: whether every block is what it must be; ``pack``: files into a store, without Kafka."""

import os
import secrets
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from tokenmill.errors import InputError, TokenMillError
from tokenmill.store.layout import comparing
from tokenmill.wire.totals import Totals

from ..funnel import Retention
from ..settings import Settings
from ..sources.file_sources import OpenedSources
from ..tables import ShownTable
from ..tasks import until_interrupted
from ..tools.inspect.packed import StoredPack, check_packed, packed_streams
from ..tools.pack.pack_verification import verify_pack
from ..tools.pack.packing_run import PackPlan, PackSummary, pack
from ..tools.produce.producing import require_flush_allowed
from ..tools.verify import ChainResult, VerifyProgress, VerifyResult, verify
from ..tools.verify.sides import ReferenceSample
from . import reading_options as files
from .options import AsJson, SomeStreams, command, option, panel, require_beside, require_file
from .output import ProgressLine, count, say, show, show_figures, show_json, show_table, size


@command(
    "verify",
    "tokenmill verify",
    "tokenmill verify --stream raw-text.train --no-store",
    "tokenmill verify --since verified.json",
    "tokenmill verify --reference --json",
    shown=("bootstrap_servers", "store", "raw_topics"),
    bucket=True,
)
def verify_command(
    settings: Settings,
    *,
    streams: SomeStreams = None,
    no_store: Annotated[bool, option("Compare the token topics alone.")] = False,
    since: Annotated[
        Path | None,
        option("Begin where the verification ended that wrote this file, and write where this one ended.", "FILE"),
    ] = None,
    reference: Annotated[bool, option("Let the reference compute every record, not a sample.")] = False,
    sample_seed: Annotated[int | None, option("Chooses the sample; by default chance does.")] = None,
    processes: Annotated[int | None, option("Processes; by default one for each core.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Compute every block again from the raw topic and compare token topic and store; ends with 1 on a difference.

    Eras are compared as well: those of the store with the control topic's, and both with the blocks that they name.
    Where duplicates are left out, signatures and verdicts are computed again, too.

    Recipes and tokenizers come from the streams' own control topics. While the service runs, what was there at the
    start of this command is verified. Everything is computed as the mill does it, with the fast engine where there is
    one. A sample of the records is also computed by the reference, one by one, which is a hundred times slower.
    """
    store = None if no_store else settings.store
    if store is not None and (packed := packed_streams(settings, streams or ())):
        _verify_packed(packed, others=since is not None or reference or sample_seed is not None, as_json=as_json)
        return
    if since is not None:
        require_file("--since", since)
    with ProgressLine("verify") as shown:

        def report(done: VerifyProgress) -> None:
            share = done.offsets / max(done.of_offsets, 1)
            told = f"verified {count(done.blocks, 'block')}, {size(done.value_bytes)}, {share:.0%} of the source"
            shown.show(told, done.offsets, done.of_offsets)

        result = verify(
            settings,
            streams or (),
            store=store,
            since=since,
            reference=reference,
            seed=sample_seed,
            processes=processes,
            progress=report,
        )
    if as_json:
        show_json(result.to_dict())
    else:
        show_table(_chains_table(result))
        for line in (*_era_lines(result), *_domain_lines(result), *result.notes, *_sample_lines(result)):
            say(line)
        show(_verdict(result))
    _require_equal(result.differences)


def _verify_packed(packed: Sequence[StoredPack], *, others: bool, as_json: bool) -> None:
    """Say whether packed streams agree with themselves; ``others``: options were given that ask for more."""
    store = packed[0].store
    if others:
        raise InputError(
            f"{store} was packed from files, which --since, --reference and --sample-seed would have to read: "
            f"{comparing(store, packed[0].settled.stream.name)}, and takes --reference and --sample-seed"
        )
    checks = [check_packed(one) for one in packed]
    if as_json:
        show_json({"packed": checks})
    for check in checks if not as_json else ():
        told = f"{count(check['blocks'], 'block')} and {count(check['eras'], 'era')} are as they were packed"
        if check["differences"]:
            told = _different_line(check["differences"])
        show(f"{check['stream']}: {told}")
    for check in checks:
        for difference in check["differences"]:
            say(f"{check['stream']}: {difference}")
    say(f"this compared the store with itself; {checks[0]['again']}")
    if any(check["differences"] for check in checks):
        raise typer.Exit(TokenMillError.exit_code)


def _chains_table(result: VerifyResult) -> ShownTable:
    columns = ("chain", "to offset", "records", "kept", "filtered", "dead letters", "tokens", "blocks", "in topic")
    rows = [
        (
            *(f"{chain.stream}/{chain.partition}", chain.raw_range[1], chain.totals.records, chain.totals.kept),
            *(chain.totals.filtered.total(), chain.totals.dead_lettered.total(), chain.totals.tokens),
            *(chain.reference_blocks if chain.reference else "?", chain.topic_blocks[1]),
            *("-" if chain.store_blocks is None else chain.store_blocks[1], _waiting(chain)),
        )
        for chain in result.chains
    ]
    return ShownTable((*columns, "in store", "not in blocks"), rows)


def _era_lines(result: VerifyResult) -> list[str]:
    lines = []
    for eras in result.eras:
        parts = [f"eras of {eras.stream}: {count(eras.eras, 'era')}"]
        parts += ["the end marker is the last"] if eras.ended else []
        parts += [f"{eras.since:,} verified before"] if eras.since else []
        parts += ["none in the store"] if eras.store_eras == 0 and eras.eras else []
        parts += [f"{eras.store_behind:,} to store"] if eras.store_behind and eras.store_eras else []
        parts += [f"{count(eras.ignored, 'record')} ignored, as by every reader"] if eras.ignored else []
        lines.append(", ".join(parts))
    return lines


def _domain_lines(result: VerifyResult) -> list[str]:
    return [
        f"duplicates in {domain.domain}: {count(domain.documents, 'document')} judged again, "
        f"{domain.duplicates['duplicate_exact']:,} exact and {domain.duplicates['duplicate_near']:,} near duplicates, "
        f"{count(domain.ranges, 'range')} of verdicts compared"
        for domain in result.domains
    ]


def _sample_lines(result: VerifyResult) -> list[str]:
    """Return how many records were computed a second way, and how to get the same again; nothing where all were."""
    runs = {(chain.raw_topic, chain.partition, *run) for chain in result.chains for run in chain.sampled}
    records = sum(end - first for *_, first, end in runs)
    again = f"--sample-seed {result.seed} chooses the same, --json names them"
    told = f"a sample of {count(records, 'record')} was also computed by the slow, plain reference ({again})"
    return [told] if runs else []


def _waiting(chain: ChainResult) -> str:
    parts = [f"{count(chain.open_tokens, 'token')}"] if chain.open_tokens else []
    parts += [f"{count(chain.unjudged, 'offset')} to judge"] if chain.unjudged else []
    parts += [f"{count(chain.behind, 'block')} to mill"] if chain.behind else []
    parts += [f"{count(chain.store_behind, 'block')} to store"] if chain.store_behind else []
    return ", ".join(parts) or "complete"


def _different_line(differences: Sequence[object]) -> str:
    return f"DIFFERENT: {count(len(differences), 'difference')}, the first: {differences[0]}"


def _require_equal(differences: Sequence[object]) -> None:
    for difference in differences:
        say(str(difference))
    if differences:
        raise typer.Exit(TokenMillError.exit_code)


def _verdict(result: VerifyResult) -> str:
    if not result.ok:
        return _different_line(result.differences)
    reference = all(chain.reference for chain in result.chains)
    parts = [f"lost {result.lost}", f"duplicated {result.duplicated}"]
    sampled = sum(chain.sampled_blocks for chain in result.chains)
    if not reference:
        parts += [f"{count(result.blocks, 'block')} compared"]
    elif sampled >= result.blocks:
        parts += [f"{count(result.blocks, 'block')} equal to the reference"]
    else:
        parts += [f"{count(result.blocks, 'block')} as milled again, {sampled:,} of them equal to the reference"]
    parts += [f"{result.store_blocks:,} in the store"] if any(c.store_blocks for c in result.chains) else []
    parts += [f"{count(result.dropped, 'block')} written twice and dropped"] if result.dropped else []
    parts += [f"{count(result.behind, 'block')} to be milled"] if result.behind else []
    return f"equal: {', '.join(parts)} ({result.seconds:.1f} s)"


_packed = panel("How it is packed")
PARTITIONS = 4


@command(
    "pack",
    "tokenmill pack corpus.jsonl notes/ --store store --tokenizer tokenizer.json",
    "tokenmill pack 'data/*.parquet' --field code --id-field path --partitions 8",
    "tokenmill pack docs --flush --end",
    "tokenmill pack docs --verify",
    shown=("store", "tokenizer", "sequence_length", "raw_topics"),
)
@files.with_reading()
def pack_command(
    settings: Settings,
    paths: files.Paths,
    *,
    choice: files.SourceChoice,
    raw_topic: Annotated[
        str | None, _packed("Raw topic whose streams are filled, of raw_topics. Default: the first.", "NAME", "--topic")
    ] = None,
    partitions: Annotated[
        int,
        _packed(
            "Partitions of each stream; documents are spread over them, and each has segments of its own.", "P", min=1
        ),
    ] = PARTITIONS,
    processes: Annotated[
        int | None, _packed("Processes that mill, each some of the partitions. Default: as many as cores.", "N", min=1)
    ] = None,
    then_flush: Annotated[bool, _packed("Then fill the open blocks with padding.", None, "--flush")] = False,
    end: Annotated[bool, _packed("Then close the streams: trainers end there, and do not wait.")] = False,
    verified: Annotated[
        bool,
        _packed(
            "Write nothing: make everything again, and compare the store with it; 1 on a difference.", None, "--verify"
        ),
    ] = False,
    reference: Annotated[bool, _packed("With --verify: let the reference compute everything.")] = False,
    sample_seed: Annotated[int | None, _packed("With --verify: chooses the sample.")] = None,
    as_json: AsJson = False,
) -> None:
    """Fill the streams of a store from files, without Kafka: segments and eras, ready to be trained on.

    The blocks are, byte for byte, those that a mill and a segment worker make where `produce` sends the same files to
    an empty topic of as many partitions. Interrupted or killed, the same command goes on where it was. What cannot be a
    document is in files in the store's folder pack/.
    """
    require_beside("--verify", verified, reference=reference, sample_seed=sample_seed is not None)
    topic = raw_topic or settings.raw_topics[0]
    if then_flush:
        require_flush_allowed(settings, topic)
    settings = choice.carried(settings, topic)
    with choice.opened(settings, topic, paths) as opened:
        plan = PackPlan(
            **asdict(choice.plan) | {"identity": choice.identity(topic, paths, opened.reading)},
            raw_topic=topic,
            partitions=partitions,
            processes=processes or len(os.sched_getaffinity(0)),
            flush=then_flush,
            end=end,
        )
        if verified:
            sample = ReferenceSample(secrets.randbits(32) if sample_seed is None else sample_seed, reference)
            _verify(settings, opened, plan, sample, as_json=as_json)
            return
        with files.ProduceProgress() as report:
            work = pack(settings, opened.sources, opened.reading, plan, report)
            summary, interrupted = until_interrupted(work)
    if summary is None or interrupted is not None:
        then = "the same command goes on there" if plan.identity else "what is piped in cannot be continued"
        say(f"interrupted: what was committed is in {settings.store}; {then}")
        sys.exit(128 + (interrupted or signal.SIGINT))
    _finish(settings, paths, summary, as_json=as_json)


def _verify(
    settings: Settings, opened: OpenedSources, plan: PackPlan, sample: ReferenceSample, *, as_json: bool
) -> None:
    with files.ProduceProgress() as report:
        work = verify_pack(settings, opened.sources, opened.reading, plan, sample=sample, progress=report)
        found, interrupted = until_interrupted(work)
    if found is None or interrupted is not None:
        sys.exit(128 + (interrupted or signal.SIGINT))
    sampled = sum(chain.sampled_blocks for chain in found.chains)
    if as_json:
        whole = found.to_dict()
        told = {name: whole[name] for name in ("ok", "complete", "sample_seed", "seconds", "totals", "differences")}
        blocks = {"blocks": found.store_blocks, "behind": found.store_behind, "sampled_blocks": sampled}
        show_json({**told, **blocks, "eras": {eras.stream: eras.eras for eras in found.eras}})
    elif found.ok:
        parts = [f"{count(found.store_blocks, 'block')} as packed again, {sampled:,} of them equal to the reference"]
        parts += [f"{count(sum(eras.eras for eras in found.eras), 'era')}"]
        parts += [f"{count(found.store_behind, 'block')} to be packed"] if found.store_behind else []
        show(f"equal: {', '.join(parts)} ({found.seconds:.1f} s)")
        say(f"--sample-seed {found.seed} chooses the sample again")
    else:
        show(_different_line(found.differences))
    _require_equal(found.differences)


def _finish(settings: Settings, paths: list[str], summary: PackSummary, *, as_json: bool) -> None:
    files.say_refusals(summary, summary.told)
    files.require_documents(paths, summary.documents or summary.before)
    if summary.before:
        say(f"{count(summary.before, 'document')} of this run were in {settings.store} already")
    if as_json:
        show_json(_pack_json(summary))
    else:
        show_table(_streams_table(summary))
        show_figures(Retention(sum((stream.totals for stream in summary.streams.values()), Totals())))
        rate = summary.bytes / summary.seconds if summary.seconds else 0.0
        done = f"{count(summary.documents, 'document')}, {size(summary.bytes)} into {settings.store}"
        show(f"{done} in {summary.seconds:.1f} s ({size(rate)}/s)")
        show(summary.marks)
        waiting = sum(stream.open_tokens for stream in summary.streams.values())
        if waiting:
            told = "wait until their blocks are full; the same command with --flush fills these with padding"
            if all(stream.ended for stream in summary.streams.values()):
                told = (
                    "are in no block, and none comes behind the end marker (--end): to have them, pack into another "
                    "store (--store) with --flush and --end"
                )
            show(f"{count(waiting, 'token')} {told}")
        if any(stream.totals.dead_lettered.total() for stream in summary.streams.values()):
            show(f"dead letters, each with its reason, are in {summary.letters}")
    files.require_whole(summary.broken)


def _streams_table(summary: PackSummary) -> ShownTable:
    columns = ("stream", "documents", "kept", "filtered", "dead letters", "other split", "tokens")
    rows = [
        (
            *(name, found.totals.records - found.totals.flushes, found.totals.kept, found.totals.filtered.total()),
            *(found.totals.dead_lettered.total(), found.totals.other_split, found.totals.tokens),
            *(found.blocks, found.eras, found.open_tokens),
        )
        for name, found in summary.streams.items()
    ]
    return ShownTable((*columns, "blocks", "eras", "open tokens"), rows)


def _pack_json(summary: PackSummary) -> dict[str, Any]:
    streams = {
        name: {"totals": one.totals.to_dict(), "blocks": one.blocks, "eras": one.eras, "open_tokens": one.open_tokens}
        for name, one in summary.streams.items()
    }
    return files.summary_json(summary) | {"streams": streams}
