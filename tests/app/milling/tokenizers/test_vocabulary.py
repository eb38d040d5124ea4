"""What the setting ``tokenizer`` names, and what is known of a tokenizer."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import ByteLevelBPETokenizer, Tokenizer

from tests.app.milling.tokenizers.conftest import around, word_model, words
from tests.app.sources.web import running
from tests.vocabularies.files import added_token, data_file
from tokenmill.app.milling.tokenizers import RAW_BYTES, Engine, TokenizerFile, dtype_for, load_tokenizer, open_engine
from tokenmill.app.milling.tokenizers.vocabulary import (
    Description,
    Role,
    added_ids,
    end_of,
    other_format,
    token_for,
    token_id_of,
)
from tokenmill.errors import SettingsError

REAL = [
    ("whisper/assets/gpt2.tiktoken", "ranks of bytes, as tiktoken has them: make one .* AutoTokenizer"),
    ("mistral_common/data/mistral_instruct_tokenizer_240323.model.v3", "a model of SentencePiece: make one .*"),
    ("mistral_common/data/tekken_240911.json", "Tekken, Mistral's own format: name a model on the hub"),
]
"""Files of models in use."""


def refusal(name: str | Path) -> str:
    with pytest.raises(SettingsError) as caught:
        load_tokenizer(str(name))
    assert str(caught.value).startswith(f'tokenizer = "{name}": ')
    return str(caught.value).removeprefix(f'tokenizer = "{name}": ')


@pytest.mark.parametrize(("name", "message"), REAL)
@pytest.mark.slow
def test_files_of_other_libraries_are_named(tmp_path: Path, name: str, message: str) -> None:
    """By what they hold, under whatever name they lie."""
    for place in (tmp_path / Path(name).name, tmp_path / "tokenizer.json", tmp_path / "tokenizer.model"):
        shutil.copy(data_file(name), place)
        with pytest.raises(SettingsError, match=rf"{place.name} is no tokenizer\.json; it .*{message}"):
            load_tokenizer(str(place))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.txt", b"[PAD]\n[UNK]\nthe\n##s\n", "WordPiece.*BertWordPieceTokenizer"),
        ("merges.txt", b"#version: 0.2\nh e\n", "merges of a BPE.*ByteLevelBPETokenizer"),
        ("vocab.json", b'{"a": 0, "b": 1}', "ids of a vocabulary alone.*ByteLevelBPETokenizer"),
        ("tokenizer_config.json", b'{"tokenizer_class": "GPT2Tokenizer"}', "holds none: name the tokenizer.json"),
        ("config.json", b'{"model_type": "gpt2", "vocab_size": 50257}', "holds none: name the tokenizer.json"),
        ("notes.txt", b"some text", "no JSON in UTF-8: name a tokenizer.json"),
        ("model.safetensors", bytes(range(256)), "no JSON"),
        ("tokenizer.json", b"", "no JSON"),
        ("list.json", b"[1, 2]", "no object"),
        ("other.json", b'{"version": "1.0"}', "no model in it"),
    ],
)
def test_files_beside_a_tokenizer_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SettingsError, match=message):
        load_tokenizer(str(tmp_path / name))


def test_what_is_a_tokenizer_is_none_of_these() -> None:
    assert other_format(words()) is None
    assert other_format(json.dumps(json.loads(words()), indent=2).encode()) is None


@pytest.mark.parametrize("there", [["tokenizer.model", "config.json"], ["tekken.json"], ["vocab.json", "merges.txt"]])
def test_a_folder_without_a_tokenizer_tells_what_it_has(tmp_path: Path, there: list[str]) -> None:
    """And what makes one of it; the hub is not asked."""
    assert refusal(tmp_path).endswith("name a folder that holds one")
    for name in there:
        (tmp_path / name).touch()
    message = refusal(tmp_path)
    assert message.startswith(f"there is no file {tmp_path / 'tokenizer.json'}; it has {there[0]}")
    assert "AutoTokenizer.from_pretrained(FOLDER)" in message


def test_names_of_tiktoken_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "a vocabulary of tiktoken" in refusal("cl100k_base")
    (tmp_path / "cl100k_base").mkdir()
    (tmp_path / "cl100k_base" / "tokenizer.json").write_bytes(words())
    assert load_tokenizer("cl100k_base").content == words()


def test_the_advice_on_vocabularies_and_merges_is_right(tmp_path: Path) -> None:
    """What it says makes a tokenizer."""
    made = ByteLevelBPETokenizer()
    made.train_from_iterator(["some text, some more"], vocab_size=270, show_progress=False)
    made.save_model(str(tmp_path))
    assert "merges of a BPE" in str(other_format((tmp_path / "merges.txt").read_bytes()))
    ByteLevelBPETokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt")).save(
        str(tmp_path / "tokenizer.json")
    )
    assert load_tokenizer(str(tmp_path)).content is not None


def test_raw_bytes_need_no_file() -> None:
    tokenizer = load_tokenizer("bytes")
    assert tokenizer.content is None
    assert tokenizer.sha256 == hashlib.sha256(b"bytes").hexdigest()
    assert open_engine(tokenizer).kind == "bytes"
    assert Description.of(tokenizer) == Description("bytes", "none", "none", {}, {})


@pytest.mark.parametrize("name", ["", "tokenizer.json"])
def test_a_file_and_its_folder_are_the_same_tokenizer(words_folder: Path, name: str) -> None:
    tokenizer = load_tokenizer(str(words_folder / name))
    assert tokenizer.content == words()
    assert tokenizer.sha256 == hashlib.sha256(words()).hexdigest()
    assert open_engine(tokenizer).kind == "tokenizers"


def test_the_files_beside_it_say_what_its_tokens_are_for(words_folder: Path) -> None:
    (words_folder / "tokenizer_config.json").write_text('{"eos_token": "b"}')
    found = load_tokenizer(str(words_folder))
    assert (found.sha256, found.beside) == (
        hashlib.sha256(words()).hexdigest(),
        {"tokenizer_config.json": {"eos_token": "b"}},
    )
    (words_folder / "generation_config.json").write_text("{")
    with pytest.raises(SettingsError, match=r"generation_config\.json cannot be read .*correct it"):
        load_tokenizer(str(words_folder))


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    """Windows editors put one first; of UTF-16, as its shell writes, the message speaks."""
    (tmp_path / "mark.json").write_bytes(b"\xef\xbb\xbf" + words())
    assert load_tokenizer(str(tmp_path / "mark.json")).sha256 == hashlib.sha256(words()).hexdigest()
    (tmp_path / "tokenizer.json").write_bytes(words())
    (tmp_path / "tokenizer_config.json").write_bytes(b'\xef\xbb\xbf{"eos_token": "b"}')
    assert load_tokenizer(str(tmp_path)).beside == {"tokenizer_config.json": {"eos_token": "b"}}
    (tmp_path / "wide.json").write_bytes(words().decode().encode("utf-16"))
    with pytest.raises(SettingsError, match=r"it is no JSON in UTF-8: name a tokenizer\.json"):
        load_tokenizer(str(tmp_path / "wide.json"))


def test_a_relative_folder_goes_before_the_hub(words_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (words_folder / "owner").mkdir()
    (words_folder / "owner" / "model").symlink_to(words_folder)
    monkeypatch.chdir(words_folder)
    assert load_tokenizer("owner/model").content == words()


FORMATS = ("tokenizer.model", "o200k.tiktoken", "vocab.txt", "llama/tokenizer.model")
"""Files of other libraries."""


@pytest.mark.parametrize("name", ["missing.json", "./missing", "/no/such/folder", "a/b/c", "", *FORMATS])
def test_a_missing_file_is_refused_without_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert "there is no file" in refusal(name)


NOW, BEFORE = "1" * 40, "2" * 40
"""The commits of the model: that of ``main``, and that of the tag ``v1``."""
OLDER = words(normalizer={"type": "Lowercase"})


class _Hub(BaseHTTPRequestHandler):
    """Serves one model's tokenizer as the hub does, in two commits."""

    def do_HEAD(self) -> None:
        commit = self._commit()
        self.send_response(200 if commit else 404)
        if commit:
            self.send_header("ETag", f'"{commit[0]}"')
            self.send_header("X-Repo-Commit", commit)
        else:
            known = self.path.startswith("/owner/model/")
            self.send_header("X-Error-Code", "RevisionNotFound" if known else "RepoNotFound")
        self.send_header("Content-Length", str(len(self._content(commit))))
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(self._content(self._commit()))

    def _commit(self) -> str | None:
        of = {"main": NOW, NOW: NOW, "v1": BEFORE, BEFORE: BEFORE}
        return {f"/owner/model/resolve/{name}/tokenizer.json": commit for name, commit in of.items()}.get(self.path)

    def _content(self, commit: str | None) -> bytes:
        return {NOW: words(), BEFORE: OLDER}.get(commit or "", b"")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def hub() -> Iterator[str]:
    with running(ThreadingHTTPServer(("127.0.0.1", 0), _Hub)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def _load_from(hub: str, name: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Load a tokenizer in a process of its own: the hub's library reads the environment when it is imported."""
    program = """if True:
        import sys
        from tokenmill.app.milling.tokenizers import load_tokenizer
        from tokenmill.errors import SettingsError
        try:
            print(load_tokenizer(sys.argv[1]).sha256)
        except SettingsError as error:
            sys.exit(str(error))
        """
    environment = os.environ | {"HF_ENDPOINT": hub, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}
    environment.pop("HF_HUB_OFFLINE", None)
    command = [sys.executable, "-c", program, name]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_hub_name_is_fetched_from_the_endpoint_once(hub: str, tmp_path: Path) -> None:
    expected = hashlib.sha256(words()).hexdigest()
    first = _load_from(hub, "owner/model", tmp_path)
    assert first.stdout.split() == [expected], first.stderr
    again = _load_from("http://127.0.0.1:9", "owner/model", tmp_path)
    assert again.stdout.split() == [expected], again.stderr
    told = again.stderr.strip().splitlines()  # the hub's library tells of its tries, or takes the cached file at once
    assert len(told) <= 1, again.stderr
    assert all(line.startswith("the hub did not answer at once ('[Errno 111] Connection refused'") for line in told)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answers", "name"),
    [(True, "owner/other"), (True, "hf://owner/model@v2"), (False, "owner/model"), (False, "not a name!")],
)
def test_what_the_hub_does_not_give_is_refused(hub: str, tmp_path: Path, *, answers: bool, name: str) -> None:
    """A model, a revision of one that it has, any at all: in one message, without a traceback, with what to check."""
    result = _load_from(hub if answers else "http://127.0.0.1:9", name, tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith(f'tokenizer = "{name}" is neither a file here nor available from the hub')
    assert "check the name, its revision, the network and HF_ENDPOINT" in result.stderr
    assert "client has been closed" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("at", "content"), [("", words()), ("@main", words()), ("@v1", OLDER), (f"@{BEFORE}", OLDER)])
@pytest.mark.cases(2)
def test_a_revision_of_the_hub_is_what_it_was(hub: str, tmp_path: Path, at: str, content: bytes) -> None:
    result = _load_from(hub, f"hf://owner/model{at}", tmp_path)
    assert result.stdout.split() == [hashlib.sha256(content).hexdigest()], result.stderr


@pytest.mark.slow
@pytest.mark.needs("minutes")
def test_a_pinned_commit_needs_the_hub_once(hub: str, tmp_path: Path) -> None:
    first = _load_from(hub, f"hf://owner/model@{BEFORE}", tmp_path)
    again = _load_from("http://127.0.0.1:9", f"hf://owner/model@{BEFORE}", tmp_path)
    assert first.stdout == again.stdout != ""
    assert again.stderr == ""


@pytest.mark.parametrize("name", ["hf://", "hf://owner/model@", "hf://a/b/c@main", "hf://@main", "hf://../model"])
def test_a_hub_address_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="write hf://owner/model@revision"):
        load_tokenizer(name)


