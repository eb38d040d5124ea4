"""Settings: precedence, spellings, tables of single topics, names of streams, brokers, registries and secrets."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.app.commands import invoke
from tokenmill.app.local.local_state import LocalState
from tokenmill.app.settings import SECRETS, ConnectionSettings, Settings, Stream, load_settings, load_with_origins
from tokenmill.app.settings.values import as_variable, parse_names
from tokenmill.errors import SettingsError

pytestmark = pytest.mark.usefixtures("nothing_around")

LOGIN: dict[str, Any] = {
    "security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-256", "sasl_username": "miller",
    "sasl_password": "gr1st",
}  # fmt: skip
URL = "https://registry.example:8081"
EXACT = {"name": "exact", "fold": True}
REGISTRY: dict[str, Any] = {"schema_registry_url": URL, "schema_registry_username": "miller"}
A_TABLE_IS_JSON = r'Expecting .*: in a flag or a variable a table is JSON, as \{"name"'
STEPS = r"^setting steps = .*\(flag --steps\): "


def in_file(text: str) -> Settings:
    """Load the settings of a file in the working directory."""
    Path("tokenmill.toml").write_text(text)
    return load_settings()


def handed_on(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Return what a process loads that is started with these settings' environment."""
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    return load_settings()


def refusal(**flags: object) -> str:
    """Return the message with which flags are refused, or where there are none, the file and the environment."""
    with pytest.raises(SettingsError) as caught:
        load_settings(flags)
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


def test_file_is_found_by_variable_and_in_the_working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_file("\ufeffworkers = 3").workers == 3  # with a byte order mark, as some editors write one
    Path("other.toml").write_text("workers = 9")
    monkeypatch.setenv("TOKENMILL_CONFIG", "other.toml")
    assert load_settings().workers == 9
    monkeypatch.setenv("TOKENMILL_WORKERS", "4")
    assert Settings().workers == 2  # code that makes settings gets exactly what it says


def test_lists_splits_sizes_and_tokens_are_written_as_text() -> None:
    written = {"raw_topics": "a, b", "text_fields": '["te,xt"]', "splits": "train=900, test=100"}
    settings = load_settings({**written, "message_bytes": "1MiB", "end_of_document": "50256"})
    assert (settings.raw_topics, settings.text_fields) == (("a", "b"), ("te,xt",))
    assert list(settings.splits.items()) == [("train", 900), ("test", 100)]
    assert (settings.message_bytes, settings.end_of_document) == (1 << 20, 50256)


def test_splits_are_shares_and_the_rest_is_left_out_on_purpose() -> None:
    percent = load_settings({"splits": "train=98,validation=2"})
    assert percent.split_rule().shards == 100
    assert [stream.split for stream in percent.streams()] == ["train", "validation"]
    tenth = load_settings({"splits": "train=100,_unused=900", "shards": "1000"})
    assert (tenth.split_rule().shards, dict(tenth.split_rule().splits)) == (1000, {"train": 100})
    assert [stream.name for stream in tenth.streams()] == ["raw-text.train"]
    assert in_file("[splits]\ntrain = 1000\n").splits == {"train": 1000}  # nothing of the default is left


def test_start_is_one_moment_however_it_is_written() -> None:
    """Equal moments read equal, and so have one fingerprint."""
    written = ("2026-01-31T12:00:00Z", "2026-01-31T13:00:00+01:00", "2026-01-31 12:00:00.000+00:00")
    assert {load_settings({"start": text}).start for text in written} == {"2026-01-31T12:00:00.000Z"}
    assert Settings(start=written[0]).start_milliseconds == 1_769_860_800_000
    assert Settings().start_milliseconds is None
    assert "time zone" in refusal(start="2026-01-31T12:00:00")


