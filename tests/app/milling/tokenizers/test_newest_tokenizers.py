"""The engines with the newest ``tokenizers``, released or not: the same answers as with the pinned one."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests import vocabularies
from tests.app.milling.tokenizers.conftest import AROUND, words
from tests.app.milling.tokenizers.test_kinds import KINDS

FOLDER: Final = Path(sys.prefix) / "newest-tokenizers"
"""Where `make test-newest` puts the library."""
pytestmark = pytest.mark.newest


def run(*command: str, newest: bool, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a module of Python with the newest library, or with the pinned one."""
    assert (FOLDER / "tokenizers").is_dir(), "run `make test-newest`, which installs it"
    root = str(Path(__file__).parents[4])
    environment = os.environ | {"PYTHONPATH": f"{FOLDER}:{root}" if newest else root}
    return subprocess.run(
        [sys.executable, "-m", *command], env=environment, cwd=cwd, capture_output=True, text=True, check=False
    )


@pytest.mark.timeout(3600)  # the pinned library takes minutes for so much text
def test_answers_are_those_of_the_pinned_library(tmp_path: Path) -> None:
    """Ids in texts of all kinds, and in 55 MB, fingerprints, templates, names: of known and of odd tokenizers.

    The fast engine has the same ids in all that text.
    """
    odd = json.loads(words(normalizer={"type": "NFKC"}, post_processor=AROUND))
    token = odd["added_tokens"][0]
    odd["added_tokens"] += [
        token | {"id": 70, "content": "<far>"},
        token | {"id": 9, "content": "b<", "special": False},
    ]
    (tmp_path / "odd.json").write_text(json.dumps(odd))
    for kind in KINDS.values():
        (tmp_path / f"{kind.content.__name__}.json").write_bytes(kind.content())

    def answers(*, newest: bool) -> dict[str, Any]:
        done = run("tests.app.milling.tokenizers.all_answers", str(tmp_path), newest=newest, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        print(found.pop("version"))  # noqa: T201
        return found

    pinned, found = answers(newest=False), answers(newest=True)
    assert pinned.keys() == found.keys()
    for name, expected in pinned.items():
        assert found[name] == expected, name
        assert len(set(expected["corpus"])) == 1, name


def test_commands_do_the_same(tmp_path: Path) -> None:
    """`pack` makes the same segments, `verify` finds them right, `try` and `tokenizer` answer; nothing is trained."""
    (tmp_path / "tokenizer.json").write_bytes(vocabularies.qwen25_style())
    (tmp_path / "text.txt").write_text("Größe e\u0301 <|endoftext|> plain text\n" * 300)

    def tokenmill(*arguments: str, newest: bool) -> str:
        done = run("tokenmill.app.cli", *arguments, newest=newest, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    packing = ("pack", "text.txt", "--lines", "--partitions=1", "--sequence-length=64", "--tokenizer=tokenizer.json")
    made = {}
    for newest in (False, True):
        store = tmp_path / f"store-{newest}"
        tokenmill(*packing, f"--store={store}", newest=newest)
        made[newest] = {path.relative_to(store): path.read_bytes() for path in store.rglob("*.bin")}
    assert made[True] == made[False] != {}
    tokenmill(*packing, f"--store={tmp_path / 'store-False'}", "--verify", "--reference", newest=True)
    assert "0 in " in tokenmill("tokenizer", "tokenizer.json", "--search=1", newest=True)
    assert "300" in tokenmill("try", "text.txt", "--lines", "--tokenizer=tokenizer.json", newest=True)
    trained = run("tokenmill.app.cli", "train-tokenizer", "text.txt", newest=True, cwd=tmp_path)
    assert trained.returncode != 0
    assert "install tokenizers below 1" in trained.stderr
