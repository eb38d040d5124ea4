"""Dashboards and alerts ask for what there is, and get it; systemd starts again what a new start can help."""

import json
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

import promql_parser
import pytest
import yaml

from docs.generators.metrics_page import Described, described
from tests.conftest import TopicFactory
from tests.faults.alerting import Loops, producing, training
from tests.faults.feeding import Feeder
from tests.faults.serving import Serving
from tests.scraping import ask, free_port
from tests.service import Mirroring, Raw, send, service_settings
from tests.stack.prometheus import MAY_BE_EMPTY, PROGRAM, Panel, dashboard_queries, running
from tokenmill import errors
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.consumers import Batches, Mixture
from tokenmill.consumers.prometheus import described as of_trainers
from tokenmill.errors import TokenMillError

DEPLOY: Final = Path(__file__).parents[1] / "deploy"
DASHBOARDS: Final[dict[str, dict[str, Any]]] = {
    file.stem: json.loads(file.read_text())
    for file in sorted((DEPLOY / "helm/tokenmill/files/dashboards").glob("*.json"))
}
DASHBOARD: Final = DASHBOARDS["tokenmill"]
RULES: Final = (DEPLOY / "helm/tokenmill/files/alerts.yml").read_text()
BY_PROMETHEUS: Final = {"job", "instance", "service", "le"}
"""Labels that Prometheus adds (deploy/prometheus.yml), and that of buckets."""
CONFIGURATIONS: Final = {
    name: yaml.safe_load((DEPLOY / name).read_text()) for name in ("prometheus.yml", "prometheus-serve.yml")
}
TRAINER_PORT: Final = 9465
NAME: Final = re.compile(r"\b(?:tokenmill|process)_[a-z_]+\b")
SELECTOR: Final = re.compile(r"\b((?:tokenmill|process)_[a-z_]+)\{([^}]*)\}")
GROUPED: Final = re.compile(r"\b(?:by|on) \(([^)]*)\)")
ANALYZE: Final = shutil.which("systemd-analyze")
UNITS: Final = sorted((DEPLOY / "systemd").glob("*.service"))
PASSING: Final = (
    *(errors.BrokerError, errors.DiskError, errors.LockedError),
    *(errors.ClockError, errors.RegistryError, errors.BucketError),
)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_again_what_a_new_start_can_help(unit: Path) -> None:
    """And nothing that needs a person: a wrong setting would be tried every five seconds."""
    (codes,) = re.findall(r"^RestartPreventExitStatus=(.*)$", unit.read_text(), re.MULTILINE)
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TokenMillError)]
    hopeless = {kind.exit_code for kind in kinds} - {kind.exit_code for kind in (*PASSING, TokenMillError)}
    assert {int(code) for code in codes.split()} == hopeless


@pytest.mark.skipif(ANALYZE is None, reason="no systemd here")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_finds_nothing_wrong_with_a_unit(unit: Path, tmp_path: Path) -> None:
    """With our command in the place of the installed one, and a user that there is; the command knows its options."""
    (command,) = re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)
    ours = shutil.which("tokenmill", path=Path(sys.executable).parent)
    mine = tmp_path / unit.name
    mine.write_text(unit.read_text().replace(command.split()[0], str(ours)).replace("User=tokenmill", "User=root"))

    said = subprocess.run([str(ANALYZE), "verify", mine], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr) == (0, "")
    subprocess.run([str(ours), *command.split()[1:2], "--help"], capture_output=True, check=True)
    assert {"--config"} == set(re.findall(r" (--\S+)", command))


