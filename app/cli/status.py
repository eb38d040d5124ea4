"""``tokenmill status``: how a running service is, as it says over HTTP."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from tokenmill.errors import BrokerError, InputError

from ..broker_contact import moment
from ..settings import Settings
from ..telemetry.status_document import VERSION, halted_words
from .options import examples, with_settings
from .output import AsJson, say, show, show_json, show_table

SECONDS: Final = 10.0
"""For the answer, which a service makes from what it knows."""
MOST_BYTES: Final = 16 << 20
"""Of the answer; a partition takes about 200."""
TROUBLED: Final = 1
"""The exit code where something is halted or not ready."""

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The service's address; default: http:// with metrics_host and metrics_port.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    commands = ("tokenmill status", "tokenmill status --json", "tokenmill status --url http://mill-3:9464")
    app.command("status", epilog=examples(*commands))(with_settings(status, "metrics_host", "metrics_port"))


def status(settings: Settings, *, url: Url = None, as_json: AsJson = False) -> None:
    """Show how a running service is: broker, workers, partitions, lag, and what is halted until a person acts.

    Asks `tokenmill serve` or `up`, or a mill, segment worker or mirror that runs alone, at its /status. Exit code 0:
    all is ready and nothing is halted; 1: something is not; 3: no answer.
    """
    document = ask(url or own_url(settings))
    if as_json:
        show_json(document)
    else:
        for line in lines(document):
            show(line)
        show_table(workers_table(document["workers"]))
        show_table(partitions_table(document["partitions"]))
    if (halted := halted_words(document["halted"])) is not None:
        say(f"{halted}; the log, and the live view of `tokenmill up`, say what to do")
    if document["not_ready"] is not None:
        say(f"not ready: {document['not_ready']}")
    if halted is not None or document["not_ready"] is not None:
        raise typer.Exit(TROUBLED)


def own_url(settings: Settings) -> str:
    """Return where a service with these settings serves.

    Raises:
        InputError: it serves nothing.

    """
    if not settings.metrics_port:
        raise InputError("metrics_port is 0, so the service answers nothing: name another one's address with --url")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.metrics_host, settings.metrics_host)  # noqa: S104 - compared
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.metrics_port}"


def ask(url: str) -> dict[str, Any]:
    """Return what the service at an address says of itself; no proxy is used.

    Raises:
        BrokerError: nothing answers (exit code 3).
        InputError: what answers is no service of this version.

    """
    where = f"{url.rstrip('/')}/status"
    if not where.startswith(("http://", "https://")):
        raise InputError(f"{url} is no address of a service: it begins with http:// or https://")
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(where, timeout=SECONDS) as answer:
            document = json.loads(answer.read(MOST_BYTES))
    except urllib.error.HTTPError as error:
        error.close()
        raise InputError(f"{where} answers {error.code}: another program, or another version of TokenMill") from error
    except (OSError, http.client.HTTPException) as error:
        raise BrokerError(
            f"nothing answers at {where} ({error}): is the service up, and does it serve there (metrics_port, --url)?"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} answers with something else than JSON: it is another program's") from error
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise InputError(f"{where} is of another program, or of another version of TokenMill: ask with its command")
    return document


def lines(document: Mapping[str, Any]) -> list[str]:
    """Return what holds for all of it."""
    away, lags = document["away_since"], [row["lag"] for row in document["partitions"] if row["end"] is not None]
    lag = "unknown" if not lags or None in lags else f"{sum(lags):,}"
    return [
        f"{document['role']} {document['tokenmill']}, {'not ready' if document['not_ready'] else 'ready'}",
        f"broker   {'answers' if away is None else f'none has answered since {moment(away)}'}",
        f"lag      {lag} records and messages",
        f"halted   {len(document['halted'])}",
    ]


def workers_table(workers: list[Mapping[str, Any]]) -> Table:
    """Return a row for each worker."""
    table = Table("worker", "process", "state", "restarts", "partitions", box=None, pad_edge=False)
    for worker in workers:
        wait = worker["restart_in"]
        state = worker["state"] if wait is None else f"starts in {wait:.0f} s"
        row = (worker["name"], str(worker["pid"] or "-"), state, str(worker["restarts"]), len(worker["partitions"]))
        table.add_row(*map(str, row))
    return table


def partitions_table(partitions: list[Mapping[str, Any]]) -> Table:
    """Return a row for each partition."""
    table = Table("partition", "worker", "state", "position", "end", "lag", "why", box=None, pad_edge=False)
    for column in table.columns[3:6]:
        column.justify = "right"
    for row in partitions:
        numbers = ("?" if row[name] is None else f"{row[name]:,}" for name in ("position", "end", "lag"))
        place = f"{row['topic']}/{row['partition']}"
        table.add_row(place, row["worker"] or "nobody", row["state"], *numbers, row["halted"] or "")
    return table
