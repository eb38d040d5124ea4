"""From settings to a recipe, from a recipe to opened stages: the same functions for workers and for verification."""

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from tokenmill.errors import FingerprintError, SettingsError
from tokenmill.packings import SEPARATE, packing_of
from tokenmill.recipe import Recipe
from tokenmill.recipe_differences import differences

from . import tokenizers
from .curation.choosing import faster_steps
from .decoding import SchemaSource, open_decoder
from .document_frame import NONE, TemplateName, Wanted, document_frame
from .outcomes import Stages
from .splits import SplitRule
from .steps import open_steps
from .steps.pipeline import NO_LISTS


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
    choice = tokenizers.choose_engine(
        tokenizer, engine, cast("tokenizers.SpecialTokens", recipe.special_tokens_in_text)
    )
    steps = open_steps(recipe, lists, tokenizer)
    refused = ""
    if engine != tokenizers.REFERENCE:
        steps, refused = faster_steps(steps)
    return Stages(
        decoder=open_decoder(recipe, schemas),
        splits=SplitRule(recipe.shards, dict(recipe.splits), recipe.split_by),
        steps=steps,
        steps_refused=refused,
        engine=choice.engine,
        engine_refused=choice.refused,
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

    The settings that are no field of the draft (`milling.document_frame`) are given separately. Returns the recipe and
    the stages. Raises SettingsError where a value in the draft cannot be used.
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
        rules = _rules_since(recipe, again)
        raise FingerprintError(
            "the stream was made with other parts than those installed here "
            f"({'; '.join(differences(recipe, again))}): install what the genesis names (`tokenmill inspect` shows it)"
            f"{rules}"
        )
    return stages


def _rules_since(recipe: Recipe, again: Recipe) -> str:
    """Return which rules have changed since a recipe was settled, for people."""
    if recipe.decoded_otherwise(again):
        return " (the decoder has other rules since; its blocks stay as they are, and trainers read them)"
    if recipe.normalized_length is None and again.normalized_length is not None:
        return " (texts that normalizing makes very long are refused since; the stream's blocks stay as they are)"
    return ""