def test_parts_have_the_names_that_the_file_gives_them(byte_level: bytes) -> None:
    found = Description.of(TokenizerFile("byte level", byte_level))
    assert (found.model, found.pre_tokenizer) == ("BPE", "ByteLevel")
    assert found.special == {"<|endoftext|>": 0}
    several = {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}
    added = [added_token(3, "<eos>"), added_token(4, "<tool>", special=False)]
    found = Description.of(TokenizerFile("words", words(normalizer=several, added_tokens=added)))
    assert (found.normalizer, found.special, found.added) == ("NFC, Lowercase", {"<eos>": 3}, {"<tool>": 4})


def test_ids_of_added_tokens_are_those_that_the_library_gives() -> None:
    """Whatever the file says, in whatever order: a word's own, or the next one, holes or not."""
    added = [added_token(number, name, special=False) for number, name in ((70, "<x>"), (9, "b"), (5, "<y>"))]
    for word in (2, 90):
        content = words(model=word_model("[UNK]") | {"vocab": {"[UNK]": 0, "a": 1, "b": word}}, added_tokens=added)
        library = Tokenizer.from_str(content.decode()).get_added_tokens_decoder()
        assert added_ids(json.loads(content)) == {token.content: number for number, token in library.items()}
        engine = open_engine(TokenizerFile("odd", content), "tokenizers")
        assert engine.encode(["<x>a<y>"]).ids.tolist() == [engine.token_id(name) for name in ("<x>", "a", "<y>")]


