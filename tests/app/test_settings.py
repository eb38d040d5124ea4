"""Settings: precedence, spellings, tables of single topics, names of streams."""

from functools import partial
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from tokenmill.app.settings import Settings, Stream, load_settings, load_with_origins
from tokenmill.app.settings.values import as_variable, parse_names
from tokenmill.errors import SettingsError

pytestmark = pytest.mark.usefixtures("nothing_around")


def refusal(flags: dict[str, object] | None = None, config: Path | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(flags, config)
    return str(caught.value)


def test_flags_win_over_variables_over_file_over_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mill.toml"
    file.write_text('group = "file"\nworkers = 5\nsequence_length = 7\n')
    monkeypatch.setenv("TOKENMILL_GROUP", "variable")
    monkeypatch.setenv("TOKENMILL_WORKERS", "4")
    settings, origins = load_with_origins({"group": "flag", "store": None}, file)
    assert (settings.group, settings.workers, settings.sequence_length) == ("flag", 4, 7)
    assert origins["group"] == "flag --group"
    assert origins["workers"] == "variable TOKENMILL_WORKERS"
    assert origins["sequence_length"] == f"file {file}"
    assert origins["store"] == "default"


def test_file_is_found_by_variable_and_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("tokenmill.toml").write_text("workers = 3")
    other = tmp_path / "other.toml"
    other.write_text("workers = 9")
    assert load_settings().workers == 3
    monkeypatch.setenv("TOKENMILL_CONFIG", str(other))
    assert load_settings().workers == 9


def test_constructor_reads_nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("tokenmill.toml").write_text("workers = 3")
    monkeypatch.setenv("TOKENMILL_WORKERS", "4")
    assert Settings().workers == 2


def test_lists_splits_sizes_and_tokens_are_written_as_text() -> None:
    settings = load_settings(
        {
            "raw_topics": "a, b",
            "text_fields": '["te,xt"]',
            "splits": "train=900, test=100",
            "message_bytes": "1MiB",
            "end_of_document": "50256",
        }
    )
    assert settings.raw_topics == ("a", "b")
    assert settings.text_fields == ("te,xt",)
    assert list(settings.splits.items()) == [("train", 900), ("test", 100)]
    assert settings.message_bytes == 1 << 20
    assert settings.end_of_document == 50256


def test_splits_are_shares_and_the_rest_is_left_out_on_purpose() -> None:
    percent = load_settings({"splits": "train=98,validation=2"})
    assert percent.split_rule().shards == 100
    assert [stream.split for stream in percent.streams()] == ["train", "validation"]
    tenth = load_settings({"splits": "train=100,_unused=900", "shards": "1000"})
    assert (tenth.split_rule().shards, dict(tenth.split_rule().splits)) == (1000, {"train": 100})
    assert [stream.name for stream in tenth.streams()] == ["raw-text.train"]


def test_splits_of_a_file_replace_the_default_splits(tmp_path: Path) -> None:
    file = tmp_path / "mill.toml"
    file.write_text("[splits]\ntrain = 1000\n")
    assert load_settings(config=file).splits == {"train": 1000}


def test_start_is_one_moment_however_it_is_written() -> None:
    """Equal moments read equal, and so have one fingerprint."""
    written = ("2026-01-31T12:00:00Z", "2026-01-31T13:00:00+01:00", "2026-01-31 12:00:00.000+00:00")
    assert {load_settings({"start": text}).start for text in written} == {"2026-01-31T12:00:00.000Z"}
    assert Settings(start=written[0]).start_milliseconds == 1_769_860_800_000
    assert Settings().start_milliseconds is None
    assert "time zone" in refusal({"start": "2026-01-31T12:00:00"})


def test_unknown_names_are_refused_with_the_nearest_and_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mill.toml"
    file.write_text("sequence_lenght = 3")
    assert refusal(config=file) == (f"unknown setting sequence_lenght (file {file}) (did you mean sequence_length?)")
    monkeypatch.setenv("TOKENMILL_STOR", "x")
    assert refusal() == "unknown setting stor (variable TOKENMILL_STOR) (did you mean store?)"


def test_wrong_values_are_refused_with_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_SEQUENCE_LENGTH", "many")
    message = refusal()
    assert message.startswith("setting sequence_length = 'many' (variable TOKENMILL_SEQUENCE_LENGTH): ")


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        ({"raw_topics": "a/b"}, "cannot name a topic"),
        ({"raw_topics": "a,a"}, "two uses"),
        ({"raw_topics": "a,a.dead-letters"}, "two uses"),
        ({"raw_topics": "a" * 240}, "too long"),
        ({"raw_topics": "a" * 230, "stream_suffix": "-newer"}, "'control.aaa"),
        ({"dedup": {"name": "near", "domain": "a" * 239}}, "'signatures.aaa"),
        ({"raw_topics": ""}, "at least 1"),
        ({"splits": "train=1001", "shards": "1000"}, "1001 shards"),
        ({"splits": "train=98,validation=2", "shards": "1000"}, "90.0% of all documents would be in no split"),
        ({"splits": "train=0"}, "train = 0"),
        ({"topic": {"raw-text": {"splits": {"a": 1}, "shards": 2}}}, "50.0% of all documents"),
        ({"splits": "train"}, "no number of shards"),
        ({"splits": "train=1,train=2"}, "twice"),
        ({"stream_suffix": " v2"}, "cannot name a topic"),
        ({"message_bytes": "3 bananas"}, "bananas"),
        ({"sequence_length": True}, "must be a number"),
        ({"splits": {"train": True}}, "must be a number"),
        ({"topic": {"raw-text": {"shards": True}}}, "must be a number"),
        ({"session_timeout": 1e300}, "less than or equal to 1800"),
        ({"store": ""}, "names no directory"),
        ({"store": "a\0b"}, "names no directory"),
        ({"decode": "yaml"}, "it must be 'auto', 'json', 'text', 'avro', 'protobuf', 'json_schema' or module:function"),
        ({"decode": "jsn"}, "did you mean json?"),
        ({"topic": {"raw-txt": {}}}, "did you mean raw-text?"),
        ({"topic": {"raw-text": {"decod": "json"}}}, "did you mean decode?"),
        ({"topic": {"raw-text": {"workers": 3}}}, "holds for all topics"),
        ({"topic": {"raw-text": {"decode": "yaml"}}}, '[topic."raw-text"] setting decode'),
    ],
)
def test_values_that_cannot_work_are_refused(flags: dict[str, object], part: str) -> None:
    assert part in refusal(flags)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("a = = 1")
    assert str(tmp_path / "none.toml") in refusal(config=tmp_path / "none.toml")
    assert str(broken) in refusal(config=broken)


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    """As some editors write one."""
    (file := tmp_path / "marked.toml").write_text("workers = 3", "utf-8-sig")
    assert load_settings(config=file).workers == 3


