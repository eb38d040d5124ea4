"""From text to token ids: tokenizer engines, one module each, behind `Engine`.

`load_tokenizer` fetches what the setting ``tokenizer`` names, `open_engine` makes an engine of it. Importing this
package imports no tokenizer library; opening an engine imports the one that it needs.
"""

from typing import Final, Literal, TypeAlias

from tokenmill.errors import SettingsError

from .protocol import (
    PROBE,
    TEXT,
    TOKENIZER_FAILED,
    Encoder,
    Engine,
    RawBytes,
    SpecialTokens,
    TemplateName,
    TokenBatch,
    joined,
    probe,
)
from .vocabulary import RAW_BYTES, TokenizerFile, dtype_for, load_tokenizer, text_limit_of

__all__ = [
    "AUTO",
    "FAST",
    "PROBE",
    "RAW_BYTES",
    "REFERENCE",
    "TOKENIZER_FAILED",
    "Engine",
    "EngineName",
    "SpecialTokens",
    "TemplateName",
    "TokenBatch",
    "TokenizerFile",
    "choose_engine",
    "dtype_for",
    "joined",
    "load_tokenizer",
    "open_engine",
    "open_fast",
    "probe",
    "reference_of",
    "text_limit_of",
]

EngineName: TypeAlias = Literal["auto", "gigatoken", "tokenizers"]
"""What people can ask for. The ids are the same, so it is no part of a recipe."""
AUTO: Final = "auto"
"""The fast engine where it can do the tokenizer and agrees, else the reference."""
FAST: Final = "gigatoken"
REFERENCE: Final = "tokenizers"
"""The engine that says which ids are right."""


def choose_engine(
    tokenizer: TokenizerFile, name: EngineName = AUTO, special: SpecialTokens = TEXT
) -> tuple[Engine, str]:
    """Return the engine ``name`` for ``tokenizer``; ``auto``: the fast one, if it can do the tokenizer and agrees.

    Also why the fast one is not used, or nothing. ``special`` says what the names of special tokens are in a text. Raw
    bytes need no engine, whatever the name. Raises SettingsError where the file is no tokenizer, or one that cannot
    encode every text; or the engine that was asked for cannot do it, gives other ids than `tokenizers`, or is not
    installed; or raw bytes are to find special tokens.
    """
    if tokenizer.content is None:
        if special != TEXT:
            raise SettingsError(f'special_tokens_in_text = "{special}": raw bytes have no special tokens; leave it out')
        return RawBytes(), ""
    # imported here: who needs raw bytes, or only the protocol, needs no tokenizer library
    from .checked import Checked  # noqa: PLC0415
    from .hugging_face import HuggingFace  # noqa: PLC0415

    reference = HuggingFace(tokenizer.content, special)
    if name == REFERENCE:
        return reference, ""
    try:
        return Checked(FAST, open_fast(tokenizer.content, special), reference), ""
    except SettingsError as error:
        if name != AUTO:
            raise SettingsError(f'{error}: set engine to "{AUTO}" or "{REFERENCE}"') from error
        return reference, str(error)


def open_engine(tokenizer: TokenizerFile, name: EngineName = AUTO) -> Engine:
    """Return the engine of `choose_engine`."""
    return choose_engine(tokenizer, name)[0]


def reference_of(engine: Engine) -> Engine:
    """Return the engine that says which ids ``engine`` must give; itself, if it is that one."""
    from .checked import Checked  # noqa: PLC0415 - as above

    return engine.reference if isinstance(engine, Checked) else engine


def open_fast(content: bytes, special: SpecialTokens = TEXT) -> Encoder:
    """Return the fast encoder, unchecked. Raises SettingsError where it cannot do the tokenizer, or is missing."""
    try:
        from .gigatoken import Gigatoken  # noqa: PLC0415 - optional
    except ImportError as error:
        raise SettingsError(f"{FAST} is not installed ({error})") from error
    return Gigatoken(content, special)
