"""docs/own_functions.md: its functions and those of the example are good ones, and its commands work."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from docs.generators.site import ROOT
from tests.mills import RECIPE
from tokenmill.app.milling.foreign_code import open_user_function
from tokenmill.documents import Document

PAGE = (ROOT / "docs" / "own_functions.md").read_text()


def test_the_functions_change_documents_and_give_their_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "step_of_the_page.py").write_text(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples")
    notes, tidy, latin_1 = (
        open_user_function("function", replace(RECIPE, function=path, metadata_fields=("label",)))
        for path in ("step_of_the_page:without_notes", "own_steps:tidy", "own_steps:latin_1")
    )
    assert notes(Document("NOTE\na", 7, {"label": "b"})) == Document("a", 7, {"label": "b"})
    assert notes(Document("NOTE")) == "only_notes"
    page = Document("<p>One  &amp; two,\nhttps://a.example  three four</p>", "x")
    assert tidy(page) == Document("One & two,\n three four", "x")
    assert tidy(Document("<p>One</p>")) == "few_words"
    assert latin_1(b"gr\xfcn") == Document("grün")
    assert latin_1(b" ") == "nothing_there"


@pytest.mark.needs("minutes")
def test_every_command_works_in_the_folder_of_the_module(tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "own_steps.py", tmp_path)
    (tmp_path / "pages").mkdir()
    for number in range(9):
        page = "<p>short</p>" if number == 4 else f"<p>Page {number} of a book &amp; more</p>"
        (tmp_path / "pages" / f"{number}.html").write_text(page)
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)
    tried, packed, rejected = (
        subprocess.run(line.split(), cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
        for line in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)[0].splitlines()
    )
    assert re.search(r"function +few_words +1 ", tried)
    assert "of a book & more" in tried
    assert re.search(r"few_words +1 ", packed)
    assert re.fullmatch(r"raw-text.train, few_words\n  raw-text/\d/\d+\n +<p>short</p>\n", rejected)
