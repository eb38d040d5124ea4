"""Data sets of Hugging Face: on disk, and streamed from a folder as from the hub."""

import asyncio
import io
import json
import os
import pickle
import re
import struct
import subprocess
import sys
import tarfile
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, unquote_plus, urlsplit

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.sources.files import as_lines, write_jsonl
from tests.app.sources.reading import reading_of
from tests.app.sources.web import running
from tokenmill.app.sources import FolderWalk, Item, Refused, find_sources, read_items
from tokenmill.app.sources.datasets import DatasetInfo, HubAddress, SplitInfo
from tokenmill.app.tools.produce.sending import ReadingPlan, dry_run
from tokenmill.errors import InputError

NAME = "owner/name"
FILE = "train.jsonl"
README = "README.md"
OLD_NAME = "single"  # what the data set was called before names had owners; who asks for it is sent to the new one
_API = f"/api/datasets/{NAME}"
_OLD = f"/api/datasets/{OLD_NAME}"


class Hub(ThreadingHTTPServer):
    """Serves the newest commit until it is asked which one that is; then the next one is pushed."""

    def __init__(self, *contents: bytes, readme: bytes = b"") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.address = f"http://127.0.0.1:{self.server_port}"
        card = {README: readme} if readme else {}
        self.commits = {f"{number:040x}": {FILE: content, **card} for number, content in enumerate(contents, 1)}
        self.newest = 0

    def commit(self, revision: str) -> str:
        return [*self.commits][min(self.newest, len(self.commits) - 1)] if revision == "main" else revision


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        asked = unquote_plus(self.rfile.read(int(self.headers.get("Content-Length", 0))).decode())
        try:
            status, body, headers = self._found(path, asked)
        except KeyError:
            other = path.startswith("/api/datasets/") and not path.startswith(f"{_API}/")
            status, body, headers = 404, b"", {"X-Error-Code": "RepoNotFound" if other else "EntryNotFound"}
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_POST = do_GET  # noqa: N815 - the library's names

    def _found(self, path: str, asked: str) -> tuple[int, bytes, dict[str, str]]:
        """Return status, body and headers; raises KeyError for what is not there."""
        if path == _OLD or path.startswith(f"{_OLD}/revision/"):
            return 307, b"", {"Location": path.replace(_OLD, _API, 1)}
        path = f"{_API}/revision/main" if path == _API else path
        parts = re.fullmatch(rf"(?:{_API}/(revision|tree|paths-info)|/datasets/{NAME}/resolve)/([^/]+)/?(.*)", path)
        if parts is None:
            raise KeyError(path)
        kind, revision, name = parts.groups()
        commit = self.server.commit(revision)
        files = self.server.commits[commit]
        if kind is None:
            return 200, files[name], {"X-Repo-Commit": commit, "ETag": f'"{commit}-{name}"'}
        if name:
            raise KeyError(name)  # there are no folders
        found: object = {"id": NAME, "sha": commit}
        if kind == "revision":
            self.server.newest += revision == "main"
        else:
            wanted = {name: data for name, data in files.items() if kind == "tree" or name in asked}
            found = [{"type": "file", "path": name, "size": len(data), "oid": commit} for name, data in wanted.items()]
        return 200, json.dumps(found).encode(), {"Content-Type": "application/json"}

    def log_message(self, *_: object) -> None:
        """Say nothing."""


ROWS: list[dict[str, Any]] = [{"id": f"n{number}", "text": f"text {number}"} for number in range(20)]


def read(path: Path | str, split: str | None = None) -> list[Item | Refused]:
    return list(read_items(find_sources([str(path)], reading_of(), split)))


def texts(path: Path | str, split: str | None = None) -> list[str]:
    return [item.text if isinstance(item, Item) else item.why for item in read(path, split)]


def why_broken(path: Path | str) -> str:
    (refused,) = read(path)
    assert isinstance(refused, Refused)
    assert refused.broken
    return refused.why


