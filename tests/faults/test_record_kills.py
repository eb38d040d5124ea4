"""A record that kills workers, at whatever stage: the third death halts its partition, and no other."""

import json
import os
import time
from pathlib import Path
from typing import Final

import pytest

from tests.commands import run
from tests.faults.conftest import Configured
from tests.faults.deadly_stages import HARMLESS, STAGES
from tests.faults.feeding import flush_all
from tests.faults.oracle import judge
from tests.faults.serving import Serving
from tests.faults.test_steps import in_force, obey
from tests.faults.trial import Trial
from tests.scraping import ask
from tests.service import Raw, send
from tokenmill.app.tools.verify import verify
from tokenmill.app.worker.in_flight import MOST_DEATHS

pytestmark = [pytest.mark.fault("record-kills"), pytest.mark.needs("minutes")]

TEXT: Final = b"a text of some length, so that a few of them fill a block; "
BEFORE: Final = 20
"""Records before the deadly one."""
TRIED: Final = [name for name in STAGES if name != "learn"]
"""Schemas need a registry: `tests.app.mill.test_deadly_records` tries that stage, too."""
KILLED: Final = "killed by SIGKILL"


@pytest.mark.parametrize("name", TRIED)
def test_third_death_halts_one_partition_until_its_record_is_skipped(
    configured: Configured, tmp_path: Path, trial: Trial, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It is named with the command; the others go on; where a skip spares it nothing, a new start with more means."""
    settings = configured(3, function="tests.faults.deadly_stages:step", session_timeout=2.0, workers=2)
    (raw_topic,), stage = settings.raw_topics, STAGES[name]
    send(settings, [Raw(text, 0) for text in [TEXT] * BEFORE])
    send(settings, [Raw(stage.value, 0)])
    send(settings, [Raw(TEXT, at) for _ in range(BEFORE) for at in range(3)])
    with Serving(settings, tmp_path) as service:
        service.wait_until(lambda: "tokenmill skip" in ask(service.port, "/readyz?strict").text)
        said = ask(service.port, "/readyz?strict").text
        assert f"offset {BEFORE} of {raw_topic}[0] (`tokenmill skip {raw_topic} 0 {BEFORE}`)" in said
        began = time.monotonic()
        send(settings, [Raw(TEXT, at) for _ in range(BEFORE) for at in range(3)])

        def others_went_on() -> bool:
            status = json.loads(ask(service.port, "/api/status").text)
            rows = [row for row in status["partitions"] if row["topic"] == raw_topic]
            assert (rows[0]["state"], rows[0]["position"], rows[0]["why"] in said) == ("halted", BEFORE, True)
            return all(row["position"] == 2 * BEFORE for row in rows[1:])

        service.wait_until(others_went_on)
        trial.lived(time.monotonic() - began)
        trial.fired(f"{name} killed its worker", service.log.count(KILLED))
        assert service.log.count(KILLED) == MOST_DEATHS
        ended = run(["status", "--url", f"http://127.0.0.1:{service.port}"], tmp_path / "status.log", os.environ)
        assert (ended.code, said.strip().partition(": ")[2] in ended.said) == (1, True)
        flush_all(settings)
        if stage.passed:
            obey(settings, said)
            service.wait_until(lambda: in_force(settings, 0) == [{BEFORE}] * len(settings.streams()))
            judge(service, trial)
            assert service.log.count(KILLED) == MOST_DEATHS
    if not stage.passed:
        monkeypatch.setenv(HARMLESS, "1")
        with Serving(settings, tmp_path) as service:
            judge(service, trial)
    assert verify(settings, store=settings.store, reference=True, processes=1).ok
    trial.held("loud")
