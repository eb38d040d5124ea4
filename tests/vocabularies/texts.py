"""Texts on which tokenizers disagree with each other, if on any: a fixed collection, and a strategy for more."""
# ruff: noqa: RUF001 - characters that look like others are here because they do

import inspect
import json
import operator
import pydoc_data.topics
import random
import unicodedata
from collections.abc import Sequence
from typing import Any, Final

from hypothesis import strategies as st

from tokenmill.app.milling.tokenizers import PROBE
from tokenmill.app.milling.tokenizers.checked import has_new_characters

PROSE: Final = pydoc_data.topics.topics["lambda"] + pydoc_data.topics.topics["strings"]
CODE: Final = inspect.getsource(json)

SPECIAL_LOOKING: Final = (
    *("<|endoftext|>", "<|endoftext", "|endoftext|>", "<|end_of_text|>", "<|begin_of_text|>", "<|im_start|>user"),
    *("<s>", "</s>", "<unk>", "<pad>", "[INST]", "[/INST]", "[UNK]", "[CLS]", "[SEP]", "##ing", "<EOT>", "<META>"),
    *("<0x0A>", "▁", "▁▁▁", "Ġ", "Ċ", "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<SPECIAL_20>"),
)
"""Names of special tokens, parts of them, and what vocabularies write for bytes and spaces."""

