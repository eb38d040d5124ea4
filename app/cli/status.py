"""``tokenmill status`` and ``ledger``: how a running service says it is, and what became of every record."""

import asyncio
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from pydantic import SecretStr

from tokenmill.errors import BrokerError, DamagedError, InputError

from ..broker_contact import moment
from ..funnel import terminal_plot, write_png
from ..settings import Settings
from ..sources.remote import SameHost
from ..tables import ShownTable
from ..telemetry.health import believing
from ..telemetry.status_document import VERSION, identity, stopped_words
from ..tools.inspect.packed import ledger_of
from ..tools.inspect.record_ledger import ChainLedger, RawPartitionAccount, RecordLedger
from .options import All, AsJson, SomeStreams, command, option
from .output import EscapingConsole, count, say, show, show_figures, show_json, show_table

WATCH_SECONDS: Final = 2.0
MOST_BYTES: Final = 16 << 20
"""Of the answer; a partition takes about 200."""

Url = Annotated[
    str | None, option("The service's address; default: http:// with metrics_host and metrics_port.", "URL", "--url")
]

Watch = Annotated[bool, option("Show it again every two seconds.", None, "--watch")]


@command(
    "status",
    "tokenmill status",
    "tokenmill status --watch",
    "tokenmill status --json",
    "tokenmill status --url http://mill-3:9464",
    shown=("metrics_host", "metrics_port"),
)
def status(settings: Settings, *, url: Url = None, watch: Watch = False, as_json: AsJson = False) -> None:
    """Show the state of a running service: broker, workers, partitions, lag, and what is halted until a person acts.

    Asks `tokenmill serve` or `up`, or a mill, segment worker or mirror that runs alone, at its /api/status. Exit code
    0: all is ready, and nothing is halted or waits; 1: something is not, or does; 3: no answer. With --watch, again
    and again until Ctrl-C, or until nothing answers.
    """
    while watch:
        _tell(settings, url, as_json=as_json, over=not as_json)
        time.sleep(WATCH_SECONDS)
    if not _tell(settings, url, as_json=as_json):
        raise typer.Exit(1)


def _tell(settings: Settings, url: str | None, *, as_json: bool, over: bool = False) -> bool:
    """Show the present state, ``over`` the last one on a terminal; return whether all is in order."""
    document = ask(url or _own_url(settings), settings.http_token, None if url else settings.http_tls_certificate)
    if url is None:
        _require_own(settings, document)
    if over:
        EscapingConsole().clear()
    if as_json:
        show_json(document)
    else:
        for line in _lines(document):
            show(line)
        show_table(_workers_table(document["workers"]))
        show_table(_partitions_table(document["partitions"]))
    if (stopped := stopped_words(document["halted"], document["waiting"])) is not None:
        say(f"{stopped}; the log, and the live view of `tokenmill up`, say what to do")
    if document["not_ready"] is not None:
        say(f"not ready: {document['not_ready']}")
    return stopped is None and document["not_ready"] is None


def _own_url(settings: Settings) -> str:
    if settings.page_url is None:
        raise InputError("metrics_port is 0, so the service answers nothing: name another one's address with --url")
    return settings.page_url


def _require_own(settings: Settings, document: Mapping[str, Any]) -> None:
    """Raise InputError where the service that answers is another one than the settings name, and say whose it is."""
    wanted = identity(settings, document["role"])
    for name, theirs in document["service"].items():
        if name in settings.model_fields_set and wanted.get(name) != theirs:
            raise InputError(
                f"the service at {_own_url(settings)} is another one: its {name} is {_plain(theirs)}, and these "
                f"settings say {_plain(wanted.get(name))}. Yours is not up, or serves at another address "
                "(metrics_port), or could not get this one, as its log says. To see the one that answers, name it with "
                "--url"
            )


def _plain(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def ask(url: str, token: SecretStr | None = None, certificate: Path | None = None) -> dict[str, Any]:
    """Return what the service at an address, with this ``certificate``, says of itself; no proxy is used.

    Raises BrokerError where nothing answers (exit code 3), and InputError: what answers is no service of this version.
    """
    where = f"{url.rstrip('/')}/api/status"
    if not where.startswith(("http://", "https://")) or "@" in where:
        raise InputError(f"{url} is no address of a service: it begins with http:// or https://, and has no login")
    try:
        headers = {} if token is None else {"Authorization": f"Bearer {token.get_secret_value()}"}
        request = urllib.request.Request(where, headers=headers)  # noqa: S310 - as checked above
        https = urllib.request.HTTPSHandler(context=believing(certificate))
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), https, SameHost)
        with opener.open(request, timeout=10.0) as answer:  # which a service makes from what it knows
            document = json.loads(answer.read(MOST_BYTES))
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.UNAUTHORIZED:
            advice = "set http_token (TOKENMILL_HTTP_TOKEN) as the service has it"
            raise InputError(f"{where} wants a token, or another one: {advice}") from error
        raise InputError(f"{where} answers {error.code}: another program, or another version of TokenMill") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        why = getattr(reason, "strerror", None) or reason
        raise BrokerError(
            f"nothing answers at {where} ({why}): is the service up, and does it serve there (metrics_port, --url)?"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} answers with something else than JSON: it is another program's") from error
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise InputError(f"{where} is of another program, or of another version of TokenMill: ask with its command")
    return document


