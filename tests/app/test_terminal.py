"""What reaches a terminal: nothing in a record, a name or a traceback tells it to do anything."""

import ast
import io
import json
import logging
import os
import pty
import re
import subprocess
import sys
import unicodedata
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr
from rich.console import Console
from rich.progress import Progress

import tokenmill
from tokenmill.app.cli import output, reading_options
from tokenmill.app.cli.dead_letters import _letters_table, values
from tokenmill.app.cli.output import PlainColumn, ProgressLine
from tokenmill.app.kafka.clients import connection
from tokenmill.app.kafka.dead_letters import DeadLetter, RecordPlace
from tokenmill.app.local.live_view import LiveView
from tokenmill.app.logs import set_up_logging
from tokenmill.app.settings import ConnectionSettings
from tokenmill.app.sources import Refused
from tokenmill.app.tables import pairs
from tokenmill.app.terminal import GuardedStream, escaped, escaped_json, escaped_lines, guard_streams
from tokenmill.app.tools.produce.sending import PassedOver
from tokenmill.app.worker.run import Worker

APP = Path(tokenmill.__file__).parents[1] / "app"
CLIPBOARD = "\x1b]52;c;cm0gLXJm\x07"
BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
MARKUP = "[bold red]x[/] [link=file:///etc]y[/link] :smile:"
hostile = st.text(
    st.characters(categories=["Cc"]) | st.sampled_from([*BIDI, "\u2028", "\x1b", "\r", "\n"]) | st.characters()
).map(lambda text: text + CLIPBOARD)
"""Texts as somebody might write them who wants to do harm; surrogates among them, as in names of files."""


def harmless(text: str) -> bool:
    """Tell whether a terminal would just show it: no C0 but line ends and tabs, no C1, no bidi control."""
    controls = {character for character in text if unicodedata.category(character) == "Cc"} - {"\n", "\t"}
    return not controls and not set(text) & {*BIDI, "\u2028", "\u2029"}


@given(hostile)
def test_escaped_texts_are_harmless(text: str) -> None:
    assert harmless(escaped(text))
    assert not re.search(r"[\n\t]", escaped(text))
    assert harmless(escaped_lines(text))
    assert escaped_lines(text).encode()  # no surrogates
    assert escaped(escaped(text)) == escaped(text)
    kept = "".join(character for character in text if character.isprintable())
    assert escaped(kept) == kept


@given(st.recursive(hostile | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(hostile, inner)))
def test_escaped_json_says_the_same(value: object) -> None:
    assert harmless(escaped_json(value))
    assert json.loads(escaped_json(value)) == value
    assert escaped_json("grüße 世界") == '"grüße 世界"'


def letter_of(text: str) -> DeadLetter:
    """Return a dead letter that has a text wherever it can."""
    data = text.encode("utf-8", "surrogatepass")
    return DeadLetter(RecordPlace("raw", 0, 1), 0, text, text, text, data, data, ((text, data),))


def shown_table(text: str) -> None:
    output.show_table(pairs({"key": text, text: text}))


def shown_letter(text: str) -> None:
    output.show_table(_letters_table([letter_of(text)]))
    output.show_table(pairs(values(letter_of(text))))
    output.show_json(values(letter_of(text)))


def told(text: str) -> None:
    output.say(text)
    reading_options.say_refusals(PassedOver(refused=1, examples=[Refused(text, text)]))
    ProgressLine().say(text)
    view = LiveView(output.EscapingConsole())
    view.say(text, "red")
    view.show(text)


def logged(text: str) -> None:
    for log_format in ("console", "json"):
        set_up_logging(log_format)
        log = structlog.get_logger("tokenmill.test")
        log.warning(text, key=text, **{text: text.encode("utf-8", "surrogatepass")})
        logging.getLogger("library").warning("lost %s", text)
        try:
            text.encode("ascii").decode(text)
        except (LookupError, ValueError):
            log.exception("failed")


