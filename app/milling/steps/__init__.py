"""What happens to a document before it is tokenized: transforms and filters, one module each, behind `Step`."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from tokenmill.documents import Limits
from tokenmill.errors import SettingsError

from ..tokenizers.tokenizer_file import TokenizerFile
from .basic import FORMS, Form, MinChars, Normalize, NormalizedLength, NotEmpty, normalized_limit
from .custom import CustomStep, open_function
from .pipeline import NO_LISTS, open_pipeline
from .protocol import Rejected, Step

__all__ = ["CustomStep", "Rejected", "Step", "open_steps"]


def open_steps(
    *,
    normalize: str = "none",
    min_chars: int = 0,
    function: str | None = None,
    pipeline: Sequence[Mapping[str, Any]] = (),
    lists: Mapping[str, bytes] = NO_LISTS,
    metadata_fields: Sequence[str] = (),
    limits: Limits,
    tokenizer: TokenizerFile | None = None,
    rules: Mapping[str, int] | None = None,
) -> tuple[Step, ...]:
    """Return the steps in the order in which they are applied.

    First normalise, function, and the steps of ``pipeline``; then not empty and the minimum length.

    A step that would change nothing is left out: ``normalize = "none"``, ``min_chars = 0``, no function. These filters
    come last and so speak of the text that would be tokenized. ``lists`` are those that the pipeline names, by SHA-256.
    ``metadata_fields`` and ``limits`` are those of the decoder and hold for what the function returns as well.
    ``tokenizer`` is one that an engine could be opened for: where a file makes tokens of normalized texts, their length
    is limited, after all else. ``rules`` are those of a settled recipe (`Recipe.rules`); without them, steps have their
    newest. Raises SettingsError: an unknown form, a negative minimum, or a function or a step that cannot be used.
    """
    steps: list[Step] = []
    if normalize != "none":
        if normalize not in FORMS:
            raise SettingsError(f'normalize = "{normalize}" is unknown: set it to none, {", ".join(FORMS)}')
        steps.append(Normalize(cast("Form", normalize)))
    if function:
        steps.append(open_function(function, metadata_fields=metadata_fields, limits=limits))
    steps.extend(open_pipeline(pipeline, lists, metadata_fields=metadata_fields, limits=limits, rules=rules))
    steps.append(NotEmpty())
    if min_chars < 0:
        raise SettingsError(f"min_chars = {min_chars}: set it to 0 (no filter) or more")
    if min_chars:
        steps.append(MinChars(min_chars))
    if tokenizer is not None and tokenizer.content is not None:
        # imported here: who needs raw bytes, or no tokenizer, needs no tokenizer library
        from ..tokenizers.hugging_face import lengthening  # noqa: PLC0415

        own = lengthening(tokenizer.content)
        if own is not None or normalize != "none" or pipeline:  # each of which may make a text longer
            steps.append(NormalizedLength(normalized_limit(limits.max_text_bytes), own))
    return tuple(steps)
