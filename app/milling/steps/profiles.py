"""Lists of steps that have a name: the filters of published corpora, in their order."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from tokenmill.errors import SettingsError
from tokenmill.spelling import nearest

from .registry import STEPS


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

    Raises:
        SettingsError: it is no list, or a name is unknown.

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
