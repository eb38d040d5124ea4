"""`tokenmill status`: what a service tells of itself, as tables and as an exit code."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from typing import Any

import pytest

from tests.app.commands import invoke
from tests.scraping import free_port
from tokenmill.app.cli import status as status_module
from tokenmill.app.settings import Settings
from tokenmill.app.telemetry.server import Probes, serving
from tokenmill.app.telemetry.status_document import StatusSnapshot, WorkerStatus
from tokenmill.errors import BrokerError, InputError, RegistryError, SequencerError
from tokenmill.page_server import Page, PageServer

SAID: Mapping[str, Mapping[str, Any]] = {
    "raw-text/10": {"position": 1200},
    "raw-text/2": {"position": 7},
    "tokens.raw-text.train/2": {"position": None},
}
OWNERS = dict.fromkeys(SAID, "mill-1")
ENDS = {"raw-text/10": 1200, "raw-text/2": 3007, "raw-text/3": 5}
OURS: Mapping[str, Any] = {"bootstrap_servers": "kafka-1:9092,kafka-2:9092", "raw_topics": ("news",), "group": "g"}
WORKER = WorkerStatus("mill-1", "mill", "running", 7, 2, None, tuple(SAID))


def look(**other: Any) -> StatusSnapshot:
    """Return a service in good order, but for ``other``."""
    fields = {
        "role": "serve", "settings": Settings(**OURS), "not_ready": None, "away_since": None, "said": SAID,
        "owners": OWNERS, "ends": ENDS, "workers": [WORKER], "eras": {"raw-text.train": 4},
    }  # fmt: skip
    return StatusSnapshot(**{**fields, **other})


@contextmanager
def served(*bodies: bytes, status: int = 200) -> Iterator[str]:
    """Serve a status while the block runs, another one at each look; yield the address."""
    answers = cycle(bodies)
    server = PageServer("127.0.0.1", 0, {"/api/status": lambda _: Page(next(answers), status)})
    server.start()
    yield f"http://127.0.0.1:{server.port}"
    server.stop()


told = partial(invoke, "status")


@pytest.fixture(autouse=True)
def _proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name a proxy that does not answer: what runs on this host is not asked through one."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")


def document(at: StatusSnapshot) -> bytes:
    return json.dumps(at.document()).encode()


def test_a_service_in_good_order_ends_the_command_with_0() -> None:
    with served(document(look())) as url:
        code, out, err = told("--url", url)
    assert (code, err) == (0, "")
    words = [line.split() for line in out.splitlines()]
    assert ["broker", "answers"] in words
    assert ["mill-1", "7", "running", "2", "3"] in words
    rows = [line[:6] for line in words if "/" in line[0] and line[0] != "serve"]
    assert rows == [
        ["raw-text/2", "mill-1", "running", "7", "3,007", "3,000"],
        ["raw-text/3", "nobody", "unowned", "?", "5", "?"],
        ["raw-text/10", "mill-1", "running", "1,200", "1,200", "0"],
        ["tokens.raw-text.train/2", "mill-1", "resuming", "?", "?", "?"],
    ]


def test_a_partition_of_another_member_of_the_group_is_in_order_and_says_whose_it_is() -> None:
    """It is another host's worker, mostly: but who looks for the reason of a standstill finds one."""
    found = look(owners={}, elsewhere={"raw-text/2"})
    assert found.stopped is None
    assert "not ours" in found.partitions()["raw-text/2"]["why"]
    assert look(elsewhere={"raw-text/2"}).partitions()["raw-text/2"]["why"] is None


