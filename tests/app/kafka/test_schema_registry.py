"""The registry's client: records of other people's serializers, and registries that refuse, fail, lie, or are away."""

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import message_factory
from structlog.testing import capture_logs

from tests.app.milling.decoding.opened import AVRO, JSON, PROTO, framed, opened
from tests.registry_servers import SmallRegistry, apicurio, small_registry
from tokenmill.app.kafka.schema_registry import SchemaRegistry, schemas_for_command, schemas_of
from tokenmill.app.milling.decoding import RegisteredSchema
from tokenmill.app.milling.decoding.protobuf_values import compiled
from tokenmill.app.settings import Settings
from tokenmill.documents import Document
from tokenmill.errors import RegistryError, SettingsError

TEXT = json.dumps({"type": "record", "name": "T", "fields": [{"name": "text", "type": "string"}]})
PAGE: dict[str, Any] = {"id": "x", "label": "good", "seen": 1, "score": 0.5, "raw": b"", "links": [], "more": {}}


@pytest.fixture
def small() -> Iterator[SmallRegistry]:
    with small_registry() as registry:
        yield registry


@pytest.fixture
def theirs(registry_url: str) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry_url}) as client:
        yield client


@pytest.fixture(scope="module", params=["small", pytest.param("Apicurio", marks=pytest.mark.slow)])
def registry_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "small":
        with small_registry() as registry:
            yield registry.url
    else:
        with apicurio(tmp_path_factory.mktemp("apicurio")) as address:
            yield address


def client(url: str, **others: Any) -> SchemaRegistry:
    return SchemaRegistry(Settings(schema_registry_url=url, **others))


def refusal(url: str, number: int, words: str, **others: Any) -> RegistryError:
    """Return why there is no such schema."""
    with pytest.raises(RegistryError, match=words) as raised:
        client(url, **others).schema(number)
    return raised.value


