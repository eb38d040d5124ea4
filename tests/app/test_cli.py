"""The command line: data and messages apart, exit codes that mean something, every setting a flag."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

import tokenmill
from tests.app.commands import Told, invoke
from tests.conftest import TopicFactory
from tokenmill import errors
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import SECRETS, Settings
from tokenmill.app.sources.file_sources import CHUNK_ENTRIES
from tokenmill.app.sources.items import Item
from tokenmill.app.sources.reading_order import ShuffleBuffer
from tokenmill.documents import FLUSH_HEADER
from tokenmill.store import Store

Cli = Callable[..., Told]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    return invoke


def test_version_is_data(cli: Cli) -> None:
    assert cli("version") == cli("--version") == (0, f"{tokenmill.__version__}\n", "")


ENDS = """
import atexit, signal, sys, threading, time
from tokenmill.app import cli, tasks

async def beginning():
    return 0

def interrupted(work, at_once):
    signal.raise_signal(2)

class Finalized:
    def __del__(self):
        sys.__stdout__.write("finalized\\n")

kept = Finalized()
tasks.until_interrupted = interrupted
atexit.register(print, "exit handler")
threading.Timer(0.2, print, ["thread"]).start()
threading.Thread(target=time.sleep, args=[60], daemon=True).start()
ends = {"ends": str, "fails": lambda: 1 / 0, "interrupted": lambda: signal.raise_signal(2)}
ends["before its loop"] = lambda: tasks.run_until_signalled(beginning())
ends["twice"] = lambda: (atexit.register(signal.raise_signal, 2), signal.raise_signal(2))
end = ends[sys.argv[1]]
cli.create_cli = lambda command: lambda given, prog_name: end()
cli.main()
"""


@pytest.mark.parametrize(("how", "code"), [("ends", 0), ("fails", 1), ("interrupted", 130)])
def test_a_command_ends_in_order_and_unwinds_no_thread(how: str, code: int) -> None:
    """Threads and exit handlers end first; then the process does, before Python unwinds what runs native code."""
    ended = subprocess.run([sys.executable, "-c", ENDS, how], check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (code, "thread\nexit handler\n")
    assert ("ZeroDivisionError" in ended.stderr) == (how == "fails")


@pytest.mark.parametrize(("how", "code"), [("twice", -signal.SIGINT), ("before its loop", 130)])
def test_ctrl_c_while_a_command_begins_or_ends_shows_nothing(how: str, code: int) -> None:
    """No traceback of an exit handler, and no warning of the coroutine that was made and never awaited."""
    ended = subprocess.run([sys.executable, "-c", ENDS, how], check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (code, "")


@pytest.mark.cases(4)
@pytest.mark.parametrize("words", ["version", "--help", "steps list"])
@pytest.mark.parametrize(
    ("output", "code", "said"),
    [
        ("| true", 141, ""),
        (">/dev/full", 12, "tokenmill: standard output cannot be used (No space left"),
        (">&-", 0, ""),
    ],
)
def test_output_that_nobody_takes_is_no_traceback(words: str, output: str, code: int, said: str) -> None:
    """Not the code of `verify` for a difference, either: a pipe that was closed, a full disk, a closed descriptor."""
    script = f"exec 3>&1; {{ {sys.executable} -m tokenmill.app.cli {words}; echo $? >&3; }} {output}"
    ended = subprocess.run(["/bin/sh", "-c", script], check=True, capture_output=True, text=True)
    assert (int(ended.stdout), ended.stderr.count("\n")) == (code, bool(said))
    assert ended.stderr.startswith(said)


COUNT_THREADS = """
import os
from tokenmill.app.cli import main
try:
    main(["version"])
except SystemExit:
    import numpy
    print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.parametrize("said", [None, "2"])
@pytest.mark.slow
def test_a_command_has_no_threads_for_matrices_unless_the_environment_says_so(said: str | None) -> None:
    """Numpy starts one for each further core, which then waits busily; whoever needs them gets them."""
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    environment |= {"OPENBLAS_NUM_THREADS": said} if said else {}
    ended = subprocess.run([sys.executable, "-c", COUNT_THREADS], check=True, capture_output=True, env=environment)
    cores = len(os.sched_getaffinity(0))
    assert int(ended.stdout.split()[-1]) == (min(int(said), cores) if said else 1)