@pytest.mark.parametrize("shown", [output.show, output.show_json, shown_table, shown_letter, told, logged])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=hostile)
def test_nothing_harmful_is_shown(shown: Callable[[str], None], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    shown(text)
    out, err = capsys.readouterr()
    assert out + err
    assert harmless(out + err)


def test_nothing_is_taken_for_markup(capsys: pytest.CaptureFixture[str]) -> None:
    shown_table(MARKUP)
    told(MARKUP)
    bar = Console(file=io.StringIO(), width=200)
    bar.print(PlainColumn("{task.description}").render(task_of(MARKUP)))
    out, err = capsys.readouterr()
    assert out.count(MARKUP) == 5
    assert err.count(MARKUP) == 4
    assert isinstance(bar.file, io.StringIO)
    assert MARKUP in bar.file.getvalue()


def task_of(description: str) -> Any:
    progress = Progress(console=Console(file=io.StringIO()))
    progress.add_task(description)
    return progress.tasks[0]


@pytest.mark.slow
def test_there_is_no_other_console_and_no_other_way_out() -> None:
    called = defaultdict[str, set[str]](set)
    for file in APP.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                called[ast.unparse(node.func)].add(file.name)
    assert called["Console"] | called["TextColumn"] == set()
    prints = called["print"] | called["sys.stdout.write"] | called["sys.stderr.write"]
    assert prints == {"output.py", "__init__.py", "health.py"}


SECRETS = ("hunter2-of-the-broker", "record-of-somebody")


async def connecting() -> None:
    login = ConnectionSettings(
        bootstrap_servers="127.0.0.1:1", security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN",
        sasl_username="miller", sasl_password=SecretStr(SECRETS[0]),
    )  # fmt: skip
    client = AIOKafkaProducer(**connection(login))
    await client.start()


async def sending() -> None:
    client = AIOKafkaProducer(bootstrap_servers="127.0.0.1:1")
    await client.send("topic", SECRETS[1].encode())


@pytest.mark.filterwarnings("ignore:Unclosed:ResourceWarning")
@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("log_format", ["auto", "console", "json"])
async def test_no_log_shows_local_variables(
    log_format: str, *, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    stream.isatty = lambda: terminal  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", stream)
    set_up_logging(log_format)

    async def fail(*_: object) -> None:  # an error of its own each time: its traceback holds the client
        raise RuntimeError("the client failed")

    monkeypatch.setattr(AIOKafkaClient, "bootstrap", fail)
    monkeypatch.setattr(AIOKafkaClient, "_wait_on_metadata", fail)
    for log in (structlog.get_logger("tokenmill.test"), logging.getLogger("aiokafka.conn"), logging.getLogger("mode")):
        for work in (connecting, sending):
            try:
                await work()
            except RuntimeError:
                log.exception("failed")
    said = stream.getvalue()
    assert said.count("RuntimeError: the client failed") == 6
    assert not [secret for secret in SECRETS if secret in said]


def test_a_worker_that_is_asked_where_it_is_shows_no_local_variables(capfd: pytest.CaptureFixture[str]) -> None:
    """Faust would print those of all threads. Asked in a new one: Python shows a hundred, the newest first."""

    def asked_where_it_is() -> str:
        password = SECRETS[0]
        Worker._on_sigusr1(cast("Worker", None))
        Worker._on_sigusr2(cast("Worker", None))
        return password

    with ThreadPoolExecutor(1) as pool:
        password = pool.submit(asked_where_it_is).result()
    said = capfd.readouterr().err
    assert said.count("in asked_where_it_is") == 2
    assert password not in said


def test_no_command_shows_local_variables(tmp_path: Path) -> None:
    (tmp_path / "raising.py").write_text(
        "def failing():\n    sasl_plain_password = 'hunter2' + '-of-the-broker'\n"
        "    raise ValueError('the client failed on ' + chr(27) + ']52;c;AAAA')\n"
    )
    script = tmp_path / "run.py"
    script.write_text(
        "import sys, raising\nfrom tokenmill.app.cli import main, settings_and_topics\n"
        "settings_and_topics.show_json = lambda _: raising.failing()\nmain(['config', '--json'])\n"
    )
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert ended.returncode == 1
    assert "ValueError: the client failed on \\x1b]52;c;AAAA" in ended.stderr
    assert SECRETS[0] not in ended.stderr
    assert harmless(ended.stderr)


@pytest.mark.cases(1)
@pytest.mark.parametrize("arguments", [[f"--no{CLIPBOARD}"], ["produce", f"raw{CLIPBOARD}"], [f"in{CLIPBOARD}"]])
@pytest.mark.slow
def test_what_usage_messages_quote_is_escaped_on_a_terminal(arguments: list[str]) -> None:
    """A shell's pattern may have made a flag of a file's name; the styles of messages are there all the same."""
    said = on_terminal([str(Path(sys.executable).with_name("tokenmill")), *arguments])
    rest = re.sub(r"\x1b\[[?0-9;]*[mABCDGHJKhl]|\r", "", said)
    assert harmless(rest), rest
    assert "\x1b[" in said


@pytest.mark.parametrize("arguments", [["pack", "--nonsense"], ["pack", "--help"]])
def test_help_and_usage_have_no_styles_in_a_pipe(arguments: list[str]) -> None:
    """Whatever the environment says; a notebook's does."""
    environment = os.environ | {"FORCE_COLOR": "1", "GITHUB_ACTIONS": "true"}
    command = [sys.executable, "-m", "tokenmill.app.cli", *arguments]
    said = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert "tokenmill pack [OPTIONS]" in said.stdout + said.stderr
    assert "x1b" not in ascii(said.stdout + said.stderr)


def on_terminal(command: list[str]) -> str:
    ours, its = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "200"}
    environment.pop("NO_COLOR", None)
    said = b""
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment), suppress(OSError):
        os.close(its)
        while piece := os.read(ours, 65536):  # until the other side is closed
            said += piece
    os.close(ours)
    return said.decode()


