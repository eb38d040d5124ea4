"""A fixed text whose ids go into the fingerprint, so that a tokenizer library that gives other ids is noticed.

Changing one character here changes every stream's fingerprint.
"""

from hashlib import sha256
from typing import Final

import numpy as np

from tokenmill.errors import SettingsError

from .protocol import Engine

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

_SHOWN_CHARACTERS: Final = 40


def probe(engine: Engine) -> str:
    """Return the hexadecimal SHA-256 of the ids of `PROBE`: of each text, their number and then the ids, as ``<u4``.

    Raises:
        SettingsError: the tokenizer fails on one of the texts.

    """
    digest = sha256()
    batch = engine.encode(PROBE)
    for at, error in batch.failed.items():
        raise SettingsError(
            f"the tokenizer fails on a text that every tokenizer has to encode ({error.detail}), "
            f"{PROBE[at][:_SHOWN_CHARACTERS]!a}: correct its file (often a pattern in it) or name another (tokenizer)"
        )
    for ids in batch:
        digest.update(np.array([len(ids)], "<u4").tobytes() + ids.astype("<u4").tobytes())
    return digest.hexdigest()
