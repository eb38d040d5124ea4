"""The table of rights by role (docs/kafka_teams.md), held by a broker with Kafka's own StandardAuthorizer.

Each role does its work with its rows alone; what it has no row for is tried, and refused.
"""

import json
import re
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.app.commands import invoke
from tests.app.sequencer.judged_order import SMALL, kept_blocks, signed_ends
from tests.conftest import topics_on
from tests.rights import grant, roles, table
from tests.secured import USER, Secured, login
from tests.service import Mirroring, Raw, Service, in_own_loop, raw_records, send, service_settings, stored_blocks
from tokenmill.app.settings import Settings
from tokenmill.app.tools.produce.producing import flush
from tokenmill.app.tools.verify import verify
from tokenmill.documents import is_flush
from tokenmill.errors import SettingsError, TopicError

SECONDS: Final = 15.0
REFUSALS: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError._NOENT,
}
PAGES: Final = ("docs/kafka_teams.md", "docs/settings.md", "SECURITY.md")
ROOT: Final = Path(__file__).parents[2]


class Client(NamedTuple):
    admin: AdminClient
    producer: Producer
    settings: Settings

    @classmethod
    def of(cls, secured: Secured, user: str) -> "Client":
        here = login(secured.broker, user)
        return cls(
            AdminClient(here),
            Producer({**here, "message.timeout.ms": int(SECONDS * 1000)}),
            secured.settings("SASL_PLAINTEXT", sasl_username=user),
        )


def code(*futures: Any) -> int | None:
    """Return why what was asked for failed; None if it did not."""
    try:
        for future in futures:
            future.result(SECONDS)
    except KafkaException as error:
        return int(error.args[0].code())
    return None


def write(client: Client, topic: str) -> int | None:
    said: list[KafkaError | None] = []  # of the one record
    try:
        client.producer.produce(topic, b"of nobody", on_delivery=lambda error, _: said.append(error))
    except KafkaException as refused:  # it knows already that it may not
        return int(refused.args[0].code())
    client.producer.flush(SECONDS)
    (error,) = said
    return None if error is None else error.code()


def read(client: Client, topic: str) -> int | None:
    try:
        raw_records(client.settings, topic)
    except (SettingsError, TopicError):
        return KafkaError.TOPIC_AUTHORIZATION_FAILED
    return None


def configure(client: Client, topic: str) -> int | None:
    entry = ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
    wanted = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    return code(*client.admin.incremental_alter_configs([wanted]).values())


ATTEMPTS: Final[Mapping[str, tuple[AclOperation, Callable[[Client, str], int | None]]]] = {
    "write": (AclOperation.WRITE, write),
    "read": (AclOperation.READ, read),
    "delete": (AclOperation.DELETE, lambda at, topic: code(*at.admin.delete_topics([topic]).values())),
    "delete records": (
        AclOperation.DELETE,
        lambda at, topic: code(*at.admin.delete_records([TopicPartition(topic, 0, 0)]).values()),
    ),
    "grow": (
        AclOperation.ALTER,
        lambda at, topic: code(*at.admin.create_partitions([NewPartitions(topic, 2)]).values()),
    ),
    "configure": (AclOperation.ALTER_CONFIGS, configure),
}
"""What anybody may try on a topic, and the operation that it needs."""


@pytest.mark.parametrize("role", roles())
@pytest.mark.cases(2)
def test_a_role_is_refused_what_it_has_no_row_for(secured: Secured, role: str) -> None:
    raw, group = topics_on(secured.broker, "refused")(1), f"group-{role}"
    topics = [raw, f"{raw}.dead-letters", f"{raw}.produced", f"tokens.{raw}.train", f"control.{raw}.train"]
    topics += [f"{kind}.{raw}" for kind in ("signatures", "slices", "verdicts")]
    everyone = AdminClient({"bootstrap.servers": secured.broker.bootstrap_servers})
    assert code(*everyone.create_topics([NewTopic(name, 1) for name in topics[1:]]).values()) is None
    grant(secured, user := f"{role}-{raw}", [role], raw, group)
    client = Client.of(secured, user)
    for name in topics:
        send(secured.settings("SASL_PLAINTEXT"), [Raw(b"there before")], name)
    rows = [right for right in table() if right.role == role]

    forbidden = [
        (name, topic)
        for (name, (operation, _)), topic in product(ATTEMPTS.items(), topics)
        if not any(right.operation == operation and right.covers(topic, raw, group) for right in rows)
    ]
    found = {(name, topic): ATTEMPTS[name][1](client, topic) for name, topic in forbidden}
    for name in (group, f"{group}-store-1"):
        if not any(right.kind == ResourceType.GROUP and right.covers(name, raw, group) for right in rows):
            offsets = ConsumerGroupTopicPartitions(name, [TopicPartition(raw, 0, 7)])
            found["commit", name] = code(*client.admin.alter_consumer_group_offsets([offsets]).values())
    rule = (f"User:{user}", "*", AclOperation.ALL, AclPermissionType.ALLOW)
    binding = AclBinding(ResourceType.TOPIC, raw, ResourcePatternType.LITERAL, *rule)
    found["rule", raw] = code(*client.admin.create_acls([binding]).values())
    found["create", "other"] = code(*client.admin.create_topics([NewTopic(f"other-{raw}", 1)]).values())

    assert {what: error for what, error in found.items() if error not in REFUSALS} == {}
    assert len(forbidden) > len(topics) * 2
    for name in topics:
        ((record,),) = raw_records(secured.settings("SASL_PLAINTEXT"), name)
        assert record.value == b"there before"


