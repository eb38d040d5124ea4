"""How far a verification came: kept in a file, so that the next one begins there, if the token topic is still the same.

Of each chain the file holds a carry (`tokenmill.wire.message`): cursor, chain hash, totals and open block, under the
stream's fingerprint and with a checksum; of each stream, its last era. So the next verification knows what it
continues, finds the record that the cursor remembers still in the log, and notices a topic or store that holds other
blocks now.

A broker that lost the tail of a partition lets the mill write it again, in messages of other sizes and so at other
offsets. The offset at which an earlier verification ended is then in the middle of what has yet to be verified, or
behind all of it, and what is below it is not what was verified. Then the chain is verified from its beginning.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.eras import Era
from tokenmill.errors import DamagedError, InputError, TokenMillError
from tokenmill.store.layout import put_file
from tokenmill.untrusted import read_json_file
from tokenmill.wire.message import Message, decode_message, encode_header

from ...kafka.clients import consumer
from ...kafka.control_topic import Settled
from ...kafka.token_topic import chain_after, message_of, record_at
from ...settings import Settings
from .verify_marks import ChainMarks

FORMAT: Final = 2
MOST_BYTES: Final = 1 << 30
"""Of such a file: it holds an open block for each chain."""


@dataclass(frozen=True, slots=True)
class VerifiedChain:
    """Up to where one chain is right, in its topic and in the store."""

    carry: Message
    token_offset: int
    """Offset at which the token topic goes on; a hint, because the blocks' numbers decide."""


@dataclass(frozen=True, slots=True)
class VerifiedEras:
    """Up to where the eras of a stream are right, on the control topic and in the store."""

    era: Era
    """The last one."""
    offset: int
    """Of its record."""
    stop: int
    """Bytes of a store's lines with it."""
    blocks: int
    """Blocks of all eras up to and with it."""


Chains = Mapping[tuple[str, int], VerifiedChain]
"""By stream and partition."""


class EarlierVerification(NamedTuple):
    """What an earlier verification left."""

    chains: Chains
    eras: Mapping[str, VerifiedEras]
    """By stream."""


NOTHING: Final = EarlierVerification({}, {})


def load_verified(path: Path, store: Path | None) -> EarlierVerification:
    """Return what an earlier verification of the same ``store`` (None: of the topics alone) left; nothing if none did.

    Raises InputError where the file is none of these, or is about another store.
    """
    try:
        values = read_json_file(path, most=MOST_BYTES)
        version, known = values["format"], values["store"]
        if version != FORMAT:
            raise _no_state(path, f"it has format {version}, this version knows format {FORMAT}")
        chains = {_chain(name): _decoded(value) for name, value in values["chains"].items()}
        eras = {name: _decoded_eras(value) for name, value in values["eras"].items()}
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
    """Write what the next verification may begin with, durably; of what was not looked at, what was known ``earlier``.

    Raises InputError where the file cannot be written.
    """
    chains, eras = {**earlier.chains, **found.chains}, {**earlier.eras, **found.eras}
    values = {
        "format": FORMAT,
        "store": _name(store),
        "chains": {f"{stream}/{partition}": _encoded(v) for (stream, partition), v in sorted(chains.items())},
        "eras": {stream: _encoded_eras(v) for stream, v in sorted(eras.items())},
    }
    try:
        put_file(path, json.dumps(values, indent=1).encode() + b"\n")
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error}): give --since a file in a directory that is there"
        ) from error


def _name(store: Path | None) -> str | None:
    return str(store.resolve()) if store is not None else None


def _chain(name: str) -> tuple[str, int]:
    stream, _, partition = name.rpartition("/")
    return stream, int(partition)


def _encoded(verified: VerifiedChain) -> dict[str, Any]:
    return {
        "carry": b64encode(encode_header(verified.carry)).decode(),
        "token_offset": verified.token_offset,
        "offset": verified.carry.cursor.next_offset,
        "block": verified.carry.first,
    }


def _decoded(value: Mapping[str, Any]) -> VerifiedChain:
    try:
        carry = replace(decode_message(b64decode(value["carry"]), None), tokens=b"")  # no view: it goes to a process
        return VerifiedChain(carry, int(value["token_offset"]))
    except TokenMillError as error:
        raise ValueError(str(error)) from error


def _encoded_eras(verified: VerifiedEras) -> dict[str, Any]:
    return {
        "record": verified.era.pack().decode(),
        "offset": verified.offset,
        "stop": verified.stop,
        "blocks": verified.blocks,
    }


def _decoded_eras(value: Mapping[str, Any]) -> VerifiedEras:
    era = Era.unpack(value["record"].encode())
    return VerifiedEras(era, int(value["offset"]), int(value["stop"]), int(value["blocks"]))


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
    """Return whether the last of the verified blocks is still below the offset where a verification ended.

    ``span`` is what the partition retains. One fetch mostly decides: the message before that offset ends with it.
    Nothing else may use ``client`` at the same time.
    """
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
