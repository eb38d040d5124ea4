"""How far a verification came, kept in a file, so that the next one can begin there.

Of each chain it holds a carry (`tokenmill.wire.message`): cursor, chain hash, totals and open block, under the stream's
fingerprint and with a checksum; of each stream, its last era. So the next verification knows what it continues, finds
the record that the cursor remembers still in the log, and notices a topic or store that holds other blocks now.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from tokenmill.eras import Era
from tokenmill.errors import DamagedError, InputError, TokenMillError
from tokenmill.store.durable import put_file
from tokenmill.untrusted import read_json_file
from tokenmill.wire.message import Message, decode_message, encode_header

FORMAT: Final = 2
MOST_BYTES: Final = 1 << 30
"""Of such a file: it holds an open block for each chain."""


@dataclass(frozen=True, slots=True)
class Verified:
    """Up to where one chain is right, in its topic and in the store."""

    carry: Message
    token_offset: int
    """Where the token topic goes on; a hint, for the blocks tell."""


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


Chains = Mapping[tuple[str, int], Verified]
"""By stream and partition."""


class Earlier(NamedTuple):
    """What an earlier verification left."""

    chains: Chains
    eras: Mapping[str, VerifiedEras]
    """By stream."""


NOTHING: Final = Earlier({}, {})


def load_verified(path: Path, store: Path | None) -> Earlier:
    """Return what an earlier verification of the same ``store`` (None: of the topics alone) left; nothing if none did.

    Raises:
        InputError: the file is none of these, or tells of another store.

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
            f"{path} tells of a verification of {known or 'the topics alone'}, and now it is "
            f"{_name(store) or 'the topics alone'}: give each a file of its own"
        )
    return Earlier(chains, eras)


def save_verified(path: Path, store: Path | None, earlier: Earlier, found: Earlier) -> None:
    """Write what the next verification may begin with, durably; of what was not looked at, what was known ``earlier``.

    Raises:
        InputError: the file cannot be written.

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


def _encoded(verified: Verified) -> dict[str, Any]:
    return {
        "carry": b64encode(encode_header(verified.carry)).decode(),
        "token_offset": verified.token_offset,
        "offset": verified.carry.cursor.next_offset,
        "block": verified.carry.first,
    }


def _decoded(value: Mapping[str, Any]) -> Verified:
    try:
        carry = replace(decode_message(b64decode(value["carry"]), None), tokens=b"")  # no view: it goes to a process
        return Verified(carry, int(value["token_offset"]))
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
