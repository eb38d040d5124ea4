"""The limit that token topics are created with holds for the worst message that there can be."""

from collections import Counter

import pytest

from tokenmill.app.kafka.topics import worst_message_bytes
from tokenmill.app.milling.decoding import REASONS
from tokenmill.app.settings import Settings
from tokenmill.wire.chain import Cursor
from tokenmill.wire.message import Message, encode_header
from tokenmill.wire.pieces import Piece, encode_entry
from tokenmill.wire.totals import Amount, Figures, StepFigures, Totals

HUGE = 10**18


def _worst(settings: Settings, blocks: int, figures: Figures | None = None) -> int:
    """Return the size of a message whose every token is a document of its own with the longest id and fields."""
    figures = figures or Figures()
    own = settings.for_topic("raw-text")
    meta = b"m" * own.limits.max_meta_bytes
    entry = encode_entry([Piece(n, HUGE, 0, meta) for n in range(own.block_tokens)])
    others = ["skipped", "function_failed", "tokenizer_failed", "normalized_too_large"]
    dead = Counter(dict.fromkeys([*REASONS, *others], HUGE))
    filtered = Counter({f"{n:032}": HUGE for n in range(68)})
    filtered |= Counter(dict.fromkeys(figures.filtered, HUGE))
    totals = Totals(HUGE, HUGE, HUGE, HUGE, HUGE, filtered, dead, HUGE, HUGE, figures)
    tokens = bytes(4 * own.block_tokens * blocks)
    message = Message(bytes(16), 0, Cursor(0, 0, blocks), bytes(16), bytes(16), totals, tokens, [entry] * blocks)
    # Kafka adds to a record: batch header (61 bytes), lengths, offset, timestamp, the header's name
    return len(encode_header(message)) + len(tokens) + 300


@pytest.mark.parametrize("sequence_length", [1, 3, 1024])
@pytest.mark.parametrize(("max_id_bytes", "max_fields_bytes"), [(1, 2), (128, 256), (5000, 5000)])
def test_the_worst_block_fits(sequence_length: int, max_id_bytes: int, max_fields_bytes: int) -> None:
    settings = Settings(sequence_length=sequence_length, max_id_bytes=max_id_bytes, max_fields_bytes=max_fields_bytes)
    assert _worst(settings, 1) <= worst_message_bytes(settings, settings.for_topic("raw-text"))


def test_the_worst_message_of_several_blocks_fits() -> None:
    """Messages are cut before they exceed `message_bytes`, their totals aside."""
    settings = Settings(message_bytes=3_000_000)
    blocks = 2
    size = _worst(settings, blocks)
    assert size <= settings.message_bytes
    small = Settings(message_bytes=size)
    assert size + len(Totals().pack()) + 8192 <= worst_message_bytes(small, small.for_topic("raw-text"))


@pytest.mark.parametrize("steps", [1, 32])
def test_figures_of_every_step_and_language_fit(steps: int) -> None:
    settings = Settings(message_bytes=1, steps=({"name": "length", "min_words": 5},) * steps)
    amount = Amount(HUGE, HUGE)
    labels = [f"{number:032}" for number in range(steps)]
    reasons = {label: {f"{label}.{number:032}": amount for number in range(32)} for label in labels}
    short = ("normalize", "function", "not_empty", "min_chars", "normalized_length")
    figures = Figures(
        [StepFigures(label, amount, amount, reasons.get(label, {}), amount) for label in (*labels, *short)],
        Counter(dict.fromkeys(range(64), HUGE)),
        Counter(dict.fromkeys(range(64), HUGE)),
        {f"language-{number}": amount for number in range(200)},
    )
    assert _worst(settings, 1, figures) <= worst_message_bytes(settings, settings.for_topic("raw-text"))
