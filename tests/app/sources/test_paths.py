"""What lies in folders and archives that somebody else filled: nothing hangs or leads elsewhere, and all is named."""

import gzip
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from zipfile import ZIP_BZIP2, ZIP_DEFLATED, ZipFile, ZipInfo

import pytest

from tests.app.sources.files import as_lines, write_parquet, write_wet
from tests.app.sources.reading import found_in, peak_of, reading_of, refusals, values
from tokenmill.app.settings import Settings
from tokenmill.app.sources import FolderWalk, Item, Refused, find_sources, is_piped, read_items
from tokenmill.app.sources.items import Place
from tokenmill.app.sources.paths import zip_sources
from tokenmill.app.sources.source_changes import look_at_source, look_at_sources
from tokenmill.store.store import Store

COMMAND = str(Path(sys.executable).with_name("tokenmill"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "elsewhere" / "secret.txt").write_text("secret")
    (tmp_path / "elsewhere" / "deep" / "more.txt").write_text("more")
    found = tmp_path / "data"
    (found / "sub").mkdir(parents=True)
    (found / "a.txt").write_text("a")
    (found / "sub" / "b.txt").write_text("b")
    return found


def texts(paths: Iterable[Path | str], walk: FolderWalk) -> list[str]:
    sources = find_sources([str(path) for path in paths], reading_of(), walk=walk)
    return [item.text for item in read_items(sources) if isinstance(item, Item)]


def test_what_is_no_regular_file_is_named_and_left_out(folder: Path) -> None:
    """A pipe, a link to one, a socket, a device: each of them would block, or never end."""
    os.mkfifo(folder / "c.txt")
    (folder / "d.txt").symlink_to("c.txt")
    (folder / "e.txt").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as bound:
        here = os.open(folder, os.O_RDONLY)
        bound.bind(f"/proc/self/fd/{here}/f.txt")  # such a name must be short
        os.close(here)
    for path in (folder, f"{folder}/*", f"{folder}/**/*.txt"):
        walk = FolderWalk()
        assert sorted(texts([path], walk)) == ["a", "b"]
        said = [words.partition(str(folder))[2].split("; ")[0] for words in walk.left_out]
        kinds = {"c": "pipe", "d": "pipe", "e": "device", "f": "socket"}
        assert said == [f"/{name}.txt is left out: it is a {kind}" for name, kind in kinds.items()]


@pytest.mark.parametrize("pattern", ["", "/*", "/**"])
def test_a_store_in_a_folder_is_left_out(folder: Path, pattern: str) -> None:
    """``pack .`` fills one there, and its second call reads what the first one read; another ``store.json`` is data."""
    Store.open_or_create(folder / "store")
    (folder / "store" / "pack").mkdir()
    (folder / "store" / "pack" / "c.txt").write_text("c")
    (folder / "sub" / "store.json").write_text('{"text": "shop"}')
    walk = FolderWalk()
    assert sorted(texts([f"{folder}{pattern}"], walk)) == ["a", "b", "shop"]
    assert walk.left_out == [f"{folder / 'store'} is left out: it is a store, which holds tokens"]


@pytest.mark.parametrize("pattern", ["", "/*", "/**", "/**/*.txt", "/*/*.txt"])
def test_links_that_lead_out_are_followed_only_where_that_is_wanted(folder: Path, pattern: str) -> None:
    (folder / "link.txt").symlink_to("../elsewhere/secret.txt")
    (folder / "links").symlink_to("../elsewhere")
    own = {"b"} if pattern == "/*/*.txt" else {"a", "b"}
    linked = {"secret", "more"} - ({"more"} if pattern == "/*/*.txt" else set())
    walk = FolderWalk()
    assert set(texts([f"{folder}{pattern}"], walk)) == own
    assert any(f"it links to {folder.parent / 'elsewhere'}" in words for words in walk.left_out)
    assert all("--follow-links" in words for words in walk.left_out)
    walk = FolderWalk(follow_links=True)
    assert set(texts([f"{folder}{pattern}"], walk)) == own | linked
    assert not walk.left_out


@pytest.mark.timeout(60)
@pytest.mark.parametrize("pattern", ["", "/**"])
def test_links_in_circles_end(folder: Path, pattern: str) -> None:
    """Whatever is followed, each folder is read once; two such links are enough for paths without end."""
    for name in ("one", "two", "three"):
        (folder / name).symlink_to(".")
        (folder / "sub" / name).symlink_to("..")
    (folder / "up").symlink_to("..")
    (folder.parent / "elsewhere" / "back").symlink_to("../data")
    assert texts([f"{folder}{pattern}"], FolderWalk()) == ["a", "b"]
    assert sorted(texts([f"{folder}{pattern}"], FolderWalk(follow_links=True))) == ["a", "b", "more", "secret"]


def test_links_within_a_folder_are_its_files_and_a_link_that_is_named_is_followed(folder: Path) -> None:
    (folder.parent / "link").symlink_to("data")
    (folder.parent / "file.txt").symlink_to("elsewhere/secret.txt")
    walk = FolderWalk()
    assert texts([folder.parent / "link", folder.parent / "file.txt"], walk) == ["a", "b", "secret"]
    (folder / "again.txt").symlink_to("sub/b.txt")
    (folder / "subs").symlink_to("sub")
    assert texts([folder], walk) == ["a", "b", "b"]
    assert not walk.left_out


@pytest.mark.slow
@pytest.mark.needs("minutes")
def test_folders_may_be_as_deep_as_paths_are_long(folder: Path) -> None:
    """Deeper than Python calls functions; a folder whose path is too long is named."""
    before = Path.cwd()
    try:
        os.chdir(folder)
        for _ in range(2100):
            Path("d").mkdir()
            os.chdir("d")
    finally:
        os.chdir(before)
    walk = FolderWalk()
    assert texts([folder], walk) == ["a", "b"]
    subprocess.run(["/bin/rm", "-rf", str(folder / "d")], check=True)


@pytest.mark.parametrize("name", ["<(printf 'one\\ntwo\\n')", "/dev/stdin"])
@pytest.mark.slow
def test_a_pipe_that_is_named_is_read_to_its_end(name: str) -> None:
    line = f"printf 'one\\ntwo\\n' | {COMMAND} produce --dry-run --lines --plain raw {name}"
    ended = subprocess.run(["/bin/bash", "-c", line], capture_output=True, text=True, check=False)
    assert ended.stdout.splitlines()[:2] == ["one", "two"], ended.stderr
    assert ended.returncode == 0


def test_nothing_of_a_pipe_is_lost_to_those_who_look_first(tmp_path: Path) -> None:
    """A run notes what its files are; what it would read of a pipe for that, nobody could read again."""
    os.mkfifo(tmp_path / "pipe.txt")
    both = os.open(tmp_path / "pipe.txt", os.O_RDWR)
    os.write(both, b"all of it")
    sources = find_sources([str(tmp_path / "pipe.txt")], reading_of())
    (seen,) = look_at_sources(sources)
    assert (seen.seen.size, seen.seen.lines) == (0, -1)
    assert os.read(both, 100) == b"all of it"
    os.close(both)
    assert is_piped(str(tmp_path / "pipe.txt"))
    assert is_piped("-")
    assert not any(map(is_piped, ["hf://name", str(tmp_path), __file__, str(tmp_path / "nothing")]))


@pytest.mark.slow
def test_names_of_any_bytes_are_read_and_shown(tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"caf\xe9\x1b]52;c;AAAA\x07\n[bold]")
    odd.mkdir()
    (odd / os.fsdecode(b"\xff\x9b.txt")).write_text("text")
    (odd / "\u202eevil\x1b[2J.bin").write_bytes(b"\0")
    os.mkfifo(odd / "\x1b[8mpipe")
    command: list[str | Path] = [COMMAND, "produce", "--dry-run", "raw", odd]
    ended = subprocess.run([*command, tmp_path / "\x1bnothing*"], capture_output=True, check=False)
    assert b"\\x1bnothing*: matches nothing" in ended.stderr
    ended = subprocess.run(command, capture_output=True, check=False)
    out, err = ended.stdout.decode(), ended.stderr.decode()
    assert "1 document" in out
    assert "\\u202eevil\\x1b[2J.bin: not text" in err
    assert "\\x1b[8mpipe is left out: it is a pipe" in err
    assert all(character == "\n" or character.isprintable() or character == "\ufffd" for character in out + err)


def _swap_for_fifo(file: Path, _: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _swap_for_link(file: Path, outside: Path) -> None:
    file.unlink()
    file.symlink_to(outside)


def _swap_folder(file: Path, outside: Path) -> None:
    file.parent.rename(file.parent.with_name("away"))
    (outside.parent / file.name).write_bytes(outside.read_bytes())
    file.parent.symlink_to(outside.parent)


def _write(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text('{"text": "S3cret"}')
    if path.suffix == ".zip":
        with ZipFile(path, "w") as archive:
            archive.writestr("a.txt", "S3cret")


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "zip"])
@pytest.mark.parametrize("swap", [_swap_for_fifo, _swap_for_link, _swap_folder])
def test_what_replaces_a_file_is_not_read(swap: Callable[[Path, Path], None], suffix: str, tmp_path: Path) -> None:
    """A link would send what was never meant to be sent, a pipe would hold the command up for ever.

    So with an archive, before its members are listed and after that.
    """
    outside = tmp_path / "outside" / f"secret.{suffix}"
    file = tmp_path / "folder" / "in" / f"a.{suffix}"
    for path in (outside, file):
        _write(path)
    paths = [str(tmp_path / "folder"), f"{tmp_path}/folder/**/*.{suffix}", f"{tmp_path}/folder/*/*.{suffix}"]
    sources = [source for path in paths for source in find_sources([path], reading_of())]
    assert len(sources) == len(paths)
    swap(file, outside)
    if suffix == "zip":
        sources += zip_sources(str(file), reading_of(), str(tmp_path / "folder"))
    for source in sources:
        (refused,) = read_items([source])
        assert isinstance(refused, Refused)
        assert "something was put in its place" in refused.why
        if suffix != "zip":  # an archive says of its members what they are
            assert look_at_source(source).seen.digest.startswith("error")


@pytest.mark.slow
def test_a_file_that_is_called_like_an_option_is_a_file(tmp_path: Path) -> None:
    """As a shell hands it over for a star: behind --, no name is an option."""
    (tmp_path / "--map=evil:f").write_text("text")
    (tmp_path / "evil.py").write_text("open('trace', 'w')")
    command = [COMMAND, "produce", "raw-text", "--dry-run", "--", "--map=evil:f"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "trace").exists()


ROWS = [{"id": f"n{number}", "text": f"text {number}"} for number in range(9)]


def test_members_are_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    write_parquet(tmp_path / "rows", ROWS)
    write_wet(tmp_path / "pages", ROWS)
    path = tmp_path / "a.ZIP"
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        archive.writestr("z.jsonl.gz", gzip.compress(as_lines(ROWS[:2]) + b"{\n"))
        archive.writestr("b/notes.md", "a note")
        archive.writestr("b/.git/config", "hidden")
        archive.writestr("__MACOSX/b/._notes.md", "hidden")
        archive.writestr("./a.csv", "text,id\none,1\n")
        archive.write(tmp_path / "rows", "rows.parquet")
        archive.write(tmp_path / "pages", "pages.warc.wet.gz")
        link = ZipInfo("link.txt")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "b/notes.md")
    found = found_in(reading_of(), path)
    ids = [json.loads(value)["id"] for value in values(found)]
    names = [str(row["id"]) for row in ROWS]
    assert ids == ["1", f"{path}!b/notes.md", *names, *names, "n0", "n1"]
    assert [item.where for item in found if isinstance(item, Refused)] == [f"{path}!link.txt", f"{path}!z.jsonl.gz:3"]