def test_unknown_names_and_wrong_values_are_refused_with_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    (file := Path("tokenmill.toml")).write_text("sequence_lenght = 3")
    assert refusal() == f"unknown setting sequence_lenght (file {file}) (did you mean sequence_length?)"
    file.unlink()
    monkeypatch.setenv("TOKENMILL_SEQUENCE_LENGTH", "many")
    assert refusal().startswith("setting sequence_length = 'many' (variable TOKENMILL_SEQUENCE_LENGTH): ")
    monkeypatch.setenv("TOKENMILL_STOR", "x")
    assert refusal() == "unknown setting stor (variable TOKENMILL_STOR) (did you mean store?)"


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
        ({"steps": 3}, "steps are a list"),
        ({"steps": "gophr"}, "(flag --steps): 'gophr' is no profile and no step (did you mean gopher?)"),
        ({"sasl_password": "gr1st"}, "sasl_password is set and security_protocol is PLAINTEXT"),
        ({**LOGIN, "sasl_mechanism": None}, "sasl_mechanism is not set: the login needs it"),
        ({**LOGIN, "sasl_username": None}, "sasl_username is not set: the login needs it"),
        ({**LOGIN, "sasl_password": None}, "no password is set: set sasl_password_file, or sasl_password"),
        ({**LOGIN, "sasl_password_file": "file"}, "sasl_password and sasl_password_file are both set: remove one"),
        (
            {**LOGIN, "security_protocol": "SSL"},
            "sasl_mechanism is set and security_protocol is SSL, which has no login",
        ),
        (
            {**LOGIN, "security_protocol": "SASL_PLAINTEXT", "ssl_cafile": "ca.pem"},
            "ssl_cafile is set and security_protocol is SASL_PLAINTEXT, without TLS: set SASL_SSL, or remove",
        ),
        (
            {**LOGIN, "security_protocol": "SASL_PLAINTEXT", "ssl_check_hostname": "false"},
            "ssl_check_hostname is set and security_protocol is SASL_PLAINTEXT, without TLS",
        ),
        (
            {**LOGIN, "ssl_keyfile": "key.pem"},
            "ssl_keyfile is set without the certificate that it belongs to: set ssl_certfile",
        ),
        ({**LOGIN, "ssl_keyfile_password": "x"}, "ssl_keyfile_password is set without the certificate"),
        ({**LOGIN, "security_protocol": "sasl-ssl"}, "(did you mean SASL_SSL?)"),
        ({**LOGIN, "sasl_mechanism": "SCRAM_SHA_256"}, "(did you mean SCRAM-SHA-256?)"),
        (
            {**LOGIN, "sasl_mechanism": "GSSAPI"},
            "Input should be 'PLAIN', 'SCRAM-SHA-256', 'SCRAM-SHA-512' or 'OAUTHBEARER'",
        ),
        ({"schema_registry_username": "miller"}, "without a registry: set schema_registry_url"),
        ({"schema_registry_url": "registry.example:8081"}, "is no address"),
        ({"schema_registry_url": "ftp://registry.example"}, "is no address"),
        ({"schema_registry_url": "https://"}, "is no address"),
        ({"schema_registry_url": "https://registry.example:port"}, "is no address"),
        ({"schema_registry_url": "https://registry example"}, "is no address"),
        ({"schema_registry_url": "https://registry.example:65536"}, "is no address"),
        ({"schema_registry_url": "https://registry.example:0"}, "is no address"),
        ({"schema_registry_url": "https://miller:gr1st@registry.example"}, "has a login"),
        ({"schema_registry_url": "HTTPS://:gr1st@registry.example"}, "has a login"),
        ({"schema_registry_url": "https://gr1st@registry.example"}, "has a login"),
        ({"schema_registry_url": "https://registry.example?api_key=gr1st"}, "has a login, a query"),
        ({"schema_registry_url": "https://registry.example#token=gr1st"}, "has a login, a query or a fragment"),
        (REGISTRY, "without a password"),
        ({"schema_registry_url": URL, "schema_registry_password": "gr1st"}, "without a name"),
        ({**REGISTRY, "schema_registry_password": "gr1st", "schema_registry_password_file": "a"}, "remove one"),
        ({"schema_registry_url": "http://registry.example", "schema_registry_cafile": "a"}, "without TLS"),
        ({"schema_registry_url": URL, "schema_registry_keyfile": "a"}, "without its certificate"),
    ],
)
def test_values_that_cannot_work_are_refused(flags: dict[str, object], part: str) -> None:
    """What would fail later, mean two things, or have no effect. No password is shown."""
    message = refusal(**flags)
    assert part in message
    assert "gr1st" not in message


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (broken := tmp_path / "broken.toml").write_text("a = = 1")
    for file in (tmp_path / "none.toml", broken):
        with pytest.raises(SettingsError, match=str(file)):
            load_settings(config=file)


