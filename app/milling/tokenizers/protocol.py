"""What every engine promises, the engine ``bytes``, and the probe.

The probe is a fixed text whose ids go into the fingerprint: a tokenizer library that gives other ids is noticed.
Changing one character of it changes every stream's fingerprint.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import accumulate, pairwise
from typing import Final, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from tokenmill.errors import RecordError, SettingsError

from ..document_columns import join_bounds

SpecialTokens: TypeAlias = Literal["text", "tokens"]
"""What the name of a special token is where it stands in a text: text like any other, or that token."""
TemplateName: TypeAlias = Literal["none", "tokenizer"]
"""What stands around a document where no setting says it: nothing, or what the tokenizer's post-processor puts."""
TEXT: Final = "text"
_SHOWN_CHARACTERS: Final = 40
"""Of a text, in a message about it."""
NO_FAILURES: Final[Mapping[int, RecordError]] = {}
TOKENIZER_FAILED: Final = "tokenizer_failed"
"""Dead-letter reason: `tokenizers`, which says which ids are right, fails on the text."""


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """The token ids of several texts; those of text ``i`` are ``ids[offsets[i] : offsets[i + 1]]``."""

    ids: npt.NDArray[np.uint32]
    """Shape ``[tokens]``: all ids, one text after the other."""
    offsets: npt.NDArray[np.int64]
    """Shape ``[texts + 1]``: where each text begins, from 0, and where the last one ends."""
    failed: Mapping[int, RecordError] = field(default_factory=dict)
    """Why the reference engine fails on a text (`TOKENIZER_FAILED`), by the text's index; it has no ids here."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> npt.NDArray[np.uint32]:
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
        return (self.ids[low:high] for low, high in pairwise(self.offsets.tolist()))


def batch_of(parts: Sequence[npt.NDArray[np.uint32]], failed: Mapping[int, RecordError] = NO_FAILURES) -> TokenBatch:
    """Return the batch of texts that have these ids; ``failed`` as in `TokenBatch`."""
    offsets = np.fromiter(accumulate(map(len, parts), initial=0), np.int64, len(parts) + 1)
    return TokenBatch(np.concatenate(parts) if parts else np.empty(0, np.uint32), offsets, failed)


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
    """The part of an engine that is worth being fast: a text's ids depend on the text and the tokenizer file alone."""

    def encode(self, texts: Sequence[str]) -> TokenBatch:
        """Return the ids of ``texts``, any Unicode texts without lone surrogates, of any length.

        None are added to those of the text. Special tokens in a text are ordinary text, unless the engine was opened to
        find them (`SpecialTokens`). Added tokens that the tokenizer file does not call special are matched. A text may
        have no tokens. One on which the reference engine fails is in ``failed``, whatever the engine; the others have
        their ids. Other threads run meanwhile.
        """


class Engine(Encoder, Protocol):
    """Turns texts into token ids."""

    @property
    def kind(self) -> str:
        """The engine's name in settings and logs."""

    @property
    def vocabulary_size(self) -> int:
        """The largest id plus one, added tokens included: every id is below it."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return text for people: special tokens are shown, and bytes that are no UTF-8 become U+FFFD."""

    def token_id(self, token: str) -> int | None:
        """Return the id of a token by its name in the vocabulary; None where it has no such token."""


END_OF_DOCUMENT: Final = 0
"""NUL ends a document. A text may hold NUL as well: document boundaries are stored, never inferred from ids."""


class RawBytes:
    """Needs no tokenizer file; 256 ids, so blocks are uint8."""

    kind: Final = "bytes"
    vocabulary_size: Final = 256

    def encode(self, texts: Sequence[str]) -> TokenBatch:
        """Return the texts' UTF-8 bytes."""
        parts = [text.encode() for text in texts]
        ids = np.frombuffer(b"".join(parts), dtype=np.uint8).astype(np.uint32)
        return TokenBatch(ids, np.fromiter(accumulate(map(len, parts), initial=0), np.int64, len(parts) + 1))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of these bytes; a character that a block's border cuts becomes U+FFFD."""
        return bytes(ids).decode(errors="replace")

    def token_id(self, token: str) -> int | None:  # noqa: ARG002 - the protocol's name
        """Return None: bytes have no names."""
        return None


