"""How far a verification came, kept in a file, so that the next one can begin there.

Of each chain it holds a carry (`tokenmill.message`): cursor, chain hash, totals and open block, under the stream's
fingerprint and with a checksum. So the next verification knows what it continues, finds the record that the cursor
remembers still in the log, and notices a topic or store that holds other blocks now.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tokenmill.errors import InputError, TokenMillError
from tokenmill.message import Message, decode_message, encode_header
from tokenmill.segments.durable import put_file

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Verified:
    """Up to where one chain is right, in its topic and in the store."""

    carry: Message
    token_offset: int
    """Where the token topic goes on; a hint, for the blocks tell."""


Chains = Mapping[tuple[str, int], Verified]
"""By stream and partition."""


def load_verified(path: Path, store: Path | None) -> Chains:
    """Return what an earlier verification of the same ``store`` (None: of the topics alone) left; nothing if none did.

    Raises:
        InputError: the file is none of these, or tells of another store.

    """
    try:
        values = json.loads(path.read_bytes())
        version, known = values["format"], values["store"]
        chains = {_chain(name): _decoded(value) for name, value in values["chains"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise _no_state(path, repr(error)) from error
    if version != FORMAT:
        raise _no_state(path, f"it has format {version}, this version knows format {FORMAT}")
    if known != _name(store):
        raise InputError(
            f"{path} tells of a verification of {known or 'the topics alone'}, and now it is "
            f"{_name(store) or 'the topics alone'}: give each a file of its own"
        )
    return chains


def save_verified(path: Path, store: Path | None, earlier: Chains, found: Iterable[tuple[str, int, Verified]]) -> None:
    """Write what the next verification may begin with, durably; of chains that were not looked at, what was known.

    Raises:
        InputError: the file cannot be written.

    """
    chains = {**earlier, **{(stream, partition): verified for stream, partition, verified in found}}
    values = {
        "format": FORMAT,
        "store": _name(store),
        "chains": {f"{stream}/{partition}": _encoded(v) for (stream, partition), v in sorted(chains.items())},
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


def _no_state(path: Path, why: str) -> InputError:
    return InputError(f"{path} is not what a verification left ({why}): remove it, and everything is verified again")
