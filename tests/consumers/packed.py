"""Stores whose blocks hold documents of known tokens, in each packing, and a plain answer to which are whole."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.mills import RECIPE
from tests.store.chains import STREAM, fill, make_eras, make_store, write_eras
from tokenmill.reading import Blocks
from tokenmill.recipe import Genesis, canonical_json
from tokenmill.store import Store, StreamInfo
from tokenmill.wire.chain import genesis_hash, roll
from tokenmill.wire.pieces import PADDING, Piece, encode_entry

PAD = 0
"""Padding, and the end of a document (of `RECIPE`)."""
AGE = 6
"""Offsets after which ``fit`` closes an open block: three documents."""


class Given(NamedTuple):
    offset: int
    tokens: list[int]
    meta: bytes
    """Canonical JSON, or nothing."""


class Block(NamedTuple):
    tokens: list[int]
    pieces: list[Piece]


def packed_info(
    packing: str = "concat", *, block_tokens: int = 5, segment_blocks: int = 4, stream: str = STREAM
) -> StreamInfo:
    recipe = replace(
        RECIPE,
        packing=packing,
        packing_parameters={"max_age_offsets": AGE} if packing == "fit" else {},
        block_tokens=block_tokens,
        dtype="uint16",
        metadata_fields=("label",),
        max_fields_bytes=99,
    )
    return StreamInfo.from_genesis(Genesis(stream, recipe, (0,), segment_blocks), segment_blocks)


def given_documents(lengths: Sequence[int], *, labels: Sequence[Any] = (), first: int = 7) -> list[Given]:
    """Return documents of these lengths at every other offset; each token occurs once, but for the last, which is 0."""
    found, token = [], 1
    for number, length in enumerate(lengths):
        fields = {"label": labels[number % len(labels)]} if labels else {}
        meta = canonical_json({"id": f"document {number}"} | ({"fields": fields} if fields else {}))
        tokens = [(token + at) % 60_000 + 1 for at in range(length - 1)] + [PAD]
        found.append(Given(first + 2 * number, tokens, meta if number % 5 or labels else b""))
        token += length
    return found


def pack(documents: Sequence[Given], packing: str, size: int) -> list[Block]:
    """Return the blocks, one document after the other; what is open at the end is closed with padding."""
    blocks = {"concat": _concat, "fit": _fit, "rows": _rows, "chunks": _chunks}[packing](documents, size)
    for block in blocks:
        if len(block.tokens) < size:
            block.pieces.append(Piece(len(block.tokens), 0, PADDING, b""))
            block.tokens.extend([PAD] * (size - len(block.tokens)))
    return blocks


def _concat(documents: Sequence[Given], size: int) -> list[Block]:
    blocks = [Block([], [])]
    for document in documents:
        at = 0
        while at < len(document.tokens):
            if len(blocks[-1].tokens) == size:
                blocks.append(Block([], []))
            at += _put(blocks[-1], document, at, size - len(blocks[-1].tokens))
    return blocks


def _fit(documents: Sequence[Given], size: int) -> list[Block]:
    """Put whole blocks of a document out at once, and its rest into any of three open ones that has room."""
    rng, done = random.Random(0), list[Block]()
    opened = [Block([], []) for _ in range(3)]
    for document in documents:
        aged = [block for block in opened if block.pieces and block.pieces[0].offset + AGE < document.offset]
        done += aged
        opened = [block for block in opened if block not in aged] + [Block([], []) for _ in aged]
        whole = len(document.tokens) // size * size
        done += [_block(document, at, size) for at in range(0, whole, size)]
        rest = len(document.tokens) - whole
        if not rest:
            continue
        rng.shuffle(opened)
        fitting = [block for block in opened if len(block.tokens) + rest <= size]
        if not fitting:
            done.append(opened.pop())
            opened.append(Block([], []))
            fitting = opened[-1:]
        _put(fitting[0], document, whole, rest)
    return done + [block for block in opened if block.tokens]


def _rows(documents: Sequence[Given], size: int) -> list[Block]:
    return [_block(document, 0, size) for document in documents]


def _chunks(documents: Sequence[Given], size: int) -> list[Block]:
    """Cut documents into chunks that overlap by a token, and drop the rest."""
    return [
        _block(document, at, size)
        for document in documents
        for at in range(0, len(document.tokens) - size + 1, size - 1)
    ]


def _block(document: Given, at: int, size: int) -> Block:
    block = Block([], [])
    _put(block, document, at, size)
    return block


def _put(block: Block, document: Given, at: int, most: int) -> int:
    """Add so many of the document's tokens, or what it has from there on; return their number."""
    tokens = document.tokens[at : at + most]
    block.pieces.append(Piece(len(block.tokens), document.offset, at, document.meta))
    block.tokens.extend(tokens)
    return len(tokens)


def packed_store(
    path: Path,
    info: StreamInfo,
    blocks: Mapping[int, Sequence[Block]],
    stops: Sequence[Mapping[int, int]] = (),
    *,
    ends: bool = True,
) -> Store:
    """Make a store of these blocks of each partition, with eras that reach these; without any, one has all.

    ``ends``: and with the mark that no more will come.
    """
    chains = {}
    for partition, found in blocks.items():
        tokens = np.array([block.tokens for block in found], info.dtype).tobytes()
        entries = [encode_entry(block.pieces) for block in found]
        hashes = roll(genesis_hash(info.fingerprint, partition), tokens, entries)
        chains[partition] = Blocks(0, tokens, entries, hashes)
    store = make_store(path, info)
    for partition, found in blocks.items():
        if found:
            fill(store, info, chains[partition], [len(found)], partition=partition)
    reached = stops or [{partition: len(found) for partition, found in blocks.items()}]
    write_eras(store, make_eras(info, chains, reached, end=ends), stream=info.name)
    return store


def text_store(
    path: Path, lengths: Sequence[int], *, labels: Sequence[Any] = (), info: StreamInfo | None = None
) -> Path:
    blocks = pack(given_documents(lengths, labels=labels), "concat", 5)
    return packed_store(path, info or packed_info(), {0: blocks}).path