COMMAND = """
import os, sys
from tokenmill.app.cli import main

try:
    main(sys.argv[1:])
except SystemExit as ended:
    print(ended.code, "datasets" in sys.modules, "torch" in sys.modules, os.environ.get("USE_TORCH"))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "said", "ended"),
    [
        (["produce", "raw-text", "--dry-run"], None, "0 True False None"),
        (["try", "--tokenizer", "bytes"], None, "0 True False None"),
        (["try", "--tokenizer", "bytes"], "1", "0 True True 1"),
    ],
    ids=["produce", "try", "where it is wanted"],
)
@pytest.mark.cases(1)
def test_no_torch_is_loaded_for_rows_of_text(tmp_path: Path, command: list[str], said: str | None, ended: str) -> None:
    """It takes seconds. The environment may want it, and is afterwards as it was."""
    (tmp_path / "rows").mkdir()
    write_jsonl(tmp_path / "rows" / "train.jsonl", ROWS)
    environment = {name: value for name, value in os.environ.items() if name != "USE_TORCH"}
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *command, f"hf://{tmp_path}/rows", "--split", "train"],
        env=environment if said is None else {**environment, "USE_TORCH": said},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1:] == [ended], done.stderr


READ = """
import sys
from importlib.util import find_spec
from tests.app.sources.reading import reading_of
from tokenmill.app.sources import Item, find_sources, read_items
from tokenmill.errors import InputError

for address in sys.argv[1:]:
    try:
        sources = find_sources([address], reading_of(plain=True))
        commit = sources[0].signature().decode().strip("0")
        print(commit, *(item.text if isinstance(item, Item) else item.why for item in read_items(sources)), sep="|")
    except InputError as error:
        print(error)

import datasets.config
print(datasets.config.TORCH_AVAILABLE == (find_spec("torch") is not None))
"""
"""In a process of its own, for the libraries take the hub's address from the environment when they are imported."""
CONFIGURATIONS = b"---\nconfigs:\n- config_name: conf-1\n  data_files: train.jsonl\n---\n"


def read_on_hub(tmp_path: Path, server: Hub, *addresses: str) -> list[list[str]]:
    """Return commit and texts of each address, or why there are none, read by a process that knows no other hub."""
    environment = {"HF_ENDPOINT": server.address, "HF_HOME": str(tmp_path), "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-c", READ, *addresses]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *lines, left_alone = done.stdout.splitlines()
    assert left_alone == "True", "a program that reads our sources cannot train with the library any more"
    return [line.split("|") for line in lines]


@pytest.mark.slow
@pytest.mark.needs("minutes")
def test_the_commit_that_a_run_began_with_is_the_one_that_is_read(tmp_path: Path) -> None:
    address = f"hf://{NAME}?split=train"
    with running(Hub(as_lines([{"text": "old"}]), as_lines([{"text": "new"}, {"text": "newer"}]))) as server:
        old, new, (missing,) = read_on_hub(tmp_path, server, address, address, f"hf://{NAME}-of-nobody")
    assert (old, new) == (["1", "old"], ["2", "new", "newer"])
    assert missing.startswith(f"hf://{NAME}-of-nobody: the hub does not tell its commit")
    assert missing.endswith("; check the name and the connection")  # --no-resume would be no advice for `pack`


@pytest.mark.slow
@pytest.mark.needs("minutes")
def test_a_data_set_without_an_owner_has_configurations_and_revisions(tmp_path: Path) -> None:
    """Two parts are an owner's data set first, then a configuration; it can also be said with name=."""
    with running(Hub(*(as_lines([{"text": text}]) for text in ("old", "new")), readme=CONFIGURATIONS)) as server:
        first, second = server.commits
        found = read_on_hub(
            tmp_path,
            server,
            f"hf://{OLD_NAME}/conf-1?split=train&revision={first}",
            f"hf://{OLD_NAME}?name=conf-1&split=train&revision={first}",
            f"hf://{OLD_NAME}?revision={first}",
            f"hf://{OLD_NAME}/conf-1?split=train&revision={second}",
            f"hf://{OLD_NAME}/conf-1?split=train",
        )
    assert found == [["1", "old"], ["1", "old"], ["1", "old"], ["2", "new"], ["1", "old"]]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the library leaves a csv file open
