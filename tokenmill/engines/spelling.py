"""Special tokens that a model finds in a text by itself, spelled out as the text that they are."""

from collections.abc import Sequence

from tokenmill.engines.hugging_face import HuggingFace
from tokenmill.engines.protocol import Encoder, TokenBatch


class Spelled:
    """A fast encoder, but for the rare batch with a special token in it, which ``reference`` encodes and spells out.

    Fast encoders can be kept from looking for special tokens. A model that has their names in its own vocabulary, like
    other words, may find them all the same.
    """

    def __init__(self, fast: Encoder, reference: HuggingFace) -> None:
        """Find out whether the model can find any."""
        self._fast = fast
        self._reference = reference
        self._may_find_special = reference.may_find_special

    def encode(self, texts: Sequence[str]) -> TokenBatch:
        """Return the ids of ``texts``; see `tokenmill.engines.Engine`."""
        batch = self._fast.encode(texts)
        if self._may_find_special and self._reference.is_special(batch.ids):
            return self._reference.encode(texts)
        return batch
