"""The table of rights by role in docs/kafka_teams.md, as rules that a broker checks."""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from tests.secured import Secured, add_user

PAGE: Final = Path(__file__).parents[1] / "docs" / "kafka_teams.md"
KINDS: Final = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional": ResourceType.TRANSACTIONAL_ID,
    "cluster": ResourceType.BROKER,
}


class Right(NamedTuple):
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
    rows = re.findall(r"^\| (\w+) \| (`[A-Z].*?) \| (\w+?)s? (.*) \|$", PAGE.read_text(), re.MULTILINE)
    return [
        Right(role, AclOperation[re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation).upper()], KINDS[kind], name)
        for role, operations, kind, where in rows
        for operation in re.findall(r"`(\w+)`", operations)
        for name in re.findall(r"`([^`]+)`", where)
    ]


def roles() -> list[str]:
    return list(dict.fromkeys(right.role for right in table()))


def grant(secured: Secured, user: str, wanted: Iterable[str], raw: str, group: str) -> None:
    add_user(secured.broker, user)
    rules, allow = set(), AclPermissionType.ALLOW
    for right in table():
        if right.role in set(wanted):
            name = right.resource(raw, group)
            pattern = ResourcePatternType.PREFIXED if name.endswith("*") else ResourcePatternType.LITERAL
            rules.add(AclBinding(right.kind, name.rstrip("*"), pattern, f"User:{user}", "*", right.operation, allow))
    admin = AdminClient({"bootstrap.servers": secured.broker.bootstrap_servers})
    for done in admin.create_acls(list(rules)).values():
        done.result()
