"""`tokenmill dedup explain`: the chances, the window, and what it takes."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.app.commands import invoke
from tokenmill.app.cli import create_cli, dead_letters
from tokenmill.app.milling.duplicates.signatures import Near
from tokenmill.errors import SettingsError


def explained(*arguments: str) -> str:
    return CliRunner().invoke(create_cli("dedup"), ["dedup", "explain", *arguments], catch_exceptions=False).output


def test_what_is_found_is_said_at_each_similarity() -> None:
    told = explained("--dedup", '{"name": "near", "window": 1000000, "fold": true}')
    assert "0.80   92.4%" in told
    assert "the newest 750,000 to 1,000,000 kept documents" in told
    assert "memory: up to 63.0 MB, disk: up to 136.0 MB" in told
    assert "fold" in told
    values = json.loads(explained("--dedup", "near", "--json"))
    assert values["chances"][0] == {"similarity": 0.5, "chance": Near().chance(0.5)}
    assert "exact" in explained("--dedup", "exact")


def test_nothing_to_explain_is_said() -> None:
    with pytest.raises(SettingsError, match="give --dedup near"):
        explained()


def test_no_parquet_is_written_under_the_name_of_another_format(tmp_path: Path) -> None:
    told = invoke("dedup", "counts", "--to", tmp_path / "times.csv", code=12)
    assert "give a name that ends in .parquet" in told.err
    assert not list(tmp_path.iterdir())


def test_a_document_that_never_came_again_may_be_a_duplicate_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(*_: object) -> list[object]:
        return []

    monkeypatch.setattr(dead_letters, "copies_of", none)
    told = invoke("rejects", "--of", "web/0/3", code=0).err
    assert "web/0/3 came again 0 times; `tokenmill inspect message web 0 3` says whether it was kept" in told
