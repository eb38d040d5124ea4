"""Every command of docs/produce.md, as a reader would run it; and that the page names all options and formats."""

import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from zipfile import ZipFile

import pytest
from typer.main import get_command

from docs.generators.site import ROOT
from tests.app.sources.files import as_lines, write_csv, write_jsonl, write_parquet
from tests.conftest import TopicFactory
from tests.service import in_own_loop
from tokenmill.app.cli import create_cli
from tokenmill.app.cli.options import FOLDED
from tokenmill.app.kafka.topics import ensure_topics
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.app.sources.encodings import SUFFIXES
from tokenmill.app.sources.formats import BY_SUFFIX
from tokenmill.app.sources.paths import ZIP

PAGE = (ROOT / "docs/produce.md").read_text()
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
ELSEWHERE = {"--help", "--config", "--json", "--resume", "--no-resume"}
"""Options that all commands have, or that the page says in other words."""


SHOUTING = """
shout = lambda row: {**row, 'story': row['story'].upper()}
shout_all = lambda rows: [row['text'].upper() for row in rows]
"""


def prepare(folder: Path) -> None:
    rows = [{"id": str(number), "text": f"text {number}", "n": number} for number in range(20)]
    code = [{"path": f"{n}.py", "code": f"print({n})", "language": "Python" if n % 2 else "C"} for n in range(9)]
    for name in ("notes", "data/set"):
        (folder / name).mkdir(parents=True)
    (folder / "notes" / "a.md").write_text("a note")
    (folder / "book.txt").write_text("one\ntwo\n")
    (folder / "shouting.py").write_text(SHOUTING)
    with ZipFile(folder / "archive.zip", "w") as archive:
        archive.writestr("table.csv", "id;text\n1;grün\n".encode("latin-1"))
    (folder / "broken.jsonl").write_bytes(as_lines(rows[:2]) + b"{\n")
    write_jsonl(folder / "corpus.jsonl", rows)
    write_jsonl(folder / "data" / "set" / "train.jsonl", rows)
    write_parquet(folder / "data" / "code.parquet", code)
    write_csv(folder / "table.csv", [{"story": "once"}])


@pytest.mark.needs("minutes")
def test_every_command_of_the_page_works(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    prepare(tmp_path)
    assert len(COMMANDS) == 11
    for line in COMMANDS:
        raw = topic(2)
        settings = Settings(bootstrap_servers=broker.bootstrap_servers, raw_topics=(raw,))
        in_own_loop(partial(ensure_topics, settings))
        environment = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(tmp_path / "home"),
            "PYTHONPATH": str(tmp_path),
            "TOKENMILL_BOOTSTRAP_SERVERS": broker.bootstrap_servers,
        }
        command = ["/bin/bash", "-euo", "pipefail", "-c", line.replace("raw-text", raw)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}: {done.stdout}\n{done.stderr}"
        assert re.search(r"^[1-9]\d* documents?, ", done.stdout, re.MULTILINE), line


def test_the_page_names_every_option_and_suffix() -> None:
    produce = get_command(create_cli()).commands["produce"]  # type: ignore[attr-defined]
    own = {
        option
        for parameter in produce.params
        for option in parameter.opts
        if option.startswith("--") and not parameter.hidden and parameter.rich_help_panel not in {*FOLDED, "Settings"}
    }
    assert len(own) > 15
    assert [option for option in sorted(own - ELSEWHERE) if option not in PAGE] == []
    assert [suffix for suffix in BY_SUFFIX if f"`{suffix}`" not in PAGE] == []
    assert [suffix for suffix in (*SUFFIXES, ZIP) if f"`{suffix}`" not in PAGE] == []
