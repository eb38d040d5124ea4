"""The labs, as people run them: on small texts, in processes of their own."""

import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import BertProcessing

from tests.scraping import free_port

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]  # processes that load torch

LABS: Final = Path(__file__).parents[2] / "examples" / "labs"


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Let Ctrl-C do to this process what it did: a lab that is imported changes it."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    for number in range(60):
        words = [f"word{(number * word) % 97}" for word in range(10 * (number + 1))]
        (folder / f"{number:02}.txt").write_text(" ".join(words))
    return folder


@pytest.fixture(scope="module")
def articles(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("articles") / "articles.jsonl"
    rows = [{"number": number, "article": text.read_text()} for number, text in enumerate(sorted(texts.iterdir()))]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where labs with the same settings put their tokens: the second finds what the first has packed."""
    return tmp_path_factory.mktemp("labs") / "store"


@pytest.fixture
def run() -> Callable[..., str]:
    def run(name: str, *arguments: str | Path) -> str:
        command = [sys.executable, LABS / f"{name}.py", *arguments]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    return run


def test_characters(run: Callable[..., str], texts: Path, articles: Path) -> None:
    found = run("characters", articles, "--field", "article")
    assert re.match(r"tokenmill \S+ torch \S+ numpy .* cores, ", found)
    whole = [path.read_text() for path in texts.iterdir()]
    assert " ".join(map(repr, sorted(set("".join(whole))))) in found
    assert f"{len(whole)} texts, {sum(map(len, whole)):,} characters" in found
    assert f"{len(set(''.join(whole)))} different characters" in found
    assert "letters 4, digits 10, spaces 1" in found


@pytest.mark.parametrize(
    ("name", "words"), [("nowhere", "check the path"), ("articles.jsonl", "say which is the text: --field")]
)
def test_what_cannot_be_read_is_one_line(
    tmp_path: Path, name: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that leads nowhere, and texts that are in another field. In this process, which has loaded torch."""
    (tmp_path / "articles.jsonl").write_text(json.dumps({"article": "zap"}))
    monkeypatch.syspath_prepend(str(LABS))
    monkeypatch.setattr(sys, "argv", ["characters.py", str(tmp_path / name)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(LABS / "characters.py"), run_name="__main__")
    (said,) = str(ended.value.code).splitlines()
    assert words in said


@pytest.mark.needs("minutes")
def test_language_model(run: Callable[..., str], articles: Path, tmp_path: Path) -> None:
    rows = (articles, "--field", "article", "--store", tmp_path / "store")
    found = run("language_model", *rows, "--min-chars", "0", "--steps", "40")
    kept, all_ = re.search(r"Data retention: 100.0 % \((\d+) of (\d+) documents\)", found).groups()  # type: ignore[union-attr]
    assert kept == all_
    assert re.search(r"Efficiency: \d+\.\d % of tokens in blocks", found)
    assert re.search(r"block 0: '.*word\d+ word", found)
    losses = [float(loss) for loss in re.findall(r"loss (\d\.\d+)", found)]
    assert len(losses) == 3
    assert losses[-1] < losses[0] - 1


@pytest.mark.needs("minutes")
def test_four_workers(run: Callable[..., str], texts: Path, store: Path) -> None:
    found = run("four_workers", texts, "--store", store, "--workers", "2", "--seconds", "1")
    shown = re.findall(r"worker (\d), step (\d): x \[16, 127\], whose rows begin with the tokens ([\d, ]+) …", found)
    assert [(rank, step) for rank, step, _ in shown] == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]
    assert re.findall(r"worker (\d): [\d,]+ tokens a second", found) == ["0", "1"]
    assert re.search(r"a parallel efficiency of \d+ %", found)


@pytest.mark.needs("minutes")
def test_stratified(run: Callable[..., str], articles: Path, tmp_path: Path) -> None:
    rows = (articles, "--field", "article", "--store", tmp_path / "store")
    found = run("stratified", *rows, "--samples", "20", "--strata", "4")
    strata = re.findall(r"stratum \d: ([\d,]+) to ([\d,]+) tokens, (\d+) of (\d+) documents", found)
    assert [drawn for *_, drawn, _ in strata] == ["5"] * 4
    bounds = [int(bound.replace(",", "")) for low, high, *_ in strata for bound in (low, high)]
    assert bounds == sorted(bounds)


@pytest.mark.needs("minutes")
def test_random_access(run: Callable[..., str], articles: Path, tmp_path: Path) -> None:
    found = run("random_access", articles, "--field", "article", "--store", tmp_path / "store", "--takes", "50")
    assert re.search(rf"the first: {articles}:\d+, [\d,]+ tokens", found)
    counts = re.findall(r"microseconds each, ([\d,]+) tokens", found)
    assert len(counts) == 2
    assert counts[0] == counts[1]


@pytest.mark.needs("minutes")
def test_classification(run: Callable[..., str], tmp_path: Path) -> None:
    found = run("classification", "--store", tmp_path / "store", "--tokenizer", "bytes", "--steps", "60")
    total, labels = re.search(r"(\d+) documents: (\{.*\})", found).groups()  # type: ignore[union-attr]
    assert sum(json.loads(labels.replace("'", '"')).values()) == int(total)
    assert len(re.findall(r"worker \d: \{'code': \d+, 'prose': \d+\}", found)) == 2
    assert int(re.search(r"accuracy of the last batch (\d+) %", found)[1]) > 60  # type: ignore[index]
    assert re.search(r"[\d,]+ samples a second", found)
    assert re.search(r"a document of label (code|prose): '.+'", found)


@pytest.mark.needs("minutes")
def test_labels_may_be_numbers_and_a_tokenizer_of_berts_kind_has_its_tokens_around_each_row(
    run: Callable[..., str], tmp_path: Path
) -> None:
    """As in data sets of reviews; the text is in a field of another name. Rows begin with [CLS] and end with [SEP]."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "good", "bad", "one"]
    bert = Tokenizer(WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))  # noqa: S106 - no password
    bert.pre_tokenizer = Whitespace()
    bert.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    bert.add_special_tokens(words[:4])
    bert.save(str(tmp_path / "bert.json"))
    rows = [json.dumps({"review": f"a {'good' if n % 2 else 'bad'} one", "mark": n % 2}) for n in range(120)]
    (tmp_path / "reviews.jsonl").write_text("\n".join(rows))
    options = ("--tokenizer", tmp_path / "bert.json", "--field", "review", "--label-field", "mark", "--labels", "0,1")
    found = run("classification", tmp_path / "reviews.jsonl", "--store", tmp_path / "store", *options, "--steps", "5")
    assert re.search(r"documents: \{0: \d+, 1: \d+\}", found)
    assert re.search(r"a document of label \d: '\[CLS\] a (good|bad) one \[SEP\]'", found)


@pytest.mark.needs("minutes")
def test_segments(run: Callable[..., str], articles: Path, tmp_path: Path) -> None:
    options = ("--chunk", "64", "--segment", "16", "--steps", "40", "--validate", "20", "--batch-size", "2")
    found = run("segments", articles, "--field", "article", "--store", tmp_path / "store", *options)
    assert re.search(r"train: [\d,]+ chunks of 4 segments", found)
    assert re.findall(r"step (\d+): loss \d\.\d+, validation \d\.\d+", found) == ["20", "40"]


def test_memory_mapped(run: Callable[..., str], tmp_path: Path) -> None:
    options = ("--rows", "300", "--shape", "2,5", "--dtype", "float16")
    found = run("memory_mapped", "--file", tmp_path / "rows.npy", *options)
    assert re.match(r"tokenmill \S+ torch .*\n300 rows float16 \(2, 5\), written", found)
    rows = np.load(tmp_path / "rows.npy", mmap_mode="r")
    assert rows.shape == (300, 2, 5)
    assert rows.dtype == np.float16
    assert len(np.unique(rows)) > 2000


def test_rows_that_differ_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(LABS))
    write_rows = import_module("memory_mapped").write_rows  # a script, on the path only here
    path = tmp_path / "rows.npy"
    with pytest.raises(ValueError, match="row 1 is float64"):
        write_rows(path, iter([np.zeros(2, np.uint8), np.zeros(2)]), 2)
    with pytest.raises(ValueError, match="there are 1 rows, and 2 were announced"):
        write_rows(path, iter([np.zeros(2, np.uint8)]), 2)
    assert not path.exists()


@pytest.mark.needs("minutes")
def test_side_by_side(run: Callable[..., str], articles: Path, tmp_path: Path) -> None:
    options = ("--field", "article", "--store", tmp_path / "store", "--port", str(free_port()), "--seconds", "0.2")
    found = run("side_by_side", articles, *options)
    ways = re.findall(r"^(\w[\w ]+?) +[\d.]+ s +[\d.]+ s +([\d,]+) +[\d,]+$", found, re.MULTILINE)
    assert [name for name, _ in ways] == ["plain loop", "pack", "stream"]
    assert len({tokens for _, tokens in ways}) == 1


@pytest.mark.needs("minutes")
def test_from_stream(run: Callable[..., str], texts: Path, tmp_path: Path) -> None:
    port = free_port()
    found = run("from_stream", texts, "--store", tmp_path / "store", "--port", str(port), "--steps", "3")
    assert re.findall(r"(\w+): 3 batches, 1,524 tokens", found) == ["train", "validation"]
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.needs("minutes")
def test_notebook(tmp_path: Path, articles: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    notebook = nbformat.read(LABS / "from_texts_to_training.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert "%pip install" in code[0].source
    edited = code[1].source.replace("texts = TEXTS", f"texts = [{str(articles)!r}]")
    code[1].source = edited.replace("read = []", "read = ['--field', 'article']")
    environment = os.environ | {"STEPS": "20", "STORE": str(tmp_path / "store"), "OMP_NUM_THREADS": "1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        client.NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(LABS)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    printed = "".join(output.get("text", "") for output in outputs)
    assert len(pictures) == 2
    assert re.search(r"Data retention: .* of \d\d documents", printed)
    assert "\x1b" not in printed
    assert re.search(r"loss \d\.\d+ at first, \d\.\d+ after 20 steps", printed)
    assert [output for output in outputs if output.output_type == "error"] == []