def test_the_table_keeps_raw_text_and_tokens_apart() -> None:
    writing = {(right.role, right.name) for right in table() if right.operation == AclOperation.WRITE}
    of_streams = {role for role, name in writing if name.startswith(("tokens.", "control."))}
    assert of_streams == {"mill", "operator"}
    assert {role for role, name in writing if name.startswith(("tokens.", "signatures."))} == {"mill"}
    assert {role for role, name in writing if name.startswith(("slices.", "verdicts."))} == {"sequencer"}
    assert not {role for role, _ in writing} & {"segment", "mirror", "tools", "topics"}
    readers = {right.role for right in table() if right.name.startswith("tokens.")}
    assert not readers & {"producer", "produce"}
    assert not [right for right in table() if right.operation in {AclOperation.ALL, AclOperation.DELETE}]


def test_there_is_one_table_of_rights() -> None:
    for page in PAGES:
        text = (ROOT / page).read_text()
        assert len(re.findall(r"^\| (?:role|right) \|", text, re.MULTILINE)) == (page == "docs/kafka_teams.md")
        assert "#acls" in text or page == "docs/kafka_teams.md"


@pytest.mark.needs("minutes")
def test_each_role_needs_no_more_than_its_rows(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = topics_on(secured.broker, "roles")(1)
    values = secured.values("SASL_PLAINTEXT")
    group = f"group-{raw}"
    roles_of = {role: f"{role}-{raw}" for role in roles()}
    for role, user in roles_of.items():
        grant(secured, user, [role], raw, group)
    by_admin = {**values, "sasl_username": roles_of["topics"]}
    everything = service_settings(secured.broker, raw, tmp_path, splits={"train": 1000}, **by_admin)
    everything = everything.model_copy(update={"sasl_username": values["sasl_username"]})
    as_role = {role: everything.model_copy(update={"sasl_username": user}) for role, user in roles_of.items()}

    def tokenmill(role: str, *arguments: str) -> str:
        for name, value in as_role[role].environment().items():
            monkeypatch.setenv(name, value)
        return invoke(*arguments, code=0).out

    send(as_role["producer"], [Raw(b"a document of the mill"), Raw(b"\xff")] * 200)
    assert in_own_loop(lambda: flush(as_role["producer"], raw)) == 1
    (tmp_path / "more.txt").write_text("another document")
    tokenmill("produce", "produce", raw, str(tmp_path / "more.txt"), "--flush")
    with Service(as_role["mill"], tmp_path) as service:
        service.mill()
        service.settings = as_role["segment"]
        service.segment()
        service.settings = everything
        service.wait_until_complete()
        service.stop()
    with Mirroring(as_role["mirror"], tmp_path / "mirrored", "--once") as mirror:
        assert mirror.wait() == 0, mirror.log

    assert verify(as_role["tools"], store=everything.store, processes=1).ok
    tokenmill("topics", "topics", "check")
    for command in (["ledger"], ["inspect", "block", f"{raw}.train", "0", "0"]):
        tokenmill("tools", *command)
    block = json.loads(tokenmill("mirror", "inspect", "block", f"{raw}.train", "0", "0", "--json"))
    assert f"do not allow this to {roles_of['mirror']}" in block["note"], "its records are raw text"
    assert "invalid_utf8" in tokenmill("tools", "dead-letters", "count", raw)
    ends = raw_records(everything, raw)[0]
    assert sum(map(is_flush, ends)) == 2
    send(as_role["producer"], [Raw(b"one to skip")])
    tokenmill("operator", "skip", raw, "0", str(ends[-1].offset + 1))
    tokenmill("operator", "close", f"{raw}.train")
    tokenmill("operator", "dead-letters", "resend", raw, "--reason", "invalid_utf8")


@pytest.mark.needs("minutes")
def test_duplicates_are_judged_with_no_more_than_the_rows(secured: Secured, tmp_path: Path) -> None:
    raw = topics_on(secured.broker, "judged")(1)
    roles_of = {role: f"{role}-{raw}" for role in ("topics", "producer", "mill", "sequencer", "segment")}
    for role, user in roles_of.items():
        grant(secured, user, [role], raw, f"group-{raw}")
    dedup = {"name": "near", **SMALL}
    by_admin = {**secured.values("SASL_PLAINTEXT"), "sasl_username": roles_of["topics"]}
    made = service_settings(secured.broker, raw, tmp_path, group=f"group-{raw}", dedup=dedup, **by_admin)
    as_role = {role: made.model_copy(update={"sasl_username": user}) for role, user in roles_of.items()}
    everything = made.model_copy(update={"sasl_username": USER})
    (domain,) = made.domains()

    send(as_role["producer"], [Raw(b"one of %d documents" % number) for number in range(100)] * 2)
    with Service(as_role["mill"], tmp_path) as service:
        service.mill()
        for role in ("sequencer", "segment"):
            service.settings = as_role[role]
            getattr(service, role)()
        service.wait_until(lambda: signed_ends(everything, domain) == {(0, 0): 200})
        wanted = {chain: len(blocks) for chain, blocks in kept_blocks(everything, domain).items()}
        service.wait_until(lambda: stored_blocks(everything, wanted) == wanted)
        service.stop()
