"""The tokens that a tokenizer's own post-processor puts around every text, as ``[CLS] … [SEP]``."""

from collections.abc import Iterator
from typing import NamedTuple

from tokenizers import Tokenizer

from tokenmill.errors import SettingsError

from ..native_calls import NativeCode
from .probe import PROBE
from .tokenizer_file import TokenizerFile


class Template(NamedTuple):
    """Ids around the ids of a text; a side may be empty."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


def template_of(tokenizer: TokenizerFile) -> Template:
    """Return what ``tokenizers`` adds to every text with ``add_special_tokens=True``, found on the probe texts.

    Raises:
        SettingsError: it adds nothing, or it does something else with a text than put the same ids around it.

    """
    if tokenizer.content is None:
        raise SettingsError("raw bytes have no template: name the ids (begin_of_document, end_of_document)")
    with NativeCode("tokenizers"):
        library = Tokenizer.from_str(tokenizer.content.decode())
        library.encode_special_tokens = True
        library.no_truncation()
        library.no_padding()
        pairs = [[library.encode(text, add_special_tokens=added).ids for added in (False, True)] for text in PROBE]
    found = set.intersection(*(set(_around(plain, whole)) for plain, whole in pairs))
    if not found:
        raise SettingsError(
            "the tokenizer's post-processor does more than put the same tokens around each text, which no stream can "
            "follow: name the tokens instead (begin_of_document, end_of_document)"
        )
    template = min(found)
    if template == Template():
        raise SettingsError(
            "the tokenizer has no template: its post-processor adds no token to a text; name the tokens instead "
            "(begin_of_document, end_of_document)"
        )
    return template


def _around(plain: list[int], whole: list[int]) -> Iterator[Template]:
    """Yield what may have been put around ``plain`` to make ``whole``."""
    size = len(plain)
    for at in range(len(whole) - size + 1):
        if whole[at : at + size] == plain:
            yield Template(tuple(whole[:at]), tuple(whole[at + size :]))
