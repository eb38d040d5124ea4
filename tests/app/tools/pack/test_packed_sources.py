"""Packs of what is no file on this machine: servers, databases and pages of web archives, as of files of the same."""

import asyncio
import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.app.sources.files import as_lines, warc_record
from tests.app.sources.test_sql import change
from tests.app.sources.web import Web, serving
from tests.app.tools.pack.packing import content, opened, pack_into, plan_of, require_equal, rows, small_settings
from tokenmill.app.sources import DocumentSource, Item, find_sources, read_items
from tokenmill.app.sources.sql import SqlSource
from tokenmill.app.tools.pack.pack_verification import verify_pack
from tokenmill.app.tools.pack.packing_run import PackSummary, pack
from tokenmill.app.tools.verify.sides import ReferenceSample
from tokenmill.errors import InputError

Row = dict[str, Any]
QUERY = "SELECT id, text FROM pages ORDER BY number"
PAGE = "<html><head><title>no</title></head><body><nav>Home</nav><article><p>{}</p></article></body></html>"


def database(path: Path, made: Sequence[Row]) -> str:
    """Make a table; return its address."""
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE pages (number INTEGER, id TEXT, text TEXT)")
        connection.executemany(
            "INSERT INTO pages VALUES (?, ?, ?)", [(number, row["id"], row["text"]) for number, row in enumerate(made)]
        )
    connection.close()
    return f"sqlite:///{path}"


def archive(path: Path, made: Sequence[Row]) -> Path:
    """Write a web archive whose pages are HTML."""
    pages = [
        warc_record("response", f"https://here/{number}", _answer(row["text"]), "application/http; msgtype=response")
        for number, row in enumerate(made)
    ]
    path.write_bytes(b"".join(pages))
    return path


def _answer(text: str) -> str:
    return f"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n{PAGE.format(text)}"


class Scene:
    """Documents of a server, a database and an archive, and files of the same ones."""

    def __init__(self, folder: Path, web: Web) -> None:
        self.settings, self.other = (small_settings(folder / name) for name in ("store", "other"))
        self.how = replace(opened(self.settings, [])[0], extract=True)
        self._web = web
        self.database = folder / "pages.db"
        self._url = database(self.database, rows(60, 2))
        self._pages = archive(folder / "c.warc", rows(40, 3, words=80))
        self.local = folder / "local"
        self.local.mkdir()
        for number, source in enumerate(self.sources()):
            values = [item.value for item in read_items([source]) if isinstance(item, Item)]
            (self.local / f"{number}.jsonl").write_bytes(b"\n".join(values) + b"\n")

    def sources(self) -> list[DocumentSource]:
        """Open the sources."""
        remote = find_sources([f"{self._web.address}/a.jsonl"], self.how)
        return [*remote, SqlSource(self._url, QUERY, self.how), *find_sources([str(self._pages)], self.how)]

    def packed(self, **plan: Any) -> PackSummary:
        """Pack the sources."""
        return asyncio.run(pack(self.settings, self.sources(), self.how, plan_of(self.settings, ["them"], **plan)))


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """Return a scene whose server answers."""
    with serving(Web({"a.jsonl": as_lines(rows(80, 1))})) as web:
        yield Scene(tmp_path, web)


@pytest.mark.slow
def test_packed_is_what_files_of_the_same_documents_give(scene: Scene) -> None:
    """Of a web server, a query's rows and the main text of pages."""
    texts = [json.loads(line)["text"] for line in (scene.local / "2.jsonl").read_bytes().splitlines()]
    assert texts == [row["text"] for row in rows(40, 3, words=80)]
    assert scene.packed(flush=True).documents == 180
    assert pack_into(scene.other, sorted(scene.local.iterdir()), flush=True).documents == 180
    require_equal(content(scene.settings.store), content(scene.other.store))


@pytest.mark.needs("minutes")
def test_a_pack_goes_on_in_what_is_no_file_and_refuses_what_changed(scene: Scene) -> None:
    """Behind a limit; the store is verified against the sources, and a row that changed far behind is enough."""
    assert scene.packed(limit=100).documents == 100
    statement = "UPDATE pages SET text = '{}' WHERE number = 59"
    change(scene.database, statement.format("other"))
    with pytest.raises(InputError, match=r"pages\.db has changed"):
        scene.packed()
    change(scene.database, statement.format(rows(60, 2)[59]["text"]))
    rest = scene.packed(flush=True)
    assert (rest.before, rest.documents) == (100, 80)
    plan = plan_of(scene.settings, ["them"], flush=True)
    work = verify_pack(scene.settings, scene.sources(), scene.how, plan, sample=ReferenceSample(1))
    verified = asyncio.run(work)
    assert (verified.ok, verified.store_blocks > 100) == (True, True)
    pack_into(scene.other, sorted(scene.local.iterdir()), flush=True)
    require_equal(content(scene.settings.store), content(scene.other.store))