def _lines(document: Mapping[str, Any]) -> list[str]:
    away, lags = document["away_since"], [row["lag"] for row in document["partitions"] if row["end"] is not None]
    lag = "unknown" if not lags or None in lags else f"{sum(lags):,}"
    return [
        f"{document['role']} {document['tokenmill']}, {'not ready' if document['not_ready'] else 'ready'}",
        f"service  {'; '.join(f'{name} {_plain(value)}' for name, value in document['service'].items() if value)}",
        f"broker   {'answers' if away is None else f'none has answered since {moment(away)}'}",
        f"lag      {lag} records and messages",
        f"halted   {len(document['halted'])}",
        f"waiting  {len(document['waiting'])}",
    ]


def _workers_table(workers: list[Mapping[str, Any]]) -> ShownTable:
    rows = []
    for worker in workers:
        wait = worker["restart_in"]
        state = worker["state"] if wait is None else f"starts in {wait:.0f} s"
        rows.append((worker["name"], str(worker["pid"] or "-"), state, worker["restarts"], len(worker["partitions"])))
    return ShownTable(("worker", "process", "state", "restarts", "partitions"), rows)


def _partitions_table(partitions: list[Mapping[str, Any]]) -> ShownTable:
    rows = []
    for row in partitions:
        numbers = ("?" if row[name] is None else row[name] for name in ("position", "end", "lag"))
        place = f"{row['topic']}/{row['partition']}"
        rows.append((place, row["worker"] or "nobody", row["state"], *numbers, row["why"]))
    return ShownTable(("partition", "worker", "state", "position", "end", "lag", "why"), rows, words=True)


@command("ledger", "tokenmill ledger", "tokenmill ledger --json", "tokenmill ledger --plot funnel.png")
def ledger_command(
    settings: Settings,
    *,
    streams: SomeStreams = None,
    plot: Annotated[
        str | None,
        option("Draw funnel and lengths as this PNG (needs matplotlib, extra bench); -: as text, here.", "FILE"),
    ] = None,
    everything: All = False,
    as_json: AsJson = False,
) -> None:
    """Print what became of every record, as the last messages count it. Ends with 8 if an account does not balance.

    records = kept + filtered + tombstones + dead letters + flushes + other split, for each stream and partition, up to
    the offset that it has published. Below, how much of the documents is kept, and what dropped the rest, by step and
    reason; with --all, for each stream. `tokenmill verify` counts the records again. A packed store needs no broker.
    """
    ledger = asyncio.run(ledger_of(settings, streams or ()))
    if as_json:
        show_json(ledger.to_dict())
    elif ledger.empty:
        topics = ", ".join(dict.fromkeys(chain.raw_topic for chain in ledger.chains))
        held = f"no block holds a record of {topics} yet ({count(len(ledger.streams), 'stream')})"
        say(f"{held}; tokenmill flush fills the open ones with padding")
    else:
        show_table(_ledger_table(ledger, 16 if not everything else None))  # rows of single partitions
        for account in _accounts(ledger)[0 if everything else -1 :]:
            show_figures(account.retention, account.stream)
    _draw(ledger, plot)
    for found in ledger.raw_partitions:
        if found.unowned and not as_json:
            say(_raw_partition_line(found))
    if not ledger.balanced:
        wrong = [_place(chain) for chain in ledger.chains if not chain.balanced]
        wrong += [f"{m.raw_topic}[{m.partition}]" for m in ledger.raw_partitions if not m.balanced]
        say(f"does not balance: {', '.join(wrong)}; `tokenmill verify` finds the first message that counts wrongly")
        raise typer.Exit(DamagedError.exit_code)


def _accounts(ledger: RecordLedger) -> list[ChainLedger]:
    return [*ledger.streams, *([ledger.in_all] if ledger.in_all is not None else [])]


def _draw(ledger: RecordLedger, plot: str | None) -> None:
    if plot is None or ledger.empty:
        return
    if plot != "-":  # which is as text, in the terminal
        write_png(Path(plot), {account.stream: account.retention for account in _accounts(ledger)})
        say(f"drew {plot}")
        return
    for account in _accounts(ledger):
        for line in ("", f"{account.stream}:", *terminal_plot(account.retention)):
            show(line)


def _ledger_table(ledger: RecordLedger, most: int | None = None) -> ShownTable:
    """Return a row for each chain, and for each stream its sum; where these are too many, the sums alone."""
    columns = ("chain", "to offset", "records", "kept", "filtered", "tombstones", "dead letters", "flushes")
    rows = []
    for total in ledger.streams:
        chains = [chain for chain in ledger.chains if chain.stream == total.stream]
        shown = chains if most is None or len(ledger.chains) <= most else []
        for chain in [*shown, *([total] if len(shown) != 1 else [])]:
            totals = chain.totals
            kept = (totals.kept, totals.filtered.total(), totals.tombstones, totals.dead_lettered.total())
            blocks = (chain.blocks, chain.block_tokens, chain.open_tokens, totals.value_bytes)
            before = (_place(chain), chain.offset, totals.records)
            rows.append((*before, *kept, totals.flushes, totals.other_split, *blocks))
    return ShownTable((*columns, "other split", "blocks", "tokens in blocks", "open tokens", "bytes"), rows)


def _place(chain: ChainLedger) -> str:
    return f"{chain.stream} in all" if chain.partition is None else f"{chain.stream}/{chain.partition}"


def _raw_partition_line(found: RawPartitionAccount) -> str:
    """Return what is to be known of a raw partition whose streams do not have all of its records, or more."""
    unowned, name = found.unowned or 0, f"{found.raw_topic}[{found.partition}]"
    if unowned < 0:
        return f"{name} has {found.records:,} records, and its streams count {-unowned:,} more than that"
    return f"{name}: {unowned:,} of its {found.records:,} records are in no stream, as the setting splits says"
