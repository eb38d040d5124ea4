"""TLS and logins: every client gets in by each listener and mechanism, and the whole service works over them."""

import ssl
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiokafka import TopicPartition

from tests.commands import command, run
from tests.conftest import topics_on
from tests.marked import MARK, marked, until
from tests.rights import grant, roles
from tests.secured import MECHANISMS, NEEDLE, PASSWORD, Secured, TokenEndpoint
from tests.service import reference_blocks, service_settings, stored_blocks
from tokenmill.app.broker_contact import CONTACT
from tokenmill.app.kafka.clients import admin, consumer, offsets, producer, read_range
from tokenmill.app.kafka.fastpath import LARGE_BYTES
from tokenmill.app.kafka.security import certificate_ends, client_security, password
from tokenmill.app.settings import ConnectionSettings, Settings
from tokenmill.app.worker.transport import faust_options
from tokenmill.errors import SettingsError

SECONDS = 90.0
"""How long a wait for the service may take: far longer than it should."""
WAYS: list[tuple[str, dict[str, Any]]] = [("SSL", {})]
WAYS += [(f"SASL_{kind}", {"sasl_mechanism": each}) for kind in ("PLAINTEXT", "SSL") for each in MECHANISMS]


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize(("protocol", "others"), WAYS)
@pytest.mark.cases(4)
async def test_every_client_gets_in(secured: Secured, protocol: str, others: dict[str, Any]) -> None:
    topic = topics_on(secured.broker, "gets-in")()
    CONTACT._last = (0.0, 0.0)
    sent, partition = [b"grain", b"flour" * LARGE_BYTES], TopicPartition(topic, 0)
    with TokenEndpoint() as endpoint:
        settings = secured.settings(protocol, **others | (endpoint.values if "OAUTHBEARER" in others.values() else {}))
        async with producer(settings) as sender:
            for value in sent:
                await sender.send_and_wait(topic, value)
        async with consumer(settings) as reader:
            assert await offsets(reader, [partition]) == {partition: (0, 2)}
            assert [record.value async for record in read_range(reader, partition, 0, 2)] == sent
        async with admin(settings) as client:
            assert topic in await client.list_topics()
    assert time.time() - CONTACT.last_answer < SECONDS


async def test_a_password_file_is_read_when_a_client_is_made(secured: Secured) -> None:
    settings = secured.settings("SASL_SSL", sasl_password=None, sasl_password_file=secured.password_file)
    async with admin(settings) as client:
        assert await client.list_topics() is not None


@pytest.mark.parametrize("content", [b"pass word", b"pass word\n", b"pass word\r\n"])
def test_passwords_keep_all_but_a_line_end(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "password").write_bytes(content)
    assert password(_login(tmp_path / "password"), "sasl") == "pass word"


def test_unusable_password_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff")
    for name, words in (("none", "No such file"), ("empty", "is empty"), ("binary", "is not UTF-8")):
        with pytest.raises(SettingsError, match=f"sasl_password_file .*{name}.*{words}"):
            password(_login(tmp_path / name), "sasl")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ssl_cafile": "none.pem"}, "cannot read ssl_cafile none.pem: No such file or directory"),
        ({"ssl_cafile": "password"}, "ssl_cafile .* holds no certificates in PEM"),
        ({"ssl_certfile": "none.pem"}, "cannot read ssl_certfile none.pem"),
        ({"ssl_keyfile": "none.key"}, "cannot read ssl_keyfile none.key"),
        ({"ssl_keyfile": "ca.pem"}, "cannot use ssl_certfile .*client.pem with the key in .*ca.pem"),
        ({"ssl_keyfile_password": "wrong"}, "an encrypted key needs ssl_keyfile_password"),
        ({"ssl_keyfile_password": None}, "an encrypted key needs ssl_keyfile_password"),
    ],
)
def test_unusable_certificates_are_named(secured: Secured, changes: dict[str, str | None], words: str) -> None:
    there = {path.name: path for path in secured.directory.iterdir()}
    paths = {name: there.get(value or "", value) for name, value in changes.items()}
    with pytest.raises(SettingsError, match=words):
        client_security(secured.settings("SSL", **paths))


def test_faust_is_given_the_same(secured: Secured) -> None:
    both = faust_options(secured.settings("SASL_SSL"))["broker_credentials"]
    assert (both.protocol.value, both.mechanism.value) == ("SASL_SSL", "SCRAM-SHA-512")
    assert both.password == PASSWORD
    assert both.ssl_context.verify_mode == ssl.CERT_REQUIRED
    assert faust_options(secured.settings("SASL_PLAINTEXT"))["broker_credentials"].protocol.value == "SASL_PLAINTEXT"
    assert faust_options(secured.settings("SSL"))["broker_credentials"].protocol.value == "SSL"
    assert "broker_credentials" not in faust_options(Settings())


