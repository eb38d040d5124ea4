"""The steps that ``[[steps]]`` may name, lists of them with names of their own (`PROFILES`), and both as TOML."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from textwrap import wrap
from typing import Any, Final, NamedTuple

from tokenmill.errors import SettingsError
from tokenmill.parameters import Parameter, canonical_lines, parameters_of, plain
from tokenmill.spelling import nearest

from .basic import LengthStep
from .c4_paragraph import C4Paragraph
from .c4_quality import C4Quality
from .decontaminate import Decontaminate, runs_of_texts
from .fineweb_quality import FinewebQuality
from .fix_unicode import FixUnicode
from .fold_capitals import FoldCapitals
from .gopher_quality import GopherQuality
from .gopher_repetition import GopherRepetition
from .language import LanguageStep
from .regex import RegexStep
from .replace_pii import ReplacePii
from .sample import SampleStep
from .url import UrlStep
from .words import WordsStep, list_of_words


def _lines(content: bytes, _values: Mapping[str, Any]) -> bytes:
    return canonical_lines(content)


class RegisteredStep(NamedTuple):
    """A step that settings may name."""

    step: type[Any]
    """Its class, a dataclass whose fields are the parameters."""
    list_form: Callable[[bytes, Mapping[str, Any]], bytes] = _lines
    """What becomes of a list file's content, given the step's parameters as they are written; a ValueError says why the
    content cannot be used."""


STEPS: Final[Mapping[str, RegisteredStep]] = {
    "url": RegisteredStep(UrlStep),
    "language": RegisteredStep(LanguageStep),
    "gopher_repetition": RegisteredStep(GopherRepetition),
    "gopher_quality": RegisteredStep(GopherQuality),
    "c4_quality": RegisteredStep(C4Quality),
    "c4_paragraph": RegisteredStep(C4Paragraph),
    "fineweb_quality": RegisteredStep(FinewebQuality),
    "words": RegisteredStep(WordsStep, list_of_words),
    "regex": RegisteredStep(RegexStep),
    "length": RegisteredStep(LengthStep),
    "decontaminate": RegisteredStep(Decontaminate, runs_of_texts),
    "sample": RegisteredStep(SampleStep),
    "replace_pii": RegisteredStep(ReplacePii),
    "fix_unicode": RegisteredStep(FixUnicode),
    "fold_capitals": RegisteredStep(FoldCapitals),
}
"""By name, in the order in which pages list them."""


class Profile(NamedTuple):
    """Steps under one name."""

    version: str
    """Raised with every change of the steps; streams made before hold the steps themselves, and so stay as they are."""
    summary: str
    steps: tuple[Mapping[str, Any], ...]


_FINEWEB_2024: Final = (
    {"name": "gopher_repetition"},
    {"name": "gopher_quality"},
    {"name": "c4_quality", "filter_no_terminal_punct": False},
    {"name": "fineweb_quality"},
    {"name": "replace_pii"},
)
PROFILES: Final[Mapping[str, Profile]] = {
    "gopher": Profile(
        "1",
        "The filters of Gopher (Rae et al. 2021, table A1), with the bounds of datatrove 0.10.",
        ({"name": "gopher_repetition"}, {"name": "gopher_quality"}),
    ),
    "c4": Profile(
        "1",
        "The rules of C4 (Raffel et al. 2020) for lines and pages, with the bounds of datatrove 0.10.",
        ({"name": "c4_quality"},),
    ),
    "fineweb-2024": Profile(
        "1",
        "FineWeb's filters in their order (Penedo et al. 2024), without URL list, text extraction, language and "
        "near-duplicates; personal data is replaced last.",
        _FINEWEB_2024,
    ),
    "fineweb-levelled": Profile(
        "1",
        "`fineweb-2024` for English, behind steps that level what a text does not say: encoding, composed characters, "
        "line ends and capitals.",
        (
            {"name": "fix_unicode", "fix_line_breaks": True, "normalization": "NFC"},
            {"name": "fold_capitals"},
            {"name": "language", "languages": ["en"]},
            *_FINEWEB_2024,
        ),
    ),
}
"""By name. A profile for English texts says nothing of the language: put the step ``language`` before it."""


def spelled_out(written: object) -> list[Any]:
    """Return the steps of ``written``: tables as they are, names of profiles and of steps in their place.

    Raises SettingsError where it is no list, or a name is unknown.
    """
    if not isinstance(written, Iterable) or isinstance(written, (str, Mapping)):
        raise SettingsError("steps are a list of tables, or of names of profiles and steps")
    steps: list[Any] = []
    for entry in written:
        if not isinstance(entry, str):
            steps.append(entry)
        elif entry in PROFILES:
            steps.extend(PROFILES[entry].steps)
        elif entry in STEPS:
            steps.append({"name": entry})
        else:
            known = [*PROFILES, *STEPS]
            raise SettingsError(
                f"{entry!r} is no profile and no step{nearest(entry, known)}: there are {', '.join(known)}"
            )
    return steps


WIDTH: Final = 100
"""Characters of a comment line."""


def steps_as_toml(entries: Iterable[Mapping[str, Any]]) -> str:
    """Return tables ``[[steps]]`` with all parameters, each below a comment that says what it does.

    A parameter without a value is a comment, for TOML has no word for nothing.
    """
    return "\n".join("\n".join([*_table(entry), ""]) for entry in entries)


def toml_value(value: Any) -> str:
    """Return a parameter's value as TOML has it."""
    return json.dumps(plain(value), ensure_ascii=False).replace("\x7f", r"\u007f")


def _table(entry: Mapping[str, Any]) -> Iterator[str]:
    step = STEPS[str(entry["name"])].step
    yield from _comment((step.__doc__ or "").partition("\n")[0])
    yield "[[steps]]"
    yield f"name = {toml_value(entry['name'])}"
    for parameter in parameters_of(step):
        yield from _comment(parameter.description)
        yield _line(parameter, entry.get(parameter.name, parameter.default))


def _line(parameter: Parameter, value: Any) -> str:
    if value is None or (parameter.required and value is parameter.default):
        why = "must be given" if parameter.required else "not set"
        return f"# {parameter.name} =    # {why}; {parameter.kind_in_words}"
    return f"{parameter.name} = {toml_value(value)}"


def _comment(text: str) -> Iterator[str]:
    return (f"# {line}" for line in wrap(text.replace("``", "`"), WIDTH))
