"""What `tokenmill serve` makes of its own flags; tests/app/test_supervisor.py runs what it starts."""

from collections.abc import Mapping

import pytest

from tests.app.commands import invoke
from tokenmill.app.cli import serving
from tokenmill.app.settings import Settings
from tokenmill.app.worker.watchdog import WatchLimits
from tokenmill.errors import SettingsError


class Recorder:
    told: tuple[Settings, str | None, WatchLimits]
    origins: Mapping[str, str]

    def __init__(
        self, settings: Settings, *, only: str | None, limits: WatchLimits, origins: Mapping[str, str]
    ) -> None:
        Recorder.told = (settings, only, limits)
        Recorder.origins = origins

    async def run(self) -> None:
        """Run nothing."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> None:
    async def all_is_there(_settings: Settings) -> None:
        """Look at nothing."""

    monkeypatch.setattr(serving, "Supervisor", Recorder)
    monkeypatch.setattr(serving, "require_ready", all_is_there)


def serve(*flags: str) -> tuple[Settings, str | None, WatchLimits]:
    invoke("serve", *flags, code=0)
    return Recorder.told


@pytest.mark.usefixtures("started")
def test_its_patience_is_a_flag() -> None:
    assert serve("--heartbeat-seconds", "5.5")[2] == WatchLimits(heartbeat=5.5)
    assert serve("--grace-seconds", "0.5")[2] == WatchLimits(grace=0.5)
    assert serve()[2] == WatchLimits()


@pytest.mark.usefixtures("started")
def test_one_role_and_the_settings_reach_the_supervisor() -> None:
    settings, only, _ = serve("--only", "segment", "--workers", "7")
    assert (only, settings.workers) == ("segment", 7)
    assert Recorder.origins["workers"] == "flag --workers"
    assert serve()[1] is None


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize("command", [("serve", "--only", "sequencer"), ("sequencer",)])
def test_a_sequencer_alone_needs_something_to_judge(command: tuple[str, ...]) -> None:
    """Else it would seem to work."""
    assert serve("--only", "sequencer", "--dedup", "near")[1] == "sequencer"
    assert "nothing to judge" in invoke(*command, code=SettingsError.exit_code).err


@pytest.mark.usefixtures("started")
def test_a_heartbeat_that_no_worker_could_keep_is_refused() -> None:
    """Workers beat twice a second; below two seconds a busy machine would kill them."""
    invoke("serve", "--heartbeat-seconds", "1", code=2)