RAW = TokenizerFile(RAW_BYTES, None)
BYTES = open_engine(RAW)
WORDS = open_engine(TokenizerFile("words", words()))


def _word_engine(*vocabulary: str) -> Engine:
    return open_engine(TokenizerFile("words", words(model=word_model(*vocabulary), added_tokens=[])))


@pytest.mark.parametrize(
    ("engine", "setting", "expected"),
    [
        (WORDS, "b", 2),
        (WORDS, 1, 1),
        (WORDS, "0", 0),
        (BYTES, 10, 10),
        (BYTES, "255", 255),
        (_word_engine("u", "x", "1"), "1", 2),
    ],
)
def test_the_token_is_found(engine: Engine, setting: str | int, expected: int) -> None:
    assert token_id_of(engine, "padding", setting) == expected


@pytest.mark.parametrize(
    ("engine", "setting"),
    [(WORDS, "<pad>"), (WORDS, 4), (WORDS, -1), (WORDS, "4"), (WORDS, True), (BYTES, 256), (BYTES, "a")],
)
def test_what_is_no_token_is_refused(engine: Engine, setting: str | int) -> None:
    with pytest.raises(SettingsError, match=rf"^padding = {setting!r} is no token .* an id from 0 to \d+$"):
        token_id_of(engine, "padding", setting)