def test_table_of_a_topic_holds_for_that_topic_alone(tmp_path: Path) -> None:
    file = tmp_path / "mill.toml"
    file.write_text(
        'raw_topics = ["web", "code"]\nsequence_length = 512\n'
        '[topic.code]\ndecode = "json"\nmetadata_fields = ["lang"]\n'
    )
    settings = load_settings(config=file)
    assert settings.for_topic("web").decode == "auto"
    code = settings.for_topic("code")
    assert (code.decode, code.metadata_fields, code.block_tokens) == ("json", ("lang",), 513)


def test_streams_are_named_after_topic_split_and_suffix() -> None:
    settings = Settings(raw_topics=("web", "code"), splits={"train": 1000}, topic={"code": {"stream_suffix": "-v2"}})
    assert settings.streams() == [Stream("web.train", "web", "train"), Stream("code.train-v2", "code", "train")]
    assert settings.streams()[1].tokens_topic == "tokens.code.train-v2"
    assert settings.streams()[1].control_topic == "control.code.train-v2"


def test_topics_of_one_domain_are_judged_together() -> None:
    near, exact = {"name": "near", "domain": "texts"}, {"name": "exact", "domain": "texts"}
    of = partial(Settings, raw_topics=("web", "code", "chat"), dedup=near)
    chat, texts = of(topic={"chat": {"dedup": "exact", "stream_suffix": "-v2"}}).domains()
    assert (chat.name, chat.raw_topics, chat.dedup) == ("chat-v2", ("chat",), {"name": "exact", "version": 1})
    assert (texts.signatures_topic, texts.slices_topic) == ("signatures.texts", "slices.texts")
    assert [texts.verdicts_topic(raw) for raw in texts.raw_topics] == ["verdicts.web", "verdicts.code"]
    assert chat.verdicts_topic("chat") == "verdicts.chat-v2"
    assert [domain.raw_topics for domain in of(topic={"chat": {"dedup": "none"}}).domains()] == [("web", "code")]
    assert of(dedup="none").domains() == []
    for other in ({"dedup": exact}, {"dedup": {**near, "window": 1000}}):
        with pytest.raises(ValidationError, match=r"the topics web, code and chat are of one domain, 'texts'"):
            of(topic={"chat": other})


