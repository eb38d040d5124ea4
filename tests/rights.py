"""The table of rights by role in docs/kafka_teams.md, as rules that a broker checks."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from tests.secured import PASSWORD, Secured, add_user

PAGE: Final = Path(__file__).parents[1] / "docs" / "kafka_teams.md"
KINDS: Final = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional": ResourceType.TRANSACTIONAL_ID,
    "cluster": ResourceType.BROKER,
}


class Right(NamedTuple):
    """One operation on one resource, as the page has it."""

    role: str
    operation: AclOperation
    kind: ResourceType
    name: str
    """A prefix where it ends in ``*``; ``R`` is the raw topic, and ``tokenmill`` the group."""

    def resource(self, raw: str, group: str) -> str:
        return re.sub("^tokenmill", group, re.sub(r"\bR\b", raw, self.name))

    def covers(self, name: str, raw: str, group: str) -> bool:
        mine = self.resource(raw, group)
        return name.startswith(mine[:-1]) if mine.endswith("*") else name == mine


@cache
def table() -> Sequence[Right]:
    """Return every right of the page's table."""
    rows = re.findall(r"^\| (\w+) \| (`[A-Z].*?) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    return [
        Right(role, getattr(AclOperation, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation).upper()), _kind(where), name)
        for role, operations, where in rows
        for operation in re.findall(r"`(\w+)`", operations)
        for name in re.findall(r"`([^`]+)`", where)
    ]


def _kind(where: str) -> ResourceType:
    return KINDS[where.split(maxsplit=1)[0].removesuffix("s")]


def roles() -> list[str]:
    return list(dict.fromkeys(right.role for right in table()))


def grant(secured: Secured, user: str, wanted: Iterable[str], raw: str, group: str) -> None:
    """Let somebody log in, with the rights of the ``wanted`` roles on the topics of ``raw`` and no others."""
    add_user(secured.broker, user)
    rules = {_rule(right, user, raw, group) for right in table() if right.role in set(wanted)}
    admin = AdminClient({"bootstrap.servers": secured.broker.bootstrap_servers})
    for done in admin.create_acls(list(rules)).values():
        done.result()


def _rule(right: Right, user: str, raw: str, group: str) -> AclBinding:
    name = right.resource(raw, group)
    pattern = ResourcePatternType.PREFIXED if name.endswith("*") else ResourcePatternType.LITERAL
    allow = AclPermissionType.ALLOW
    return AclBinding(right.kind, name.rstrip("*"), pattern, f"User:{user}", "*", right.operation, allow)


def login(secured: Secured, user: str) -> Mapping[str, Any]:
    return {
        "bootstrap.servers": secured.broker.address("SASL_PLAINTEXT"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": PASSWORD,
    }
