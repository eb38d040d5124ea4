"""Rows of a query, from real SQLite: in order, resumed, and refused where they are not the same any more."""

import json
import sqlite3
import traceback
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from tests.app.sources.reading import reading_of
from tokenmill.app.sources import Item, Refused, read_items
from tokenmill.app.sources.items import Place
from tokenmill.app.sources.sql import READ_ONLY, ROWS, SqlSource
from tokenmill.app.tools.produce.run_notes import run_identity
from tokenmill.errors import InputError

QUERY = "SELECT number AS id, body AS text, score FROM pages WHERE number >= 0 ORDER BY number"


def database(path: Path, rows: int = 9000) -> str:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE pages (number INTEGER, body TEXT, score REAL)")
        connection.executemany("INSERT INTO pages VALUES (?, ?, ?)", ((n, f"página {n}", n / 4) for n in range(rows)))
    connection.close()
    return f"sqlite:///{path}"


def change(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()


def test_rows_become_documents_and_one_that_is_no_text_is_refused_alone(tmp_path: Path) -> None:
    """SQLite takes any bytes for a text, and programs write Latin-1; nobody asks for columns that hold pictures."""
    url = database(tmp_path / "a.db", 3)
    found = list(read_items([SqlSource(url, QUERY, reading_of(metadata_fields=["score"]))]))
    assert [json.loads(item.value) for item in found if isinstance(item, Item)] == [
        {"id": n, "text": f"página {n}", "score": n / 4} for n in range(3)
    ]
    latin_1 = "UPDATE pages SET body = CAST(x'70e16731' AS TEXT) WHERE number = 1"
    pictures = "UPDATE pages SET score = x'ff', body = CASE number WHEN 1 THEN x'ff' ELSE x'6f6b' END"
    for statement, text, why in (
        (latin_1, "página 0", "'text' has half a character (a surrogate)"),
        (pictures, "ok", "'text' is not UTF-8: invalid start byte at byte 0"),
    ):
        change(tmp_path / "a.db", statement)
        source = SqlSource(url, QUERY, reading_of())
        source.signature()
        first, bad, last = read_items([source])
        assert isinstance(first, Item)
        assert json.loads(first.value) == {"id": 0, "text": text}
        assert isinstance(last, Item)
        assert isinstance(bad, Refused)
        assert bad.why == f"invalid_utf8: {why}"


@pytest.mark.parametrize(
    "query",
    [
        "DROP TABLE pages -- ORDER BY",
        "WITH one AS (SELECT 1) DELETE FROM pages WHERE 1 -- ORDER BY",
        "WITH one AS (SELECT 1) DELETE FROM pages RETURNING number AS id, body AS text -- ORDER BY",
        "/* SELECT */ INSERT INTO pages VALUES (9, '', 0) -- ORDER BY",
        "SELECT 1; DROP TABLE pages -- ORDER BY",
        "PRAGMA query_only = OFF -- ORDER BY",
        "ATTACH DATABASE '{}/b.db' AS b -- ORDER BY",
        "VACUUM INTO '{}/b.db' -- ORDER BY",
    ],
)
def test_no_statement_changes_a_database(query: str, tmp_path: Path) -> None:
    url = database(tmp_path / "a.db", 3)
    with pytest.raises(InputError, match=r"it is no query|readonly|one statement"):
        SqlSource(url, query.format(tmp_path), reading_of()).signature()
    with sqlite3.connect(tmp_path / "a.db") as connection:
        assert connection.execute("SELECT count(*) FROM pages").fetchone() == (3,)
    connection.close()
    assert [file.name for file in tmp_path.iterdir()] == ["a.db"]


def test_only_the_query_has_a_cursor_of_the_server(tmp_path: Path) -> None:
    """Postgres declares one for whatever is read in parts, and refuses it for what is no query."""
    source = SqlSource(database(tmp_path / "a.db", 3), QUERY, reading_of())
    found: list[tuple[str, int | None]] = []

    def executed(_connection: Any, _cursor: Any, statement: str, _values: Any, context: Any, _many: bool) -> None:  # noqa: FBT001
        found.append((statement, context.execution_options.get("yield_per")))

    event.listen(source._engine, "before_cursor_execute", executed)
    source.signature()
    assert found == [(READ_ONLY["sqlite"], None), (QUERY, ROWS)]


@pytest.mark.parametrize("query", ["-- of all\nselect {}", "/* all */ ( SELECT {} )", "WITH p AS (SELECT {}) TABLE"])
def test_a_query_may_begin_as_queries_do(query: str, tmp_path: Path) -> None:
    SqlSource(database(tmp_path / "a.db", 3), query.format("1 ORDER BY 1"), reading_of())


@pytest.mark.filterwarnings("ignore:Query string argument")
@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///{}?password=S3cret",
        "sqlite:///{}?pass%77ord=S3cret",
        "sqlite:///{}?odbc_connect=Server%3Dh%3BPWD%3DS3cret",
        "sqlite://user:S3cret@/{}",
        "nonsense://user:S3cret/S3cret@host/{}",
        "nonsense S3cret:pwd S3cret@{}",
    ],
)
def test_a_password_of_a_database_reaches_no_name_id_or_message(url: str, tmp_path: Path) -> None:
    """Wherever in the address it stands; the same command with another one is the same run."""
    database(tmp_path / "a.db", 3)
    url = url.format(tmp_path / "a.db")
    shown = []
    try:
        source = SqlSource(url, "SELECT body AS text, number FROM pages ORDER BY 2", reading_of())
        shown += [source.name, *map(str, read_items([source]))]
        source.signature()
    except InputError as error:
        shown += ["".join(traceback.format_exception(error))]
    assert shown
    assert "S3cret" not in "".join(shown).replace(repr(url), "")
    named, other = (run_identity("raw", {}, [each]) for each in (url, url.replace("S3cret", "0ther")))
    assert named == other or "nonsense" in url


def test_a_result_goes_on_from_any_chunk(tmp_path: Path) -> None:
    source = SqlSource(database(tmp_path / "a.db"), QUERY, reading_of())
    chunks = list(source.chunks(Place()))
    assert len(chunks) > 2
    assert [chunk.items for chunk in source.chunks(chunks[0].after)] == [chunk.items for chunk in chunks[1:]]


@pytest.mark.parametrize(
    ("query", "url", "message"),
    [
        ("SELECT body AS text FROM pages", "sqlite://", "no ORDER BY"),
        (QUERY, "sqlite:///{}/a.db", "no such table: pages; check database and query"),
        (QUERY, "nonsense", "no address of a database"),
        (QUERY, "postgresql+psycopg://me:secret@localhost/x", "its driver psycopg is not installed: pip install it"),
    ],
)
def test_what_cannot_be_asked_is_refused(tmp_path: Path, query: str, url: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        list(read_items([SqlSource(url.format(tmp_path), query, reading_of())]))
    assert "secret" not in str(raised.value)


def test_a_result_that_changes_while_it_is_read_ends_the_run(tmp_path: Path) -> None:
    """What a run began with is what it sends; one row changed far behind is enough, and the next call knows it."""
    url = database(tmp_path / "a.db")
    source = SqlSource(url, QUERY, reading_of())
    before = source.signature()
    change(tmp_path / "a.db", "UPDATE pages SET body = 'other' WHERE number = 8999")
    assert SqlSource(url, QUERY, reading_of()).signature() != before
    with pytest.raises(InputError, match="changed while it was read"):
        list(source.chunks(Place()))
