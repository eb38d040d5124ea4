"""From the settings of a topic, and what somebody asks for, to the shape of its documents."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...settings import Settings
from .conditions import Condition
from .fields import columns_of, finder
from .shape import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What somebody asks for beside the settings of the topic."""

    fields: Sequence[str] = ()
    """Names or dotted paths of the text in the sources; the first that holds a string. None: the topic's own."""
    id_field: str | None = None
    """Where the id is; None: where the topic has it."""
    carry: Sequence[str] | None = None
    """Fields that go with the text; None: the topic's own, and all others of an object that goes as it is."""
    where: Sequence[Condition] = ()
    """All must hold."""
    key: str | None = None
    """Field whose value becomes the record's key."""
    plain: bool = False
    """Send the text alone: no JSON object around it, no id."""


def shape_for(settings: Settings, topic: str, wishes: Wishes | None = None) -> Shape:
    """Return how documents for a raw topic are made, by the settings of that topic and what somebody wishes.

    A topic that is decoded as ``text`` gets plain text whatever they wish: JSON would be tokenized as it is.
    """
    own, wishes = settings.for_topic(topic), wishes or Wishes()
    fields = tuple(wishes.fields) or own.text_fields
    id_field = own.id_field if wishes.id_field is None else wishes.id_field
    carry = own.carry if wishes.carry is None else tuple(wishes.carry)
    plain = wishes.plain or own.decode == "text"
    needed = [*fields, id_field, *carry, *(condition.field for condition in wishes.where)]
    needed += [] if wishes.key is None else [wishes.key]
    as_is = not plain and fields == own.text_fields and id_field == own.id_field and wishes.carry is None
    ordinary = as_is and not (wishes.where or wishes.key or carry or "." in id_field)
    return Shape(
        limits=own.limits,
        text_field=own.text_fields[0],
        id_field=own.id_field,
        max_record_bytes=settings.max_record_bytes,
        plain=plain,
        as_is=as_is,
        texts=tuple((name, finder(name)) for name in fields),
        id_from=id_field,
        id=finder(id_field),
        carry=tuple((name, finder(name)) for name in carry),
        where=tuple(wishes.where),
        key=None if wishes.key is None else (wishes.key, finder(wishes.key)),
        quick_id=own.max_id_bytes // 6 if ordinary else 0,
        columns=frozenset(column for name in needed for column in columns_of(name)),
    )
