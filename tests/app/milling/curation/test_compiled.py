"""Where the machine code of kernels is kept."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tokenmill.app.milling.curation import compiled
from tokenmill.app.milling.curation.compiled import compiling_once, kernel_folder


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(compiled, "__file__", str(tmp_path / "package" / "compiled.py"))
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "kernel.py").write_text("one")


def folder_now() -> Path:
    """Return the folder that there is for code; the function remembers its first answer otherwise."""
    folder = kernel_folder.__wrapped__()
    assert folder is not None
    return folder


def test_code_is_kept_beside_the_sources_or_where_it_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = folder_now()
    assert folder.is_dir()
    assert folder.parent == tmp_path / "package" / "__pycache__"
    (tmp_path / "package" / "kernel.py").write_text("two")  # a kernel's code holds that of what it calls in other files
    assert folder_now() != folder
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "_writable", lambda _folder: None)
        assert kernel_folder.__wrapped__() is None  # kernels are compiled by each process then
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert folder_now().parent == tmp_path / "elsewhere"


def test_code_that_an_image_brings_is_copied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Numba reads only folders that it can write."""
    brought = folder_now()
    (brought / "code").write_text("machine code")
    real = compiled._writable
    monkeypatch.setattr(compiled, "_writable", lambda folder: None if folder == brought else real(folder))
    own = folder_now()
    assert own.is_relative_to(tmp_path / "home")
    assert (own / "code").read_text() == "machine code"


@pytest.mark.parametrize("harm", ["folder", "file", "link", "owner"])
def test_code_that_others_can_write_is_not_run(harm: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "shared"))
    folder = folder_now()
    (folder / "code").write_text("machine code")
    assert kernel_folder.__wrapped__() == folder
    if harm == "link":
        (folder / "link").symlink_to(folder / "code")
    elif harm == "owner":
        if os.geteuid():
            pytest.skip("only root gives files away")
        os.chown(folder / "code", 12345, -1)
    else:
        (folder if harm == "folder" else folder / "code").chmod(0o777)
    assert kernel_folder.__wrapped__() is None


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = folder_now()
    monkeypatch.setattr(compiled, "kernel_folder", lambda: folder)
    return folder


def test_what_takes_a_minute_is_said_and_what_is_kept_is_not(kept: Path, caplog: pytest.LogCaptureFixture) -> None:
    """So that nobody takes a first start, or a first try, for one that hangs."""
    _compile({"language"})
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "compiled for this machine" in caplog.text
    caplog.clear()
    _compile({"language"})
    assert not caplog.records


def test_one_compiles_while_others_wait_for_its_code(kept: Path) -> None:
    """A lock of a file is not between processes alone, but between those that opened it."""
    with ThreadPoolExecutor(1) as pool:
        with compiling_once({"language", "c4_quality"}):
            other = pool.submit(_compile, {"c4_quality"})
            assert not other.done()
            assert not list(kept.glob("*.compiled"))
        other.result()
    assert sorted(path.name for path in kept.iterdir()) == ["c4_quality.compiled", "language.compiled", "lock"]


def test_nobody_waits_where_the_code_is_kept(kept: Path) -> None:
    for name in ("language", "c4_quality"):
        (kept / f"{name}.compiled").touch()
    with compiling_once({"language"}), compiling_once({"language", "c4_quality"}):
        assert not (kept / "lock").exists()


def test_what_was_not_compiled_to_its_end_is_compiled_by_the_next(kept: Path) -> None:
    with pytest.raises(ValueError, match="numba"), compiling_once({"language"}):
        raise ValueError("numba")
    _compile({"language"})
    assert (kept / "language.compiled").exists()


def _compile(names: set[str]) -> None:
    with compiling_once(names):
        pass