def test_what_of_an_archive_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", "secret")
        archive.writestr("b.txt", "text", ZIP_BZIP2)
        archive.writestr("c.zip", b"PK")
        archive.writestr("d.jsonl", as_lines(ROWS * 200))
        archive.writestr("e.txt", "well")
        flagged, damaged = archive.getinfo("a.txt"), archive.getinfo("d.jsonl")
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1  # the first entry of the table of members: its flags
    middle = damaged.header_offset + damaged.compress_size // 2
    data[middle : middle + 64] = bytes(64)
    path.write_bytes(data)
    (tmp_path / "b.zip").write_bytes(data[: len(data) // 2])
    (tmp_path / "c.zip").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n")
    found = found_in(reading_of(), path, tmp_path / "b.zip", tmp_path / "c.zip")
    assert flagged.header_offset == 0
    told = dict(refusals(found))
    assert "encrypted: unpack it" in told["a.zip!a.txt"]
    assert "compressed by method 12" in told["a.zip!b.txt"]
    assert "an archive in an archive" in told["a.zip!c.zip"]
    assert told["a.zip!d.jsonl"].startswith("cannot be read")
    assert "no zip archive, or damaged" in told["b.zip"]
    assert "git lfs pull" in told["c.zip"]
    assert sum(item.broken for item in found if isinstance(item, Refused)) == 6
    texts = [json.loads(value)["text"] for value in values(found)]
    assert texts[-1] == "well"
    assert texts[:-1] == [row["text"] for row in ROWS * 200][: len(texts) - 1]


def test_a_member_that_becomes_gigabytes_is_never_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with ZipFile(path, "w", ZIP_DEFLATED, compresslevel=1) as archive:
        for name in ("a.txt", "b.jsonl"):
            with archive.open(name, "w") as member:
                for _ in range(64):
                    member.write(bytes(1 << 20))
    assert path.stat().st_size < 1 << 20
    found, peak = peak_of(lambda: found_in(reading_of(Settings(max_record_bytes=1 << 20)), path))
    assert [why for _, why in refusals(found)] == ["longer than 1048576 bytes (max_record_bytes)"] * 2
    assert peak < 12 << 20


def test_a_member_is_told_by_its_content(tmp_path: Path) -> None:
    signatures = []
    for text, time in (("one", 1980), ("two", 1980), ("one", 1999)):
        with ZipFile(tmp_path / "a.zip", "w") as archive:
            archive.writestr(ZipInfo("a.txt", (time, 1, 1, 0, 0, 0)), text)
        signatures += [source.signature() for source in find_sources([str(tmp_path / "a.zip")], reading_of())]
    assert signatures[0] == signatures[2] != signatures[1]


def test_how_far_an_archive_is_read_adds_up_to_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenmill.app.sources.file_sources.CHUNK_ENTRIES", 50)
    path = tmp_path / "a.zip"
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        archive.writestr("a.jsonl", as_lines(ROWS * 10000))
        archive.writestr("b.txt", "text")
    many, one = find_sources([str(path)], reading_of())
    read = [chunk.bytes_read for chunk in many.chunks(Place())]
    assert read == sorted(read)
    assert 0 < read[0] < read[-1] == many.size
    assert many.size + one.size < path.stat().st_size


@pytest.mark.parametrize("choice", ["text", "jsonl"])
def test_a_format_holds_for_the_members(choice: str, tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with ZipFile(path, "w") as archive:
        archive.writestr("rows", b"\n" + as_lines(ROWS))
    found = found_in(reading_of(choice=choice), path)  # type: ignore[arg-type]
    assert len(values(found)) == (1 if choice == "text" else len(ROWS))
