"""The command line: data and messages apart, exit codes that mean something, every setting a flag."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from confluent_kafka import Consumer, TopicPartition

import tokenmill
from tests.app.commands import invoke
from tests.conftest import TopicFactory
from tokenmill import errors
from tokenmill.app.cli import dead_letters
from tokenmill.app.local.broker import Broker
from tokenmill.app.milling.duplicates.signatures import Near
from tokenmill.app.milling.steps.pipeline import PROFILES, STEPS
from tokenmill.app.settings import SECRETS, Settings
from tokenmill.app.sources.file_sources import CHUNK_ENTRIES
from tokenmill.app.sources.items import Item
from tokenmill.app.sources.reading_order import ShuffleBuffer
from tokenmill.documents import FLUSH_HEADER
from tokenmill.errors import BrokerError, InputError
from tokenmill.store import Store

pytestmark = pytest.mark.usefixtures("nothing_around")


def test_version_is_data() -> None:
    assert invoke("version") == invoke("--version") == (0, f"{tokenmill.__version__}\n", "")


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


def test_config_says_what_is_in_force_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("tokenmill.toml").write_text("sequence_length = 7")
    monkeypatch.setenv("TOKENMILL_WORKERS", "4")
    found = json.loads(invoke("config", "--json", "--group", "mine").out)
    assert found["sequence_length"] == {"value": 7, "from": "file tokenmill.toml"}
    assert found["workers"] == {"value": 4, "from": "variable TOKENMILL_WORKERS"}
    assert found["group"] == {"value": "mine", "from": "flag --group"}
    assert found["store"] == {"value": "store", "from": "default"}
    assert "sequence_length" in invoke("config").out


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("config --sequence-length many", 2, "tokenmill: setting sequence_length = 'many' (flag --sequence-length): "),
        (
            "flush raw-text --bootstrap-servers 127.0.0.1:1",
            BrokerError.exit_code,
            "tokenmill: no broker answers at 127.0.0.1:1; start one with `tokenmill broker start`",
        ),
        ("steps show gophr", InputError.exit_code, "'gophr' is no profile and no step (did you mean gopher?)"),
        ("dedup explain", 2, "give --dedup near"),
        ("dedup counts --to times.csv", InputError.exit_code, "give a name that ends in .parquet"),
    ],
)
def test_what_is_wrong_is_one_line_with_a_code(command: str, code: int, words: str) -> None:
    told = invoke(*command.split())
    assert (told.code, told.out, told.err.count("\n")) == (code, "", 1)
    assert told.err.startswith("tokenmill: ")
    assert words in told.err
    assert not list(Path().iterdir())


def test_misspelt_flags_are_named_with_the_nearest() -> None:
    code, out, err = invoke("config", "--sequence-lenght", "7")
    assert (code, out) == (2, "")
    assert "--sequence-lenght" in err
    assert "(Possible options: --sequence-length)" in err


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_passwords_are_no_flags(name: str) -> None:
    """Everyone can read a command line; who tries is told what to do, and no help shows them."""
    flag = f"--{name.replace('_', '-')}"
    code, out, err = invoke("config", flag, "gr1st")
    assert (code, out) == (2, "")
    assert f"{name} is no flag" in err
    assert f"set TOKENMILL_{name.upper()}" in err
    assert "gr1st" not in err
    assert not re.search(rf"{flag}\s", invoke("config", "--help-all").out)


def test_config_hides_passwords_and_says_where_they_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("tokenmill.toml").write_text(
        'security_protocol = "SASL_SSL"\nsasl_mechanism = "PLAIN"\nsasl_username = "miller"\n'
    )
    monkeypatch.setenv("TOKENMILL_SASL_PASSWORD", "gr1st")
    table, found = invoke("config").out, invoke("config", "--json").out
    assert "gr1st" not in table + found
    assert re.search(r"sasl_password +variable TOKENMILL_SASL_PASSWORD +\*+", table)
    assert json.loads(found)["sasl_password"] == {"value": "*" * 10, "from": "variable TOKENMILL_SASL_PASSWORD"}
    assert json.loads(found)["sasl_username"] == {"value": "miller", "from": "file tokenmill.toml"}


ERRORS = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.TokenMillError)]


@pytest.mark.cases(12)
@pytest.mark.slow
@pytest.mark.parametrize("error", ERRORS)
def test_a_command_ends_with_the_code_of_its_error(
    error: type[errors.TokenMillError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error("what is wrong", "what to do") if error is errors.RecordError else error("what is wrong")

    monkeypatch.setattr(Store, "adopt", fails)
    ended = invoke("adopt")
    assert (ended.code, ended.out) == (error.exit_code, "")
    assert re.fullmatch(r"tokenmill: what is wrong(: what to do)?\n", ended.err)


def test_missing_topic_exits_with_4_and_missing_file_or_document_with_12(broker: Broker, topic: TopicFactory) -> None:
    address = ("--bootstrap-servers", broker.bootstrap_servers)
    assert invoke("flush", "no-such-topic", *address).code == 4
    assert invoke("produce", "no-such-topic", "no-such-file", *address).code == 12
    Path("empty").mkdir()  # a mistake more often than a wish
    assert invoke("produce", topic(), "empty", *address).code == 12


def test_topics_are_created_and_checked(broker: Broker, topic: TopicFactory) -> None:
    name = f"{topic()}-raw"
    settings = ("--bootstrap-servers", broker.bootstrap_servers, "--raw-topics", name, "--splits", "train=1000")
    before = invoke("topics", "check", "--json", *settings)
    assert before.code == 4
    assert {problem["topic"] for problem in json.loads(before.out)} > {name}
    created = invoke("topics", "create", "--json", "--partitions", "2", *settings)
    names = (name, f"{name}.dead-letters", f"{name}.produced", f"tokens.{name}.train", f"control.{name}.train")
    assert json.loads(created.out) == list(names)
    assert invoke("topics", "check", *settings)[:2] == (0, "")


def test_produce_says_what_went_where(broker: Broker, topic: TopicFactory) -> None:
    raw = topic(2)
    Path("a.jsonl").write_text('{"id": 1, "text": "one"}\n{"id": 2, "text": 2}\n{"id": 3, "text": "three"}\n')
    command = ("produce", raw, "a.jsonl", "--bootstrap-servers", broker.bootstrap_servers)
    code, out, err = invoke(*command)
    assert (code, out.count("\n")) == (0, 1)
    assert out.startswith(f"2 documents, 50 B to {raw} in ")
    assert out.endswith("by partition 0: 1 (26 B), 1: 1 (24 B)\n")  # the first round begins at 1
    assert "tokenmill: a.jsonl:2: wrong_type" in err
    again = invoke(*command)
    assert again.code == 0
    assert f"2 documents of this run were in {raw} already; to send all again on purpose: --restart" in again.err
    found = json.loads(invoke(*command, "--json", "--rate", "100MB/s", "--limit", "1", "--restart").out)
    assert found["partitions"] == [
        {"partition": 0, "documents": 0, "bytes": 0},
        {"partition": 1, "documents": 1, "bytes": 24},
    ]
    assert invoke(*command, "--rate", "fast").code == 2


def test_produce_sends_what_it_can_of_files_that_are_broken(broker: Broker, topic: TopicFactory) -> None:
    raw = topic()
    Path("in").mkdir()
    Path("in/a.jsonl").write_text('{"id": 1, "text": "one"}\n')
    Path("in/b.jsonl.gz").write_bytes(gzip.compress(b'{"id": 2, "text": "two"}\n' * 9)[:-9])
    Path("in/c.csv").write_text("name,story\n1,2\n")
    done = invoke("produce", raw, "in", "--flush", "--json", "--bootstrap-servers", broker.bootstrap_servers)
    assert done.code == 12
    assert json.loads(done.out) | {"seconds": 0} == {
        "topic": raw, "documents": 10, "bytes": 240, "seconds": 0, "before": 0, "refused": 2, "broken": 2, "unmet": 0,
        "without_field": 0, "partitions": [{"partition": 0, "documents": 10, "bytes": 240}],
    }  # fmt: skip
    assert "in/b.jsonl.gz: cannot be read to its end" in done.err
    assert "in/c.csv:1: no column 'text' or 'content'; there are: 'name', 'story'" in done.err
    assert "2 files could not be read to the end" in done.err
    reader = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": raw})
    reader.assign([TopicPartition(raw, 0, 0)])
    records = reader.consume(11, 20)
    reader.close()
    assert records[-1].headers() == [FLUSH_HEADER]


def test_a_broken_file_is_not_forgotten_by_the_calls_that_follow(broker: Broker, topic: TopicFactory) -> None:
    raw = topic()
    Path("in").mkdir()
    Path("in/a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "two"}\n' * 9 + b"[]\n")[:-9])
    rows = 3 * CHUNK_ENTRIES
    Path("in/b.jsonl").write_text('{"text": 1}\n' + f'{{"text": "{"one " * 20}"}}\n' * rows)
    command = ("produce", raw, "in", "--bootstrap-servers", broker.bootstrap_servers)
    # Slow enough that the first chunks are acknowledged when later marks are written.
    first = invoke(*command, "--rate", "2MB", "--limit", str(rows - 1))
    assert (first.code, "a.jsonl.gz: cannot be read to its end" in first.err) == (12, True)
    second = invoke(*command, "--json")
    assert second.code == 12
    found = json.loads(second.out)
    assert (found["before"] + found["documents"], found["refused"], found["broken"]) == (rows + 9, 3, 1)
    assert "a.jsonl.gz" not in second.err
    assert "passed over 3 in all" in second.err
    assert "1 file could not be read to the end; see what earlier calls of this run said" in second.err


def test_a_dry_run_needs_no_broker() -> None:
    Path("a.jsonl").write_text('{"uid": 1, "body": "one", "lang": "de"}\n{"uid": 2, "lang": "en"}\n')
    options = ("--field", "body", "--id-field", "uid", "--metadata-fields", "lang")
    command = ("produce", "raw", "a.jsonl", *options, "--dry-run")
    shown = invoke(*command)
    sample = '{"id":1,"text":"one","lang":"de"}'
    assert (shown.code, shown.out) == (0, f"{sample}\n1 document, 33 B would be sent to raw; nothing was\n")
    assert "a.jsonl:2: missing_text" in shown.err
    assert json.loads(invoke(*command, "--json").out)["samples"] == [sample]
    assert invoke(*command, "--where", "lang=fr").code == 12


def test_a_dry_run_shows_what_the_run_does() -> None:
    Path("a.jsonl").write_text("".join(f'{{"text": "{number}"}}\n' for number in range(30)))
    command = ("produce", "raw", "a.jsonl", "--dry-run", "--json")

    def texts(*options: str) -> list[str]:
        return [json.loads(sample)["text"] for sample in json.loads(invoke(*command, *options).out)["samples"]]

    shuffle = ShuffleBuffer(8, 3)
    items = [(Item(b"", ""), ("", number)) for number in range(30)]
    order = [str(number) for _, (_, number) in [*shuffle.released(items), *shuffle.rest()]]
    assert texts("--shuffle-buffer", "8", "--seed", "3", "--limit", "5") == order[:5] != texts("--limit", "5")
    assert texts() == ["0", "1", "2"]
    assert "5 documents" in invoke(*command[:-1], "--limit", "5").out


def test_a_dry_run_ends_where_the_run_does() -> None:
    Path("a.jsonl").write_text('{"text": "one"}\n{}\n')
    Path("b.jsonl").write_text("{}\n" * 1000 + '{"text": "one"}\n')
    Path("c.parquet").write_text("none")
    for options, code, words in (
        (("a.jsonl",), 0, "a.jsonl:2: missing_text"),
        (("a.jsonl", "--on-error", "fail"), 12, "say which is the text: --field. A run ends there"),
        (("b.jsonl",), 12, "the first 1,000 rows were all refused"),
        (("b.jsonl", "--on-error", "dead-letter"), 0, "passed over 1,000 in all"),
        (("a.jsonl", "c.parquet"), 12, "1 file could not be read to the end; see above"),
        (("c.parquet",), 12, "there are no documents in c.parquet"),
    ):
        shown = invoke("produce", "raw", *options, "--dry-run")
        assert (shown.code, words in shown.err) == (code, True), shown.err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("produce raw a.jsonl --dry-run --split train=80", "--splits train=80"),
        ("produce raw a.jsonl --dry-run --split train", "no path is one"),
        ("produce raw a.jsonl --dry-run --map json:dumps --map-batch 1 --map-processes 1", "a list of one row"),
        ("produce raw a.jsonl --map-batch 8", "--map-batch does nothing without --map: give both"),
        ("try a.jsonl --map-processes 2", "--map-processes does nothing without --map: give both"),
        ("produce raw a.jsonl --seed 3", "--seed does nothing without --shuffle-buffer: give both"),
        ("pack a.jsonl --reference", "--reference does nothing without --verify: give both"),
        ("pack a.jsonl --sample-seed 0", "--sample-seed does nothing without --verify: give both"),
    ],
)
def test_options_that_would_be_ignored_are_refused(command: str, words: str) -> None:
    Path("a.jsonl").write_text('{"text": "one"}\n')
    refused = invoke(*command.split())
    assert (refused.code, words in refused.err) == (12, True), refused.err


def test_a_dry_run_tells_what_conditions_leave_out() -> None:
    Path("a.csv").write_text("text;score\none;0.5\ntwo;0.25\nthree;none\n")
    command = ("produce", "raw", "a.csv", "--delimiter", ";", "--dry-run", "--where")
    shown = invoke(*command, "score >= 0.5")
    assert "--where left out 2 documents\n" in shown.err
    assert shown.out.splitlines()[-1].startswith("1 document, ")
    shown = invoke(*command, "scores >= 0.5", "--json")
    assert shown.code == 12
    assert "--where left out 3 documents, 3 of them without its field\n" in shown.err
    assert invoke(*command, "score => 0.5").code == 12


def test_a_dry_run_shows_what_is_known_of_a_data_set() -> None:
    card = ("dataset_info", "  features", "  - name: text", "    dtype: string", "  splits", "  - name: train")
    numbers = ("    num_bytes: 1500", "    num_examples: 2", "  download_size: 99")
    lines = [line if ":" in line else f"{line}:" for line in (*card, *numbers)]
    Path("set").mkdir()
    Path("set/README.md").write_text("\n".join(["---", *lines, "---", ""]))
    Path("set/train.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    command = ("produce", "raw", "hf://set?split=train", "--dry-run", "--limit", "1")

    shown = invoke(*command)
    assert shown.out.splitlines()[:2] == [
        "hf://set?split=train: features text (string); files of 99 B",
        "  train: 2 rows, 1.5 kB",
    ]
    (known,) = json.loads(invoke(*command, "--json").out)["data_sets"]
    assert known == {
        "name": "hf://set?split=train", "features": {"text": "string"}, "download_bytes": 99,
        "splits": {"train": {"rows": 2, "bytes": 1500}},
    }  # fmt: skip


def test_tokenizers_are_trained_on_what_produce_reads() -> None:
    Path("a.txt").write_text("the mill grinds the grain, the grain of the mill " * 20)
    code, out, err = invoke("train-tokenizer", "a.txt", "--vocabulary-size", "270", "--output", "made/tokenizer.json")
    assert (code, out) == (0, "made/tokenizer.json\n")
    assert "learnt from 1 document\n" in err
    assert json.loads(Path("made/tokenizer.json").read_text())["model"]["type"] == "BPE"
    rows = [{"article": "the mill grinds", "n": number} for number in range(9)]
    Path("a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    read = ("--field", "article", "--where", "n>2", "--limit", "4", "--vocabulary-size", "270")
    assert "learnt from 4 documents\n" in invoke("train-tokenizer", "a.jsonl", *read).err


@pytest.mark.slow
def test_tokenizer_says_what_it_is_and_which_engine_takes_it() -> None:
    Path("a.txt").write_text("the mill grinds the grain, the grain of the mill " * 20)
    assert invoke("train-tokenizer", "a.txt", "--vocabulary-size", "270").code == 0
    code, out, _ = invoke("tokenizer", "tokenizer.json", "--text", "a.txt", "--search", "1")
    assert code == 0
    assert out.startswith("tokenizer.json: BPE, 270 ids, blocks of uint16\n")
    assert "special tokens, text where they stand in a text: <|endoftext|> 0\n" in out
    assert "engine: gigatoken\n" in out
    assert re.search(r"^differences between engines: 0 in [\d,]+ texts?$", out, re.MULTILINE)
    found = json.loads(invoke("tokenizer", ".", "--engine", "tokenizers", "--search", "0", "--json").out)
    assert found["engine"] == "tokenizers"
    assert set(found["speeds"]) == {"gigatoken", "tokenizers"}
    assert invoke("tokenizer", "bytes", "--json").code == 0
    assert invoke("tokenizer", "nowhere.json").code == 2


def test_broker_status_finds_a_running_broker(broker: Broker) -> None:
    assert invoke("broker", "status", "--directory", str(broker.directory)) == (0, f"{broker.bootstrap_servers}\n", "")
    assert invoke("broker", "status", "--directory", ".").code == 3
    assert json.loads(invoke("broker", "status", "--json", "--directory", ".").out)["running"] is False


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_shown_is_a_settings_file(name: str) -> None:
    shown = tomllib.loads(invoke("steps", "show", name, code=0).out)
    assert Settings(**shown).steps == Settings.model_validate({"steps": name}).steps


def test_all_profiles_and_steps_are_listed_and_shown_with_their_parameters() -> None:
    lines = invoke("steps", "list").out.splitlines()
    found = json.loads(invoke("steps", "list", "--json").out)
    assert [line.split()[0] for line in lines[1:] if not line.startswith(" ")] == [*PROFILES, *STEPS]
    assert (list(found["profiles"]), list(found["steps"])) == (list(PROFILES), list(STEPS))
    assert found["profiles"]["c4"]["steps"] == [{"name": "c4_quality"}]
    assert "# regex_exp =    # must be given; a text\n" in invoke("steps", "show", "regex", code=0).out


def test_what_is_found_of_duplicates_is_said_at_each_similarity() -> None:
    told = invoke("dedup", "explain", "--dedup", '{"name": "near", "window": 1000000, "fold": true}', code=0).out
    assert "0.80   92.4%" in told
    assert "the newest 750,000 to 1,000,000 kept documents" in told
    assert "memory: up to 63.0 MB, disk: up to 136.0 MB" in told
    assert "fold" in told
    values = json.loads(invoke("dedup", "explain", "--dedup", "near", "--json", code=0).out)
    assert values["chances"][0] == {"similarity": 0.5, "chance": Near().chance(0.5)}
    assert "exact" in invoke("dedup", "explain", "--dedup", "exact", code=0).out


def test_a_document_that_never_came_again_may_be_a_duplicate_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "copies_of", AsyncMock(return_value=[]))
    told = invoke("rejects", "--of", "web/0/3", code=0).err
    assert "web/0/3 came again 0 times; `tokenmill inspect message web 0 3` says whether it was kept" in told