CONFIG, MAP, GENERATION = FILES = ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
TWO_ENDS: Any = {GENERATION: {"eos_token_id": [3, 2]}}
NOTHING_SAID = {CONFIG: {"eos_token": None}, MAP: {}, GENERATION: {"eos_token_id": None}}
EOS_AND_TAG = ("u", "</s>", "<eos>", "<bos>", "<pad>")
BEHIND, IN_FRONT = around("$A", "<bos>", number=3), around("<bos>", "$A", number=3)
UNSAID_PADDING = {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None, "pad_type_id": 0}
UNSAID_PADDING |= {"pad_id": 0, "pad_token": "[PAD]"}
"""As `tokenizers` writes it where nobody said which token it is: id 0, whatever that token is."""


def _file(*special: str, vocabulary: Sequence[str] = EOS_AND_TAG, beside: Any = None, **parts: Any) -> TokenizerFile:
    """Return a tokenizer with this vocabulary, some of which is special."""
    added = [
        added_token(number, name, special=name in special)
        for number, name in enumerate(vocabulary)
        if name.startswith(("<", "["))
    ]
    return TokenizerFile("words", words(model=word_model(*vocabulary), added_tokens=added, **parts), beside or {})


@pytest.mark.parametrize(
    ("role", "file", "expected", "why"),
    [
        ("eos", RAW, 0, "zero byte"),
        ("eos", TokenizerFile("words", words()), 3, "usual name"),
        ("eos", _file("<eos>", "<bos>"), 2, "usual name"),
        ("eos", _file("[SEP]", vocabulary=("u", "[SEP]", "[CLS]")), 1, "usual name"),
        ("eos", _file("<eos>", post_processor=BEHIND), 3, r"tokenizer.json \(post_processor\)"),
        ("eos", _file("<eos>", beside={CONFIG: {"eos_token": {"content": "<bos>"}}}), 3, CONFIG),
        ("eos", _file("<eos>", beside={MAP: {"eos_token": "</s>"}}), 1, MAP),
        ("eos", _file("<eos>", beside={GENERATION: {"eos_token_id": 3}}), 3, GENERATION),
        ("eos", _file(beside={CONFIG: {"eos_token": "<eos>"}} | TWO_ENDS), 2, f"{CONFIG}, {GENERATION}"),
        ("eos", _file("<eos>", beside=NOTHING_SAID), 2, "^the special token with a usual name$"),
        ("pad", RAW, 0, "zero byte"),
        ("pad", TokenizerFile("words", words()), None, ""),
        ("pad", _file("<eos>"), None, ""),
        ("pad", _file("<pad>"), 4, "usual name"),
        ("pad", _file("<pad>", beside={MAP: {"pad_token": "<eos>"}}), 2, MAP),
        ("pad", _file("<eos>", "<pad>", padding=UNSAID_PADDING, beside={CONFIG: {"pad_token": "<pad>"}}), 4, CONFIG),
        ("bos", _file("<bos>", "<eos>"), 3, "usual name"),
        ("bos", _file("<eos>"), None, ""),
        ("bos", _file("<bos>", post_processor=IN_FRONT), 3, r"tokenizer.json \(post_processor\)"),
        ("bos", _file("<bos>", beside={CONFIG: {"bos_token": "<eos>"}}), 2, CONFIG),
        ("bos", RAW, None, ""),
        ("unk", _file("<eos>"), 0, r"^named by tokenizer\.json \(model\)$"),
        ("unk", RAW, None, ""),
    ],
)
def test_tokens_are_what_files_say_or_special(role: Role, file: TokenizerFile, expected: int | None, why: str) -> None:
    """A word of a usual name is none, as `</s>` is an HTML tag for Gemma; and it is said where the token was found."""
    found = token_for(role, file, open_engine(file))
    assert (found.id if found else None) == expected
    assert re.search(why, found.why if found else "")


