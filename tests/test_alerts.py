"""Each alert fires on the samples that its fault gives, no other does, and none of them on good ones.

Prometheus' own `promtool` evaluates the rules, on samples that are written as its unit tests have them.
"""

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import typer.main
import yaml

from docs.generators.metrics_page import described
from tests.test_deploy import by_sample_name
from tokenmill.app.cli import create_cli
from tokenmill.app.settings import Settings

STEP_SECONDS: Final = 15
RULES: Final = Path(__file__).parents[1] / "deploy" / "helm/tokenmill/files/alerts.yml"
ALERTS: Final[list[dict[str, Any]]] = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
RUNBOOK: Final = Path(__file__).parents[1] / "docs" / "runbook.md"
RELIABILITY: Final = RUNBOOK.with_name("reliability.md")
LENGTH: Final = 120
"""Samples of each series: half an hour."""
PROMTOOL: Final = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="needs promtool (Debian: apt install prometheus)")
PLACE: Final = 'instance="a"'
MILL: Final = f'{PLACE},worker="mill-1"'
STORE: Final = f'{PLACE},worker="segment"'
RAW: Final = f'{MILL},topic="raw-text",partition="0"'
TOKENS: Final = f'{STORE},topic="tokens.raw-text.train",partition="0"'
SIGNATURES: Final = f'{PLACE},worker="sequencer",topic="signatures.raw-text"'
STEP: Final = f'tokenmill_step_documents_total{{{MILL},topic="raw-text",split="train",step="gopher_quality"'
REASON: Final = f'tokenmill_documents_filtered_total{{{MILL},topic="raw-text",split="train",reason='
KEPT: Final = f'{MILL},topic="raw-text",split="train"'
MIRROR: Final = 'instance="b",worker="mirror",stream="raw-text.train"'
TRAINER: Final = 'instance="c",stream="raw-text.train",rank="0"'
CERTIFICATE: Final = f'{MILL},setting="ssl_certfile"'
COMMITS: Final = f"tokenmill_commit_duration_seconds_bucket{{{STORE},le="
GOOD: Final[dict[str, str]] = {}


def good(series: str, samples: str) -> str:
    """Add a series of a service that works, of which text comes and all becomes eras; return its name."""
    GOOD[series] = samples
    return series


BROKER_UP: Final = good(f"tokenmill_broker_up{{{MILL}}}", "1x120")
WORKER_UP: Final = good(f"tokenmill_worker_up{{{MILL}}}", "1x120")
MILLING: Final = good(f'tokenmill_partitions{{{MILL},topic="raw-text",state="running"}}', "2x120")
STORING: Final = good(f'tokenmill_partitions{{{STORE},topic="tokens.raw-text.train",state="running"}}', "2x120")
RAW_RECORDS: Final = good(f"tokenmill_consumer_lag_records{{{RAW}}}", "3x120")
RAW_SECONDS: Final = good(f"tokenmill_consumer_lag_seconds{{{RAW}}}", "1x120")
TOKENS_RECORDS: Final = good(f"tokenmill_consumer_lag_records{{{TOKENS}}}", "0x120")
TOKENS_SECONDS: Final = good(f"tokenmill_consumer_lag_seconds{{{TOKENS}}}", "0x120")
DURABLE: Final = good(f"tokenmill_durable_lag_seconds{{{RAW}}}", "60x120")
CONSUMED: Final = good(f'tokenmill_records_consumed_total{{{MILL},topic="raw-text"}}', "0+100x120")
DEAD_LETTERS: Final = good(f'tokenmill_dead_letters_total{{{MILL},topic="raw-text",reason="invalid_utf8"}}', "0x119 1")
BLOCKS: Final = good(f'tokenmill_blocks_total{{{STORE},stream="raw-text.train",sink="segment"}}', "0+5x120")
ERAS: Final = good(f'tokenmill_store_eras{{{STORE},stream="raw-text.train"}}', "0+1x120")
DISK_FREE: Final = good(f'tokenmill_disk_free_bytes{{{STORE},sink="segment"}}', "500000000000x120")
RAW_END: Final = good(f"tokenmill_end_offset{{{RAW}}}", "0+100x120")
TOKENS_END: Final = good(f"tokenmill_end_offset{{{TOKENS}}}", "0+1x120")
DOCUMENTS: Final = good(f"tokenmill_documents_total{{{KEPT}}}", "0+90x120")
PRODUCED: Final = good(f"tokenmill_tokens_produced_total{{{KEPT}}}", "0+45000x120")
MIRROR_ERAS_BEHIND: Final = good(f"tokenmill_mirror_eras_behind{{{MIRROR}}}", "1x120")
MIRROR_BLOCKS_BEHIND: Final = good(f"tokenmill_mirror_blocks_behind{{{MIRROR}}}", "5x120")
MIRROR_ERAS: Final = good(f"tokenmill_store_eras{{{MIRROR}}}", "0+1x120")
WAITED: Final = good(f"tokenmill_trainer_wait_seconds_total{{{TRAINER}}}", "0+1x120")
WORKED: Final = good(f"tokenmill_trainer_work_seconds_total{{{TRAINER}}}", "0+14x120")
SUPERVISOR_BROKER_UP: Final = good(f'tokenmill_broker_up{{{PLACE},worker="supervisor"}}', "1x120")
UP: Final = good(f'up{{job="tokenmill",{PLACE},service="serve"}}', "1x120")
PASSED: Final = good(f'{STEP},result="passed"}}', "0+90x120")
FILTERED: Final = good(f'{STEP},result="filtered"}}', "0+10x120")
TOO_SHORT: Final = good(f'{REASON}"too_short"}}', "0+6x120")
FEW_LETTERS: Final = good(f'{REASON}"few_letters"}}', "0+4x120")
MILL_START: Final = good(f"process_start_time_seconds{{{MILL}}}", "1000x120")
CERTIFICATE_END: Final = f"tokenmill_certificate_end_timestamp_seconds{{{CERTIFICATE}}}"
good(f'tokenmill_partitions{{{SIGNATURES},state="running"}}', "1x120")
good(f'tokenmill_end_offset{{{SIGNATURES},partition="0"}}', "0+1x120")
good(f'{COMMITS}"0.064"}}', "0+10x120")
good(f'{COMMITS}"4.096"}}', "0+10x120")
good(f'{COMMITS}"+Inf"}}', "0+10x120")


