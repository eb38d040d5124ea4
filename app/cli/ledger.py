"""``tokenmill ledger``: what became of every record."""

import asyncio
from collections import Counter
from typing import Annotated

import typer
from rich.table import Table

from tokenmill.errors import DamagedError

from ..settings import Settings
from ..tools.inspect.record_ledger import ChainLedger, RawPartitionAccount, RecordLedger, read_ledger
from .options import examples, with_settings
from .output import AsJson, count, say, show, show_json, show_table

Streams = Annotated[
    list[str] | None,
    typer.Option("--stream", metavar="NAME", help="Only this stream; may be given again. Default: all of raw_topics."),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("ledger", epilog=examples("tokenmill ledger", "tokenmill ledger --json"))(with_settings(ledger_command))


def ledger_command(settings: Settings, *, streams: Streams = None, as_json: AsJson = False) -> None:
    """Print what became of every record, from the last messages alone; 8 if an account does not balance.

    in = kept + filtered + tombstones + dead-lettered + flushes + other split, for each stream and partition, up to the
    offset that it has published. `tokenmill verify` counts the records again.
    """
    ledger = asyncio.run(read_ledger(settings, streams or ()))
    if as_json:
        show_json(ledger.to_dict())
    elif ledger.empty:
        say(empty_line(ledger))
    else:
        show_table(ledger_table(ledger))
        for line in (*reason_lines(ledger), *map(raw_partition_line, ledger.raw_partitions)):
            show(line)
    if not ledger.balanced:
        wrong = [place(chain) for chain in ledger.chains if not chain.balanced]
        wrong += [f"{m.raw_topic}[{m.partition}]" for m in ledger.raw_partitions if not m.balanced]
        say(f"does not balance: {', '.join(wrong)}; `tokenmill verify` finds the first message that counts wrongly")
        raise typer.Exit(DamagedError.exit_code)


def empty_line(ledger: RecordLedger) -> str:
    """Return the whole answer where no account has anything in it: a table of zeros would say it in many lines."""
    topics = ", ".join(dict.fromkeys(chain.raw_topic for chain in ledger.chains))
    return f"no record of {topics} is milled yet ({count(len(ledger.streams), 'stream')})"


def ledger_table(ledger: RecordLedger) -> Table:
    """Return a row for each chain, and for each stream its sum."""
    columns = ("chain", "to offset", "in", "= kept", "+ filtered", "+ tombstones", "+ dead", "+ flushes")
    table = Table(*columns, "+ other split", "blocks", "tokens in blocks", "open", "bytes", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for total in ledger.streams:
        for chain in ledger.chains:
            if chain.stream == total.stream:
                table.add_row(*cells(chain))
        table.add_row(*cells(total))
    return table


def cells(chain: ChainLedger) -> list[str]:
    """Return an account's row."""
    totals = chain.totals
    numbers = (
        *(totals.records, totals.kept, totals.filtered.total(), totals.tombstones, totals.dead_lettered.total()),
        *(totals.flushes, totals.other_split, chain.blocks, chain.block_tokens, chain.open_tokens, totals.value_bytes),
    )
    offset = "" if chain.offset is None else f"{chain.offset:,}"
    return [place(chain), offset, *(f"{number:,}" for number in numbers)]


def place(chain: ChainLedger) -> str:
    """Return the name of a row."""
    return f"{chain.stream} in all" if chain.partition is None else f"{chain.stream}/{chain.partition}"


def reason_lines(ledger: RecordLedger) -> list[str]:
    """Return why records were filtered and dead-lettered, and how many tokens are padding, for each stream."""
    lines = []
    for total in ledger.streams:
        for name, found in (("filtered", total.totals.filtered), ("dead-lettered", total.totals.dead_lettered)):
            if found.total():
                lines.append(f"{total.stream}, {name}: {reasons(found)}")
        if total.padding:
            lines.append(f"{total.stream}: {count(total.padding, 'token')} of padding in its blocks")
    return lines


def reasons(found: Counter[str]) -> str:
    """Return reasons with their counts, the most frequent first."""
    return ", ".join(f"{reason} {number:,}" for reason, number in found.most_common() if number)


def raw_partition_line(found: RawPartitionAccount) -> str:
    """Return how the streams of a raw partition add up, or why they do not."""
    name = f"{found.raw_topic}[{found.partition}]"
    if found.records is None:
        offsets = ", ".join(f"{stream} at {offset:,}" for stream, offset in found.offsets.items())
        return f"{name}: its streams are at different offsets ({offsets}), so their sums do not add up to its records"
    nobody = f" + {found.unowned:,} of no stream's split" if found.unowned else ""
    return f"{name}: {found.records:,} in = {found.owned:,} in one stream each + {found.shared:,} in all{nobody}"
