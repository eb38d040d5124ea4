"""The rules by which eras are closed and followed, each with a way to switch it off."""

from collections.abc import AsyncIterator, Callable
from typing import Any, Final, NamedTuple

import pytest

from tokenmill.app.kafka import control_topic
from tokenmill.app.kafka.token_topic import KafkaLogs
from tokenmill.app.mill import era_closing as closing
from tokenmill.app.mill.era_closing import EraCloser, Extents
from tokenmill.app.segments.era_bringing import EraBringer
from tokenmill.eras import Era, EraFollower, EraLog
from tokenmill.errors import DifferenceError
from tokenmill.reading import continuing
from tokenmill.reading.continuing import find_extent

_add = EraLog.add
_read_eras = control_topic.read_eras
_step = EraCloser.step
_runs = continuing._runs


class EraRule(NamedTuple):
    """A rule, how it is switched off, and the seed of a history that needs it."""

    name: str
    off: Callable[[pytest.MonkeyPatch], None]
    seed: int


def _patched(*changes: tuple[object, str, object]) -> Callable[[pytest.MonkeyPatch], None]:
    def off(patch: pytest.MonkeyPatch) -> None:
        for owner, name, value in changes:
            patch.setattr(owner, name, value)

    return off


def _any_hash(self: EraLog, era: Era) -> bool:
    return (
        not self.ended
        and era.number == self.next_number
        and len(era.ranges) >= self.partitions
        and all(self.end(number) == (part.first, part.before) for number, part in enumerate(era.ranges))
    )


def _must_continue(self: EraLog, value: bytes | None) -> Era | None:
    era = _add(self, value)
    try:
        if era is None and Era.unpack(value or b"").number >= self.next_number:
            raise DifferenceError("an era does not continue the one before")
    except ValueError:
        return None
    return era


async def _look_once(client: Any, topic: str, follower: EraFollower) -> AsyncIterator[object]:
    if follower.log.last is None:
        async for found in _read_eras(client, topic, follower):
            yield found


async def _believing_step(self: EraCloser, client: Any, *, end: bool = False) -> Era | None:
    era = await _step(self, client, end=end)
    if era is not None:
        self._follower.log.add(era.pack())
    return era


async def _two_steps(self: EraCloser, client: Any) -> None:
    for _ in range(2):
        await self.step(client, end=True)


async def _unknown(logs: Any, recipe: Any, partition: int, _: int) -> object:
    return await find_extent(logs, recipe, partition)


async def _last_run(*arguments: Any) -> object:
    found, whole, last = await _runs(*arguments)
    return found[-1:], whole and len(found) < 2, last


async def _strict_extent(self: Extents, client: Any, partition: Any, known: int) -> object:
    logs = KafkaLogs(client, partition, partition)
    return await find_extent(logs, self._recipe, partition.partition, known)


def _forgive(self: EraFollower) -> None:
    self._known = None


ERA_RULES: Final = (
    EraRule("a look begins with the reader's own head", _patched((EraFollower, "holds", lambda *_: True)), 2),
    EraRule("a head that is not on the chain halts its reader", _patched((EraFollower, "finish", _forgive)), 21),
    EraRule("a look that was broken off is undone", _patched((EraFollower, "rewind", lambda *_: None)), 2),
    EraRule(
        "offsets without a record before the first one of a fetch are read again",
        _patched((control_topic, "_one_fetch", control_topic._first_fetch)),
        1259248152,
    ),
    EraRule("what is in eras was there, whatever retention left", _patched((closing, "find_extent", _unknown)), 472),
    EraRule("an era names the hash of the one before", _patched((EraLog, "continues", _any_hash)), 506),
    EraRule("what continues nothing is ignored", _patched((EraLog, "add", _must_continue)), 36),
    EraRule("nothing follows the end marker", _patched((EraLog, "ended", False)), 18),
    EraRule("the end marker is written until it is there", _patched((EraCloser, "close", _two_steps)), 2),
    EraRule(
        "a record is read back before the next is written",
        _patched((closing, "read_eras", _look_once), (EraCloser, "step", _believing_step)),
        0,
    ),
    EraRule("an era ends where blocks are missing", _patched((continuing, "_runs", _last_run)), 84),
    EraRule(
        "a partition that contradicts itself keeps no other out", _patched((Extents, "_extent", _strict_extent)), 9
    ),
    EraRule("after an error a store's eras are read again", _patched((EraBringer, "_close", lambda *_: None)), 13),
)
