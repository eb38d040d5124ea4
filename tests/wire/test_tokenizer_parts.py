"""A tokenizer on its control topic: in parts that come in any order, more than once, or forged."""

from collections.abc import Sequence
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.wire import tokenizer_parts as module
from tokenmill.wire.tokenizer_parts import TokenizerParts, list_parts, tokenizer_parts

CONTENT = bytes(range(256)) * 4
DIGEST = sha256(CONTENT).hexdigest()


def added(records: Sequence[tuple[bytes, bytes]], digest: str = DIGEST) -> bytes | None:
    """Return the tokenizer that these records hold."""
    parts = TokenizerParts(digest)
    for key, value in records:
        parts.add(key, value)
    return parts.content()


@st.composite
def tokenizers(draw: st.DrawFn) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """Draw a tokenizer and its parts, cut small."""
    content = draw(st.binary(max_size=60))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PART_BYTES", draw(st.integers(1, 30)))
        return content, list(tokenizer_parts(content))


@given(tokenizers(), st.data())
def test_a_tokenizer_is_found_whatever_the_order_of_its_parts(
    tokenizer: tuple[bytes, list[tuple[bytes, bytes]]], data: st.DataObject
) -> None:
    """Two workers may both have written it, their parts mixed."""
    content, parts = tokenizer
    records = data.draw(st.permutations([*parts, *data.draw(st.lists(st.sampled_from(parts)))]))
    assert added(records, sha256(content).hexdigest()) == content


@given(tokenizers(), st.data())
def test_a_tokenizer_with_a_missing_or_damaged_part_is_none(
    tokenizer: tuple[bytes, list[tuple[bytes, bytes]]], data: st.DataObject
) -> None:
    """So a worker that has the file writes it again; after that it is there, and nothing takes it away."""
    content, parts = tokenizer
    digest = sha256(content).hexdigest()
    place = data.draw(st.integers(0, len(parts) - 1))
    key, value = parts[place]
    wrong = data.draw(st.sampled_from([value + b"x", value[:-1], bytes([value[0] ^ 1]) + value[1:]]))
    assert added(parts[:place] + parts[place + 1 :], digest) is None
    damaged = [*parts[:place], (key, wrong), *parts[place + 1 :]]
    assert added(damaged, digest) in (None, content)  # what follows its end is overlooked
    assert added([*damaged, *parts], digest) == content
    assert added([*parts, *damaged], digest) == content


def test_parts_of_others_are_left_alone() -> None:
    """They are held nowhere."""
    other = "0" * 64
    assert added([(f"tokenizer/{other}/0/1".encode(), b"x"), *tokenizer_parts(CONTENT)]) == CONTENT


@pytest.mark.parametrize("key", [f"tokenizer/{DIGEST}/5/2", f"tokenizer/{DIGEST}/0/0", "tokenizer/7/0/1", "tokenizer/"])
def test_what_can_be_no_part_is_said_to_be_none(key: str) -> None:
    """Outside its count, or of no tokenizer."""
    with pytest.raises(ValueError, match="no part"):
        TokenizerParts(DIGEST).add(key.encode(), b"")


def test_parts_that_make_nothing_are_not_kept_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever number of parts they say to be of."""
    monkeypatch.setattr(module, "KEPT_BYTES", 1000)
    parts = TokenizerParts(DIGEST)
    for count in range(2, 12):
        parts.add(f"tokenizer/{DIGEST}/0/{count}".encode(), bytes(100))
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        parts.add(f"tokenizer/{DIGEST}/1/12".encode(), b"x")
    parts.add(f"tokenizer/{DIGEST}/0/2".encode(), bytes(100))  # the same again takes no more


def test_parts_fit_into_a_topic_as_it_is_by_default() -> None:
    """1 MiB, with room for the record's frame."""
    content = b"".join(sha256(bytes([n % 256, n // 256])).digest() for n in range(60_000))
    parts = list(tokenizer_parts(content))
    assert max(len(value) for _, value in parts) <= (1 << 20) - (1 << 16)
    assert len(parts) > 1
    assert added(parts, sha256(content).hexdigest()) == content


def test_parts_of_a_list_are_no_parts_of_a_tokenizer() -> None:
    """Though their content were the same."""
    parts = TokenizerParts(DIGEST)
    for key, value in list_parts(CONTENT):
        parts.add(key, value)
    assert parts.content() is None