@pytest.mark.parametrize("command", [["produce"], ["flush"], ["train-tokenizer"], ["topics", "create"], ["config"]])
def test_every_setting_is_a_flag(cli: Cli, command: list[str]) -> None:
    result = cli(*command, "--help-all")
    assert result.code == 0
    for name in set(Settings.model_fields) - {"topic"} - SECRETS:
        assert f"--{name.replace('_', '-')}" in result.out
    assert "--config" in result.out
    assert "Examples" in result.out


def test_config_says_what_is_in_force_and_why(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokenmill.toml").write_text("sequence_length = 7")
    monkeypatch.setenv("TOKENMILL_WORKERS", "4")
    found = json.loads(cli("config", "--json", "--group", "mine").out)
    assert found["sequence_length"] == {"value": 7, "from": "file tokenmill.toml"}
    assert found["workers"] == {"value": 4, "from": "variable TOKENMILL_WORKERS"}
    assert found["group"] == {"value": "mine", "from": "flag --group"}
    assert found["store"] == {"value": "store", "from": "default"}
    assert "sequence_length" in cli("config").out


def test_wrong_settings_are_one_line_and_exit_with_2(cli: Cli) -> None:
    code, out, err = cli("config", "--sequence-length", "many")
    assert (code, out) == (2, "")
    assert err.startswith("tokenmill: setting sequence_length = 'many' (flag --sequence-length): ")
    assert err.count("\n") == 1


def test_misspelt_flags_are_named_with_the_nearest(cli: Cli) -> None:
    code, out, err = cli("config", "--sequence-lenght", "7")
    assert (code, out) == (2, "")
    assert "--sequence-lenght" in err
    assert "(Possible options: --sequence-length)" in err


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_passwords_are_no_flags(cli: Cli, name: str) -> None:
    """Everyone can read a command line; who tries is told what to do, and no help shows them."""
    flag = f"--{name.replace('_', '-')}"
    code, out, err = cli("config", flag, "gr1st")
    assert (code, out) == (2, "")
    assert f"{name} is no flag" in err
    assert f"set TOKENMILL_{name.upper()}" in err
    assert "gr1st" not in err
    assert not re.search(rf"{flag}\s", cli("config", "--help-all").out)


def test_config_hides_passwords_and_says_where_they_come_from(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenmill.toml").write_text(
        'security_protocol = "SASL_SSL"\nsasl_mechanism = "PLAIN"\nsasl_username = "miller"\n'
    )
    monkeypatch.setenv("TOKENMILL_SASL_PASSWORD", "gr1st")
    table, found = cli("config").out, cli("config", "--json").out
    assert "gr1st" not in table + found
    assert re.search(r"sasl_password +variable TOKENMILL_SASL_PASSWORD +\*+", table)
    assert json.loads(found)["sasl_password"] == {"value": "*" * 10, "from": "variable TOKENMILL_SASL_PASSWORD"}
    assert json.loads(found)["sasl_username"] == {"value": "miller", "from": "file tokenmill.toml"}


ERRORS = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.TokenMillError)]


