"""A packing is opened by the name that stands in the recipe."""

from dataclasses import replace

import pytest

from tests.mills import RECIPE
from tokenmill.errors import SettingsError
from tokenmill.milling.packing.opening import open_packing


def test_a_chain_begins_without_an_open_block() -> None:
    """Nothing waits before the first document."""
    opened = open_packing(RECIPE).open_block
    assert opened == (b"", b"")


def test_a_packing_of_another_version_is_refused() -> None:
    """Rather than packed some other way."""
    with pytest.raises(SettingsError, match="use the version that made the stream"):
        open_packing(replace(RECIPE, packing="best-fit"))