_LANGUAGES: Final = (
    "Every morning, the baker's daughter carried warm bread – still steaming – to the harbour.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich; ẞ, ß, SS und „Anführung“.",
    "Dès Noël où un zéphyr haï me vêt de glaçons würmiens, je dîne d’exquis rôtis de bœuf.",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío, ¿añoraba a su querido cachorro?",
    "Pchnąć w tę łódź jeża lub ośm skrzyń fig. Příliš žluťoučký kůň. Árvíztűrő tükörfúrógép.",
    "Pijamalı hasta yağız şoföre çabucak güvendi. İstanbul'da ISPARTA ılık.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Ὦ ξεῖν’, ἀγγέλλειν Λακεδαιμονίοις.",
    "Широкая электрификация южных губерний даст мощный толчок. Їжак, ґанок, ўсё.",
    "ვეფხის ტყაოსანი, Բարեւ Ձեզ, በሰላም ና፣ ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر، ٠١٢٣٤٥٦٧٨٩ ۰۱۲۳۴۵۶۷۸۹",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה; וְהָאָ֗רֶץ הָיְתָ֥ה תֹ֙הוּ֙",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश, ০১২৩৪৫ আমার সোনার বাংলা, தமிழ் மொழி",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า ພາສາລາວ မြန်မာဘာသာ ភាសាខ្មែរ བོད་སྐད་",
    "天地玄黃，宇宙洪荒。日月盈昃，辰宿列張。𠮷野家 ㍿ ㈱",
    "いろはにほへと ちりぬるを。カタカナ、ｶﾀｶﾅ、漢字かな交じり文ー〜！",
    "키스의 고유조건은 입술끼리 만나야 하고. 각 각 ᄒᆞᆫ글",
    "Tiếng Việt có dấu: trường, nghiêng, Nguyễn, đường — quốc ngữ; ti\u00ea\u0301ng, ti\u1ebfng",
)
_CODE: Final = (
    CODE,
    'fn main() -> Result<(), Box<dyn Error>> {\n\tlet x: &\'static str = r#"a"b"#;\n    println!("{x:?}");\n}\n',
    "SELECT a.*, COUNT(*) FROM t AS a WHERE a.x<>'it''s' GROUP BY 1 HAVING COUNT(*)>=10;--done\r\n",
    "<!DOCTYPE html>\n<div class=\"a b\" id='c'>&nbsp;&#x27;<br/></div><script>if(a&&b||!c){x+=1}</script>",
    "for ((i=0;i<10;i++)); do echo \"${x[@]}\" | sed 's/\\//_/g' >> ~/.out 2>&1; done\n\n\n",
    "\n\n\\begin{align*}\\frac{\\partial f}{\\partial x_1} &= e^{i\\pi}\\\\\\end{align*}% \\TeX{}nically",
    "iPhoneXS getHTTPResponseCode XMLHttpRequest __dunder__ kebab-case-name a1b2c3 1st 2nd x86_64 UTF-8 C++ C# .NET",
)
_EMOJI: Final = (
    "👍👍🏽👍🏿 👩‍🚀👨‍👩‍👧‍👦🏳️‍🌈🏴‍☠️ 🇩🇪🇫🇷🇯🇵🇺 1️⃣#️⃣*️⃣ ©️™️ ☺︎☺️ 🫠🪿🫨",
    "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "(╯°□°）╯︵ ┻━┻ ¯\\_(ツ)_/¯ ʕ•ᴥ•ʔ ٩(◕‿◕)۶ :-) ;P <3",
    "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!͖̬̰̙̗̿̋ͥͥ̂ͣ̐́́͜͞",
)
_CONTROL: Final = (
    "".join(map(chr, range(0x20))),
    "".join(map(chr, range(0x7F, 0xA0))),
    "a\x00b\x00\x00c \x1b[31mred\x1b[0m \x08\x08 \ufeffBOM \ufff9\ufffa\ufffb \ufffe\uffff\U0010ffff \ue000",
    "\u200eleft\u200f \u202aembedded\u202c \u061c \u2066isolated\u2069 \u00ad soft",
    "\r\n\r\r\n\n\x0b\x0c\x1c\x1d\x1e\x1f\x85\u2028\u2029a\r b\n c\u0085 d\u2028 e",
)
_SPACES: Final = [*filter(str.isspace, map(chr, range(0x10000)))]
"""All characters of white space, none of which is outside of the first plane."""
_WHITE: Final = (
    "",
    *(" ", "  ", "   ", "\n", "\n\n", "\t", " \n", "\n ", " \n \n ", "\r\n", "\u00a0", "\u3000", "\u200b", " \u00a0 "),
    "a  b   c    d     e      f " + " " * 17 + "g\n" + " " * 33 + "\n\n\n" + "\t" * 9 + "h  \n",
    "".join(_SPACES) + "x",
    " ".join(_SPACES) + "x",
)
_ODD: Final = (
    "It's IT'S it’S we'LL We'lL 'Tis 's 'S 'ſ 'LL'll'd'D don't' ''s '' s ' t ’re ʼve ＇m '\u212a 'M",
    "ſ \u212a \u212b İ ı ß ẞ ǅ ǆ Ǆ ŉ ﬁ ﬀ ϐ ς Σ ͅ ᾳ ǰ ΐ Ⅷ ⅷ Ⓐ ⓐ 𝐀 𝓫 ª º ʰ ᵃ",
    "12 123 1234 1234567 1,234.56 ½ ² ⅷ ① ١٢٣٤ १२३४ ๑๒๓๔ 𝟙𝟚𝟛𝟜 一二三四 0x1F 1e10 1_000 v1.2.3 3rd",
    "e\u0301 \u00e9 e\u0301\u0323 e\u0323\u0301 \u1100\u1161\u11a8 \uac01 \u212b \u00c5 A\u030a \u0958",
    "\u0915\u093c \u0344 \u2126 <tool_call>\u0338 =\u0338 <|endoftext|>\u0338 \u0301<tool_call> \n\u0301 \u0301",
    "!?!?!?... --- === *** /// \\\\\\ ,,, ;;; «»‹›“”‘’ §¶†‡•… ‰ € £ ¥ ₿ ∀∃∈∞≠≤ ←↑→↓ ■□▲",
)


def _long() -> list[str]:
    """Return words and texts longer than any that a tokenizer's cache or buffer may have in mind."""
    chance = random.Random(1)
    letters = [c for c in map(chr, range(0x250)) if c.isalpha()]
    return [
        *("a" * n for n in (15, 16, 17, 255, 256, 257, 4096, 100_000)),
        *(c * 20_000 for c in (" ", "\n", "é", "語", "🙂", "0", "=", "\u0301", "aB", " \n", "ab ")),
        "".join(chance.choices(letters, k=30_000)),
        "".join(chr(chance.randrange(0x4E00, 0x9FFF)) for _ in range(20_000)),
        (PROSE + CODE) * 10,
    ]