PROBE: Final = (
    "The quick brown fox jumps over the lazy dog. It's 3.14159, isn't it? We'll see: they've won; you're next!",
    "HTTPServer parseXMLDocument snake_case_name SCREAMING_CASE 0x7fff 1e-9 1234567 12,345.67 2024-02-29T23:59:59Z",
    "def f(x: int) -> dict[str, int]:\n\treturn {'a': x ** 2, \"b\": [1, 2, 3][-1]}  # why\n\n\nclass A:\n    pass\n",
    "#include <stdio.h>\r\nint main(void) { return a->b && !c || (d << 3) != ~0; }\r\n\r\n",
    '{"key": [null, true, -1.5e10], "nested": {"\\u00e9": "\\n"}}\nhttps://example.org/a?b=c#e <b>b</b> &amp; $x^2$',
    "Größe, Straße, naïve café, Ångström, Łódź, İstanbul, œuvre; Ελληνικά ΣΊΣΥΦΟΣ; Съешь ещё этих мягких булок",
    "中文分詞沒有空格。日本語の文章、カタカナとひらがな。한국어 문장입니다. ภาษาไทยไม่มีช่องว่าง हिन्दी में देवनागरी தமிழ்",
    "العربية من اليمين إلى اليسار، ١٢٣؛ עברית עם נִקּוּד; فارسی‌نویسی",
    "👍🏽 👨\u200d👩\u200d👧\u200d👦 🇪🇺 ☺\ufe0f ♥ e\u0301 \u00e9 a\u030a\u0323 \ufb01 \u2460 \u00bd \u212b \uff21",
    "".join(map(chr, range(ord(" "), ord("~") + 1))),
    "zero\u200bwidth\u200djoined\ufeffmarked \u202eright to left\u202c \u2066isolated\u2069 soft\u00adhyphen",
    "  two spaces    four\t\ttabs \n \n\n  lines \u00a0nbsp\u2003em\u3000wide\u2028line\u0085next\x0b\x0c trailing   ",
    "<|endoftext|> <s></s> [CLS][SEP] <pad> <unk> <|im_start|>user<|im_end|> <0x0A> ▁▁ Ġ Ċ ## <|end_of_text|>",
    "\x00\x01\x1b[0m\x7f\x80\x9f \ue000\U000e0041\U0010fffd \u0378 \ufffd \ufffe",
    "a" * 300 + "ab" * 150 + " " * 100 + "\n" * 50 + "=" * 80 + "0" * 70 + "é" * 60 + "語" * 50 + "🙂" * 20,
    "",
    " ",
    "\n",
    "x",
)
"""Prose, code, markup, many scripts, digits, emoji, combining and invisible characters, white space, control
characters, unassigned ones, text that looks like special tokens, long words, and nothing."""


def probe(engine: Engine) -> str:
    """Return the hexadecimal SHA-256 of the ids of `PROBE`. Raises SettingsError where the tokenizer fails on it."""
    digest = sha256()  # of each text, the number of its ids and then these, as ``<u4``
    batch = engine.encode(PROBE)
    for at, error in batch.failed.items():
        raise SettingsError(
            f"the tokenizer fails on a text that every tokenizer has to encode ({error.detail}), "
            f"{PROBE[at][:_SHOWN_CHARACTERS]!a}: correct its file (often a pattern in it) or name another (tokenizer)"
        )
    for ids in batch:
        digest.update(np.array([len(ids)], "<u4").tobytes() + ids.astype("<u4").tobytes())
    return digest.hexdigest()
