"""What happens to a document before it is tokenized: transforms and filters, one module each, behind `Step`."""

from collections.abc import Mapping
from typing import cast

from tokenmill.documents import Limits
from tokenmill.errors import SettingsError
from tokenmill.recipe import Recipe

from ..foreign_code import open_user_function
from ..tokenizers.vocabulary import TokenizerFile
from .basic import FORMS, CustomStep, Form, MinChars, Normalize, NormalizedLength, NotEmpty, normalized_limit
from .pipeline import NO_LISTS, open_pipeline
from .protocol import Rejected, Step

__all__ = ["CustomStep", "Rejected", "Step", "open_steps"]


def open_steps(
    recipe: Recipe, lists: Mapping[str, bytes] = NO_LISTS, tokenizer: TokenizerFile | None = None
) -> tuple[Step, ...]:
    """Return the recipe's steps in the order in which they are applied, by the rules in it, or the newest in a draft.

    A step that would change nothing is left out. The short filters come last, and so speak of the text that would be
    tokenized. ``lists`` are those that the pipeline names, by SHA-256. ``tokenizer`` is one that an engine could be
    opened for: where a file makes tokens of normalized texts, their length is limited, after all else. Raises
    SettingsError: an unknown form, a negative minimum, or a function or a step that cannot be used.
    """
    steps: list[Step] = []
    normalize, limits = recipe.normalize, Limits.of(recipe)
    if normalize != "none":
        if normalize not in FORMS:
            raise SettingsError(f'normalize = "{normalize}" is unknown: set it to none, {", ".join(FORMS)}')
        steps.append(Normalize(cast("Form", normalize)))
    if recipe.function:
        steps.append(CustomStep(open_user_function("function", recipe)))
    carried = recipe.metadata_fields
    steps.extend(open_pipeline(recipe.pipeline, lists, metadata_fields=carried, limits=limits, rules=recipe.rules))
    steps.append(NotEmpty())
    if recipe.min_chars < 0:
        raise SettingsError(f"min_chars = {recipe.min_chars}: set it to 0 (no filter) or more")
    if recipe.min_chars:
        steps.append(MinChars(recipe.min_chars))
    if tokenizer is not None and tokenizer.content is not None:
        # imported here: who needs raw bytes, or no tokenizer, needs no tokenizer library
        from ..tokenizers.hugging_face import lengthening  # noqa: PLC0415

        own = lengthening(tokenizer.content)
        if own is not None or normalize != "none" or recipe.pipeline:  # each of which may make a text longer
            steps.append(NormalizedLength(normalized_limit(limits.max_text_bytes), own))
    return tuple(steps)
