"""Native code that panics over a text, or holds the interpreter: the record is refused or named, the rest goes on."""

from pathlib import Path

import pytest

from tests.app.milling.tokenizers.panicking import HARMFUL, panicking
from tests.faults.conftest import Configured
from tests.faults.feeding import flush_all
from tests.faults.harmful_step import HOLDS
from tests.faults.oracle import PREFIX, judge, read_letters
from tests.faults.supervised import Supervised
from tests.faults.test_steps import in_force, obey
from tests.faults.trial import Trial
from tests.faults.working import working
from tests.service import Raw, send
from tokenmill.app.tools.verify import verify
from tokenmill.app.worker.in_flight import MOST_DEATHS
from tokenmill.app.worker.watchdog import WatchLimits

pytestmark = pytest.mark.fault("engine-panics")

TEXT = b"a text of some length, so that a few of them fill a block; "


def test_text_on_which_the_tokenizer_panics_is_a_dead_letter(
    configured: Configured, tmp_path: Path, trial: Trial
) -> None:
    """No worker ends over it, the records around it and the other partition are milled, and `verify` says the same."""
    (tmp_path / "tokenizer.json").write_bytes(panicking())
    settings = configured(2, tokenizer=str(tmp_path / "tokenizer.json"), session_timeout=2.0)
    harmful = [HARMFUL.encode(), f"and {HARMFUL}".encode()]
    send(settings, [*(Raw(text) for text in [TEXT] * 20 + harmful + [TEXT] * 20), *(Raw(TEXT, 1) for _ in range(20))])
    flush_all(settings)
    with working(settings) as service:
        mill, _ = service.workers
        _, chains = judge(service, trial)
        assert mill.running
        trial.fired("tokenizer panicked", mill.log.count("retry-limit-in-match"))
    assert [chain.dead for chain in chains if chain.partition == 0] == [
        {20: "tokenizer_failed", 21: "tokenizer_failed"}
    ] * len(settings.splits)
    letters = [dict(record.headers) for record in read_letters(settings, settings.raw_topics[0])]
    assert all(b"retry-limit-in-match" in headers[f"{PREFIX}detail"] for headers in letters)
    assert {headers[f"{PREFIX}exception"] for headers in letters} == {b"PanicException"}
    assert verify(settings, store=settings.store, reference=True, processes=1).ok


@pytest.mark.needs("minutes")
def test_record_over_which_native_code_holds_the_interpreter_is_named_and_skipped(
    configured: Configured, tmp_path: Path, trial: Trial
) -> None:
    """No heart beats then, so the supervisor kills the worker; what it noted tells which record."""
    settings = configured(2, function="tests.faults.harmful_step:harmful", session_timeout=2.0, workers=1)
    (raw_topic,) = settings.raw_topics
    send(settings, [*(Raw(text) for text in [TEXT] * 20 + [HOLDS.encode()]), *(Raw(TEXT, 1) for _ in range(20))])
    flush_all(settings)
    with Supervised(settings, tmp_path, WatchLimits(heartbeat=4.0)) as service:
        service.wait_until(lambda: any("skip" in str(one["note"]) for one in service.supervisor.status().partitions))
        (said,) = [one["note"] for one in service.supervisor.status().partitions if one["note"]]
        assert f"offset 20 of {raw_topic}[0] (`tokenmill skip {raw_topic} 0 20`)" in said
        killed = sum("no heartbeat for" in event for event in service.events)
        trial.fired("killed without a heartbeat", killed)
        assert killed == MOST_DEATHS
        obey(settings, said)
        service.wait_until(lambda: in_force(settings, 0) == [{20}] * len(settings.streams()))
        _, chains = judge(service, trial)
        assert chains[0].dead == {20: "skipped"}
        trial.held("loud")
