"""``tokenmill pack``: files into a store, without Kafka."""

import os
import secrets
import signal
import sys
from dataclasses import asdict
from typing import Annotated, Any

from tokenmill.wire.totals import Totals

from ..funnel.retention import Retention
from ..settings import Settings
from ..sources.file_sources import OpenedSources
from ..tables import ShownTable
from ..tasks import until_interrupted
from ..tools.pack.pack_verification import verify_pack
from ..tools.pack.packing_run import PackPlan, PackSummary, pack
from ..tools.produce.producing import require_flush_allowed
from ..tools.verify.reference_sample import ReferenceSample
from ..tools.verify.verify_result import VerifyResult
from .figures import show_figures
from .options import command, panel, require_beside
from .output import AsJson, count, say, show, show_json, show_table, size
from .reading_options import (
    Paths,
    ProduceProgress,
    SourceChoice,
    require_documents,
    require_whole,
    say_refusals,
    summary_json,
    with_reading,
)
from .verify import different_line, require_equal

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
@with_reading()
def pack_command(
    settings: Settings,
    paths: Paths,
    *,
    choice: SourceChoice,
    raw_topic: Annotated[
        str | None, _packed("Raw topic whose streams are filled, of raw_topics. Default: the first.", "NAME", "--topic")
    ] = None,
    partitions: Annotated[
        int,
        _packed(
            "Partitions of each stream; documents are spread over them, and each has segments of its own.",
            "P",
            "--partitions",
            min=1,
        ),
    ] = PARTITIONS,
    processes: Annotated[
        int | None,
        _packed(
            "Processes that mill, each some of the partitions. Default: as many as cores.", "N", "--processes", min=1
        ),
    ] = None,
    then_flush: Annotated[bool, _packed("Then fill the open blocks with padding.", None, "--flush")] = False,
    end: Annotated[
        bool, _packed("Then close the streams: trainers end there, and do not wait.", None, "--end")
    ] = False,
    verified: Annotated[
        bool,
        _packed(
            "Write nothing: make everything again, and compare the store with it; 1 on a difference.", None, "--verify"
        ),
    ] = False,
    reference: Annotated[
        bool, _packed("With --verify: let the reference compute everything.", None, "--reference")
    ] = False,
    sample_seed: Annotated[int | None, _packed("With --verify: chooses the sample.", None, "--sample-seed")] = None,
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
    with choice.opened(settings, topic, paths) as (reading, sources):
        plan = PackPlan(
            **asdict(choice.plan) | {"identity": choice.identity(topic, paths, reading)},
            raw_topic=topic,
            partitions=partitions,
            processes=processes or len(os.sched_getaffinity(0)),
            flush=then_flush,
            end=end,
        )
        if verified:
            sample = ReferenceSample(secrets.randbits(32) if sample_seed is None else sample_seed, reference)
            _verify(settings, OpenedSources(reading, sources), plan, sample, as_json=as_json)
            return
        with ProduceProgress() as report:
            summary, interrupted = until_interrupted(pack(settings, sources, reading, plan, report))
    if summary is None or interrupted is not None:
        then = "the same command goes on there" if plan.identity else "what is piped in cannot be continued"
        say(f"interrupted: what was committed is in {settings.store}; {then}")
        sys.exit(128 + (interrupted or signal.SIGINT))
    _finish(settings, paths, summary, as_json=as_json)


def _verify(
    settings: Settings, opened: OpenedSources, plan: PackPlan, sample: ReferenceSample, *, as_json: bool
) -> None:
    with ProduceProgress() as report:
        work = verify_pack(settings, opened.sources, opened.reading, plan, sample=sample, progress=report)
        found, interrupted = until_interrupted(work)
    if found is None or interrupted is not None:
        sys.exit(128 + (interrupted or signal.SIGINT))
    if as_json:
        show_json(verified_json(found))
    elif found.ok:
        sampled = sum(chain.sampled_blocks for chain in found.chains)
        parts = [f"{count(found.store_blocks, 'block')} as packed again, {sampled:,} of them equal to the reference"]
        parts += [f"{count(sum(eras.eras for eras in found.eras), 'era')}"]
        parts += [f"{count(found.store_behind, 'block')} to be packed"] if found.store_behind else []
        show(f"equal: {', '.join(parts)} ({found.seconds:.1f} s)")
        say(f"--sample-seed {found.seed} chooses the sample again")
    else:
        show(different_line(found.differences))
    require_equal(found.differences)


def _finish(settings: Settings, paths: list[str], summary: PackSummary, *, as_json: bool) -> None:
    say_refusals(summary, summary.told)
    require_documents(paths, summary.documents or summary.before)
    if summary.before:
        say(f"{count(summary.before, 'document')} of this run were in {settings.store} already")
    if as_json:
        show_json(pack_json(summary))
    else:
        show_table(streams_table(summary))
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
    require_whole(summary.broken)


def streams_table(summary: PackSummary) -> ShownTable:
    """Return one row for each stream: what became of all documents."""
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


def verified_json(found: VerifyResult) -> dict[str, Any]:
    """Return what was found as JSON types."""
    told = found.to_dict()
    return {
        **{name: told[name] for name in ("ok", "complete", "sample_seed", "seconds", "totals", "differences")},
        "blocks": found.store_blocks,
        "behind": found.store_behind,
        "sampled_blocks": sum(chain.sampled_blocks for chain in found.chains),
        "eras": {eras.stream: eras.eras for eras in found.eras},
    }


def pack_json(summary: PackSummary) -> dict[str, Any]:
    """Return the summary as JSON types."""
    streams = {
        name: {
            "totals": stream.totals.to_dict(),
            "blocks": stream.blocks,
            "eras": stream.eras,
            "open_tokens": stream.open_tokens,
        }
        for name, stream in summary.streams.items()
    }
    return summary_json(summary) | {"streams": streams}