def test_a_halted_partition_ends_it_with_1_and_is_named() -> None:
    halted = {**SAID, "raw-text/2": {"position": 7, "halted": "text", "halted_by": "blocks are missing"}}
    with served(document(look(said=halted))) as url:
        code, out, err = told("--url", f"{url}/")
        as_json = told("--url", url, "--json")
    assert (code, as_json[0]) == (1, 1)
    assert "halted: raw-text/2 (blocks are missing)" in err
    assert "blocks are missing" in out
    assert json.loads(as_json[1])["halted"] == {"raw-text/2": "blocks are missing"}


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"said": {"raw-text/2": {"position": 7, "waiting": "secret", "waiting_by": RegistryError.brief}}}, "schema"),
        ({"said": {"raw-text/2": {"waiting": "secret", "waiting_by": SequencerError.brief}}}, "verdicts"),
        ({"said": {"raw-text/2": {"position": 7, "still": "no progress for 30 s, in stage publish"}}}, "publish"),
        ({"open_since": {"raw-text/2": 1000.0}}, "a transaction is open (its first record is of 1970-01-01T00:16:40Z)"),
        ({"owners": {}, "unowned": ["raw-text/2"]}, "no worker has it"),
    ],
    ids=["a schema", "a sequencer", "a standstill", "a transaction", "no owner"],
)
def test_what_makes_no_progress_ends_it_with_1_and_says_why(other: dict[str, Any], why: str) -> None:
    found = look(**other)
    with served(document(found)) as url:
        code, out, err = told("--url", url)
        as_json = told("--url", url, "--json")
    assert (code, as_json[0]) == (1, 1)
    assert "waiting: raw-text/2 (" in err
    (row,) = [line for line in out.splitlines() if line.startswith("raw-text/2 ")]
    assert why in row
    told_as_json = json.loads(as_json[1])
    assert told_as_json["waiting"].keys() == {"raw-text/2"}
    (partition,) = [row for row in told_as_json["partitions"] if row["partition"] == 2 and row["topic"] == "raw-text"]
    assert why in partition["why"]
    assert why in (found.stopped or "")
    assert "secret" not in as_json[1]


def test_a_service_that_is_not_ready_ends_it_with_1() -> None:
    with served(document(look(not_ready="not ready: mill-1", away_since=1000.0))) as url:
        code, out, err = told("--url", url)
    assert code == 1
    assert "not ready: mill-1" in err
    assert "none has answered since 1970-01-01T00:16:40Z" in out


def test_nobody_there_ends_it_with_3_and_what_serves_nothing_cannot_be_asked() -> None:
    """The address is the settings', where no other is said."""
    port = str(free_port())
    code, out, err = told("--metrics-port", port)
    assert (code, out) == (BrokerError.exit_code, "") == (3, "")
    assert f"http://127.0.0.1:{port}/api/status (Connection refused)" in err
    for flags in (("--metrics-port", "0"), ("--url", "file:///etc/passwd")):
        assert told(*flags).code == InputError.exit_code


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"{}", 404), (b"<html>", 200), (b"[1]", 200), (b'{"version": 99}', 200), (b"[" * 100_000, 200)],
    ids=["no such page", "no JSON", "no object", "another version", "brackets"],
)
def test_another_program_is_told_as_such(body: bytes, status: int) -> None:
    with served(body, status=status) as url:
        code, out, err = told("--url", url)
    assert (code, out) == (InputError.exit_code, "")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"bootstrap-servers": "kafka-2:9092,kafka-1:9092", "raw-topics": "news", "group": "g"}, None),
        ({}, None),
        ({"bootstrap-servers": "kafka-1:9092"}, "its bootstrap_servers is kafka-1:9092, kafka-2:9092"),
        ({"raw-topics": "second"}, "its raw_topics is news, and these settings say second"),
        ({"group": "other"}, "its group is g, and these settings say other"),
        ({"stream-suffix": "-v2"}, "and these settings say -v2"),
        ({"store": "elsewhere"}, "its store is "),
    ],
    ids=["the same", "nothing is said", "brokers", "topics", "group", "suffix", "store"],
)
def test_another_service_of_this_host_is_not_taken_for_ones_own(said: Mapping[str, str], why: str | None) -> None:
    flags = [part for name, value in said.items() for part in (f"--{name}", value)]
    with served(document(look())) as url:
        code, out, err = told(*flags, "--metrics-port", url.rpartition(":")[2])
        named = told(*flags, "--url", url)
    assert named[0] == 0
    assert "bootstrap_servers kafka-1:9092, kafka-2:9092" in named[1]
    if why is None:
        assert (code, err) == (0, "")
    else:
        assert (code, out) == (InputError.exit_code, "")
        assert why in " ".join(err.split())


def test_watching_goes_on_until_nothing_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_module, "WATCH_SECONDS", 0.0)
    with served(document(look()), document(look(not_ready="not ready: mill-1")), b"[]") as url:
        code, out, _ = told("--url", url, "--watch", "--json")
    assert code == InputError.exit_code
    assert [json.loads(line)["ready"] for line in out.splitlines()] == [True, False]


def test_the_token_of_the_settings_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(**OURS, metrics_port=free_port(), http_token="t0ken")  # type: ignore[arg-type]  # noqa: S106
    url = settings.page_url
    assert url is not None
    with serving(settings, [], Probes(), look().document):
        for token, expected in (("", InputError.exit_code), ("other", InputError.exit_code), ("t0ken", 0)):
            monkeypatch.setenv("TOKENMILL_HTTP_TOKEN", token)
            code, _, err = told("--url", url)
            assert (code, "http_token" in err) == (expected, bool(expected))
