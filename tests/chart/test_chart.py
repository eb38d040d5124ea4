"""The chart is what Kubernetes takes, refuses values that are none, and runs, scales and is upgraded without loss."""

import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
import yaml

from docs.generators.site import ROOT
from tests.conftest import TopicFactory
from tests.faults.feeding import Feeder
from tests.faults.oracle import judge, read_topic
from tests.marked import until
from tests.scraping import ask, free_port
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings, load_settings

CHART: Final = ROOT / "deploy/helm/tokenmill"
TOOLS: Final = ROOT / ".venv/chart"
SECONDS: Final = 120.0


def helm(*words: object) -> subprocess.CompletedProcess[str]:
    command = [str(TOOLS / "helm"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def render(*values: object) -> list[dict[str, Any]]:
    done = helm("template", "mine", CHART, "--namespace", "data", *values)
    if done.returncode:
        raise AssertionError(done.stderr)
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [found for found in objects if found["kind"] == kind]


class Pods:
    """Containers of a rendered installation, each as a process with its command, environment and settings."""

    def __init__(self, objects: list[dict[str, Any]], directory: Path) -> None:
        self._objects, self._directory = objects, directory
        (settings,) = [found for found in of_kind(objects, "ConfigMap") if "tokenmill.toml" in found["data"]]
        self._config = directory / f"tokenmill-{len(list(directory.glob('*.toml')))}.toml"
        self._config.write_text(settings["data"]["tokenmill.toml"])

    def run(self, kind: str) -> int:
        command, environment, log = self._parts(kind)
        with log.open("wb") as file:
            return subprocess.run(command, env=environment, stdout=file, stderr=file, check=False).returncode

    @contextmanager
    def pod(self, kind: str) -> Iterator["Pod"]:
        command, environment, log = self._parts(kind)
        with log.open("wb") as file:
            process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
        pod = Pod(process, int(environment["TOKENMILL_METRICS_PORT"]), log)
        try:
            yield pod
        finally:
            pod.end()

    def _parts(self, kind: str) -> tuple[list[str], dict[str, str], Path]:
        (workload,) = of_kind(self._objects, kind)
        container = workload["spec"]["template"]["spec"]["containers"][0]
        environment = {variable["name"]: variable["value"] for variable in container["env"] if "value" in variable}
        elsewhere = {
            "TOKENMILL_CONFIG": str(self._config),
            "TOKENMILL_METRICS_PORT": str(free_port()),
            "TOKENMILL_STORE": str(self._directory / "store"),
        }
        log = self._directory / f"{kind}-{len(list(self._directory.glob('*.log')))}.log"
        command = [sys.executable, "-m", "tokenmill.app.cli", *container["args"]]
        return command, os.environ | environment | elsewhere, log


class Pod:
    def __init__(self, process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
        self._process, self._port, self._log = process, port, log

    def wait_until_ready(self) -> None:
        until(lambda: self._process.poll() is not None or ask(self._port, "/readyz").code == 200, SECONDS)
        assert ask(self._port, "/readyz").code == 200, self._log.read_text()[-4000:]

    def end(self) -> int:
        self._process.terminate()
        try:
            return self._process.wait(60)  # terminationGracePeriodSeconds
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


pytestmark = pytest.mark.chart

CASES: Final = sorted((CHART / "ci").glob("*.yaml"))
FULL: Final = CHART / "ci/full.yaml"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_kubernetes_takes_what_is_rendered(case: Path, tmp_path: Path) -> None:
    """By the API server's own validation, with KEDA's and the Prometheus operator's definitions; helm has no advice."""
    linted = helm("lint", "--strict", CHART, "--values", case)
    assert linted.returncode == 0, linted.stdout
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(render("--values", case)))
    command = [str(TOOLS / "kubectl-validate"), "--version", "1.30", "--local-crds", str(TOOLS / "crds"), str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_settings_are_settings(case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_SASL_PASSWORD", "of a secret")
    (settings,) = [
        found for found in of_kind(render("--values", case), "ConfigMap") if "tokenmill.toml" in found["data"]
    ]
    file = tmp_path / "tokenmill.toml"
    file.write_text(settings["data"]["tokenmill.toml"])
    if case.stem != "full":
        monkeypatch.delenv("TOKENMILL_SASL_PASSWORD")
    found = load_settings(config=file)
    assert found.raw_topics == tuple(tomllib.loads(file.read_text())["raw_topics"])


def test_all_containers_are_stripped() -> None:
    workloads = [
        one for kind in ("Deployment", "StatefulSet", "Job") for one in of_kind(render("--values", FULL), kind)
    ]
    assert len(workloads) == 4
    for workload in workloads:
        pod = workload["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert not pod["automountServiceAccountToken"]
        for container in pod["containers"]:
            secured = container["securityContext"]
            assert secured["readOnlyRootFilesystem"]
            assert secured["capabilities"] == {"drop": ["ALL"]}
            assert not secured["allowPrivilegeEscalation"]
            assert container["resources"]["limits"]["memory"]


def test_alerts_and_dashboards_are_those_of_the_project() -> None:
    objects = render("--values", FULL)
    (rule,) = of_kind(objects, "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((CHART / "files/alerts.yml").read_text())
    (boards,) = [found for found in of_kind(objects, "ConfigMap") if found["metadata"]["name"].endswith("dashboards")]
    there = {file.name: file.read_text() for file in (CHART / "files/dashboards").glob("*.json")}
    assert {name: text.strip() for name, text in boards["data"].items()} == {n: t.strip() for n, t in there.items()}
    (monitor,) = of_kind(objects, "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert [change["targetLabel"] for change in endpoint["relabelings"]] == ["job", "service"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ("settings.store=/elsewhere", "store"),
        ("settings.sasl_password=grain", "sasl_password"),
        ("mill.autoscaling.minReplicas=0", "minReplicas"),
        ("segments.storage=much", "storage"),
        ("image.digest=latest", "digest"),
        ("upload.to=/folder", "to"),
        ("mil.replicas=2", "mil"),
    ],
)
def test_values_that_are_none_are_refused(values: str, words: str) -> None:
    refused = helm("template", "mine", CHART, "--set", values)
    assert refused.returncode != 0
    assert words in refused.stderr


def test_a_store_is_uploaded_beside_its_segment_worker_where_a_bucket_is_named() -> None:
    (workload,) = of_kind(render("--values", FULL), "StatefulSet")
    _, upload = workload["spec"]["template"]["spec"]["containers"]
    assert upload["args"] == ["upload", "--store", "/store", "--to", "s3://tokens/corpus", "--follow"]
    (store,) = [mount for mount in upload["volumeMounts"] if mount["mountPath"] == "/store"]
    assert store["readOnly"]
    secret = [one["name"] for one in upload["env"] if "valueFrom" in one]
    assert secret == ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]
    (alone,) = of_kind(render(), "StatefulSet")
    assert len(alone["spec"]["template"]["spec"]["containers"]) == 1


def test_autoscaling_and_replicas_do_not_contend() -> None:
    objects = render("--values", FULL)
    deployment, sequencer = sorted(of_kind(objects, "Deployment"), key=lambda found: found["metadata"]["name"])
    assert sequencer["spec"]["replicas"] == 1
    assert "replicas" not in deployment["spec"]
    (scaled,) = of_kind(objects, "ScaledObject")
    assert scaled["spec"]["scaleTargetRef"] == {"name": deployment["metadata"]["name"]}
    asked = [trigger["metadata"] for trigger in scaled["spec"]["triggers"]]
    assert [one["topic"] for one in asked] == ["web", "code"]
    assert {one["consumerGroup"] for one in asked} == {Settings().group}


class Installed:
    """An installation whose pods are processes; `tests.faults.oracle.judge` judges it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def wait_until(self, condition: Callable[[], bool]) -> None:
        assert until(condition, SECONDS)

    def tend(self) -> None:
        """Do nothing: supervisors do it."""


@pytest.mark.timeout(900)
def test_an_installation_scales_and_is_upgraded_under_load(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    """Topics, one mill, three, one, and another version: every block once, and equal to the reference.

    Prints for how long no partition, or one of them, had new tokens.
    """
    raw = topic(4)
    values = tmp_path / "values.yaml"
    own: dict[str, Any] = {
        "bootstrap_servers": broker.bootstrap_servers,
        "raw_topics": [raw],
        "tokenizer": "bytes",
        "sequence_length": 127,
        "era_blocks": 64,
    }
    values.write_text(yaml.safe_dump({"settings": own}))
    pods = Pods(render("--values", values), tmp_path)
    assert pods.run("Job") == 0, next(tmp_path.glob("Job*.log")).read_text()
    settings = load_settings(own | {"store": tmp_path / "store"})

    with ExitStack() as running:
        segments = running.enter_context(pods.pod("StatefulSet"))
        mills = [running.enter_context(pods.pod("Deployment"))]
        for pod in (segments, *mills):
            pod.wait_until_ready()
        with Feeder(settings, Random(1)):
            began = time.time()
            mills += [running.enter_context(pods.pod("Deployment")) for _ in range(2)]
            for pod in mills:
                pod.wait_until_ready()
            time.sleep(3)
            assert [pod.end() for pod in mills[1:]] == [0, 0]
            upgraded = _upgraded(values, tmp_path, running)
            time.sleep(3)
            assert mills[0].end() == 0
            upgraded.wait_until_ready()
            time.sleep(3)
            ended = time.time()
        pauses = [_longest_pause(settings, partition, began, ended) for partition in range(4)]
        print("longest pauses, seconds:", *(f"{pause:.1f}" for pause in pauses))  # noqa: T201 - figures for people
        judge(Installed(settings))
        code = subprocess.run(
            [sys.executable, "-m", "tokenmill.app.cli", "verify", "--store", str(settings.store)],
            env=os.environ | settings.environment(),
            check=False,
        ).returncode
    assert code == 0


def _longest_pause(settings: Settings, partition: int, began: float, ended: float) -> float:
    records = read_topic(settings, settings.streams()[0].tokens_topic, partition)
    moments = [moment for record in records if began < (moment := record.timestamp / 1000) < ended]
    return max(later - earlier for earlier, later in pairwise([began, *moments, ended]))


def _upgraded(values: Path, directory: Path, running: ExitStack) -> Pod:
    pods = Pods(render("--values", values, "--set", "mill.workers=2"), directory)
    pod = running.enter_context(pods.pod("Deployment"))
    pod.wait_until_ready()
    return pod
