"""Which strings are addresses by the expression of spaCy's tokenizer: a kernel."""

from typing import Final

from .code_points import LEFT_TO_SPACY, Characters, Classes, is_digit
from .compiled import compiled
from .english_rules import AT_LABEL_END, IN_LABEL, IN_TOP_LEVEL

_DOT, _PLUS, _HYPHEN, _COLON, _SLASH, _AT, _QUESTION, _NUMBER_SIGN, _UNDERSCORE = map(ord, ".+-:/@?#_")
_LABEL: Final = 64
"""Most characters of a label of a host name, as spaCy's expression has it."""
_TOP_LEVEL: Final = (2, 63)
_PORT: Final = (2, 5)


@compiled
def is_address(classes: Classes, text: Characters, low: int, high: int) -> int:
    """Return whether ``text[low:high]`` is an address by spaCy's expression: 1, 0, or `LEFT_TO_SPACY`.

    Its host begins at the beginning, behind a scheme, or behind any ``@``.
    """
    dot = False
    for at in range(low, high):
        dot |= text[at] == _DOT
    if not dot:
        return 0
    answer = _from_host(classes, text, low, high)
    at = low
    while at < high and (text[at] in (_PLUS, _HYPHEN, _DOT, _UNDERSCORE) or _is_ascii_alphanumeric(text[at])):
        at += 1
    if at + 2 < high and text[at + 1] == _SLASH and text[at + 2] == _SLASH:
        if text[at] != _COLON:
            pass
        elif at - low > 1 and answer != 1:
            answer = _or_left(answer, _from_host(classes, text, at + 3, high))
    elif at < high and text[at] >= 128 and answer == 0:
        for colon in range(at, high - 2):
            if text[colon] == _COLON and text[colon + 1] == _SLASH and text[colon + 2] == _SLASH:
                return LEFT_TO_SPACY
    for at in range(low + 1, high):
        if text[at] == _AT and answer != 1:
            answer = _or_left(answer, _from_host(classes, text, at + 1, high))
    return answer


@compiled
def _or_left(one: int, other: int) -> int:
    return other if one == 0 or other == 1 else one


@compiled
def _from_host(classes: Classes, text: Characters, low: int, high: int) -> int:
    """Return whether ``text[low:high]`` is a host and what may follow it."""
    end, dots, digits = low, 0, True
    while end < high and (text[end] == _DOT or classes[text[end]] & (IN_LABEL | IN_TOP_LEVEL)):
        dots += text[end] == _DOT
        digits &= text[end] == _DOT or is_digit(text[end])
        end += 1
    if not _is_end_of_host(text, end, high):
        if end < high and text[end] == _COLON:
            for at in range(end, min(end + 1 + _PORT[1], high)):
                if text[at] >= 128:
                    return LEFT_TO_SPACY
        return 0
    if digits:
        return LEFT_TO_SPACY if dots == 3 else 0
    return _is_host(classes, text, low, end)


@compiled
def _is_ascii_alphanumeric(character: int) -> bool:
    return is_digit(character) or 65 <= character <= 90 or 97 <= character <= 122


@compiled
def _is_end_of_host(text: Characters, end: int, high: int) -> bool:
    """Return whether an address may have its host up to ``end``: a port, a path or nothing follows."""
    if end < high and text[end] == _COLON:
        end += 1
        begin = end
        while end < high and is_digit(text[end]):
            end += 1
        if not _PORT[0] <= end - begin <= _PORT[1]:
            return False
    return end == high or text[end] in (_SLASH, _QUESTION, _NUMBER_SIGN)


@compiled
def _is_host(classes: Classes, text: Characters, low: int, high: int) -> int:
    """Return 1 if ``text[low:high]`` is a host name of two labels or more, else 0."""
    begin = low
    for at in range(low, high):
        if text[at] != _DOT:
            continue
        if not 1 <= at - begin <= _LABEL:
            return 0
        if not (classes[text[begin]] & AT_LABEL_END and classes[text[at - 1]] & AT_LABEL_END):
            return 0
        for inside in range(begin, at):
            if not classes[text[inside]] & IN_LABEL:
                return 0
        begin = at + 1
    if begin == low or not _TOP_LEVEL[0] <= high - begin <= _TOP_LEVEL[1]:
        return 0
    for inside in range(begin, high):
        if not classes[text[inside]] & IN_TOP_LEVEL:
            return 0
    return 1