NO_PAD = r"is \[PAD\], id 0, which is no such token.*<pad>.*set padding"
EOS = r"\. It has <eos> \(id 2\)"
EOS_OR_BOS = r"<eos> \(id 2\), <bos> \(id 3\)\. Set end_of_document"
MANY = _file("<s>", "<bos>", "<pad>", "[PAD]", vocabulary=("u", "<s>", "<bos>", "<pad>", "[PAD]"))


@pytest.mark.parametrize(
    ("role", "file", "said"),
    [
        ("eos", _file("</s>", "<eos>"), r"</s> \(id 1\), <eos> \(id 2\)\. Set end_of_document"),
        ("eos", _file("<eos>", beside=TWO_ENDS), EOS_OR_BOS),
        ("eos", _file("<eos>", post_processor=BEHIND, beside={CONFIG: {"eos_token": "<eos>"}}), EOS_OR_BOS),
        ("bos", MANY, r"<s> \(id 1\), <bos> \(id 2\)\. Set begin_of_document"),
        ("pad", MANY, r"<pad> \(id 3\), \[PAD\] \(id 4\)\. Set padding"),
        ("pad", _file("<eos>", "<pad>", padding=UNSAID_PADDING), NO_PAD),
        *(("eos", _file("<eos>", beside={name: ["<eos>"]}), f"{name} is no JSON object{EOS}") for name in FILES),
    ],
)
def test_what_is_not_certain_is_refused_with_the_choice(role: Role, file: TokenizerFile, said: str) -> None:
    """Nothing is guessed: neither one of several, nor against a file that says something else."""
    with pytest.raises(SettingsError, match=said):
        token_for(role, file, open_engine(file))