class Fault(NamedTuple):
    alert: str
    samples: Mapping[str, str]


FAULTS: Final = {
    "a process does not answer": Fault("TokenMillWorkerDown", {UP: "0x120"}),
    "a mirror does not answer": Fault(
        "TokenMillWorkerDown",
        {
            'up{job="tokenmill",instance="b",service="mirror"}': "0x120",
            MIRROR_ERAS_BEHIND: "1x8 _x112",
            MIRROR_BLOCKS_BEHIND: "5x8 _x112",
        },
    ),
    "no broker answers": Fault(
        "TokenMillNoBroker",
        {
            BROKER_UP: "1x8 0x111",
            SUPERVISOR_BROKER_UP: "1x8 0x111",
            WORKER_UP: "1x8 0x111",  # it runs, and nobody can say more of it
            DURABLE: "60x8 _x112",
            RAW_RECORDS: "3x8 _x112",
            RAW_SECONDS: "1x8 _x112",
            RAW_END: "0+100x8 _x112",
            TOKENS_END: "0+1x8 _x112",
            BLOCKS: "0+5x8 40x111",
            ERAS: "0+1x8 8x111",
        },
    ),
    "no broker answers one process": Fault("TokenMillNoBroker", {BROKER_UP: "0x120"}),
    "no mill": Fault("TokenMillNobodyMills", {MILLING: "_x120"}),
    "no segment worker": Fault("TokenMillNobodyAppends", {STORING: "_x120"}),
    "a worker ended": Fault("TokenMillWorkerEnded", {WORKER_UP: "0x120"}),
    "a partition halted": Fault(
        "TokenMillPartitionHalted", {f'tokenmill_partitions{{{MILL},topic="raw-text",state="halted"}}': "1x120"}
    ),
    "the store's files are damaged": Fault(
        "TokenMillPartitionHalted",
        {
            STORING: "2x20 1x99",
            f'tokenmill_partitions{{{STORE},topic="tokens.raw-text.train",state="halted"}}': "0x20 1x99",
        },
    ),
    "a partition waits": Fault(
        "TokenMillPartitionWaits", {f'tokenmill_partitions{{{MILL},topic="raw-text",state="waiting"}}': "1x120"}
    ),
    "text comes faster than it is taken": Fault(
        "TokenMillFallsBehind", {RAW_RECORDS: "0+50x120", RAW_SECONDS: "400x120"}
    ),
    "tokens come faster than they are stored": Fault(
        "TokenMillFallsBehind", {TOKENS_RECORDS: "0+3x120", TOKENS_SECONDS: "0+5x120"}
    ),
    "text is not durable": Fault("TokenMillNotDurable", {DURABLE: "0+15x120"}),
    "tokens are not stored": Fault("TokenMillNotDurable", {TOKENS_SECONDS: "700x120"}),
    "eras stand still": Fault("TokenMillErasStandStill", {ERAS: "7x120"}),
    "no era ever": Fault("TokenMillErasStandStill", {ERAS: "0x120"}),
    "much is no document": Fault("TokenMillDeadLetters", {DEAD_LETTERS: "0+5x120"}),
    "a filter drops much more": Fault(
        "TokenMillFilterChanged", {PASSED: "0+90x40 3600+10x79", FILTERED: "0+10x40 400+90x79"}
    ),
    "a reason takes another one's place": Fault(
        "TokenMillFilterChanged",
        {
            PASSED: "0+60x120",
            FILTERED: "0+40x120",
            DOCUMENTS: "0+60x120",
            PRODUCED: "0+30000x120",
            TOO_SHORT: "0+38x40 1520+2x79",
            FEW_LETTERS: "0+2x40 80+38x79",
        },
    ),
    "documents become longer": Fault("TokenMillLengthsChanged", {PRODUCED: "0+45000x56 2520000+450000x63"}),
    "documents become shorter": Fault("TokenMillLengthsChanged", {PRODUCED: "0+45000x44 1980000+4500x75"}),
    "a source falls silent": Fault(
        "TokenMillSourceSilent",
        {
            RAW_END: "0+100x16 1600x103",
            CONSUMED: "0+100x16 1600x103",
            DOCUMENTS: "0+90x16 1440x103",
            PRODUCED: "0+45000x16 720000x103",
            PASSED: "0+90x16 1440x103",
            FILTERED: "0+10x16 160x103",
            BLOCKS: "0+5x16 80x103",
            ERAS: "0+1x16 16x103",
        },
    ),
    "a mirror does not keep up": Fault(
        "TokenMillMirrorBehind", {MIRROR_ERAS_BEHIND: "0+1x120", MIRROR_BLOCKS_BEHIND: "0+5x120"}
    ),
    "a mirror gets nothing": Fault("TokenMillMirrorBehind", {MIRROR_ERAS: "0+1x20 20x99"}),
    "a trainer waits": Fault("TokenMillTrainerWaits", {WAITED: "0+12x120", WORKED: "0+3x120"}),
    "a certificate ends in ten days": Fault("TokenMillCertificateEnds", {CERTIFICATE_END: "864000x120"}),
    "commits take long": Fault("TokenMillSlowDisk", {f'{COMMITS}"0.064"}}': "0x120"}),
    "the disk is full": Fault("TokenMillDiskFull", {DISK_FREE: "1000000000x120"}),
    "the disk will be full": Fault("TokenMillDiskFull", {DISK_FREE: "300000000000-1000000000x120"}),
    "a worker ends again and again": Fault("TokenMillRestarts", {MILL_START: "1000+15x120"}),
    "the store's worker ends every two minutes": Fault(
        "TokenMillRestarts",
        {f"process_start_time_seconds{{{STORE}}}": " ".join(f"{1000 + 120 * n}x7" for n in range(16))},
    ),
}
QUIET: Final[Mapping[str, Mapping[str, str]]] = {
    "good": {},
    "a source that fell silent long ago": {
        RAW_END: "100x120",
        TOKENS_END: "7x120",
        DOCUMENTS: "100x120",
        PRODUCED: "50000x120",
        CONSUMED: "100x120",
        BLOCKS: "100x120",
        ERAS: "7x120",
    },
    "an era in a few minutes": {ERAS: " ".join(f"{n}x19" for n in range(6))},
    "a broker that was away for twenty seconds": {BROKER_UP: "1x40 0 1x78"},
    "reasons that change a little": {TOO_SHORT: "0+6x40 240+1x79", FEW_LETTERS: "0+4x40 160+9x79"},
    "few documents, of which each has another reason": {
        CONSUMED: "0+1x120",
        TOO_SHORT: "0+1x60 60x59",
        FEW_LETTERS: "0x60 0+1x59",
    },
    "a source that comes every five minutes": {RAW_END: " ".join(f"{n}00x19" for n in range(6))},
    "documents that become a little longer": {PRODUCED: "0+45000x56 2520000+58000x63"},
    "a few long documents": {DOCUMENTS: "0+1x120", PRODUCED: "0+500x56 28000+5000x63"},
    "a mirror that catches up": {MIRROR_ERAS_BEHIND: "500-2x120", MIRROR_BLOCKS_BEHIND: "100000-500x120"},
    "a trainer that waits for a third of its time": {WAITED: "0+5x120", WORKED: "0+10x120"},
    "a certificate that ends in three weeks": {CERTIFICATE_END: "1814400x120"},
    "a backlog that shrinks": {RAW_RECORDS: "100000-500x120", RAW_SECONDS: "500x120"},
}