def panels(*names: str) -> list[dict[str, Any]]:
    of = [DASHBOARDS[name] for name in names or DASHBOARDS]
    return [panel for dashboard in of for panel in dashboard["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    asked = [target["expr"].replace("$__range", "1h") for panel in panels() for target in panel["targets"]]
    return [*asked, *(rule["expr"] for group in yaml.safe_load(RULES)["groups"] for rule in group["rules"])]


def by_sample_name() -> dict[str, Described]:
    trainers = []
    for family in of_trainers():
        labels = ["stream", "rank", *(["part"] if "_mixture_" in family.name else [])]
        trainers.append(Described(family.name, family.type, labels, family.documentation))
    return {name: metric for metric in [*described(), *trainers] for name in metric.sample_names}


@pytest.mark.parametrize("expression", expressions())
def test_an_expression_is_promql_and_asks_for_metrics_and_labels_that_there_are(expression: str) -> None:
    assert promql_parser.parse(expression) is not None  # Grafana's variables stand for themselves in strings
    known = by_sample_name()
    names = set(NAME.findall(expression))
    assert names <= known.keys()
    assert names or re.search(r"\bup\{", expression)
    for name, selector in SELECTOR.findall(expression):
        labels = set(re.findall(r"(\w+)[=!]", selector))
        assert labels
        assert labels <= {*known[name].labels, *BY_PROMETHEUS}
    allowed = {label for name in names for label in known[name].labels} | BY_PROMETHEUS
    for group in GROUPED.findall(expression):
        assert {label.strip() for label in group.split(",")} <= allowed


def test_rules_are_found() -> None:
    assert len(expressions()) == sum(len(panel["targets"]) for panel in panels()) + RULES.count("- alert:")
    assert RULES.count("- alert:") > 5


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_is_whole(name: str) -> None:
    everything = DASHBOARDS[name]["panels"]
    assert all(len({panel[key] for panel in everything}) == len(everything) for key in ("id", "title"))
    cells = [
        (place["x"] + x, place["y"] + y)
        for place in (panel["gridPos"] for panel in everything)
        for x, y in product(range(place["w"]), range(place["h"]))
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    (uid,) = {target["datasource"]["uid"] for panel in panels(name) for target in panel["targets"]}
    assert f"uid: {uid} " in (DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text()


def test_dashboards_lead_to_each_other() -> None:
    assert DASHBOARDS.keys() == {"tokenmill", "data", "training"}
    assert len({dashboard["uid"] for dashboard in DASHBOARDS.values()}) == len(DASHBOARDS)
    for dashboard in DASHBOARDS.values():
        assert dashboard["tags"] == [tag for link in dashboard["links"] for tag in link["tags"]] == ["tokenmill"]


@pytest.mark.parametrize("panel", panels("training"), ids=lambda panel: str(panel["title"]))
def test_each_panel_on_training_asks_for_the_chosen_streams_and_instances(panel: dict[str, Any]) -> None:
    """A mixture has a name of its own, which begins with no topic."""
    for target in panel["targets"]:
        for name, selector in SELECTOR.findall(target["expr"]):
            assert 'instance=~"$instance"' in selector
            assert ('stream=~"$stream"' in selector) == name.startswith("tokenmill_trainer_")


@pytest.mark.parametrize("panel", panels("tokenmill", "data"), ids=lambda panel: str(panel["title"]))
def test_each_panel_asks_for_the_chosen_topics_and_instances(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        for name, selector in re.findall(r"\b((?:tokenmill|process)_[a-z_]+|up)\b(?:\{([^}]*)\})?", target["expr"]):
            labels = by_sample_name()[name].labels if name != "up" else ()
            assert 'instance=~"$instance"' in selector
            assert ("topic" in labels) == bool(re.search(r'\btopic=~"[^"]*\$topic', selector))
            if "stream" in labels:
                assert 'stream=~"($topic)[.].*"' in selector


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_variables_are_filled_from_metrics_that_there_are(name: str) -> None:
    variables = {variable["name"]: variable for variable in DASHBOARDS[name]["templating"]["list"]}
    assert list(variables) == ["stream" if name == "training" else "topic", "instance"]
    asked = set(re.findall(r"\$(\w+)", json.dumps(DASHBOARDS[name])))
    assert {variable for variable in asked if not variable.startswith("__")} == variables.keys()
    for variable in variables.values():
        assert (variable["multi"], variable["includeAll"], variable["allValue"]) == (True, True, ".*")
        names = set(NAME.findall(variable["definition"]))
        assert names
        assert names <= by_sample_name().keys()
    assert "topic" in by_sample_name()["tokenmill_records_consumed_total"].labels


def test_lag_in_seconds_is_the_first_on_the_wall() -> None:
    first = [panel["title"] for panel in panels("tokenmill")[:3]]
    assert first == ["Oldest record not yet milled", "Trend of the lag", "Time to catch up"]
    assert panels("tokenmill")[0]["fieldConfig"]["defaults"]["unit"] == "s"


def test_the_dashboard_shows_each_part_of_the_way() -> None:
    rows: dict[str, int] = {}
    for panel in DASHBOARD["panels"]:
        if panel["type"] == "row":
            rows[panel["title"]] = 0
        else:
            rows[list(rows)[-1]] += 1
    assert {"Lag", "Partitions", "Producers", "Curation", "Eras", "Mirrors", "Trainers", "Errors"} <= rows.keys()
    assert all(rows.values())


def test_prometheus_asks_the_default_ports() -> None:
    fields, compose = Settings.model_fields, yaml.safe_load((DEPLOY.parent / "docker-compose.yml").read_text())
    mills, trainers, producers = CONFIGURATIONS["prometheus.yml"]["scrape_configs"]
    assert mills["dns_sd_configs"][0]["port"] == fields["metrics_port"].default
    assert set(mills["dns_sd_configs"][0]["names"]) == {"mill", "segments", "sequencer"}
    (host,) = CONFIGURATIONS["prometheus-serve.yml"]["scrape_configs"][0]["static_configs"]
    assert host["targets"] == [f"{fields['metrics_host'].default}:{fields['metrics_port'].default}"]
    (asked,) = trainers["dns_sd_configs"]
    assert (asked["names"], asked["port"]) == (["trainer"], TRAINER_PORT)
    command = compose["services"]["trainer"]["command"]
    assert {"--metrics-host=0.0.0.0", f"--metrics-port={TRAINER_PORT}"} <= set(command)
    (asked,) = producers["dns_sd_configs"]
    assert asked["names"] == ["demo"]
    assert f"--metrics-port {asked['port']}" in compose["services"]["demo"]["command"][0]
    assert f"serve_metrics({TRAINER_PORT})" in (DEPLOY.parent / "docs/trainer_metrics.md").read_text()


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_each_configuration_has_the_alerts_and_takes_more_targets(name: str) -> None:
    """Of services and of trainers, from files that the compose stack sees as well."""
    configuration = CONFIGURATIONS[name]
    assert [Path(file).name for file in configuration["rule_files"]] == ["alerts.yml"]
    jobs = {job["job_name"]: job for job in configuration["scrape_configs"]}
    assert list(jobs) == ["tokenmill", "tokenmill-trainers", "tokenmill-producers"]
    files = [path for job in jobs.values() for found in job["file_sd_configs"] for path in found["files"]]
    assert files == ["targets/services*.yml", "targets/trainers*.yml", "targets/producers*.yml"]
    page = (DEPLOY / "targets/README.md").read_text()
    assert [f"`{path.removeprefix('targets/').replace('*', '')}`" in page for path in files] == [True] * 3
    for example in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL):
        assert all(group["targets"] for group in yaml.safe_load(example))
    volumes = yaml.safe_load((DEPLOY.parent / "docker-compose.yml").read_text())["services"]["prometheus"]["volumes"]
    assert "./deploy/targets:/etc/prometheus/targets:ro" in volumes


SECONDS: Final = 120.0
STEPS: Final = ({"name": "regex", "regex_exp": "a fox"}, {"name": "length", "max_words": 60})
PACKING: Final = {"name": "rows", "long": "truncate", "short": "pad"}


def document(rng: random.Random) -> bytes:
    words = " ".join(rng.choice(("one", "two", "three", "a fox", "four")) for _ in range(rng.randrange(2, 75)))
    return b"\xff\xfe\x00" if rng.random() < 0.1 else words.encode()


def scraped(directory: Path, targets: Mapping[str, Mapping[str, int]]) -> Path:
    jobs = []
    for job, of in targets.items():
        static = [{"targets": [f"127.0.0.1:{port}"], "labels": {"service": name}} for name, port in of.items()]
        jobs.append({"job_name": job, "static_configs": static})
    page = {"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}
    (directory / "prometheus.yml").write_text(yaml.safe_dump(page))
    return directory


def ranks(settings: Settings, stop: Callable[[], bool]) -> Loops:
    streams = [stream.name for stream in settings.streams()]

    def opened(stream: str) -> Batches:
        return Batches(settings.store, stream, batch_size=1, seed=1, stop=stop)

    mixture = Mixture({name: opened(name) for name in streams}, {streams[0]: 3, streams[1]: 1})
    return {"plain": opened(streams[0]), "mixed": mixture}


@pytest.mark.needs("minutes")
@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="needs prometheus (Debian: apt install prometheus)")
def test_every_query_of_every_dashboard_has_data(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    began = time.time()
    splits = {"train": 700, "validation": 300}
    settings = service_settings(broker, topic(2), tmp_path, splits=splits, steps=STEPS, packing=PACKING)
    mirror_port = free_port()
    with ExitStack() as stack:
        service = stack.enter_context(Serving(settings, tmp_path))
        stack.enter_context(Feeder(settings, random.Random(1), burst=30, make=document))
        service.wait_until(lambda: all((settings.store / s.name / "eras.jsonl").exists() for s in settings.streams()))
        stack.enter_context(Mirroring(settings, tmp_path / "mirror", port=mirror_port))
        trainers = stack.enter_context(training(partial(ranks, settings), lambda: 0.05))
        sender = stack.enter_context(producing(settings, tmp_path, ["four one two three\n"] * 100_000, 20_000))
        mills = {"mill": service.port, "mirror": mirror_port}
        targets = {"tokenmill": mills, "tokenmill-trainers": trainers, "tokenmill-producers": {"sender": sender}}
        server = stack.enter_context(running(scraped(tmp_path, targets)))
        service.wait_until(lambda: ask(mirror_port, "/metrics").code == 200)
        left: list[Panel] = [panel for panel in dashboard_queries() if panel.title not in MAY_BE_EMPTY]
        while left and time.time() - began < SECONDS:
            send(settings, [Raw(None, 0, key=b"gone")])
            time.sleep(1)
            left = [panel for panel in left if not server.points(panel.expression, began)]
    assert left == []
