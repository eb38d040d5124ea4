"""The ordered list of steps that ``[[steps]]`` in the settings asks for: checked, written in one way, opened."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, get_args, runtime_checkable

from tokenmill.documents import Limits
from tokenmill.errors import SettingsError
from tokenmill.parameters import DIGEST_PREFIX, ListFile, checked_values, parameters_of, plain, read_list_file
from tokenmill.spelling import nearest

from .protocol import Step
from .registry import STEPS

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

    List files are not read. Raises SettingsError: an unknown step or parameter, or a value that cannot be used; names
    the step by its number.
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
        for name in _list_names(kind.step, entry):
            where = f"{_place(number, entry)}: {name}"
            try:
                content = kind.list_form(read_list_file(entry[name], where), entry)
            except ValueError as error:
                raise SettingsError(f"{where}: {entry[name]} cannot be used: {error}") from error
            made = ListFile.of(content)
            lists[made.sha256], read[name] = content, made.reference
        written.append(read)
    return Pipeline(tuple(written), lists)


@runtime_checkable
class FieldStep(Protocol):
    """A step that reads or sets fields of documents, and so must know which of them the stream carries."""

    def within(self, metadata_fields: Sequence[str], limits: Limits) -> Step:
        """Return the step for a stream that carries these fields, within limits; a ValueError says why it cannot be."""


@runtime_checkable
class RuledStep(Protocol):
    """A step whose rules have changed: recipes that were settled before keep the rules that they had."""

    def by_rules(self, version: int) -> Step:
        """Return the step with the rules of this version, or the newest known here, which another fingerprint shows."""


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
        if isinstance(step, FieldStep):
            try:
                step = step.within(metadata_fields, limits)
            except ValueError as error:
                raise SettingsError(f"{_place(number, entry)}: {error}") from error
        if rules is not None and isinstance(step, RuledStep):
            step = step.by_rules(rules.get(step.name, 1))
        steps.append(step)
    return tuple(steps)


def list_digests(entries: Iterable[Entry]) -> frozenset[str]:
    """Return the SHA-256 of each list that the steps of a recipe name."""
    known = (entry for entry in entries if entry.get("name") in STEPS)
    values = (entry[name] for entry in known for name in _list_names(STEPS[entry["name"]].step, entry))
    return frozenset(str(value).removeprefix(DIGEST_PREFIX) for value in values)


def _canonical(entry: Any, number: int) -> dict[str, Any]:
    where, step, given = _looked_up(entry, number)
    values = checked_values(step, given, where)
    if not _list_names(step, values):
        _made(step, values, where)
    defaults = {parameter.name: parameter.default for parameter in parameters_of(step)}
    said = {name: plain(value) for name, value in values.items() if value != defaults[name]}
    return {"name": entry["name"], **said}


def _opened(entry: Entry, number: int, lists: Mapping[str, bytes]) -> Step:
    where, step, given = _looked_up(entry, number)
    values = dict(given)
    for name in _list_names(step, given):
        digest = str(given[name]).removeprefix(DIGEST_PREFIX)
        if digest not in lists:
            raise SettingsError(f"{where}: the list {name} (SHA-256 {digest[:12]}…) is not there")
        values[name] = ListFile(digest, lists[digest])
    made: Step = _made(step, checked_values(step, values, where), where)
    return made


def _looked_up(entry: Any, number: int) -> tuple[str, type, dict[str, Any]]:
    """Return how messages name the step, its class, and the values given."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        raise SettingsError(f'step {number}: it must be a table with a name, as {{name = "length", min_words = 5}}')
    name = entry["name"]
    if name not in STEPS:
        raise SettingsError(f"step {number}: {name!r} is unknown{nearest(name, STEPS)}; there are {', '.join(STEPS)}")
    return _place(number, entry), STEPS[name].step, {key: value for key, value in entry.items() if key != "name"}


def _made(step: type, values: Mapping[str, Any], where: str) -> Any:
    try:
        return step(**values)
    except ValueError as error:
        raise SettingsError(f"{where}: {error}") from error


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