@pytest.mark.cases(12)
@pytest.mark.slow
@pytest.mark.parametrize("error", ERRORS)
def test_a_command_ends_with_the_code_of_its_error(
    cli: Cli, error: type[errors.TokenMillError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error("what is wrong", "what to do") if error is errors.RecordError else error("what is wrong")

    monkeypatch.setattr(Store, "adopt", fails)
    ended = cli("adopt")
    assert (ended.code, ended.out) == (error.exit_code, "")
    assert re.fullmatch(r"tokenmill: what is wrong(: what to do)?\n", ended.err)


def test_missing_broker_is_one_line_and_exits_with_3(cli: Cli) -> None:
    code, out, err = cli("flush", "raw-text", "--bootstrap-servers", "127.0.0.1:1")
    assert (code, out) == (3, "")
    assert err.startswith("tokenmill: no broker answers at 127.0.0.1:1; start one with `tokenmill broker start`")
    assert err.count("\n") == 1


def test_missing_topic_exits_with_4_and_missing_file_with_12(cli: Cli, broker: Broker) -> None:
    address = ("--bootstrap-servers", broker.bootstrap_servers)
    assert cli("flush", "no-such-topic", *address).code == 4
    assert cli("produce", "no-such-topic", "no-such-file", *address).code == 12


def test_topics_are_created_and_checked(cli: Cli, broker: Broker, topic: TopicFactory) -> None:
    name = f"{topic()}-raw"
    settings = ("--bootstrap-servers", broker.bootstrap_servers, "--raw-topics", name, "--splits", "train=1000")
    before = cli("topics", "check", "--json", *settings)
    assert before.code == 4
    assert {problem["topic"] for problem in json.loads(before.out)} > {name}
    created = cli("topics", "create", "--json", "--partitions", "2", *settings)
    assert json.loads(created.out) == [
        *(name, f"{name}.dead-letters", f"{name}.produced"),
        *(f"tokens.{name}.train", f"control.{name}.train"),
    ]
    assert cli("topics", "check", *settings)[:2] == (0, "")


def test_produce_says_what_went_where(cli: Cli, broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    raw = topic(2)
    lines = '{"id": 1, "text": "one"}\n{"id": 2, "text": 2}\n{"id": 3, "text": "three"}\n'
    (tmp_path / "a.jsonl").write_text(lines)
    command = ("produce", raw, "a.jsonl", "--bootstrap-servers", broker.bootstrap_servers)
    code, out, err = cli(*command)
    assert (code, out.count("\n")) == (0, 1)
    assert out.startswith(f"2 documents, 50 B to {raw} in ")
    assert out.endswith("by partition 0: 1 (26 B), 1: 1 (24 B)\n")  # the first round begins at 1
    assert "tokenmill: a.jsonl:2: wrong_type" in err
    again = cli(*command)
    assert again.code == 0
    assert f"2 documents of this run were in {raw} already; to send all again on purpose: --restart" in again.err
    found = json.loads(cli(*command, "--json", "--rate", "100MB/s", "--limit", "1", "--restart").out)
    assert found["partitions"] == [
        {"partition": 0, "documents": 0, "bytes": 0},
        {"partition": 1, "documents": 1, "bytes": 24},
    ]
    assert cli(*command, "--rate", "fast").code == 2


def test_produce_of_nothing_is_an_error(cli: Cli, broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    """An empty folder is a mistake more often than a wish."""
    (tmp_path / "empty").mkdir()
    assert cli("produce", topic(), "empty", "--bootstrap-servers", broker.bootstrap_servers).code == 12


def test_produce_sends_what_it_can_of_files_that_are_broken(
    cli: Cli, broker: Broker, topic: TopicFactory, tmp_path: Path
) -> None:
    raw = topic()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"id": 1, "text": "one"}\n')
    (tmp_path / "in" / "b.jsonl.gz").write_bytes(gzip.compress(b'{"id": 2, "text": "two"}\n' * 9)[:-9])
    (tmp_path / "in" / "c.csv").write_text("name,story\n1,2\n")

    done = cli("produce", raw, "in", "--flush", "--json", "--bootstrap-servers", broker.bootstrap_servers)

    assert done.code == 12
    assert json.loads(done.out) | {"seconds": 0} == {
        "topic": raw,
        "documents": 10,
        "bytes": 240,
        "seconds": 0,
        "before": 0,
        "refused": 2,
        "broken": 2,
        "unmet": 0,
        "without_field": 0,
        "partitions": [{"partition": 0, "documents": 10, "bytes": 240}],
    }
    assert "in/b.jsonl.gz: cannot be read to its end" in done.err
    assert "in/c.csv:1: no column 'text' or 'content'; there are: 'name', 'story'" in done.err
    assert "2 files could not be read to the end" in done.err
    reader = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": raw})
    reader.assign([TopicPartition(raw, 0, 0)])
    records = reader.consume(11, 20)
    reader.close()
    assert records[-1].headers() == [FLUSH_HEADER]


def test_a_broken_file_is_not_forgotten_by_the_calls_that_follow(
    cli: Cli, broker: Broker, topic: TopicFactory, tmp_path: Path
) -> None:
    """They go on behind it and do not read it again, nor the lines that were passed over; count and exit code stay."""
    raw = topic()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "two"}\n' * 9 + b"[]\n")[:-9])
    rows = 3 * CHUNK_ENTRIES
    (tmp_path / "in" / "b.jsonl").write_text('{"text": 1}\n' + f'{{"text": "{"one " * 20}"}}\n' * rows)
    command = ("produce", raw, "in", "--bootstrap-servers", broker.bootstrap_servers)
    # Slow enough that the first chunks are acknowledged when later marks are written.
    first = cli(*command, "--rate", "2MB", "--limit", str(rows - 1))
    assert (first.code, "a.jsonl.gz: cannot be read to its end" in first.err) == (12, True)
    second = cli(*command, "--json")
    assert second.code == 12
    found = json.loads(second.out)
    assert (found["before"] + found["documents"], found["refused"], found["broken"]) == (rows + 9, 3, 1)
    assert "a.jsonl.gz" not in second.err
    assert "passed over 3 in all" in second.err
    assert "1 file could not be read to the end; see what earlier calls of this run said" in second.err


def test_a_dry_run_needs_no_broker(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"uid": 1, "body": "one", "lang": "de"}\n{"uid": 2, "lang": "en"}\n')
    command = (
        "produce",
        "raw",
        "a.jsonl",
        "--field",
        "body",
        "--id-field",
        "uid",
        "--metadata-fields",
        "lang",
        "--dry-run",
    )

    shown = cli(*command)
    assert (shown.code, shown.out.splitlines()) == (
        0,
        ['{"id":1,"text":"one","lang":"de"}', "1 document, 33 B would be sent to raw; nothing was"],
    )
    assert "a.jsonl:2: missing_text" in shown.err
    assert json.loads(cli(*command, "--json").out)["samples"] == ['{"id":1,"text":"one","lang":"de"}']
    assert cli(*command, "--where", "lang=fr").code == 12


def test_a_dry_run_shows_what_the_run_does(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(f'{{"text": "{number}"}}\n' for number in range(30)))
    command = ("produce", "raw", "a.jsonl", "--dry-run", "--json")

    def texts(*options: str) -> list[str]:
        return [json.loads(sample)["text"] for sample in json.loads(cli(*command, *options).out)["samples"]]

    shuffle: ShuffleBuffer[Item] = ShuffleBuffer(8, 3)
    items = [Item(b"", str(number)) for number in range(30)]
    order = [out.text for out in [*map(shuffle.exchange, items), *shuffle.rest()] if out is not None]
    assert texts("--shuffle-buffer", "8", "--seed", "3", "--limit", "5") == order[:5] != texts("--limit", "5")
    assert texts() == ["0", "1", "2"]
    assert "5 documents" in cli(*command[:-1], "--limit", "5").out


def test_a_dry_run_ends_where_the_run_does(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{}\n')
    (tmp_path / "b.jsonl").write_text("{}\n" * 1000 + '{"text": "one"}\n')
    (tmp_path / "c.parquet").write_text("none")
    for options, code, words in (
        (("a.jsonl",), 0, "a.jsonl:2: missing_text"),
        (("a.jsonl", "--on-error", "fail"), 12, "say which is the text: --field. A run ends there"),
        (("b.jsonl",), 12, "the first 1,000 rows were all refused"),
        (("b.jsonl", "--on-error", "dead-letter"), 0, "passed over 1,000 in all"),
        (("a.jsonl", "c.parquet"), 12, "1 file could not be read to the end; see above"),
        (("c.parquet",), 12, "there are no documents in c.parquet"),
    ):
        shown = cli("produce", "raw", *options, "--dry-run")
        assert (shown.code, words in shown.err) == (code, True), shown.err


def test_options_that_would_be_ignored_are_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    command = ("produce", "raw", "a.jsonl", "--dry-run")
    for split, words in (("train=80", "--splits train=80"), ("train", "no path is one")):
        refused = cli(*command, "--split", split)
        assert (refused.code, words in refused.err) == (12, True), refused.err
    assert "a list of one row" in cli(*command, "--map", "json:dumps", "--map-batch", "1", "--map-processes", "1").err


@pytest.mark.parametrize(
    ("command", "alone", "other"),
    [
        ("produce raw", "--map-batch 8", "--map"),
        ("try", "--map-processes 2", "--map"),
        ("produce raw", "--seed 3", "--shuffle-buffer"),
        ("pack", "--reference", "--verify"),
        ("pack", "--sample-seed 0", "--verify"),
    ],
)
def test_options_that_do_nothing_alone_are_refused(
    cli: Cli, tmp_path: Path, command: str, alone: str, other: str
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    refused = cli(*command.split(), "a.jsonl", *alone.split())
    assert refused.code == 12
    assert f"{alone.split(maxsplit=1)[0]} does nothing without {other}: give both" in refused.err


def test_a_dry_run_tells_what_conditions_leave_out(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text;score\none;0.5\ntwo;0.25\nthree;none\n")
    command = ("produce", "raw", "a.csv", "--delimiter", ";", "--dry-run", "--where")
    shown = cli(*command, "score >= 0.5")
    assert "--where left out 2 documents\n" in shown.err
    assert shown.out.splitlines()[-1].startswith("1 document, ")
    shown = cli(*command, "scores >= 0.5", "--json")
    assert shown.code == 12
    assert "--where left out 3 documents, 3 of them without its field\n" in shown.err
    assert cli(*command, "score => 0.5").code == 12


def test_a_dry_run_shows_what_is_known_of_a_data_set(cli: Cli, tmp_path: Path) -> None:
    card = ("dataset_info", "  features", "  - name: text", "    dtype: string", "  splits", "  - name: train")
    numbers = ("    num_bytes: 1500", "    num_examples: 2", "  download_size: 99")
    lines = [line if ":" in line else f"{line}:" for line in (*card, *numbers)]
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "README.md").write_text("\n".join(["---", *lines, "---", ""]))
    (tmp_path / "set" / "train.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    command = ("produce", "raw", "hf://set?split=train", "--dry-run", "--limit", "1")

    shown = cli(*command)
    assert shown.out.splitlines()[:2] == [
        "hf://set?split=train: features text (string); files of 99 B",
        "  train: 2 rows, 1.5 kB",
    ]
    assert json.loads(cli(*command, "--json").out)["data_sets"] == [
        {
            "name": "hf://set?split=train",
            "features": {"text": "string"},
            "splits": {"train": {"rows": 2, "bytes": 1500}},
            "download_bytes": 99,
        }
    ]


def test_tokenizers_are_trained_on_what_produce_reads(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the mill grinds the grain, the grain of the mill " * 20)
    code, out, err = cli("train-tokenizer", "a.txt", "--vocabulary-size", "270", "--output", "made/tokenizer.json")
    assert (code, out) == (0, "made/tokenizer.json\n")
    assert "learnt from 1 document\n" in err
    assert json.loads(Path("made/tokenizer.json").read_text())["model"]["type"] == "BPE"
    rows = [{"article": "the mill grinds", "n": number} for number in range(9)]
    Path("a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    read = ("--field", "article", "--where", "n>2", "--limit", "4", "--vocabulary-size", "270")
    assert "learnt from 4 documents\n" in cli("train-tokenizer", "a.jsonl", *read).err


@pytest.mark.slow
def test_tokenizer_says_what_it_is_and_which_engine_takes_it(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the mill grinds the grain, the grain of the mill " * 20)
    assert cli("train-tokenizer", "a.txt", "--vocabulary-size", "270").code == 0
    code, out, _ = cli("tokenizer", "tokenizer.json", "--text", "a.txt", "--search", "1")
    assert code == 0
    assert out.startswith("tokenizer.json: BPE, 270 ids, blocks of uint16\n")
    assert "special tokens, text where they stand in a text: <|endoftext|> 0\n" in out
    assert "engine: gigatoken\n" in out
    assert re.search(r"^differences between engines: 0 in [\d,]+ texts?$", out, re.MULTILINE)
    found = json.loads(cli("tokenizer", ".", "--engine", "tokenizers", "--search", "0", "--json").out)
    assert found["engine"] == "tokenizers"
    assert set(found["speeds"]) == {"gigatoken", "tokenizers"}
    assert cli("tokenizer", "bytes", "--json").code == 0
    assert cli("tokenizer", "nowhere.json").code == 2


def test_broker_status_finds_a_running_broker(cli: Cli, broker: Broker, tmp_path: Path) -> None:
    assert cli("broker", "status", "--directory", str(broker.directory)) == (0, f"{broker.bootstrap_servers}\n", "")
    assert cli("broker", "status", "--directory", str(tmp_path)).code == 3
    assert json.loads(cli("broker", "status", "--json", "--directory", str(tmp_path)).out)["running"] is False
