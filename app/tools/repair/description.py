"""What describes a stream in a store, ``stream.json`` and ``tokenizer.json``: compared, and written anew if need be."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from tokenmill.errors import DamagedError, FingerprintError, StoreError
from tokenmill.store import StreamInfo, read_stream
from tokenmill.store.durable import put_file
from tokenmill.store.layout import STREAM_FILE, TOKENIZER_FILE, stream_directory
from tokenmill.store.rebuilding import link_aside
from tokenmill.untrusted import MAX_TOKENIZER_BYTES, read_regular
from tokenmill.wire.genesis import Genesis

from ...kafka.control_topic import Settled
from ...kafka.settled_streams import tokenizer_of


def described(settled: Settled) -> tuple[StreamInfo, bytes | None]:
    """Return description and tokenizer as a stream's control topic has them."""
    info = StreamInfo.from_genesis(settled.genesis, settled.genesis.segment_blocks)
    return info, tokenizer_of(settled).content


def described_in(store: Path, stream: str) -> tuple[StreamInfo, bytes | None]:
    """Return description and tokenizer as another store has them.

    Raises:
        StoreError: it holds no such stream.
        DamagedError: one of the two is damaged there as well.

    """
    info = read_stream(store, stream)
    path = stream_directory(store, stream) / TOKENIZER_FILE
    tokenizer = read_regular(path, most=MAX_TOKENIZER_BYTES) if path.exists() else None
    if tokenizer is not None and _digest(info) not in {None, sha256(tokenizer).hexdigest()}:
        raise DamagedError(f"{path} is not the tokenizer of its stream", "Give another store, or the token topic")
    return info, tokenizer


def mend_description(
    store: Path, stream: str, right: Callable[[], tuple[StreamInfo, bytes | None]]
) -> tuple[StreamInfo, list[str]]:
    """Return the description of a stream, and what was written anew of it; damaged files are kept beside.

    ``right`` gives what both files must be.

    Raises:
        FingerprintError: the store's stream of that name is another.
        StoreError: the store has no directory of that stream.

    """
    directory = stream_directory(store, stream)
    if not directory.is_dir():
        raise StoreError(f"there is no {directory}: give the store's directory, and a stream that it holds")
    info, tokenizer = right()
    mended = []
    for name, content in ((STREAM_FILE, info.encode()), (TOKENIZER_FILE, tokenizer)):
        path = directory / name
        if content is None or (path.exists() and read_regular(path) == content):
            continue
        if name == STREAM_FILE:
            _require_damage(store, stream, info)
        if path.exists():
            link_aside(path)
        put_file(path, content)
        mended.append(str(path))
    return info, mended


def _require_damage(store: Path, stream: str, info: StreamInfo) -> None:
    """Check that a description that differs is damaged, and not another stream's."""
    try:
        known = read_stream(store, stream)
    except (DamagedError, StoreError):
        return
    raise FingerprintError(
        f"{store} holds a stream {stream} made with other settings ({known.differences(info)}): give the brokers or "
        "the store of the same stream"
    )


def _digest(info: StreamInfo) -> str | None:
    if "genesis" not in info.values:
        return None
    return Genesis.from_dict(info.values["genesis"]).recipe.tokenizer_sha256
