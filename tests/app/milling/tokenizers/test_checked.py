"""A fast engine is used while it gives the ids of `tokenizers`, and not a batch longer."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.milling.tokenizers.panicking import HARMFUL, panicking
from tokenmill.app.milling.tokenizers import PROBE, TokenBatch
from tokenmill.app.milling.tokenizers.checked import (
    SAMPLE_CHARACTERS,
    SAMPLE_ONE_IN,
    Checked,
    first_difference,
    sampled,
)
from tokenmill.app.milling.tokenizers.hugging_face import HuggingFace
from tokenmill.errors import EngineError, PanicError, SettingsError

TEXTS = [f"document {number} says {number * number}" for number in range(3 * SAMPLE_ONE_IN)]


@dataclass
class Wrong:
    """Encodes as ``right`` does, but for the texts that hold ``lies_about``, whose last id is 7; counts its texts."""

    right: HuggingFace
    lies_about: str = "\0nothing"
    seen: list[str] = field(default_factory=list)

    def encode(self, texts: Sequence[str]) -> TokenBatch:
        """Return ids that are mostly right."""
        self.seen += texts
        batch = self.right.encode(texts)
        ids = batch.ids.copy()
        for number, text in enumerate(texts):
            if self.lies_about in text:
                ids[batch.offsets[number + 1] - 1] = 7
        return TokenBatch(ids, batch.offsets)


@pytest.fixture(scope="module")
def reference(byte_level: bytes) -> HuggingFace:
    """Return the engine that says what is right."""
    return HuggingFace(byte_level)


def test_engine_that_differs_on_the_probe_text_is_refused(reference: HuggingFace) -> None:
    """The message says at which token, and near which text."""
    with pytest.raises(SettingsError, match=r"fast does not give the ids of tokenizers: token \d+ of a text is 7 by"):
        Checked("fast", Wrong(reference, "snake_case"), reference)


def test_engine_that_takes_names_of_special_tokens_for_the_tokens_is_refused(reference: HuggingFace) -> None:
    """Every added token's name is tried, in the middle of a text as well."""
    with pytest.raises(SettingsError, match="does not give the ids"):
        Checked("fast", Wrong(reference, " a <|endoftext|> b"), reference)


def test_sampled_text_with_other_ids_stops_the_batch(reference: HuggingFace) -> None:
    """Whichever batch the text comes in."""
    fast = Wrong(reference, "document")
    checked = Checked("fast", fast, reference)
    chosen = sampled(fast.encode(TEXTS))
    assert chosen
    for number in chosen:
        for batch in (TEXTS[number : number + 1], TEXTS[max(0, number - 5) : number + 5]):
            with pytest.raises(EngineError, match=rf"is 7 by fast and \d+ by tokenizers, about here: '.*{number**2}'"):
                checked.encode(batch)


@pytest.mark.slow
def test_other_texts_are_not_compared(reference: HuggingFace) -> None:
    """They have the fast engine's ids, right or wrong: a sample is a sample."""
    fast = Wrong(reference, "document")
    checked = Checked("fast", fast, reference)
    chosen = set(sampled(fast.encode(TEXTS)))
    fast.seen.clear()
    others = [text for number, text in enumerate(TEXTS) if number not in chosen]
    batch = checked.encode(others)
    assert fast.seen == others
    assert all(ids[-1] == 7 for ids in batch)


@pytest.mark.slow
@pytest.mark.needs("minutes")
def test_about_one_text_in_eight_thousand_is_compared(reference: HuggingFace) -> None:
    """Of texts that differ in a number only; ten times as many as expected would be chosen by chance never."""
    rng = np.random.default_rng(1)
    lengths = rng.integers(0, 900, 1_000_000)
    ids = rng.integers(0, 50_000, 4096).astype(np.uint32)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    chosen = sampled(TokenBatch(np.resize(ids, offsets[-1]), offsets))
    assert 0.5 < len(chosen) * SAMPLE_ONE_IN / len(lengths) < 2
    assert 1 <= len(sampled(reference.encode(TEXTS))) <= 30


