"""The rows of a query as a source: read in chunks, in the order that the query says, from any database of SQLAlchemy.

A run can go on only in the same result: it is hashed before a run begins, and again while it is read. So a query has an
ORDER BY, of columns that leave no two rows equal.
"""

import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from datetime import date, datetime, time
from decimal import Decimal
from functools import partial
from typing import Any, Final
from uuid import UUID

import xxhash

from tokenmill.errors import InputError
from tokenmill.redaction import redacted

from .file_sources import Chunker, Reading
from .items import Entry, ItemChunk, Place, first_line, library

ROWS: Final = 1000
_ORDER: Final = re.compile(r"\border\s+by\b", re.IGNORECASE)
_QUERY: Final = re.compile(
    r"(?:\s|\(|--[^\n]*\n|/\*.*?\*/)*(?:select|with|values|table|from)\b", re.IGNORECASE | re.DOTALL
)
READ_ONLY: Final = {
    "sqlite": "PRAGMA query_only = ON",
    **dict.fromkeys(("postgresql", "cockroachdb"), "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"),
    **dict.fromkeys(("mysql", "mariadb"), "SET SESSION TRANSACTION READ ONLY"),
    "oracle": "SET TRANSACTION READ ONLY",
}
"""By dialect, what lets the database refuse a statement that changes anything; others have no words for that."""


class SqlSource:
    """The result of a query."""

    size = 0

    def __init__(self, url: str, query: str, reading: Reading) -> None:
        """Prepare to connect to the database of an SQLAlchemy URL: ``postgresql+psycopg://user@host/database``.

        Raises InputError where the query has no ORDER BY; the URL is none; SQLAlchemy or a driver is missing.
        """
        if not _QUERY.match(query):
            raise InputError("--sql: it is no query: begin with SELECT, or WITH; nothing in a database is changed")
        if not _ORDER.search(query):
            raise InputError(
                "--sql: the query has no ORDER BY, so its rows may come in another order each time, and nobody could "
                "go on in them: order them by columns that leave no two rows equal"
            )
        alchemy = library("sqlalchemy", "sql", "reading from a database")
        try:
            address = alchemy.make_url(url)
            self._engine = alchemy.create_engine(address)
        except alchemy.exc.ArgumentError as error:
            said = f"{url}: no address of a database, which is like dialect://user@host/name: {error}"
            raise InputError(said if "://" in url and " " not in url else said.replace(url, "--sql")) from None
        except ModuleNotFoundError as error:
            raise InputError(
                f"{address.drivername}: its driver {error.name} is not installed: pip install it"
            ) from error
        self.name = redacted(address.render_as_string(hide_password=True))
        self._url = url
        self._alchemy = alchemy
        self._query = alchemy.text(query).execution_options(yield_per=ROWS)
        self._reading = reading
        self._digest: bytes | None = None

    def signature(self) -> bytes:
        """Return a hash of all rows. Raises InputError where the database does not answer, or refuses the query."""
        content = xxhash.xxh3_128()
        deque(_hashed(self._rows(), content), maxlen=0)
        self._digest = content.digest()
        return self._digest

    def chunks(self, start: Place) -> Iterator[ItemChunk]:
        """Yield the rows' items. Raises InputError where the result is another one now, or the database is away."""
        chunker = Chunker(self._reading.shape, self.name, start)
        yield from chunker.all(self._reading.mapped(self._entries(start), self.name))

    def _entries(self, start: Place) -> Iterator[Entry]:
        content = xxhash.xxh3_128()
        for number, row in enumerate(_hashed(self._rows(), content), 1):
            if number == 1 and (bad := self._reading.needs.missing(list(row))):
                yield 0, 0, bad
                return
            if number > start.entry:
                yield number, 0, {name: _value(value) for name, value in row.items()}
        if self._digest is not None and content.digest() != self._digest:
            raise InputError(
                f"{self.name}: the result of the query changed while it was read; what was read before is sent. Read "
                "from a table that does not change, or send all again with --restart"
            )

    def _rows(self) -> Iterator[dict[str, Any]]:
        try:
            with self._engine.connect() as connection:
                if self._engine.dialect.name == "sqlite":  # a text that is no UTF-8 would end all of the result
                    driver: Any = connection.connection.driver_connection
                    driver.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
                if statement := READ_ONLY.get(self._engine.dialect.name):
                    connection.exec_driver_sql(statement)
                    if self._engine.dialect.name != "oracle":  # that says it of this transaction, others of the next
                        connection.commit()
                yield from map(dict, connection.execute(self._query).mappings())
        except self._alchemy.exc.SQLAlchemyError as error:
            first = redacted(first_line(error.__cause__ or error), self._url)
            raise InputError(
                f"{self.name}: {first}; check database and query. What was read before is sent, and the same command "
                "goes on"
            ) from error


def _hashed(rows: Iterator[dict[str, Any]], content: xxhash.xxh3_128) -> Iterator[dict[str, Any]]:
    for row in rows:
        content.update(repr([*row.items()]).encode("utf-8", "surrogatepass"))
        yield row


def _value(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        with suppress(UnicodeDecodeError):  # what is none is refused where it is needed
            return bytes(value).decode()
        return bytes(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal | UUID) else value
