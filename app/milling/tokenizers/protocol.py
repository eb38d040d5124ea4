"""What every engine promises."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Final, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from tokenmill.errors import RecordError

from ..bounds import join_bounds

SpecialTokens: TypeAlias = Literal["text", "tokens"]
"""What the name of a special token is where it stands in a text: text like any other, or that token."""
TEXT: Final = "text"
TOKENIZER_FAILED: Final = "tokenizer_failed"
"""Dead-letter reason: `tokenizers`, which says which ids are right, fails on the text."""


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """The token ids of several texts, without those around a document.

    Those of text ``i`` are ``ids[offsets[i] : offsets[i + 1]]``.
    """

    ids: npt.NDArray[np.uint32]
    """Shape ``[tokens]``: all ids, one text after the other."""
    offsets: npt.NDArray[np.int64]
    """Shape ``[texts + 1]``: where each text begins, from 0, and where the last one ends."""
    failed: Mapping[int, RecordError] = field(default_factory=dict)
    """Why the reference engine fails on a text (`TOKENIZER_FAILED`), by the text's index; it has no ids here."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> npt.NDArray[np.uint32]:
        """Return a view of the ids of text ``index``, from 0; it may be empty."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    @property
    def silent(self) -> npt.NDArray[np.int64]:
        """The indices of the texts that have no ids, though the engine did not fail on them."""
        without = np.flatnonzero(self.offsets[1:] == self.offsets[:-1])
        return without[[at not in self.failed for at in without.tolist()]]

    def part(self, low: int, high: int) -> "TokenBatch":
        """Return a view of the ids of texts ``[low, high)``."""
        first, last = self.offsets[low], self.offsets[high]
        failed = {at - low: error for at, error in self.failed.items() if low <= at < high}
        return TokenBatch(self.ids[first:last], self.offsets[low : high + 1] - first, failed)

    def __iter__(self) -> Iterator[npt.NDArray[np.uint32]]:
        bounds = self.offsets.tolist()
        return (self.ids[low:high] for low, high in pairwise(bounds))


def joined(batches: Sequence[TokenBatch]) -> TokenBatch:
    """Return one batch of all texts, in order."""
    if len(batches) == 1:
        return batches[0]
    ids = [batch.ids for batch in batches] or [np.empty(0, np.uint32)]
    firsts = accumulate(map(len, batches[:-1]), initial=0)
    placed = zip(firsts, batches, strict=True) if batches else ()
    failed = {first + at: error for first, batch in placed for at, error in batch.failed.items()}
    return TokenBatch(np.concatenate(ids), join_bounds(batch.offsets for batch in batches), failed)


class Encoder(Protocol):
    """The part of an engine that is worth being fast.

    A text's ids depend on the text and the tokenizer file alone, never on its batch.
    """

    def encode(self, texts: Sequence[str]) -> TokenBatch:
        """Return the ids of ``texts``, any Unicode texts without lone surrogates, of any length.

        None are added to those of the text. Special tokens in a text are ordinary text, unless the engine was opened
        to find them (`SpecialTokens`). Added tokens that the tokenizer file does not call special
        are matched. A text may have no tokens. One on which the reference engine fails is in ``failed``, whatever the
        engine; the others have their ids. Other threads run meanwhile.
        """
        ...


class Engine(Encoder, Protocol):
    """Turns texts into token ids."""

    @property
    def kind(self) -> str:
        """The engine's name in settings and logs."""
        ...

    @property
    def vocabulary_size(self) -> int:
        """The largest id plus one, added tokens included: every id is below it."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return text for people: special tokens are shown, and bytes that are no UTF-8 become U+FFFD."""
        ...

    def token_id(self, token: str) -> int | None:
        """Return the id of a token by its name in the vocabulary; None where it has no such token."""
        ...
