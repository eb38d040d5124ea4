"""What a tokenizer's own post-processor puts around a text."""

from typing import Any

import pytest

from tests.app.milling.tokenizers.conftest import AROUND, words
from tokenmill.app.milling.tokenizers import RAW_BYTES, TokenizerFile
from tokenmill.app.milling.tokenizers.template import Template, template_of
from tokenmill.errors import SettingsError

TEXT: dict[str, Any] = {"Sequence": {"id": "A", "type_id": 0}}
SPECIAL: dict[str, Any] = {"SpecialToken": {"id": "a", "type_id": 0}}


def _of(post_processor: object) -> Template:
    return template_of(TokenizerFile("words", words(post_processor=post_processor)))


@pytest.mark.parametrize(
    ("single", "expected"),
    [
        ([SPECIAL, TEXT], Template((1,), ())),
        ([TEXT, SPECIAL], Template((), (1,))),
        ([SPECIAL, SPECIAL, TEXT, SPECIAL], Template((1, 1), (1,))),
    ],
)
def test_a_template_is_found(single: list[Any], expected: Template) -> None:
    """Also behind other processors that add nothing."""
    processor = AROUND | {"single": single}
    assert _of(processor) == expected
    levels = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    assert _of({"type": "Sequence", "processors": [levels, processor]}) == expected


@pytest.mark.parametrize("kind", ["BertProcessing", "RobertaProcessing"])
def test_processors_of_one_model_have_templates_too(kind: str) -> None:
    """As their names say."""
    more = {"trim_offsets": True, "add_prefix_space": False} if kind == "RobertaProcessing" else {}
    assert _of({"type": kind, "cls": ["a", 1], "sep": ["b", 2], **more}) == Template((1,), (2,))


@pytest.mark.parametrize("single", [[TEXT, SPECIAL, TEXT], [SPECIAL, TEXT, TEXT, SPECIAL, TEXT]])
def test_what_is_no_frame_is_refused(single: list[Any]) -> None:
    """A text twice, say."""
    with pytest.raises(SettingsError, match=r"more than put the same tokens around .*begin_of_document"):
        _of(AROUND | {"single": single})


def test_a_tokenizer_without_a_template_is_refused() -> None:
    """Neither a file without a post-processor, nor raw bytes, has one."""
    with pytest.raises(SettingsError, match=r"has no template: .*name the tokens instead"):
        _of(None)
    with pytest.raises(SettingsError, match="raw bytes have no template"):
        template_of(TokenizerFile(RAW_BYTES, None))
