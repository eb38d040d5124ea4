"""The steps that ``[[steps]]`` may name, lists of them with names of their own (`PROFILES`), and both as TOML.

The list that settings have is checked, written in one way (`canonical_entries`) and opened (`open_pipeline`).
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any, Final, NamedTuple, get_args

from tokenmill.documents import Limits
from tokenmill.errors import SettingsError, nearest
from tokenmill.parameters import (
    DIGEST_PREFIX,
    ListFile,
    checked_values,
    made_with,
    parameters_of,
    plain,
    read_list_file,
    without_defaults,
)

from .basic import LengthStep, SampleStep
from .c4_paragraph import C4Paragraph
from .c4_quality import C4Quality
from .decontaminate import Decontaminate
from .fineweb_quality import FinewebQuality
from .fix_unicode import FixUnicode
from .fold_capitals import FoldCapitals
from .gopher_quality import GopherQuality
from .gopher_repetition import GopherRepetition
from .language import LanguageStep
from .protocol import EachAlone, Step
from .regex import RegexStep
from .replace_pii import ReplacePii
from .url import UrlStep
from .words import WordsStep

_CLASSES: Final[tuple[type[Any], ...]] = (
    *(UrlStep, LanguageStep, GopherRepetition, GopherQuality, C4Quality, C4Paragraph, FinewebQuality, WordsStep),
    *(RegexStep, LengthStep, Decontaminate, SampleStep, ReplacePii, FixUnicode, FoldCapitals),
)
STEPS: Final[Mapping[str, type[Any]]] = {step.name: step for step in _CLASSES}
"""By name, in the order in which pages list them: dataclasses whose fields are the parameters."""


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
    """Return steps without names of profiles and of steps. Raises SettingsError: no list, or a name is unknown."""
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
    """Return tables ``[[steps]]`` with all parameters, each below what it does; one without a value is a comment."""
    return "\n".join("\n".join([*_table(entry), ""]) for entry in entries)


def toml_value(value: Any) -> str:
    """Return a parameter's value as TOML has it."""
    return json.dumps(plain(value), ensure_ascii=False).replace("\x7f", r"\u007f")


def _table(entry: Mapping[str, Any]) -> Iterator[str]:
    step = STEPS[str(entry["name"])]
    yield from _comment((step.__doc__ or "").partition("\n")[0])
    yield "[[steps]]"
    yield f"name = {toml_value(entry['name'])}"
    for parameter in parameters_of(step):
        yield from _comment(parameter.description)
        value = entry.get(parameter.name, parameter.default)
        if value is None or (parameter.required and value is parameter.default):
            why = "must be given" if parameter.required else "not set"
            yield f"# {parameter.name} =    # {why}; {parameter.kind_in_words}"
        else:
            yield f"{parameter.name} = {toml_value(value)}"


def _comment(text: str) -> Iterator[str]:
    return (f"# {line}" for line in wrap(text.replace("``", "`"), WIDTH))


MAX_STEPS: Final = 32
"""Steps of one recipe: each may count documents under several reasons, in every message's totals."""
Entry = Mapping[str, Any]
"""One step as it is written: its ``name``, and its parameters by their names, as JSON types."""


class Pipeline(NamedTuple):
    """Steps as a recipe has them, with the content of their lists."""

    entries: tuple[Entry, ...]
    lists: Mapping[str, bytes]
    """By SHA-256."""


NO_LISTS: Final[Mapping[str, bytes]] = {}


def canonical_entries(entries: Iterable[Any]) -> tuple[dict[str, Any], ...]:
    """Return the steps with JSON types, without parameters that have their default: equal steps are written alike.

    List files are not read. Raises SettingsError, which names the step by its number: an unknown step or parameter, or
    a value that cannot be used.
    """
    written = tuple(_canonical(entry, number) for number, entry in enumerate(entries, 1))
    if len(written) > MAX_STEPS:
        raise SettingsError(f"{len(written)} steps, where a recipe has {MAX_STEPS} at most: leave some out")
    return written


