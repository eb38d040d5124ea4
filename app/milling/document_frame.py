"""Which ids stand before and after each document's own, and what padding is made of: from settings to ids."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from tokenmill.errors import SettingsError

from .tokenizers import Engine, TokenizerFile
from .tokenizers.vocabulary import end_of, token_for, token_id_of

if TYPE_CHECKING:
    from .tokenizers.hugging_face import Template

NONE: Final = "none"
"""As a setting: no token."""
TOKENIZER: Final = "tokenizer"
"""As a setting: what the tokenizer's own post-processor puts there."""
TemplateName: TypeAlias = Literal["none", "tokenizer"]
Wanted: TypeAlias = str | int | Sequence[int] | None
"""A setting: a token's name or id, `NONE`, `TOKENIZER`, None where nothing is said; or ids that are settled."""


class DocumentFrame(NamedTuple):
    """The ids around each document's own."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    padding: int | None
    """What padding is made of, where that is not the last id of ``after``; None as well where there is no padding."""


def document_frame(
    tokenizer: TokenizerFile,
    engine: Engine,
    *,
    begin: Wanted,
    end: Wanted,
    padding: str | int | None,
    template: TemplateName,
    pads: bool,
    own_padding: bool = False,
) -> DocumentFrame:
    """Return the frame that the settings of these names ask for.

    ``pads`` says whether there may be padding; ``own_padding``, whether it is the tokenizer's own where it has that, as
    in what a call of the tokenizer gives, and not the end of a document. Raises SettingsError where a token is not in
    the vocabulary; the tokenizer has no such template; a side is said twice; or there is nothing to pad with, where
    there may be padding.
    """
    if template == TOKENIZER:
        begin, end = _own_sides(tokenizer, begin, end)
    before = _side(tokenizer, engine, "begin_of_document", NONE if begin is None else begin)
    after = _side(tokenizer, engine, "end_of_document", end_of(tokenizer, engine).id if end is None else end)
    if not pads:
        return DocumentFrame(before, after, None)
    number = None if padding is None else token_id_of(engine, "padding", padding)
    if number is None and (own_padding or not after):
        found = token_for("pad", tokenizer, engine)
        number = None if found is None else found.id
    if number is None and not after:
        raise SettingsError(
            "no token ends a document, and the tokenizer has none to pad with: set padding to the name or id of one; "
            "or, where a flush alone would pad, allow_flush = false"
        )
    return DocumentFrame(before, after, None if after[-1:] == (number,) else number)


def _own_sides(tokenizer: TokenizerFile, begin: Wanted, end: Wanted) -> tuple[Wanted, Wanted]:
    """Return both sides: the template's where it has one, else what was said, nothing where nothing was."""
    own = _template(tokenizer)
    for name, said, ids in (("begin_of_document", begin, own.before), ("end_of_document", end, own.after)):
        if ids and said not in (None, TOKENIZER):
            raise SettingsError(
                f'{name} = {said!r} and template = "tokenizer" both say what stands there, the template ids '
                f"{', '.join(map(str, ids))}: remove one of them"
            )
    return own.before or begin, own.after or (NONE if end is None else end)


def _side(tokenizer: TokenizerFile, engine: Engine, name: str, wanted: Wanted) -> tuple[int, ...]:
    if wanted == NONE or wanted is None:
        return ()
    if wanted == TOKENIZER:
        own = _template(tokenizer)
        wanted = own.before if name == "begin_of_document" else own.after
        if not wanted:
            raise SettingsError(
                f'{name} = "tokenizer": the tokenizer\'s post-processor puts nothing there; name the token'
            )
    ids = [wanted] if isinstance(wanted, str | int) else wanted
    return tuple(token_id_of(engine, name, one) for one in ids)


def _template(tokenizer: TokenizerFile) -> "Template":
    # imported here: it loads the tokenizer library, which raw bytes and settled streams do not need
    from .tokenizers.hugging_face import template_of  # noqa: PLC0415

    return template_of(tokenizer)
