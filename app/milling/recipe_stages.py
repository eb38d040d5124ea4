"""From settings to a recipe, from a recipe to opened stages: the same functions for workers and for verification.

`document_frame` says which ids stand before and after each document's own, and what padding is made of.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, cast

from tokenmill.errors import FingerprintError, SettingsError
from tokenmill.packings import SEPARATE, packing_of
from tokenmill.recipe import Recipe, differences

from . import tokenizers
from .curation.choosing import faster_steps
from .decoding import SchemaSource, open_decoder
from .outcomes import Stages
from .splits import SplitRule
from .steps import open_steps
from .steps.pipeline import NO_LISTS
from .tokenizers import Engine, TemplateName, TokenizerFile
from .tokenizers.vocabulary import end_of, token_for, token_id_of

if TYPE_CHECKING:
    from .tokenizers.hugging_face import Template

NONE: Final = "none"
"""As a setting: no token."""
TOKENIZER: Final = "tokenizer"
"""As a setting: what the tokenizer's own post-processor puts there."""
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


def open_stages(
    recipe: Recipe,
    tokenizer: tokenizers.TokenizerFile,
    engine: tokenizers.EngineName = tokenizers.AUTO,
    schemas: SchemaSource | None = None,
    lists: Mapping[str, bytes] = NO_LISTS,
) -> Stages:
    """Return the stages by which the recipe's raw topic is milled, with this engine and the rules that it has settled.

    ``schemas`` is where records' schemas are, for a recipe whose records name some; ``lists`` are the lists that its
    steps name, by SHA-256. Raises SettingsError where a value in the recipe cannot be used.
    """
    opened, engine_refused = tokenizers.choose_engine(
        tokenizer, engine, cast("tokenizers.SpecialTokens", recipe.special_tokens_in_text)
    )
    steps = open_steps(recipe, lists, tokenizer)
    steps, refused = (steps, "") if engine == tokenizers.REFERENCE else faster_steps(steps)
    return Stages(
        decoder=open_decoder(recipe, schemas),
        splits=SplitRule(recipe.shards, dict(recipe.splits), recipe.split_by),
        steps=steps,
        steps_refused=refused,
        engine=opened,
        engine_refused=engine_refused,
        allow_flush=recipe.allow_flush,
    )


def complete(
    draft: Recipe,
    tokenizer: tokenizers.TokenizerFile,
    end_of_document: Wanted,
    engine: tokenizers.EngineName = tokenizers.AUTO,
    schemas: SchemaSource | None = None,
    *,
    lists: Mapping[str, bytes] = NO_LISTS,
    begin_of_document: Wanted = None,
    padding: str | int | None = None,
    template: TemplateName = NONE,
) -> tuple[Recipe, Stages]:
    """Fill in what only tokenizer and opened stages show: an open limit, steps, vocabulary, ids, dtype, probe.

    Settings that are no field of the draft are given separately. Returns recipe and stages. Raises SettingsError where
    a value in the draft cannot be used.
    """
    if not draft.max_text_bytes:
        draft = replace(draft, max_text_bytes=tokenizers.text_limit_of(tokenizer.name))
    stages = open_stages(draft, tokenizer, engine, schemas, lists)
    packing = packing_of(draft)
    opened = stages.engine
    frame = document_frame(
        tokenizer,
        opened,
        begin=begin_of_document,
        end=end_of_document,
        padding=padding,
        template=template,
        pads=draft.allow_flush or packing.pads,
        own_padding=draft.packing in SEPARATE,
    )
    around = len(frame.before) + len(frame.after)
    if draft.packing == "rows" and around >= draft.block_tokens:
        raise SettingsError(
            f"sequence_length = {draft.block_tokens} leaves no room for text in a row, with {around} ids around it: "
            f"set it to {around + 1} or more"
        )
    recipe = replace(
        draft,
        steps=(*stages.decoder.describe(), *(step.describe() for step in stages.steps)),
        tokenizer_sha256=tokenizer.sha256,
        begin_of_document=frame.before,
        end_of_document=frame.after[0] if len(frame.after) == 1 else frame.after,
        padding=frame.padding,
        vocabulary_size=opened.vocabulary_size,
        probe=tokenizers.probe(opened),
        dtype=tokenizers.dtype_for(opened.vocabulary_size).name,
    )
    return recipe, stages


def reopen_stages(
    recipe: Recipe,
    tokenizer: tokenizers.TokenizerFile,
    engine: tokenizers.EngineName = tokenizers.AUTO,
    schemas: SchemaSource | None = None,
    lists: Mapping[str, bytes] = NO_LISTS,
) -> Stages:
    """Open the stages of a settled recipe, and check that today's libraries and functions still give its answers.

    Raises FingerprintError where the tokenizer, the probe text's ids or a step's version are not those of the recipe.
    """
    again, stages = complete(
        recipe,
        tokenizer,
        recipe.end_of_document,
        engine,
        schemas,
        begin_of_document=recipe.begin_of_document,
        padding=recipe.padding_id,
        lists=lists,
    )
    if again.fingerprint != recipe.fingerprint:
        rules = ""
        if recipe.decoded_otherwise(again):
            rules = " (the decoder has other rules since; its blocks stay as they are, and trainers read them)"
        elif recipe.normalized_length is None and again.normalized_length is not None:
            rules = " (texts that normalizing makes very long are refused since; the stream's blocks stay as they are)"
        raise FingerprintError(
            "the stream was made with other parts than those installed here "
            f"({'; '.join(differences(recipe, again))}): install what the genesis names (`tokenmill inspect` shows it)"
            f"{rules}"
        )
    return stages