def test_table_of_a_topic_holds_for_that_topic_alone() -> None:
    settings = in_file(
        'raw_topics = ["web", "code"]\nsequence_length = 512\nsteps = "sample"\n'
        '[topic.code]\ndecode = "json"\nmetadata_fields = ["lang"]\nsteps = [{name = "length"}]\n'
    )
    web, code = settings.for_topic("web"), settings.for_topic("code")
    assert (web.decode, web.steps, code.steps) == ("auto", ({"name": "sample"},), ({"name": "length"},))
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


@pytest.mark.parametrize(
    "values",
    [
        {
            "raw_topics": ("web", "code"), "splits": {"train": 999, "validation": 1}, "end_of_document": 0,
            "shards": 1000, "metadata_fields": ("a,b", "c"), "steps": ({"name": "regex", "regex_exp": '[a,é="]'},),
            "topic": {"code": {"metadata_fields": ["x"], "splits": {"all": 1000}, "decode": "readers:wide"}},
        },
        {**LOGIN, "ssl_certfile": "a", "ssl_keyfile_password": " spaces,\nand lines ", "ssl_check_hostname": False},
        {**LOGIN, "sasl_password": None, "sasl_password_file": "secret"},
        {"schema_registry_url": "http://localhost:8081/apis/ccompat/v7"},
        {**REGISTRY, "schema_registry_password": "gr1st"},
        {**REGISTRY, **{f"schema_registry_{name}": name for name in ("password_file", "cafile", "certfile")}},
    ],
    ids=["of topics", "a login", "a password in a file", "a registry", "its login", "its files"],
)  # fmt: skip
def test_a_process_gets_what_its_parent_has(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Passwords included, but for one in a file, which stays in the file; whatever a settings file says."""
    settings = Settings.model_validate(values)
    Path("tokenmill.toml").write_text("workers = 7")
    assert handed_on(settings, monkeypatch) == settings
    assert "gr1st" not in repr(settings)
    assert settings.sasl_password_file is None or settings.environment()["TOKENMILL_SASL_PASSWORD"] == ""
    assert settings.at("127.0.0.1:1").schema_registry_url == settings.schema_registry_url


@given(names=st.lists(st.text()))
@example(names=["["])
def test_names_survive_a_variable(names: list[str]) -> None:
    assert parse_names(as_variable(tuple(names))) == names
    assert as_variable(()) == ""


def test_steps_are_tables_or_names_in_every_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ({"name": "sample", "rate": 1.0}, {"name": "length", "min_words": 5})
    file = '[[steps]]\nname = "sample"\nrate = 1\nseed = 0\n\n[[steps]]\nname = "length"\nmin_words = 5\n'
    assert in_file(file).steps == wanted
    monkeypatch.setenv("TOKENMILL_STEPS", '["sample", {"name": "length", "min_words": 5}]')
    assert load_settings().steps == ({"name": "sample"}, wanted[1])
    names = [step["name"] for step in load_settings({"steps": "sample, gopher"}).steps]
    assert names == ["sample", "gopher_repetition", "gopher_quality"]
    assert load_settings({"steps": ""}).steps == ()


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            '[[steps]]\nname = "sample"\nrate = "half"\n',
            r"steps = .*\(file tokenmill.toml\).*step 1 \(sample\): rate = 'half': it must be a number",
        ),
        ("sasl_password = 12345", r"sasl_password \(file tokenmill.toml\): .*"),
        ("sasl_password = ['gr1st']", r"sasl_password \(file tokenmill.toml\): .*"),
    ],
)
def test_a_wrong_setting_is_named_with_its_place_and_without_its_secret(written: str, said: str) -> None:
    Path("tokenmill.toml").write_text(written)
    assert re.fullmatch(f"setting {said}", message := refusal(), re.DOTALL)
    assert not re.search("gr1st|12345", message)


@pytest.mark.parametrize(
    ("name", "written", "expected"),
    [
        ("packing", "concat", "concat"),
        ("packing", "rows", "rows"),
        ("packing", '{"name": "rows", "long": "truncate"}', "rows"),
        (
            "packing",
            {"name": "rows", "short": "drop", "long": "split"},
            {"name": "rows", "long": "split", "short": "drop"},
        ),
        ("packing", '{"name": "chunks", "chunk_tokens": 2048}', {"name": "chunks", "chunk_tokens": 2048}),
        ("packing", {"name": "fit"}, "fit"),
        ("dedup", "none", "none"),
        ("dedup", "near", "near"),
        ("dedup", '{"name": "near", "window": 10000000}', "near"),
        ("dedup", EXACT, EXACT),
    ],
)
def test_a_packing_and_a_way_with_duplicates_are_names_or_tables(
    name: str, written: object, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings.model_validate({name: written})
    assert getattr(settings, name) == expected
    assert handed_on(settings, monkeypatch) == settings


@pytest.mark.parametrize(
    ("written", "in_the_recipe"),
    [
        ("none", {}),
        ("near", {"name": "near", "version": 1}),
        ('{"name": "near", "window": 10000000}', {"name": "near", "version": 1}),
        (EXACT, {**EXACT, "version": 1}),
    ],
)
def test_equal_ways_with_duplicates_stand_alike_in_a_recipe(written: object, in_the_recipe: object) -> None:
    assert Settings.model_validate({"dedup": written}).dedup_table == in_the_recipe


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
        ({"packing": '{name = "near"}'}, A_TABLE_IS_JSON),
        ({"dedup": '{name = "near"}'}, A_TABLE_IS_JSON),
        (
            {"steps": '[{"name": "length"'},
            STEPS + r"Expecting .* line 1 column 19 .*: it is a list of tables in JSON \(\[\{",
        ),
        ({"steps": '{"name": "length"}'}, STEPS + r"a list of tables stands in \[ \], as \[\{"),
        ({"steps": "[]gopher"}, STEPS + r"Extra data: line 1 column 3 .*: it is a list of tables in JSON"),
        (
            {"steps": "fineweb-2023"},
            STEPS + r"'fineweb-2023' is no profile and no step \(did you mean fineweb-2024\?\)",
        ),
    ],
)
def test_a_table_or_a_name_that_cannot_be_is_refused(values: dict[str, object], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        load_settings(values)


@pytest.mark.parametrize(("packing", "tokens"), [("concat", 513), ("fit", 513), ("rows", 512), ("chunks", 5121)])
def test_the_packing_decides_what_a_block_has(packing: str, tokens: int) -> None:
    assert Settings(packing=packing, sequence_length=512).block_tokens == tokens


@pytest.mark.parametrize("name", ["store", "ssl_cafile", "ssl_certfile"])
def test_a_path_may_be_at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    """A file of settings is read by no shell, and neither is ``--store=~/store``."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "place").touch()
    given = {name: "~/place", "security_protocol": "SSL"}
    assert getattr(load_settings(given), name) == tmp_path / "place"
    with pytest.raises(SettingsError, match=name):
        load_settings(given | {name: "~nobody-of-this-name/place"})


def test_passwords_are_the_secrets() -> None:
    """Found by their type, so that the next one is not forgotten."""
    assert {"sasl_password", "ssl_keyfile_password", "schema_registry_password", "http_token"} == SECRETS
    assert {name for name in Settings.model_fields if re.search("(password|_token)$", name)} == SECRETS


def test_a_contradiction_says_where_both_were_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable and a file contradict each other more often than two lines of one file."""
    Path("tokenmill.toml").write_text('security_protocol = "SSL"')
    monkeypatch.setenv("TOKENMILL_SASL_USERNAME", "miller")
    assert refusal().endswith(
        "(sasl_username: variable TOKENMILL_SASL_USERNAME, security_protocol: file tokenmill.toml)"
    )


def test_nothing_that_is_printed_holds_the_password() -> None:
    settings = load_settings(LOGIN)
    shown = (repr(settings), str(settings), settings.model_dump_json(), as_variable(settings.sasl_password))
    assert not [text for text in shown if "gr1st" in text]
    assert json.loads(settings.model_dump_json())["sasl_password"] == "*" * 10


def test_saved_settings_hold_no_password_and_are_their_owners_alone(tmp_path: Path) -> None:
    state = LocalState(tmp_path)
    state.settings_file.write_text("an older one, which everyone could read")
    state.settings_file.chmod(0o644)
    state.save(Settings(**LOGIN))
    assert "gr1st" not in state.settings_file.read_text()
    assert state.settings_file.stat().st_mode & 0o777 == 0o600


def test_a_local_broker_is_spoken_to_in_plain_text() -> None:
    settings = Settings(**LOGIN, ssl_cafile=Path("ca.pem"), workers=7).at("127.0.0.1:1234")
    found = {name: getattr(settings, name) for name in ConnectionSettings.model_fields}
    assert found == ConnectionSettings(bootstrap_servers="127.0.0.1:1234").model_dump()
    assert settings.workers == 7


@pytest.mark.parametrize("servers", ["", ",", "a:b", "a:0", "a:99999", "a:1;b:2", "a:1 b:2", "http://a:1"])
def test_what_is_no_address_is_not_taken_for_brokers_that_do_not_answer(servers: str) -> None:
    with pytest.raises(ValidationError, match=r"write (it|one) like kafka-1:9092"):
        ConnectionSettings(bootstrap_servers=servers)


SAME = ("a", "a:1,b_c:2", "::1", "[::1]:9092,[fe80::1%eth0]:1")


@pytest.mark.parametrize(
    ("written", "read"),
    [("kafka://a:9092, KAFKA://b:9092,c:9092", "a:9092,b:9092,c:9092"), *((f" {same} , ", same) for same in SAME)],
)
def test_addresses_are_taken_as_clients_of_kafka_take_them_with_a_scheme_or_without(written: str, read: str) -> None:
    assert ConnectionSettings(bootstrap_servers=written).bootstrap_servers == read


@pytest.mark.parametrize("scheme", ["HTTPS://", "Https://", " https://", "hTtPs://"])
def test_an_address_has_one_spelling(scheme: str) -> None:
    """It is read once: what decides on TLS, what connects and what logs say is the same."""
    url = f"{scheme}Registry.Example:8081/apis/ccompat/v7/"
    settings = load_settings({"schema_registry_url": url, "schema_registry_cafile": "a"})
    assert settings.schema_registry_url == "https://registry.example:8081/apis/ccompat/v7"


def test_registry_changes_no_fingerprint() -> None:
    """It may move; no topic has one of its own."""
    with pytest.raises(SettingsError, match="schema_registry_url holds for all topics"):
        load_settings({"topic": {"raw-text": {"schema_registry_url": URL}}})
    assert Settings(schema_registry_url=URL).for_topic("raw-text") == Settings().for_topic("raw-text")


def test_produce_refuses_a_topic_of_framed_values() -> None:
    """What it would send had no frame, and every record would be a dead letter."""
    told = invoke("produce", "raw-text", "README.md", "--decode", "avro", code=SettingsError.exit_code)
    assert "give them a raw topic of their own" in told.err