def seconds(duration: str) -> int:
    return int(duration[:-1]) * {"s": 1, "m": 60, "h": 3600}[duration[-1]]


class Expected(NamedTuple):
    """What an expression gives at a moment: a 1 with each of these labels, and nothing else."""

    expression: str
    at: str
    labels: Sequence[str]


def fires(at: str, *alerts: str) -> Expected:
    expression = 'count by (alertname) (ALERTS{alertstate="firing"}) > bool 0'
    return Expected(expression, at, [f'{{alertname="{alert}"}}' for alert in alerts])


def evaluate(directory: Path, scenarios: Mapping[str, tuple[Mapping[str, str], Sequence[Expected]]]) -> None:
    tests = [
        {
            "name": name,
            "interval": f"{STEP_SECONDS}s",
            "input_series": [{"series": s, "values": v} for s, v in {**GOOD, **samples}.items()],
            "promql_expr_test": [
                {"expr": expression, "eval_time": at, "exp_samples": [{"labels": one, "value": 1} for one in labels]}
                for expression, at, labels in expected
            ],
        }
        for name, (samples, expected) in scenarios.items()
    ]
    page = {"rule_files": [str(RULES)], "evaluation_interval": f"{STEP_SECONDS}s", "tests": tests}
    (directory / "tests.yml").write_text(yaml.safe_dump(page))
    done = subprocess.run(
        [str(PROMTOOL), "test", "rules", "tests.yml"], cwd=directory, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_a_fault_raises_its_alert_and_no_other(tmp_path: Path) -> None:
    evaluate(tmp_path, {name: (fault.samples, [fires("25m", fault.alert)]) for name, fault in FAULTS.items()})


@needs_promtool
def test_what_is_no_fault_raises_none(tmp_path: Path) -> None:
    never = [fires(f"{minute}m") for minute in range(0, 30, 2)]
    evaluate(tmp_path, {name: (samples, never) for name, samples in QUIET.items()})


def test_the_page_on_reliability_lists_the_faults() -> None:
    rows = re.findall(r"^\| ([^|`]+) \| `(TokenMill\w+)` \| [yn]", RELIABILITY.read_text(), re.MULTILINE)
    assert rows == [(name, fault.alert) for name, fault in FAULTS.items()]
    assert len(rows) >= 30


@needs_promtool
def test_a_dead_broker_is_pending_within_a_minute(tmp_path: Path) -> None:
    """Of the moment from which no broker answers: 6 s until it is known, 5 to a scrape, 15 to an evaluation."""
    alert = "TokenMillNoBroker"
    expression = f'count by (alertname, alertstate) (ALERTS{{alertname="{alert}"}}) > bool 0'
    pending, firing = ([f'{{alertname="{alert}", alertstate="{state}"}}'] for state in ("pending", "firing"))
    expected = [("120s", []), ("150s", pending), ("180s", firing)]  # at 120 s is the last sample that says 1
    looks = [Expected(expression, at, labels) for at, labels in expected]
    evaluate(tmp_path, {"a dead broker": (FAULTS["no broker answers"].samples, looks)})


def test_each_alert_has_a_fault_and_a_section_of_the_runbook_and_names_it() -> None:
    """Each section says what it means, what to look at and what to do; none is of an alert that is gone."""
    alerts = [rule["alert"] for rule in ALERTS]
    assert sorted({fault.alert for fault in FAULTS.values()}) == sorted(alerts)
    assert all(rule["annotations"]["summary"] and rule["labels"]["severity"] for rule in ALERTS)
    _, *sections = re.split(r"^## ", RUNBOOK.read_text(), flags=re.MULTILINE)
    assert [section.splitlines()[0] for section in sections] == alerts
    for section in sections:
        assert re.findall(r"^\*\*(.+?):\*\*", section, re.MULTILINE) == ["Means", "Look at", "Do"], section
    for rule in ALERTS:
        assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"


def test_the_runbook_names_commands_options_and_settings_that_there_are() -> None:
    """Who reads it at night pastes them."""
    page = RUNBOOK.read_text()
    written = [line.split()[1:] for line in re.findall(r"`(tokenmill [^`]+)`", page)]
    assert len(written) > len(ALERTS)
    cli = typer.main.get_command(create_cli())
    for words in written:
        command: Any = cli
        for word in words:
            if not hasattr(command, "commands"):
                break
            assert word in command.commands, words
            command = command.commands[word]
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        assert {word for word in words if word.startswith("--")} <= known, words
    named = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", page))
    assert {name for name in named if not name.startswith("tokenmill_")} <= Settings.model_fields.keys()
    exported = by_sample_name().keys() | {metric.name for metric in described()}
    assert {name for name in named if name.startswith("tokenmill_")} <= exported


def test_the_samples_have_names_and_labels_that_there_are() -> None:
    """A scenario of metrics that nobody exports would prove nothing."""
    known = by_sample_name()
    written = {**GOOD, **{k: v for fault in FAULTS.values() for k, v in fault.samples.items()}}
    for series in written:
        name, labels = series.split("{")[0], set(re.findall(r"(\w+)=", series)) - {"instance", "le"}
        assert name == "up" or labels == set(known[name].labels)
    for values in written.values():
        parts = values.split()
        assert sum(int(part.partition("x")[2] or 0) + (part[0] != "_") for part in parts) >= LENGTH, values