def test_builders_read_files_with_arguments_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text;id\none;1\n")
    (tmp_path / "b.txt").write_text("two\nlines\n\nthree\n")
    (tmp_path / "deep").mkdir()
    write_jsonl(tmp_path / "deep" / "c.jsonl", ROWS[:2])
    (tmp_path / "d.json").write_text(json.dumps({"version": 1, "rows": ROWS[:3]}))
    assert texts(f"hf://csv?data_files={tmp_path}/a.csv&sep=;") == ["one"]
    assert texts(f"hf://text?data_files={tmp_path}/b.txt&sample_by=paragraph") == ["two\nlines", "three\n"]
    assert texts(f"hf://{tmp_path}?data_dir=deep") == ["text 0", "text 1"]
    assert texts(f'hf://json?data_files={{"a":"{tmp_path}/deep/*.jsonl"}}&split=a') == ["text 0", "text 1"]
    assert texts(f"hf://json?data_files={tmp_path}/d.json&field=rows") == ["text 0", "text 1", "text 2"]
    assert "languages" in why_broken(f"hf://csv?data_files={tmp_path}/a.csv&languages=en,de")


@dataclass
class Canary:
    """Leaves a trace where it is unpickled."""

    trace: Path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


@pytest.mark.parametrize(
    "builder", ["pandas", "webdataset", "sql", "cache", "generator", "spark", "imagefolder", "hdf5", "iceberg"]
)
def test_no_builder_runs_what_is_in_a_file(builder: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(Canary(trace)))
    why = why_broken(f"hf://{builder}?data_files={tmp_path}/x.pkl&split=train")
    assert f"files of the builder {builder!r} are not read" in why
    assert not trace.exists()


def test_a_folder_does_not_choose_another_builder(tmp_path: Path) -> None:
    """What its files are called decides it in the library."""
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        member = tarfile.TarInfo("1.pth")
        member.size = len(data := pickle.dumps(Canary(tmp_path / "trace")))
        archive.addfile(member, io.BytesIO(data))
    assert "files of the builder 'webdataset' are not read" in why_broken(f"hf://{tmp_path}?split=train")
    assert not (tmp_path / "trace").exists()


def test_a_folder_does_not_lead_out_of_itself(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "outside.jsonl", ROWS)
    for name in ("card", "link"):
        (tmp_path / name).mkdir()
    card = "---\nconfigs:\n- config_name: default\n  data_files: ../outside.jsonl\n---\n"
    (tmp_path / "card" / "README.md").write_text(card)
    (tmp_path / "link" / "train.jsonl").symlink_to(tmp_path / "outside.jsonl")
    for name in ("card", "link"):
        (refused,) = read(f"hf://{tmp_path / name}?split=train")
        assert isinstance(refused, Refused)
        assert "outside.jsonl is outside of it" in refused.why or "train.jsonl is outside of it" in refused.why
        (source,) = find_sources(
            [f"hf://{tmp_path / name}?split=train"], reading_of(), walk=FolderWalk(follow_links=True)
        )
        assert len(list(read_items([source]))) == len(ROWS)
    assert len(read(f"hf://json?data_files={tmp_path}/outside.jsonl&split=train")) == len(ROWS)


def test_a_changed_file_of_a_builder_is_noticed(tmp_path: Path) -> None:
    signatures = []
    for content in ("one", "another"):
        (tmp_path / "a.txt").write_text(content)
        os.utime(tmp_path / "a.txt", ns=(0, 0))
        (source,) = find_sources([f"hf://text?data_files={tmp_path}/a.txt"], reading_of())
        signatures.append(source.signature())
    assert signatures[0] != signatures[1]
    with pytest.raises(InputError, match=r"hf://text.data_files=.*nothing"):
        find_sources([f"hf://text?data_files={tmp_path}/nothing.txt"], reading_of())[0].signature()


