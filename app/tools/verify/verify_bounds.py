"""Where a verification ends, and where the next one begins.

It ends at offsets that are fixed before anything is read (`take_marks`): the service goes on. How far it came is kept
in a file: of each chain a carry (`tokenmill.wire.message`) with cursor, chain hash, totals and open block; of each
stream, its last era. A broker that lost the tail of a partition lets the mill write it again, at other offsets: then
what is below that offset is not what was verified, and the chain is verified from its beginning.
"""

import json
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.eras import Era
from tokenmill.errors import BucketError, DamagedError, InputError, TokenMillError
from tokenmill.store import open_eras, open_partition, streams_in
from tokenmill.store.eras import ROW_BYTES
from tokenmill.store.layout import ERA_INDEX_FILE, put_file, stream_directory
from tokenmill.untrusted import read_json_file
from tokenmill.wire.message import Message, decode_message, encode_header

from ...kafka.clients import consumer
from ...kafka.control_topic import Settled, require_topic
from ...kafka.token_topic import chain_after, message_of, record_at, topic_ranges
from ...settings import Settings, dead_letter_topic

LOOKS: Final = 10
"""Looks at rows that do not count, before they are called damage: a writer is done with them in a moment."""
LOOK_SECONDS: Final = 0.1


class StoreEras(NamedTuple):
    """How many eras a store held at the mark."""

    eras: int
    damage: str | None = None
    """Why they cannot be read at all (then ``eras`` is 0), or what comes after them."""

    @classmethod
    def look(cls, store: Path | None, stream: str) -> Self | None:
        """Return the mark of a stream; None where there is no store, or the stream is not in it."""
        if store is None or stream not in streams_in(store):
            return None
        try:
            reader = open_eras(store, stream)
            index = stream_directory(store, stream) / ERA_INDEX_FILE
            rows = 0
            for _ in range(LOOKS):
                reader.refresh()
                rows = index.stat().st_size // ROW_BYTES if index.exists() else 0
                if rows <= reader.eras:
                    return cls(reader.eras)
                time.sleep(LOOK_SECONDS)
            if reader.ahead:
                return cls(reader.eras, str(reader.lines_missing))
        except DamagedError as error:
            return cls(0, str(error))
        text = f"{rows - reader.eras} rows of {index} from era {reader.eras} on are not whole. A segment worker that is"
        return cls(reader.eras, f"{text} started cuts them off, and brings these eras again")


class StoreMark(NamedTuple):
    """What a store holds of one partition: blocks ``[first, end)``."""

    first: int
    end: int
    damage: str | None = None


class ChainMarks(NamedTuple):
    """The ranges of one chain: first retained offset, end."""

    stream: str
    partition: int
    raw: tuple[int, int]
    tokens: tuple[int, int]
    store: StoreMark | None


class EraMarks(NamedTuple):
    """What there was of a stream's eras before its blocks were looked at."""

    end: int
    """The control topic's end offset."""
    store: StoreEras | None


class VerifyMarks(NamedTuple):
    """All ranges of a verification."""

    chains: Sequence[ChainMarks]
    dead_letters: dict[str, dict[int, tuple[int, int]]]
    """By raw topic, of its dead-letter topic's partitions; a topic that is missing is left out."""
    eras: dict[str, EraMarks]


