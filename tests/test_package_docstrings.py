"""What `help(tokenmill)` and `help(tokenmill.consumers)` show is run."""

import doctest
from pathlib import Path
from types import ModuleType

import pytest

import tokenmill
from tests.docs.test_training_page import store_of
from tests.store.chains import STREAM, make_info
from tokenmill import consumers

WORDS = ("sample", "era", "step", "state", "store")


@pytest.mark.parametrize("module", [tokenmill, consumers])
def test_a_package_begins_with_an_example_that_runs(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a store with 8 eras of 3 blocks; the words of the model stand above it."""
    told = module.__doc__ or ""
    assert all(word in told for word in WORDS)
    assert 15 <= len(told.splitlines()) <= 35
    store_of(tmp_path / "store", make_info(block_tokens=65), [[(n, n + 1), (2 * n, 2 * n + 2)] for n in range(8)])
    assert (tmp_path / "store" / STREAM).is_dir()
    monkeypatch.chdir(tmp_path)
    test = doctest.DocTestParser().get_doctest(told, {}, module.__name__, None, 0)
    assert len(test.examples) >= 4
    lines: list[str] = []
    failed, _ = doctest.DocTestRunner(verbose=False).run(test, out=lines.append)
    assert not failed, "".join(lines)
