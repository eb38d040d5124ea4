"""Signatures: the fast way gives what the plain one does, and what it gave when this was written."""

import random
from hashlib import sha256
from math import sqrt

import numpy as np
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.app.milling.duplicates.plain_duplicates import shingles_of, signature_of
from tokenmill.app.milling.duplicates.signatures import Deduplication, Exact, Near, kernels, sign

WORDS = [
    *("a", "mill", "Stone", "x" * 40, "y" * 300, "\u2003", "\t", "\n\n", "\x1c"),
    *("日本語", "ไทย", "ß", "İstanbul", "🙂"),
]
GOLDEN = "72f74e436b5da20125d93a41a26e7066da2a3a6676b7c33bc93e58722db93301"
"""The hash of all signatures of some texts."""
TEXTS = st.lists(st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join) | st.text(max_size=30), max_size=8)


@given(TEXTS, st.sampled_from([Near(), Near(fold=True, shingle=2, bands=3, rows=2), Near(rows=31, bands=2), Exact()]))
@settings(deadline=None, max_examples=60)
def test_signatures_are_those_of_the_plain_rules(texts: list[str], deduplication: Deduplication) -> None:
    assert sign(deduplication, texts).tolist() == [signature_of(deduplication, text) for text in texts]


def test_the_kernel_hashes_as_xxhash_does() -> None:
    rng = random.Random(1)
    data = rng.randbytes(4000)
    begins = np.array([rng.randrange(3800) for _ in range(9, 129)])
    ends, hashes = begins + np.arange(9, 129), np.zeros(120, np.uint64)

    kernels().hash_spans(np.frombuffer(data + bytes(8), np.uint8), begins, ends, hashes)

    wanted = [xxhash.xxh3_64_intdigest(data[begin:end]) for begin, end in zip(begins, ends, strict=True)]
    assert hashes.tolist() == wanted


def test_signatures_never_change() -> None:
    """They are in logs and files that are read for years."""
    text = "The first document in the recorded order is kept; later ones are filtered, with the place of the first."
    signed = sign(Near(), [text, "too short", text.upper(), ""])
    folded = sign(Near(fold=True), [text, text.upper()])

    assert signed[0, :2].tolist() == [8937130482446879205, 9484102528508095067]
    assert sha256(signed.astype("<u8").tobytes()).hexdigest() == GOLDEN
    assert folded[0].tolist() == folded[1].tolist()
    assert sign(Exact(), [text]).tolist() == [[signed[0, -1]]]


def test_the_chance_of_being_found_is_what_the_parameters_say() -> None:
    """Pairs of texts that share a known part of their shingles share a band as often as theory says."""
    near, rng = Near(), random.Random(2)
    pairs = []
    for number in range(300):
        words = [f"w{number}-{rng.random()}" for _ in range(200)]
        other = list(words)
        for at in rng.sample(range(0, 200, 5), 5):
            other[at] = f"changed{at}"
        pairs.append((" ".join(words), " ".join(other)))
    one, other_signed = sign(near, [a for a, _ in pairs]), sign(near, [b for _, b in pairs])
    chances = []
    for a, b in pairs:
        first, second = shingles_of(near, a), shingles_of(near, b)
        chances.append(near.chance(len(first & second) / len(first | second)))
    expected, found = sum(chances), int((one[:, :-1] == other_signed[:, :-1]).any(axis=1).sum())

    assert abs(found - expected) < 4 * sqrt(sum(chance * (1 - chance) for chance in chances))
    assert 0.6 < expected / 300 < 0.97