async def take_marks(settings: Settings, streams: Sequence[Settled], store: Path | None) -> VerifyMarks:
    """Fix the marks in the order eras (store, topic), store, token topics, dead letters, raw topics.

    The data flows the other way, so each mark covers all that those before it were made of: what a later mark's data
    cannot explain is a fault and no race. Raises TopicError where a topic is missing.
    """
    async with consumer(settings) as client:
        counts = {s.stream.raw_topic: await require_topic(client, s.stream.raw_topic) for s in streams}
        chains = [(s, partition) for s in streams for partition in range(counts[s.stream.raw_topic])]
        in_store = {s.stream.name: StoreEras.look(store, s.stream.name) for s in streams}
        control = await topic_ranges(client, *(s.stream.control_topic for s in streams))
        stores = [store_mark(store, s.stream.name, partition) for s, partition in chains]
        tokens = await topic_ranges(client, *(s.stream.tokens_topic for s in streams))
        there = await client.topics()
        dead = {
            raw_topic: {tp.partition: span for tp, span in (await topic_ranges(client, letters)).items()}
            for raw_topic in counts
            if (letters := dead_letter_topic(raw_topic)) in there
        }
        raw = await topic_ranges(client, *counts)
    marks = []
    for (s, p), mark in zip(chains, stores, strict=True):
        span = tokens.get(TopicPartition(s.stream.tokens_topic, p), (0, 0))  # it may not have grown with the raw one
        marks.append(ChainMarks(s.stream.name, p, raw[TopicPartition(s.stream.raw_topic, p)], span, mark))
    ends = {s.stream.name: control[TopicPartition(s.stream.control_topic, 0)][1] for s in streams}
    return VerifyMarks(marks, dead, {name: EraMarks(end, in_store[name]) for name, end in ends.items()})


def store_mark(store: Path | None, stream: str, partition: int) -> StoreMark | None:
    """Return what a store holds of a partition now; None where there is no store."""
    if store is None:
        return None
    if stream not in streams_in(store):
        return StoreMark(0, 0)
    try:
        reader = open_partition(store, stream, partition)
    except BucketError:  # it does not answer, which says nothing about the blocks
        raise
    except TokenMillError as error:
        return StoreMark(0, 0, str(error))
    return StoreMark(reader.first_block, reader.blocks)


FORMAT: Final = 2
MOST_BYTES: Final = 1 << 30
"""Of such a file: it holds an open block for each chain."""


@dataclass(frozen=True, slots=True)
class VerifiedChain:
    """Up to where one chain is right, in its topic and in the store."""

    carry: Message
    token_offset: int
    """Offset at which the token topic goes on; a hint, because the blocks' numbers decide."""


class VerifiedEras(NamedTuple):
    """Up to where the eras of a stream are right, on the control topic and in the store."""

    era: Era
    offset: int
    stop: int
    """Bytes of a store's lines with it."""
    blocks: int
    """Blocks of all eras up to and with it."""


Chains = Mapping[tuple[str, int], VerifiedChain]


class EarlierVerification(NamedTuple):
    """What an earlier verification left."""

    chains: Chains
    eras: Mapping[str, VerifiedEras]


NOTHING: Final = EarlierVerification({}, {})


def load_verified(path: Path, store: Path | None) -> EarlierVerification:
    """Return what an earlier verification of the same ``store`` (None: of the topics alone) left, if one did."""
    try:
        values = read_json_file(path, most=MOST_BYTES)
        version, known = values["format"], values["store"]
        if version != FORMAT:
            raise _no_state(path, f"it has format {version}, this version knows format {FORMAT}")
        chains = {
            (stream, int(partition)): _decoded(value)
            for name, value in values["chains"].items()
            for stream, _, partition in [name.rpartition("/")]
        }
        eras = {
            name: VerifiedEras(Era.unpack(one["record"].encode()), *(int(one[n]) for n in ("offset", "stop", "blocks")))
            for name, one in values["eras"].items()
        }
    except FileNotFoundError:
        return NOTHING
    except (OSError, ValueError, LookupError, TypeError, AttributeError, DamagedError) as error:
        raise _no_state(path, repr(error)) from error
    if known != _name(store):
        raise InputError(
            f"{path} is about a verification of {known or 'the topics alone'}, and now it is "
            f"{_name(store) or 'the topics alone'}: give each a file of its own"
        )
    return EarlierVerification(chains, eras)