def read_pipeline(entries: Iterable[Any]) -> Pipeline:
    """Return the steps with each list file's path replaced by the hash of what the step makes of its content.

    Raises SettingsError as `canonical_entries`, and where a list file cannot be used.
    """
    lists: dict[str, bytes] = {}
    written = []
    for number, entry in enumerate(canonical_entries(entries), 1):
        kind = STEPS[entry["name"]]
        read = dict(entry)
        for name in _list_names(kind, entry):
            where = f"{_place(number, entry)}: {name}"
            try:
                content = kind.list_form(read_list_file(entry[name], where), entry)
            except ValueError as error:
                raise SettingsError(f"{where}: {entry[name]} cannot be used: {error}") from error
            made = ListFile.of(content)
            lists[made.sha256], read[name] = content, made.reference
        written.append(read)
    return Pipeline(tuple(written), lists)


def open_pipeline(
    entries: Iterable[Entry],
    lists: Mapping[str, bytes] = NO_LISTS,
    *,
    metadata_fields: Sequence[str] = (),
    limits: Limits,
    rules: Mapping[str, int] | None = None,
) -> tuple[Step, ...]:
    """Return the steps of a recipe in their order; ``lists`` are those that the entries name, by SHA-256.

    ``rules`` are those of a settled recipe (`Recipe.rules`); without them, steps have their newest. Raises
    SettingsError as `canonical_entries`, and where a list is missing, or a step wants a field that is not carried.
    """
    steps = []
    for number, entry in enumerate(entries, 1):
        step = _opened(entry, number, lists)
        try:
            step = step.within(metadata_fields, limits)
        except ValueError as error:
            raise SettingsError(f"{_place(number, entry)}: {error}") from error
        steps.append(step if rules is None else step.by_rules(rules.get(step.name, 1)))
    return tuple(steps)


def list_digests(entries: Iterable[Entry]) -> frozenset[str]:
    """Return the SHA-256 of each list that the steps of a recipe name."""
    known = (entry for entry in entries if entry.get("name") in STEPS)
    values = (entry[name] for entry in known for name in _list_names(STEPS[entry["name"]], entry))
    return frozenset(str(value).removeprefix(DIGEST_PREFIX) for value in values)


def _canonical(entry: Any, number: int) -> dict[str, Any]:
    where, step, given = _looked_up(entry, number)
    values = checked_values(step, given, where)
    if not _list_names(step, values):
        made_with(step, values, where)
    return {"name": entry["name"], **without_defaults(step, values)}


def _opened(entry: Entry, number: int, lists: Mapping[str, bytes]) -> EachAlone:
    where, step, given = _looked_up(entry, number)
    values = dict(given)
    for name in _list_names(step, given):
        digest = str(given[name]).removeprefix(DIGEST_PREFIX)
        if digest not in lists:
            raise SettingsError(f"{where}: the list {name} (SHA-256 {digest[:12]}…) is not there")
        values[name] = ListFile(digest, lists[digest])
    made: EachAlone = made_with(step, checked_values(step, values, where), where)
    return made


def _looked_up(entry: Any, number: int) -> tuple[str, type, dict[str, Any]]:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        raise SettingsError(f'step {number}: it must be a table with a name, as {{name = "length", min_words = 5}}')
    name = entry["name"]
    if name not in STEPS:
        raise SettingsError(f"step {number}: {name!r} is unknown{nearest(name, STEPS)}; there are {', '.join(STEPS)}")
    return _place(number, entry), STEPS[name], {key: value for key, value in entry.items() if key != "name"}


def _place(number: int, entry: Entry) -> str:
    return f"step {number} ({entry['name']})"


def _list_names(step: type, values: Mapping[str, Any]) -> list[str]:
    """Return the parameters that are list files here: a list may also stand in the settings themselves."""
    kinds = {parameter.name: parameter.kind for parameter in parameters_of(step)}
    return [
        name
        for name, value in values.items()
        if isinstance(value, str) and (kinds.get(name) is ListFile or ListFile in get_args(kinds.get(name)))
    ]