def value_context(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


@pytest.mark.slow
def test_avro_of_confluents_serializer_is_decoded(registry_url: str, theirs: SchemaRegistryClient) -> None:
    value = AvroSerializer(theirs, json.dumps(AVRO))(PAGE | {"text": "Grüße"}, value_context("avro"))
    decoder = opened("avro", metadata_fields=("label",), schemas=client(registry_url))
    assert decoder(value) == Document("Grüße", "x", {"label": "good"})


@pytest.mark.needs("minutes")
def test_protobuf_of_confluents_serializer_is_decoded(registry_url: str, theirs: SchemaRegistryClient) -> None:
    """The second type of its file; one registry keeps the file compiled, as the client sends it."""
    kind = message_factory.GetMessageClass(compiled(RegisteredSchema("PROTOBUF", PROTO)).message_types_by_name["Page"])
    serialize = ProtobufSerializer(kind, theirs, {"use.deprecated.format": False})
    decoder = opened("protobuf", metadata_fields=("label",), schemas=client(registry_url))
    value = serialize(kind(text="Grüße", id=7, label=1), value_context("protobuf"))
    assert decoder(value) == Document("Grüße", 7, {"label": "GOOD"})


@pytest.mark.needs("minutes")
def test_json_of_confluents_serializer_is_decoded(registry_url: str, theirs: SchemaRegistryClient) -> None:
    serialize = JSONSerializer(json.dumps({"title": "Page", **JSON}), theirs)
    decoder = opened("json_schema", metadata_fields=("label",), schemas=client(registry_url))
    value = serialize({"text": "Grüße", "label": "bad"}, value_context("json"))
    assert decoder(value) == Document("Grüße", None, {"label": "bad"})


def test_references_are_fetched_by_subject_and_version(registry_url: str, theirs: SchemaRegistryClient) -> None:
    inner = Schema(json.dumps({"type": "record", "name": "x.Inner", "fields": [{"name": "text", "type": "string"}]}))
    theirs.register_schema("refs/inner", inner)
    to_inner = SchemaReference("x.Inner", "refs/inner", 1)
    middle = {"type": "record", "name": "x.Middle", "fields": [{"name": "inner", "type": "x.Inner"}]}
    theirs.register_schema("refs-middle", Schema(json.dumps(middle), "AVRO", [to_inner]))
    references = [SchemaReference("x.Middle", "refs-middle", 1), to_inner]
    outer = Schema(json.dumps(["x.Middle", "x.Inner"]), "AVRO", references)
    number = theirs.register_schema("refs-outer", outer)
    decoder = opened("avro", schemas=client(registry_url))
    assert decoder(framed(b"\2\4hi", number)).text == "hi"


def test_schema_that_a_real_registry_lacks_is_named(registry_url: str) -> None:
    """With what to do; asking again would not help, though the registry may be restored."""
    assert refusal(registry_url, 4711, r"schema 4711 is not in the schema registry .*tokenmill skip").definite


def test_schema_is_fetched_once(small: SmallRegistry) -> None:
    number = small.register("a", TEXT)
    known = client(small.url + "/")
    assert known.schema(number) == known.schema(number) == RegisteredSchema("AVRO", TEXT)
    assert small.requests == [f"/schemas/ids/{number}"]


STATUSES = {401: "schema_registry_username", 403: "the right to read", 404: "not a registry's", 429: "429", 503: "503"}


@pytest.mark.parametrize(("status", "advice"), STATUSES.items())
def test_refusals_and_failures_are_waited_for(small: SmallRegistry, status: int, advice: str) -> None:
    """They say nothing about the schema, and the message says what to look at."""
    number = small.register("a", TEXT)
    small.status = status
    found = refusal(small.url, number, advice)
    assert not found.definite
    assert small.url in str(found)


def test_lost_version_of_a_reference_is_named(small: SmallRegistry) -> None:
    number = small.register("a", TEXT, "AVRO", [{"name": "b", "subject": "b", "version": 3}])
    assert refusal(small.url, number, "version 3 of b, to which schema 1 refers, is not in").definite


ODD_ENTRIES: list[Any] = [
    *({}, {"schema": 1}, {"error_code": []}, b"[" * 100_000),
    {"schema": "", "references": 7}, {"schema": "", "references": {"name": "b"}},
    {"schema": "", "references": [1]}, {"schema": "", "references": [{}]},
    {"schema": "", "references": [{"name": "b", "subject": 2, "version": 3}]},
]  # fmt: skip


@pytest.mark.parametrize("entry", ODD_ENTRIES)
def test_answers_that_are_no_schemas_are_waited_for(small: SmallRegistry, entry: Any) -> None:
    """Something between us and the registry may answer in its place."""
    small.schemas[1] = entry
    assert not refusal(small.url, 1, "not what registries answer").definite


def test_registry_that_is_away_or_too_slow_is_no_answer(small: SmallRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked again, for what is slow now may be quick then."""
    monkeypatch.setattr("tokenmill.app.kafka.schema_registry.ANSWER_SECONDS", 0.1)
    number = small.register("a", TEXT)
    small.slow.clear()
    known = client(small.url)
    with pytest.raises(RegistryError, match="does not answer"):
        known.schema(number)
    small.slow.set()
    assert known.schema(number).text == TEXT
    small.stop()
    assert not refusal(small.url, number, "does not answer").definite


def test_login_is_sent_and_a_wrong_one_is_told(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("gr1st\n")
    with small_registry(login=("miller", "gr1st")) as small:
        number = small.register("a", TEXT)
        name = {"schema_registry_username": "miller"}
        assert client(small.url, **name, schema_registry_password_file=tmp_path / "password").schema(number).text
        assert client(small.url, **name, schema_registry_password="gr1st").schema(number).text  # noqa: S106
        for wrong in ({}, {**name, "schema_registry_password": "chaff"}):
            assert "chaff" not in str(refusal(small.url, number, "schema_registry_password_file", **wrong))


def test_tls_believes_whom_it_is_told_to_and_shows_a_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert("client").private_key_and_cert_chain_pem.write_to_path(tmp_path / "client.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    files = {"schema_registry_cafile": tmp_path / "ca.pem", "schema_registry_certfile": tmp_path / "client.pem"}
    with small_registry(tls=context) as small:
        number = small.register("a", TEXT)
        assert client(small.url, **files).schema(number).text == TEXT
        for lacking in files:
            refusal(small.url, number, "does not answer", **{name: files[name] for name in files if name != lacking})


LOGIN = {"schema_registry_username": "miller", "schema_registry_password": "gr1st"}


@pytest.mark.parametrize("scheme", ["https", "HTTPS", "Https"])
def test_a_certificate_that_nobody_vouches_for_is_refused_however_tls_is_spelt(scheme: str) -> None:
    """A spelling that one of two parsers did not know let anybody be the registry, and have the login."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("localhost").configure_cert(context)
    with small_registry(tls=context, login=("miller", "gr1st")) as small:
        number = small.register("a", TEXT)
        refusal(small.url.replace("https", scheme), number, r"does not answer .*certificate", **LOGIN)
        assert not small.requests


def test_a_registry_that_sends_elsewhere_is_not_followed(small: SmallRegistry) -> None:
    """The login is for this host alone; the message says where it wants us to go, without what is secret in that."""
    with small_registry(login=("miller", "gr1st")) as other:
        number = other.register("a", TEXT)
        small.elsewhere = f"http://u:S3cret@localhost:{other.port}/schemas/ids/{number}?token=S3cret"
        found = refusal(small.url, number, f"sends us to .*localhost:{other.port}.*own address", **LOGIN)
        assert "S3cret" not in str(found)
        assert not other.requests


@pytest.mark.parametrize("kind", ["cafile", "certfile", "password_file"])
def test_files_that_cannot_be_used_are_named(kind: str, tmp_path: Path) -> None:
    name = f"schema_registry_{kind}"
    others = {"schema_registry_username": "miller"} if kind == "password_file" else {}
    for content in (None, b"", b"\xff"):
        if content is not None:
            (tmp_path / "file").write_bytes(content)
        with pytest.raises(SettingsError, match=name):
            client("https://localhost:1", **{name: tmp_path / "file"}, **others)


def test_command_waits_for_a_registry_that_comes_back(small: SmallRegistry) -> None:
    number = small.register("a", TEXT)
    small.stop()
    with capture_logs() as logs:

        def start_once_it_is_missed() -> None:
            while not logs:
                time.sleep(0.01)
            small.start()

        threading.Thread(target=start_once_it_is_missed, daemon=True).start()
        assert SchemaRegistry(Settings(schema_registry_url=small.url), 60).schema(number).text == TEXT
    assert "does not answer" in logs[0]["reason"]


def test_command_ends_where_waiting_does_not_help(small: SmallRegistry) -> None:
    with pytest.raises(RegistryError, match="is not in"):
        SchemaRegistry(Settings(schema_registry_url=small.url), 3600).schema(1)
    small.stop()
    with pytest.raises(RegistryError, match="does not answer"):
        SchemaRegistry(Settings(schema_registry_url=small.url), 0).schema(1)


@pytest.mark.parametrize("find", [schemas_of, schemas_for_command])
def test_only_modes_with_schemas_have_a_registry(find: Callable[[Settings, str], object]) -> None:
    there, none = Settings(schema_registry_url="http://localhost:1"), Settings()
    assert find(there, "avro") is not None
    assert find(there, "json") is None
    assert find(none, "avro") is None