@given(st.lists(st.lists(st.integers(0, 3), max_size=4)), st.data())
def test_choice_depends_on_the_text_alone(texts: list[list[int]], data: st.DataObject) -> None:
    """Not on its place, its neighbours, or the batch: every worker chooses the same."""
    many = texts * 50 + [[number] for number in range(500)]
    chosen = {tuple(many[number]) for number in sampled(_batch(many))}
    order = data.draw(st.permutations(texts))
    assert {tuple(order[number]) for number in sampled(_batch(order))} == chosen & set(map(tuple, texts))


def test_of_a_long_text_the_beginning_is_compared(reference: HuggingFace, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that one long text never holds a worker up."""
    monkeypatch.setattr("tokenmill.app.milling.tokenizers.checked.SAMPLE_ONE_IN", 1)
    fast = Wrong(reference)
    checked = Checked("fast", fast, reference)
    fast.seen.clear()
    text = "long " * SAMPLE_CHARACTERS
    checked.encode([text, "short"])
    assert fast.seen == [text, "short", text[:SAMPLE_CHARACTERS]]


def test_ids_that_are_used_are_those_that_are_compared(reference: HuggingFace, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that is wrong in batches alone is found, too."""
    monkeypatch.setattr("tokenmill.app.milling.tokenizers.checked.SAMPLE_ONE_IN", 1)

    class WrongInBatches(Wrong):
        def encode(self, texts: Sequence[str]) -> TokenBatch:
            return super().encode(texts) if len(texts) > 1 else reference.encode(texts)

    checked = Checked("fast", WrongInBatches(reference, "second"), reference)
    with pytest.raises(EngineError, match="is 7 by fast"):
        checked.encode(["first", "a second text"])


def test_everything_but_encoding_is_the_references(reference: HuggingFace) -> None:
    """Name, size, ids by name and text for people."""
    checked = Checked("fast", Wrong(reference), reference)
    assert (checked.kind, checked.vocabulary_size) == ("fast", reference.vocabulary_size)
    assert checked.token_id("<|endoftext|>") == reference.token_id("<|endoftext|>")
    assert checked.decode(checked.encode([PROBE[0]]).ids.tolist()) == PROBE[0]
    assert len(checked.encode([])) == 0


@pytest.mark.parametrize(
    ("one", "other", "at"), [([], [], None), ([1], [1], None), ([1], [2], 0), ([1, 2], [1], 1), ([1], [1, 2], 1)]
)
def test_first_difference(one: list[int], other: list[int], at: int | None) -> None:
    """An end that comes earlier is a difference, too."""
    assert first_difference(np.array(one, np.uint32), np.array(other, np.uint32)) == at


def _batch(texts: Sequence[Sequence[int]]) -> TokenBatch:
    offsets: npt.NDArray[np.int64] = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    return TokenBatch(np.array([number for text in texts for number in text], np.uint32), offsets)


def test_engine_that_fails_on_the_probe_text_is_refused(reference: HuggingFace) -> None:
    """Though the reference would encode all of it in its place."""

    class Panicking(Wrong):
        def encode(self, texts: Sequence[str]) -> TokenBatch:
            if any("snake_case" in text for text in texts):
                raise PanicError("fast panicked")
            return super().encode(texts)

    with pytest.raises(SettingsError, match="fast fails on texts that every engine has to encode"):
        Checked("fast", Panicking(reference), reference)


def test_engine_that_encodes_what_the_reference_cannot_is_stopped() -> None:
    """The text has no ids, so any are wrong."""

    class Bold(Wrong):
        def encode(self, texts: Sequence[str]) -> TokenBatch:
            return self.right.encode([text.replace(HARMFUL, "aaa") for text in texts])

    reference = HuggingFace(panicking())
    checked = Checked("fast", Bold(reference), reference)
    assert not checked.encode(["one"]).failed
    with pytest.raises(EngineError, match=r"tokenizers fails on a text that fast encodes \(.*retry-limit"):
        checked._compare(HARMFUL, reference.encode(["aaa"])[0])