def test_a_vocabulary_without_a_usual_special_token_needs_the_setting() -> None:
    with pytest.raises(SettingsError, match="set end_of_document"):
        end_of(_file(), open_engine(_file()))


@pytest.mark.parametrize(("role", "name"), [("eos", CONFIG), ("eos", MAP), ("bos", CONFIG), ("pad", MAP)])
@pytest.mark.parametrize("value", ["<gone>", "", 2, 2.0, True, ["<eos>"], {"content": "<gone>"}, {"content": 2}, {}])
def test_a_file_that_names_no_token_is_named_with_the_choice(name: str, role: Role, value: Any) -> None:
    """A usual name would be a guess against what the file says."""
    file = _file("<eos>", "<bos>", "<pad>", beside={name: {f"{role}_token": value}})
    said = rf"{role}_token of {re.escape(name)} is {re.escape(json.dumps(value))}, the name of no token\."
    with pytest.raises(SettingsError, match=rf"{said}.* Correct the file, or set \w+ .*to the name or id"):
        token_for(role, file, open_engine(file))


@pytest.mark.parametrize("value", [5, -1, "2", "<eos>", 2.0, True, [2, 5], [[2]], {"id": 2}, {}])
def test_a_file_that_gives_no_id_is_named_with_the_choice(value: Any) -> None:
    """As an id of another tokenizer's vocabulary; where one of several is right, the others are wrong all the same."""
    file = _file("<eos>", beside={GENERATION: {"eos_token_id": value}})
    said = rf"eos_token_id of {GENERATION} is {re.escape(json.dumps(value))}, no id from 0 to 4{EOS}\."
    with pytest.raises(SettingsError, match=rf"{said} Correct the file, or set end_of_document"):
        end_of(file, open_engine(file))


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        ({CONFIG: {"eos_token": "<gone>"}, GENERATION: {"eos_token_id": 2}}, 'eos_token of .* is "<gone>"'),
        ({CONFIG: {"eos_token": "<eos>"}, GENERATION: {"eos_token_id": [2, 99]}}, r"eos_token_id of .* is \[2, 99\]"),
        ({CONFIG: {"eos_token": "<eos>"}, MAP: []}, f"{MAP} is no JSON object"),
    ],
)
def test_what_is_wrong_in_one_file_is_said_where_another_names_the_end(beside: Any, said: str) -> None:
    """The end is certain, so work goes on."""
    file = _file("<eos>", "</s>", beside=beside)
    found = end_of(file, open_engine(file))
    assert found.id == 2
    assert re.search(rf"^named by .*\.json \(passed over: {said}", found.why)


@pytest.mark.parametrize(
    ("size", "dtype"), [(1, "<u1"), (256, "<u1"), (257, "<u2"), (65_536, "<u2"), (65_537, "<u4"), (2**32, "<u4")]
)
def test_the_dtype_is_the_smallest_that_holds_every_id(size: int, dtype: str) -> None:
    assert dtype_for(size) == np.dtype(dtype)
    assert size - 1 <= np.iinfo(dtype_for(size)).max