def test_missing_tokenizer_is_named() -> None:
    assert Settings(tokenizer="bytes").require_tokenizer() == "bytes"
    with pytest.raises(SettingsError, match="train-tokenizer"):
        Settings().require_tokenizer()


def test_environment_hands_the_settings_on(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(
        raw_topics=("web", "code"),
        splits={"train": 999, "validation": 1},
        end_of_document=0,
        metadata_fields=("a,b", "c"),
        topic={"code": {"metadata_fields": ["x"], "splits": {"all": 1000}, "decode": "readers:wide"}},
        steps=({"name": "regex", "regex_exp": '[a,é="]'},),
        shards=1000,
    )
    Path("tokenmill.toml").write_text("workers = 7")
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    assert load_settings() == settings
    assert as_variable(()) == ""


@given(names=st.lists(st.text()))
@example(names=["["])
def test_names_survive_a_variable(names: list[str]) -> None:
    assert parse_names(as_variable(tuple(names))) == names


def test_steps_are_tables_or_names_in_every_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mill.toml"
    file.write_text('[[steps]]\nname = "sample"\nrate = 1\nseed = 0\n\n[[steps]]\nname = "length"\nmin_words = 5\n')
    wanted = ({"name": "sample", "rate": 1.0}, {"name": "length", "min_words": 5})
    assert load_settings(config=file).steps == wanted
    monkeypatch.setenv("TOKENMILL_STEPS", '["sample", {"name": "length", "min_words": 5}]')
    assert load_settings(config=file).steps == ({"name": "sample"}, wanted[1])
    names = [step["name"] for step in load_settings({"steps": "sample, gopher"}, file).steps]
    assert names == ["sample", "gopher_repetition", "gopher_quality"]
    assert load_settings({"steps": ""}, file).steps == ()


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('[{"name": "length"', r"Expecting .* line 1 column 19 .*: it is a list of tables in JSON \(\[\{"),
        ('{"name": "length"}', r"a list of tables stands in \[ \], as \[\{"),
        ("[]gopher", "Extra data: line 1 column 3 .*: it is a list of tables in JSON"),
        ("fineweb-2023", r"'fineweb-2023' is no profile and no step \(did you mean fineweb-2024\?\)"),
    ],
)
def test_steps_that_are_miswritten_are_explained(written: str, said: str) -> None:
    with pytest.raises(SettingsError, match=rf"^setting steps = .*\(flag --steps\): {said}"):
        load_settings({"steps": written})


@pytest.mark.parametrize("name", ["dedup", "packing"])
def test_a_table_in_a_flag_as_a_file_has_it_is_explained(name: str) -> None:
    with pytest.raises(SettingsError, match=r'Expecting .*: in a flag or a variable a table is JSON, as \{"name"'):
        load_settings({name: '{name = "near"}'})


def test_a_raw_topic_may_have_steps_of_its_own() -> None:
    settings = Settings(
        raw_topics=("a", "b"), steps=({"name": "sample"},), topic={"b": {"steps": [{"name": "length"}]}}
    )
    assert settings.for_topic("a").steps == ({"name": "sample"},)
    assert settings.for_topic("b").steps == ({"name": "length"},)


