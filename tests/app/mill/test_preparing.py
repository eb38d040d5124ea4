"""A mill's preparation: what takes minutes there does not stop its heartbeats."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from tokenmill.app.mill import app as module
from tokenmill.app.mill.app import Mill
from tokenmill.app.settings import Settings
from tokenmill.errors import SettingsError

SECONDS = 0.5


async def test_a_mill_beats_while_filters_are_compiled_or_a_tokenizer_is_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The event loop turns: a supervisor would take a silent worker for one that hangs, and kill it again and again."""

    def plan_topic(*_: Any) -> NoReturn:
        time.sleep(SECONDS)
        raise SettingsError("that is all")

    async def settled_recipe(*_: Any) -> None:
        """Tell of no stream."""

    monkeypatch.setattr(module, "plan_topic", plan_topic)
    monkeypatch.setattr(module, "settled_recipe", settled_recipe)
    app: Any = SimpleNamespace(conf=SimpleNamespace(id="group"), know=None)
    preparing = asyncio.create_task(Mill(Settings(), app)._prepare())
    turns = 0
    while not preparing.done():
        await asyncio.sleep(SECONDS / 20)
        turns += 1
    assert turns > 5
    with pytest.raises(SettingsError, match="that is all"):
        await preparing
