"""The segment app: which store it fills."""

from pathlib import Path

import pytest

from tokenmill.app.segments.app import create_app
from tokenmill.app.settings import Settings
from tokenmill.app.telemetry.reporting import STORE_VARIABLE
from tokenmill.errors import DiskError
from tokenmill.store import Store


def test_next_worker_fills_the_same_store_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the disk is not mounted, its empty directory is not taken for a place for a new store."""
    settings = Settings(raw_topics=("raw-text",), store=tmp_path / "disk" / "store")
    create_app(settings)
    monkeypatch.setenv(STORE_VARIABLE, Store.open(settings.store).id)
    create_app(settings)
    (tmp_path / "disk").rename(tmp_path / "unmounted")
    (tmp_path / "disk").mkdir()
    with pytest.raises(DiskError, match="no longer holds the store"):
        create_app(settings)
    assert list((tmp_path / "disk").iterdir()) == []