LONG: Final = tuple(_long())
COLLECTION: Final = (
    *PROBE,
    *(*_LANGUAGES, *_CODE, *_EMOJI, *_CONTROL, *_WHITE, *_ODD, PROSE),
    *(*SPECIAL_LOOKING, " ".join(SPECIAL_LOOKING), "".join(SPECIAL_LOOKING)),
    *(unicodedata.normalize(form, "".join(_LANGUAGES)) for form in ("NFC", "NFD", "NFKC", "NFKD")),
)
"""Languages, code, emoji, control characters, white space, odd letters, special-looking text. `LONG` is apart."""


def _disputed(character: str) -> bool:
    """Whether it is new, or a mark since Unicode 3.2: which of these NFC puts in order depends on its version."""
    if has_new_characters(character):
        return True
    return bool(unicodedata.combining(character)) and not unicodedata.ucd_3_2_0.combining(character)


_UNASSIGNED: Final = "\u0378\u05ff\u2fe0\ufdd0\uffff\U0001fffe\U000e0080\U0010ffff"
"""Code points that mean nothing and, mostly, never will: a few for all."""


def _characters(*categories: Any) -> st.SearchStrategy[str]:
    return st.characters(categories=categories).filter(lambda character: not _disputed(character))


_categories: Final = (
    *("Cc", "Cf", "Co", "Ll", "Lm", "Lo", "Lt", "Lu", "Mc", "Me", "Mn", "Nd", "Nl", "No"),
    *("Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "Sc", "Sk", "Sm", "So", "Zl", "Zp", "Zs"),
)
"""All categories of Unicode but surrogates (Cs), which no text has, and what is not assigned (Cn)."""
_any = _characters(*_categories) | st.sampled_from(_UNASSIGNED)
_of_a_category = st.sampled_from(_categories).flatmap(lambda name: st.text(_characters(name), max_size=5))
_white = st.builds(
    operator.mul,
    st.sampled_from([" ", "\n", "\r\n", "\t", "\r", "\u00a0", "\u2003", "\u3000", "\x0b", "\x85", "\u2028", "\u200b"]),
    st.integers(1, 20),
)
_contraction = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["", " ", "we", "It", "É", "1", "語", "_"]),
        st.sampled_from(["'", "’", "''", "' ", "ʼ", "＇", "`"]),
        st.sampled_from(["s", "t", "re", "ve", "m", "ll", "d", "S", "LL", "Ve", "rE", "ſ", "sx", "x", "", "ß", "ﬆ"]),
    ),
)
_digits = st.text(_characters("Nd", "Nl", "No") | st.sampled_from("0123456789,."), max_size=10)
_marked = st.builds(
    operator.add,
    st.sampled_from(["e", "A", "क", "ש", "가", "1", " ", "<", "\n", "ᄀ"]),
    st.text(_characters("Mn", "Mc", "Me"), min_size=1, max_size=6),
)
_odd = st.sampled_from([*"ſ\u212aİıßẞǅﬁ\u212b\u0344\u0958ⅷ½\ufeff\u0345"])
_words = ["hello", " world", "camelCase", "HTTPServer", "naïve", "語", "слово", "!", "...", "//\n", "🙂"]


def _slice(text: str) -> st.SearchStrategy[str]:
    return st.tuples(st.integers(0, len(text)), st.integers(0, 120)).map(lambda cut: text[cut[0] : sum(cut)])


def mixtures(names: Sequence[str] = SPECIAL_LOOKING) -> st.SearchStrategy[str]:
    """Return texts of bits that do not belong together: what pre-tokenizers have rules for, ``names``, code, prose."""
    bits = st.one_of(
        *(_of_a_category, st.text(_any), _digits, _marked, _odd, _white, _contraction, _slice(CODE), _slice(PROSE)),
        st.sampled_from(_words),
        st.sampled_from([*names, *(name[:-1] for name in names), *(f" {name} " for name in names)]),
    )
    return st.lists(bits, max_size=25).map("".join)
