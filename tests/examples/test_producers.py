"""The producers in examples/: what they send arrives as documents, with ids and texts."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from tests.app.milling.decoding.opened import opened
from tests.app.sources.web import running
from tests.conftest import TopicFactory
from tests.marked import until
from tests.service import Raw, Service, raw_records, send, service_settings
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.documents import Document

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
SECONDS: Final = 60.0
PAGES: Final = {
    "index.html": '<head><title>no text</title></head><a href="a.html#part">To A</a> <a href="/private/b.html">B</a>',
    "a.html": '<p>The mill &amp; the\n stone.</p><script>no text</script><a href="/">Home</a><a href="c.txt">C</a>',
    "private/b.html": "Nobody may fetch this.",
    "c.txt": "This is no HTML.",
    "robots.txt": "User-agent: *\nDisallow: /private/\n",
}


class QuietHandler(SimpleHTTPRequestHandler):
    asked: Final[list[tuple[str, str]]] = []

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ARG002 - the library's signature
        self.asked.append((self.path, self.headers["User-Agent"]))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    for name, content in PAGES.items():
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).write_text(content)
    QuietHandler.asked.clear()
    handler = partial(QuietHandler, directory=str(tmp_path / "site"))
    with running(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}/"


@dataclass(frozen=True)
class Target:
    """A topic of one partition to which an example sends."""

    broker: Broker
    raw: str

    @property
    def options(self) -> tuple[str, ...]:
        return ("--bootstrap-servers", self.broker.bootstrap_servers, "--topic", self.raw)

    def documents(self) -> list[Document]:
        settings = Settings(bootstrap_servers=self.broker.bootstrap_servers, raw_topics=(self.raw,))
        decode = opened("auto")
        return [decode(record.value or b"") for record in raw_records(settings, self.raw)[0]]


@pytest.fixture
def target(broker: Broker, topic: TopicFactory) -> Target:
    return Target(broker, topic(1))


def example(name: str, *words: str, directory: Path, **environment: str) -> "subprocess.Popen[str]":
    command = [sys.executable, str(EXAMPLES / name), *words]
    return subprocess.Popen(
        command,
        cwd=directory,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def said(process: "subprocess.Popen[str]", code: int = 0) -> str:
    output = process.communicate(timeout=SECONDS)[0]
    assert process.returncode == code, output
    return output


def test_the_crawler_sends_each_page_once_and_keeps_to_the_rules(target: Target, tmp_path: Path, site: str) -> None:
    output = said(example("crawler.py", site, *target.options, "--delay", "0.01", directory=tmp_path))
    pages = [Document("To A\nB", site), Document("The mill & the stone.\nHome\nC", f"{site}a.html")]
    assert target.documents() == pages
    assert output.endswith(f"2 pages sent to {target.raw}\n")
    assert [path for path, _ in QuietHandler.asked] == ["/robots.txt", "/", "/a.html", "/c.txt"]
    assert {agent for _, agent in QuietHandler.asked} == {"tokenmill-example-crawler"}


def test_the_crawler_ends_in_order(target: Target, tmp_path: Path, site: str) -> None:
    with example("crawler.py", site, *target.options, "--delay", "1", directory=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{site}\n"
        process.send_signal(signal.SIGTERM)
        output = said(process)
    assert f" pages sent to {target.raw}" in output
    assert target.documents()[0].id == site
    assert len(target.documents()) == int(output.split(" pages")[0].split()[-1]) < len(PAGES)


def test_long_addresses_become_ids_that_fit(target: Target, tmp_path: Path, site: str) -> None:
    options = (*target.options, "--limit", "1", "--delay", "0")
    said(example("crawler.py", f"{site}?{'x' * 200}", *options, directory=tmp_path))
    assert re.fullmatch("sha256:[0-9a-f]{64}", str(target.documents()[0].id))


def test_the_faust_app_hands_articles_on(target: Target, topic: TopicFactory, tmp_path: Path) -> None:
    articles = topic(1)
    settings = service_settings(target.broker, target.raw, tmp_path, splits={"all": 1000})
    values = [{"number": number, "title": f"Title {number}", "body": "Körner, grain " * 9} for number in range(20)]
    send(settings, [Raw(json.dumps(value).encode()) for value in values], articles)
    names = {"BOOTSTRAP_SERVERS": target.broker.bootstrap_servers, "ARTICLES": articles, "RAW_TEXT": target.raw}
    with example("faust_articles.py", "worker", directory=tmp_path, **names) as app:
        arrived = until(lambda: len(target.documents()) == len(values), SECONDS)
        app.terminate()
        output = app.communicate(timeout=SECONDS)[0]
    assert arrived, output
    assert target.documents()[3] == Document(f"Title 3\n\n{'Körner, grain ' * 9}", "article/3")
    with Service(settings, tmp_path) as service:
        service.mill()
        service.segment()
        chains = service.wait_until_complete()
    assert sum(len(blocks) for blocks in chains.values()) > len(values)


def rows_sent(rows: Sequence[tuple[int, str]], target: Target, directory: Path, code: int = 0) -> str:
    with sqlite3.connect(directory / "notes.db") as connection:
        connection.execute("CREATE TABLE notes (id INTEGER, body TEXT)")
        connection.executemany("INSERT INTO notes VALUES (?, ?)", rows)
    connection.close()
    query = "SELECT id, body FROM notes"
    return said(example("sqlite_rows.py", "notes.db", query, *target.options, directory=directory), code)


def test_rows_of_a_database_are_sent_by_confluent_kafka(target: Target, tmp_path: Path) -> None:
    rows = [(number, f'note {number}: ü, \\ and "quotes"') for number in range(500)]
    assert rows_sent(rows, target, tmp_path) == f"500 documents sent to {target.raw}\n"
    assert target.documents() == [Document(text, f"notes/{number}") for number, text in rows]


def test_lost_rows_are_told(topic: TopicFactory, broker: Broker, tmp_path: Path) -> None:
    target = Target(broker, topic(1, max_message_bytes=1000))
    assert "1 were not: " in rows_sent([(1, os.urandom(4000).hex())], target, tmp_path, code=1)


def test_the_console_producer_takes_lines_of_text_and_of_json(target: Target, tmp_path: Path) -> None:
    page = (EXAMPLES / "README.md").read_text()
    installed, ours = re.findall(r"^```(?:bash)?\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "notes.txt").write_text('The mill.\n{"id": 7, "text": "The stone."}\nKörner\n')
    lines = ours.replace("127.0.0.1:9092", target.broker.bootstrap_servers).replace("raw-text", target.raw)
    done = subprocess.run(
        ["/bin/bash", "-euo", "pipefail", "-c", lines],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert target.documents() == [Document("The mill."), Document("The stone.", 7), Document("Körner")]
    assert installed.split()[1:] == ours.split("ConsoleProducer")[1].split()


def test_every_example_is_explained() -> None:
    page = (EXAMPLES / "README.md").read_text()
    assert set(re.findall(r"\]\((\w+\.py)\)", page)) == {file.name for file in EXAMPLES.glob("*.py")}
