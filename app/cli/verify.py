"""``tokenmill verify``: whether every block is what it must be."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tokenmill.errors import InputError, TokenMillError
from tokenmill.store.layout import comparing

from ..local.output_files import require_file
from ..settings import Settings
from ..tables import ShownTable
from ..tools.inspect.packed import StoredPack, check_packed, packed_streams
from ..tools.verify import ChainResult, VerifyProgress, VerifyResult, verify
from .options import SomeStreams, command, option
from .output import AsJson, count, say, show, show_json, show_table, size
from .progress import ProgressLine


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
    no_store: Annotated[bool, option("Compare the token topics alone.", None, "--no-store")] = False,
    since: Annotated[
        Path | None,
        option("Begin where the verification ended that wrote this file, and write where this one ended.", "FILE"),
    ] = None,
    reference: Annotated[
        bool, option("Let the reference compute every record, not a sample.", None, "--reference")
    ] = False,
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
        show_table(chains_table(result))
        for line in (*era_lines(result), *domain_lines(result)):
            say(line)
        for note in result.notes:
            say(note)
        if named := sample_line(result):
            say(named)
        show(verdict(result))
    require_equal(result.differences)


def _verify_packed(packed: Sequence[StoredPack], *, others: bool, as_json: bool) -> None:
    """Say whether packed streams agree with themselves.

    Raises InputError where ``others`` says that options were given that ask for more; typer.Exit where they do not.
    """
    store = packed[0].store
    if others:
        raise InputError(
            f"{store} was packed from files, which --since, --reference and --sample-seed would have to read: "
            f"{comparing(store, packed[0].settled.stream.name)}, and takes --reference and --sample-seed"
        )
    checks = [check_packed(one) for one in packed]
    if as_json:
        show_json({"packed": [asdict(check) for check in checks]})
    for check in checks if not as_json else ():
        told = f"{count(check.blocks, 'block')} and {count(check.eras, 'era')} are as they were packed"
        if check.differences:
            told = different_line(check.differences)
        show(f"{check.stream}: {told}")
    for check in checks:
        for difference in check.differences:
            say(f"{check.stream}: {difference}")
    say(f"this compared the store with itself; {comparing(store, checks[0].stream)}")
    if any(check.differences for check in checks):
        raise typer.Exit(TokenMillError.exit_code)


def chains_table(result: VerifyResult) -> ShownTable:
    """Return one row for each chain."""
    columns = ("chain", "to offset", "records", "kept", "filtered", "dead letters", "tokens", "blocks", "in topic")
    rows = [
        (
            *(f"{chain.stream}/{chain.partition}", chain.raw_range[1], chain.totals.records, chain.totals.kept),
            *(chain.totals.filtered.total(), chain.totals.dead_lettered.total(), chain.totals.tokens),
            *(chain.reference_blocks if chain.reference else "?", chain.topic_blocks[1]),
            *("-" if chain.store_blocks is None else chain.store_blocks[1], waiting(chain)),
        )
        for chain in result.chains
    ]
    return ShownTable((*columns, "in store", "not in blocks"), rows)


def era_lines(result: VerifyResult) -> list[str]:
    """Return how far the eras of each stream go."""
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


def domain_lines(result: VerifyResult) -> list[str]:
    """Return what was judged again of each domain."""
    return [
        f"duplicates in {domain.domain}: {count(domain.documents, 'document')} judged again, "
        f"{domain.duplicates['duplicate_exact']:,} exact and {domain.duplicates['duplicate_near']:,} near duplicates, "
        f"{count(domain.ranges, 'range')} of verdicts compared"
        for domain in result.domains
    ]


def sample_line(result: VerifyResult) -> str:
    """Return how many records were computed a second way, and how to get the same again; nothing where all were."""
    runs = {(chain.raw_topic, chain.partition, *run) for chain in result.chains for run in chain.sampled}
    records = sum(end - first for *_, first, end in runs)
    again = f"--sample-seed {result.seed} chooses the same, --json names them"
    return (
        f"a sample of {count(records, 'record')} was also computed by the slow, plain reference ({again})"
        if runs
        else ""
    )


def waiting(chain: ChainResult) -> str:
    """Return what of a chain's source is not in the blocks of topic and store yet."""
    parts = [f"{count(chain.open_tokens, 'token')}"] if chain.open_tokens else []
    parts += [f"{count(chain.unjudged, 'offset')} to judge"] if chain.unjudged else []
    parts += [f"{count(chain.behind, 'block')} to mill"] if chain.behind else []
    parts += [f"{count(chain.store_behind, 'block')} to store"] if chain.store_behind else []
    return ", ".join(parts) or "complete"


def different_line(differences: Sequence[object]) -> str:
    """Return the whole answer where there are differences."""
    return f"DIFFERENT: {count(len(differences), 'difference')}, the first: {differences[0]}"


def require_equal(differences: Sequence[object]) -> None:
    """Say all differences, and raise typer.Exit where there are any."""
    for difference in differences:
        say(str(difference))
    if differences:
        raise typer.Exit(TokenMillError.exit_code)


def verdict(result: VerifyResult) -> str:
    """Return the whole answer as one line."""
    if not result.ok:
        return different_line(result.differences)
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