@pytest.mark.parametrize(
    ("protocol", "user"), [("SASL_SSL", "worker"), pytest.param("SSL", None, marks=pytest.mark.needs("minutes"))]
)
def test_the_whole_service_works_over_tls(secured: Secured, tmp_path: Path, protocol: str, user: str | None) -> None:
    """Topics, mills, segment worker, produce, flush, inspect and verify; and nobody sees the password.

    The worker may do what docs/kafka_teams.md gives to all roles together, and nothing else.
    """
    raw = topics_on(secured.broker, "whole")(2)
    settings = service_settings(secured.broker, raw, tmp_path, **secured.values(protocol))
    if user is not None:
        grant(secured, user, roles(), raw, settings.group)
        settings = settings.model_copy(update={"sasl_username": user})
    lines = [f'{{"text": "document {number} of the mill"}}\n' for number in range(500)]
    (tmp_path / "a.jsonl").write_text("".join(lines))
    mark = uuid.uuid4().hex

    def said_by(*words: str) -> str:
        code, said = run(words, tmp_path / f"{words[0]}.log", settings.environment())
        assert code == 0, said
        return said

    service = command(["serve"], tmp_path / "serve.log", {**settings.environment(), MARK: mark})
    try:
        said = [said_by("produce", raw, str(tmp_path / "a.jsonl"), "--json"), said_by("flush", raw)]
        wanted = {chain: len(blocks) for chain, blocks in reference_blocks(settings).items()}
        stored = until(lambda: stored_blocks(settings, wanted) == wanted, SECONDS)
        commands = marked(mark)
    finally:
        service.terminate()
        service.wait(SECONDS)
    assert stored, service.said

    said += [said_by("topics", "check"), said_by("inspect", "stream", f"{raw}.train"), said_by("config")]
    assert "equal to the reference" in said_by("verify")
    assert len(commands) == 4, commands
    assert sum(wanted.values()) > 100
    written = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    shown = [*said, *commands, *(content.decode(errors="replace") for content in written)]
    assert not [text for text in shown if NEEDLE in text]


def _login(file: Path) -> ConnectionSettings:
    plain: dict[str, Any] = {"sasl_mechanism": "PLAIN", "sasl_username": "miller", "sasl_password_file": file}
    return ConnectionSettings(security_protocol="SASL_SSL", **plain)


def written(path: Path, *blobs: trustme.Blob) -> str:
    path.write_bytes(b"".join(blob.bytes() for blob in blobs))
    return str(path)


@pytest.mark.parametrize("year", [2031, 2049, 2050, 2090])
def test_the_end_is_the_one_that_was_given(tmp_path: Path, year: int) -> None:
    """From 2050 on certificates write years with four digits."""
    end, later = datetime(year, 2, 28, 12, 30, 5, tzinfo=UTC), datetime(year, 3, 1, tzinfo=UTC)
    ours, theirs = trustme.CA(), trustme.CA()
    leaf, other = (ours.issue_cert("client.example", not_after=moment) for moment in (end, later))
    chain = written(tmp_path / "own.pem", other.private_key_pem, *other.cert_chain_pems, *leaf.cert_chain_pems)
    settings = Settings(
        security_protocol="SSL",
        ssl_certfile=chain,  # type: ignore[arg-type]
        ssl_cafile=written(tmp_path / "ca.pem", ours.cert_pem, theirs.cert_pem, leaf.cert_chain_pems[0]),  # type: ignore[arg-type]
    )
    ends = certificate_ends(settings)
    assert ends["ssl_certfile"] == end.timestamp()
    assert ends["ssl_cafile"] >= end.timestamp()
    assert ends.keys() == {"ssl_certfile", "ssl_cafile"}


@pytest.mark.parametrize("content", [b"", b"no PEM", None, trustme.CA().cert_pem.bytes().replace(b"M", b"Q", 40)])
def test_a_file_that_holds_none_is_left_out(tmp_path: Path, content: bytes | None) -> None:
    """Or that is not there: the client that needs it says so."""
    path = tmp_path / "own.pem"
    if content is not None:
        path.write_bytes(content)
    assert certificate_ends(Settings(security_protocol="SSL", ssl_certfile=path)) == {}