def test_a_data_set_is_streamed_and_its_split_is_said_once(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", ROWS)
    for address in (f"hf://{tmp_path}", f"hf://{tmp_path}?split=train"):
        assert [json.loads(item.value) for item in read(address, "train") if isinstance(item, Item)] == ROWS
    with pytest.raises(InputError, match="give one of them"):
        read(f"hf://{tmp_path}?split=train", "test")


def test_a_dry_run_tells_what_is_known(tmp_path: Path) -> None:
    (tmp_path / "card").mkdir()
    write_jsonl(tmp_path / "card" / "train.jsonl", ROWS)
    write_jsonl(tmp_path / "card" / "test.jsonl", ROWS[:1])
    told = [{"name": "train", "num_bytes": 60, "num_examples": 20}, {"name": "test", "num_bytes": 6, "num_examples": 1}]
    card = {"features": [{"name": "text", "dtype": "string"}], "splits": told, "download_size": 99}
    (tmp_path / "card" / "README.md").write_text(f"---\n{json.dumps({'dataset_info': card})}\n---\n")
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    paths = [f"hf://{tmp_path}/card", str(tmp_path / "saved"), f"hf://json?data_files={tmp_path}/card/test.jsonl"]
    sources = find_sources([*paths, "hf://csv?data_files=/none"], reading_of(), None)
    found = asyncio.run(dry_run(sources, "raw", ReadingPlan(limit=1)))
    known, saved, bare, missing = found.known
    assert known == DatasetInfo(paths[0], {"text": "string"}, {"train": SplitInfo(20, 60), "test": SplitInfo(1, 6)}, 99)
    assert (saved.features, [*saved.splits]) == ({"id": "string", "text": "string"}, ["all"])
    assert saved.splits["all"].rows == 20
    assert (saved.splits["all"].bytes or 0) > 100
    size = (tmp_path / "card" / "test.jsonl").stat().st_size
    assert bare == DatasetInfo(paths[2], None, {"train": SplitInfo()}, size)
    assert "/none" in missing.why_not


def test_a_saved_data_set_is_checked_before_it_is_looked_at(tmp_path: Path) -> None:
    """An offset that leads out of the file would send what else is in memory, or end the process."""
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    (data,) = (tmp_path / "saved").glob("*.arrow")
    offsets = struct.pack("<3i", *(len("text 0") * number for number in range(3)))
    content = data.read_bytes()
    at = content.index(offsets) + 8
    data.write_bytes(content[:at] + struct.pack("<i", 1 << 28) + content[at + 4 :])
    assert "cannot be read" in why_broken(tmp_path / "saved")


def test_a_split_must_be_chosen_where_there_are_several_and_have_the_column(tmp_path: Path) -> None:
    train, test, bodies = map(datasets.Dataset.from_list, (ROWS[:10], ROWS[10:], [{"body": "x"}]))
    datasets.DatasetDict({"train": train, "test": test}).save_to_disk(tmp_path / "saved")
    bodies.save_to_disk(tmp_path / "bodies")
    found = read(tmp_path / "saved", "test")
    assert [json.loads(item.value) for item in found if isinstance(item, Item)] == ROWS[10:]
    assert "has the splits train, test: choose one with --split" in why_broken(tmp_path / "saved")
    assert "no column 'text' or 'content'; there are: 'body'" in why_broken(tmp_path / "bodies")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("datasets", "pyarrow.ipc", "pyarrow.parquet", "brotli"):
        monkeypatch.setitem(sys.modules, name, None)
    extras = {"hf://some/where": "hf"}
    for name in ("a.parquet", "a.arrow", "a.warc.gz"):
        (tmp_path / name).touch()
        extras[str(tmp_path / name)] = "produce"
    for path, extra in extras.items():
        with pytest.raises(InputError, match=rf"pip install '\.\[{extra}\]'"):
            find_sources([path], reading_of())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf://imdb", HubAddress(("imdb",))),
        ("hf://imdb?", HubAddress(("imdb",))),
        ("hf://wikitext/wikitext-103-v1?split=train", HubAddress(("wikitext", "wikitext-103-v1"), split="train")),
        ("hf://a/b/c", HubAddress(("a", "b", "c"))),
        ("hf://datasets/a/b?split=train", HubAddress(("a", "b"), split="train")),
        ("hf://datasets/x", HubAddress(("datasets", "x"))),
        ("hf:///data/set/?revision=1234567", HubAddress(("", "data", "set"), revision="1234567")),
        ("hf://a?name=20220301.en", HubAddress(("a",), name="20220301.en")),
        ("hf://a?split=train%5B%3A10%25%5D", HubAddress(("a",), split="train[:10%]")),
        ("hf://a?data_files=7&data_dir=8", HubAddress(("a",), arguments={"data_files": "7", "data_dir": "8"})),
        ("hf://a?data_files=7,true", HubAddress(("a",), arguments={"data_files": ["7", "true"]})),
        ('hf://a?data_files={"a":"7"}', HubAddress(("a",), arguments={"data_files": {"a": "7"}})),
    ],
)
def test_an_address_names_a_data_set(text: str, expected: HubAddress) -> None:
    assert HubAddress.parse(text) == expected


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ("a=7", 7), ("a=-0.5e1", -5.0), ("a=true", True), ("a=null", None), ("a=True", "True"), ("a=1+2", "1+2"),
        ("a=en,de", ["en", "de"]), ("a=en&a=de&a=fr,it", ["en", "de", "fr", "it"]), ("a=1,2", [1, 2]), ("a=,", ","),
        ("a=%3B", ";"), ("a=;", ";"), ("a=x%2Cy", "x,y"), ("a=", ""), ('a="7"', "7"), ("a=%227%22", "7"),
        ('a=["7",8]', ["7", 8]), ('a={"b":[1]}', {"b": [1]}),
    ],
)  # fmt: skip
def test_arguments_have_types(query: str, value: Any) -> None:
    found = HubAddress.parse(f"hf://name?{query}").arguments
    assert found == {"a": value}
    assert type(found["a"]) is type(value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("hf://", "there is no name"),
        ("hf://?a=1", "there is no name"),
        ("hf://a?b", "'b' is no argument"),
        ("hf://a?b-c=1", "is no argument"),
        ("hf://a?split=b&split=c", "split= is given twice"),
        ('hf://a?b="c', "b= is no JSON"),
        ("hf://owner/name?token=secret", "token= cannot be given: it would be in ids and logs; set HF_TOKEN"),
        ("hf://owner/name?trust_remote_code=true", "trust_remote_code= cannot be given"),
        ('hf://owner/name?storage_options={"key":"x"}', "storage_options= cannot be given"),
        ("hf://a?streaming=false", "always streamed"),
    ],
)
def test_what_is_no_address_says_why(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        HubAddress.parse(text)
    with pytest.raises(InputError, match=why):
        find_sources([text], reading_of())


values = st.none() | st.booleans() | st.integers() | st.text(max_size=9) | st.lists(st.text(max_size=5), max_size=3)
OWN = {"name", "split", "revision", "data_dir", "path", "streaming", "token", "data_files", "num_proc"}
keys = st.from_regex(r"[a-z_][a-z0-9_]*", fullmatch=True).filter(lambda key: key not in OWN)


@given(arguments=st.dictionaries(keys, values, max_size=4), split=st.none() | st.text(min_size=1, max_size=9))
def test_any_argument_can_be_written(arguments: dict[str, Any], split: str | None) -> None:
    written = {key: json.dumps(value) for key, value in arguments.items()}
    written |= {} if split is None else {"split": split}
    query = "&".join(f"{key}={quote(value, safe='')}" for key, value in written.items())
    found = HubAddress.parse(f"hf://owner/name?{query}")
    assert (found.arguments, found.split, found.path) == (arguments, split, "owner/name")


@given(text=st.text(max_size=30) | st.text('hf:/?&=,%"[]{}1a', max_size=30))
def test_anything_is_an_address_or_an_error_of_ours(text: str) -> None:
    with suppress(InputError):
        HubAddress.parse(text)