def test_a_wrong_step_is_named_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "mill.toml"
    file.write_text('[[steps]]\nname = "sample"\nrate = "half"\n')
    said = refusal(config=file)
    assert said.startswith("setting steps = ")
    assert f"(file {file})" in said
    assert said.endswith("step 1 (sample): rate = 'half': it must be a number")
    assert "(flag --steps): 'gophr' is no profile and no step (did you mean gopher?)" in refusal({"steps": "gophr"})
    assert "steps are a list" in refusal({"steps": 3})


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("concat", "concat"),
        ("rows", "rows"),
        ('{"name": "rows", "long": "truncate"}', "rows"),
        ({"name": "rows", "short": "drop", "long": "split"}, {"name": "rows", "long": "split", "short": "drop"}),
        ('{"name": "chunks", "chunk_tokens": 2048}', {"name": "chunks", "chunk_tokens": 2048}),
        ({"name": "fit"}, "fit"),
    ],
)
def test_a_packing_is_a_name_or_a_table(written: object, expected: object, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings.model_validate({"packing": written})
    assert settings.packing == expected
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    assert load_settings() == settings


@pytest.mark.parametrize(
    ("written", "expected", "in_the_recipe"),
    [
        ("none", "none", {}),
        ("near", "near", {"name": "near", "version": 1}),
        ('{"name": "near", "window": 10000000}', "near", {"name": "near", "version": 1}),
        (
            {"name": "exact", "fold": True},
            {"name": "exact", "fold": True},
            {"name": "exact", "fold": True, "version": 1},
        ),
    ],
)
def test_duplicates_are_left_out_by_name_or_table(
    written: object, expected: object, in_the_recipe: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings.model_validate({"dedup": written})
    assert (settings.dedup, settings.dedup_table) == (expected, in_the_recipe)
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    assert load_settings() == settings


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"dedup": {"name": "near", "window": 3}}, "near: window = 3: set it to 4 or more"),
        ({"dedup": "nearly"}, r"'nearly' is unknown \(did you mean near\?\)"),
        ({"packing": "row"}, r"setting packing = 'row' .*: 'row' is unknown \(did you mean rows\?\); there are concat"),
        ({"packing": {"long": "drop"}}, "it must be a name, as .* or a table with a name and parameters"),
        ({"packing": {"name": "rows", "longer": "drop"}}, r"rows: unknown parameter longer .*it has long, short"),
        (
            {"packing": {"name": "rows", "long": "cut"}},
            r'rows: long = \'cut\': it must be "truncate" or "split" or "drop"',
        ),
        ({"packing": {"name": "concat", "long": "drop"}}, "concat: unknown parameter long; it has none"),
        ({"packing": {"name": "chunks", "chunk_tokens": 0}}, "chunks: chunk_tokens = 0: set it to 1 or more"),
        (
            {"packing": {"name": "chunks", "chunk_tokens": 5000}, "sequence_length": 512},
            "packing chunks: chunk_tokens = 5000 is no multiple of sequence_length = 512, .*: set it to 4608",
        ),
        ({"packing": "chunks", "sequence_length": 6000}, "no multiple of sequence_length = 6000, .*: set it to 6000"),
        ({"packing": {"name": "fit", "open_blocks": 0}}, "fit: open_blocks = 0: set it to 1 or more"),
    ],
)
def test_a_packing_that_cannot_be_is_refused(values: dict[str, object], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        load_settings(values)


def test_the_packing_decides_what_a_block_has() -> None:
    sizes = {
        name: Settings.model_validate({"packing": name, "sequence_length": 512}).block_tokens
        for name in ("concat", "fit", "rows", "chunks")
    }
    assert sizes == {"concat": 513, "fit": 513, "rows": 512, "chunks": 5121}


@pytest.mark.parametrize("name", ["store", "ssl_cafile", "ssl_certfile"])
def test_a_path_may_be_at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    """A file of settings is read by no shell, and neither is ``--store=~/store``."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "place").touch()
    given = {name: "~/place", "security_protocol": "SSL"}
    assert getattr(load_settings(given), name) == tmp_path / "place"
    with pytest.raises(SettingsError, match=name):
        load_settings(given | {name: "~nobody-of-this-name/place"})
