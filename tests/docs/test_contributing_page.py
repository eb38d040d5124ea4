"""CONTRIBUTING.md: its example works; test_map_pages.py looks for what it names."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tokenmill.app.milling.document_columns import DocumentColumns
from tokenmill.app.milling.steps import Rejected, pipeline
from tokenmill.app.milling.steps.pipeline import open_pipeline, read_pipeline, steps_as_toml
from tokenmill.documents import Document, Limits

PAGE = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()


def test_the_example_is_a_step_like_every_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "digits_of_the_page.py").write_text(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0])
    monkeypatch.syspath_prepend(tmp_path)
    kind: Any = import_module("digits_of_the_page").DigitsStep
    steps = pipeline.STEPS
    assert isinstance(steps, dict)
    monkeypatch.setitem(steps, "digits", kind)
    read = read_pipeline([{"name": "digits", "most": 0.25}])
    (step,) = open_pipeline(read.entries, limits=Limits(1000, 100, 100))
    texts = DocumentColumns.without_fields(["a1b2c3", "abc1"], [None, None])
    assert list(step.many(texts)) == [(0, Rejected("too_many_digits"))]
    assert step(Document("abc1")) == Document("abc1")
    assert step.describe() == {"name": "digits", "version": 1, "most": 0.25}
    assert "Largest share of characters that are digits" in steps_as_toml(read.entries)