def save_verified(path: Path, store: Path | None, earlier: EarlierVerification, found: EarlierVerification) -> None:
    """Write what the next verification may begin with, durably; of what was not looked at, what was ``earlier``."""
    chains, eras = {**earlier.chains, **found.chains}, {**earlier.eras, **found.eras}
    values = {
        "format": FORMAT,
        "store": _name(store),
        "chains": {
            f"{stream}/{partition}": {
                "carry": b64encode(encode_header(verified.carry)).decode(),
                "token_offset": verified.token_offset,
                "offset": verified.carry.cursor.next_offset,
                "block": verified.carry.first,
            }
            for (stream, partition), verified in sorted(chains.items())
        },
        "eras": {
            stream: {"record": one.era.pack().decode(), "offset": one.offset, "stop": one.stop, "blocks": one.blocks}
            for stream, one in sorted(eras.items())
        },
    }
    try:
        put_file(path, json.dumps(values, indent=1).encode() + b"\n")
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error}): give --since a file in a directory that is there"
        ) from error


def _name(store: Path | None) -> str | None:
    return str(store.resolve()) if store is not None else None


def _decoded(value: Mapping[str, Any]) -> VerifiedChain:
    try:
        carry = replace(decode_message(b64decode(value["carry"]), None), tokens=b"")  # no view: it goes to a process
        return VerifiedChain(carry, int(value["token_offset"]))
    except TokenMillError as error:
        raise ValueError(str(error)) from error


def _no_state(path: Path, why: str) -> InputError:
    return InputError(f"{path} is not what a verification left ({why}): remove it, and everything is verified again")


async def still_valid(
    settings: Settings, streams: Sequence[Settled], marks: Sequence[ChainMarks], earlier: EarlierVerification
) -> tuple[EarlierVerification, list[str]]:
    """Return what of ``earlier`` the next verification may begin with, and notes on what it may not.

    A chain whose token partition was cut is left out, and so are the eras of its stream: they may name what was lost.
    Raises InputError where the earlier verification was of other streams.
    """
    chains, eras, notes = dict(earlier.chains), dict(earlier.eras), list[str]()
    by_name = {settled.stream.name: settled for settled in streams}
    async with consumer(settings) as client:
        for chain in marks:
            verified, settled = earlier.chains.get((chain.stream, chain.partition)), by_name[chain.stream]
            if verified is None:
                continue
            if verified.carry.fingerprint != settled.genesis.recipe.fingerprint:
                raise InputError(
                    f"what --since names is about another stream {chain.stream}, with the fingerprint "
                    f"{verified.carry.fingerprint.hex()}: remove the file, and everything is verified again"
                )
            tokens = TopicPartition(settled.stream.tokens_topic, chain.partition)
            if await holds_last_block(client, tokens, chain.tokens, verified):
                continue
            del chains[chain.stream, chain.partition]
            eras.pop(chain.stream, None)
            notes.append(
                f"{tokens.topic}[{tokens.partition}] does not hold before offset {verified.token_offset} what it held "
                f"when it was last verified (it lost its end since): {chain.stream} partition {chain.partition} was "
                "verified from its beginning"
            )
    return EarlierVerification(chains, eras), notes


async def holds_last_block(
    client: AIOKafkaConsumer, tokens: TopicPartition, span: tuple[int, int], verified: VerifiedChain
) -> bool:
    """Return whether the last verified block is still below where that verification ended; alone with ``client``."""
    carry, ended = verified.carry, verified.token_offset
    first, end = span
    if end < ended:
        return False
    if first >= ended:
        return True  # retention took it all, and nothing is left to look at
    try:
        record = await record_at(client, tokens, ended - 1, ended)
        if record is not None and (message := message_of(record, tokens)).end >= carry.first:
            return (message.end, message.after) == (carry.first, carry.after)
        # It does not end the message where the verification ended; where it is nowhere, retention may have taken it.
        found = await chain_after(client, tokens, carry.fingerprint, carry.first - 1, span)
    except DamagedError:
        return False  # a verification from the beginning names it
    return first > 0 if found is None else found == carry.after