@pytest.mark.parametrize(("redacts", "password"), [(True, "***"), (False, "S3cret")])
def test_what_is_said_holds_no_password_and_what_is_shown_stays_as_it_is(*, redacts: bool, password: str) -> None:
    """Tracebacks and libraries repeat addresses; a document may have any in its text."""
    inner = io.TextIOWrapper(io.BytesIO(), "utf-8")
    GuardedStream(inner, redacts=redacts).write("cannot reach postgresql://me:S3cret@host/name?sslpassword=S3cret")
    inner.flush()
    said = inner.buffer.getvalue().decode()
    assert said == f"cannot reach postgresql://me:{password}@host/name?sslpassword={password}"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_json_is_json_in_any_encoding(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr(sys, "stdout", inner)
    guard_streams()
    sys.stdout.write(escaped_json("é 日本 \U0001f600"))
    sys.stdout.flush()
    assert json.loads(inner.buffer.getvalue().decode(encoding)) == "é 日本 \U0001f600"


@given(text=hostile, terminal=st.booleans())
def test_a_guarded_stream_lets_styles_through_and_nothing_else(*, text: str, terminal: bool) -> None:
    inner = io.TextIOWrapper(io.BytesIO(), "utf-8")
    inner.isatty = lambda: terminal  # type: ignore[method-assign]
    guarded = GuardedStream(inner)
    guarded.write("\x1b[1mbold\x1b[0m" + text)
    guarded.flush()
    said = inner.buffer.getvalue().decode()
    assert ("\x1b[1mbold\x1b[0m" in said) == terminal
    assert harmless(re.sub(r"\x1b\[[?0-9;]*[mABCDGHJKhl]|\r", "", said) if terminal else said)
    with pytest.raises(TypeError):
        guarded.write(b"")  # type: ignore[arg-type]
