"""What all histories share: a raw partition's recipe, and the records that flow into it."""

from dataclasses import dataclass, replace
from functools import cache

from tests.mills import PARTITION, RECIPE, Source, make_source
from tokenmill.documents import FLUSH_HEADER, Record
from tokenmill.recipe import Genesis, Recipe

SPLITS = {1: (("train", 1),), 2: (("train", 1), ("validation", 1))}


@dataclass(frozen=True)
class Scene:
    """The chains of one raw partition: their stages, their geneses, and how they are milled."""

    source: Source
    geneses: tuple[Genesis, ...]
    message_bytes: int
    """Where messages are cut; writers may differ, so a worker adds to it."""


@cache
def make_scene(splits: int, block_tokens: int, start: int, fit: tuple[int, int] | None = None) -> Scene:
    """Return the scene of so many splits, each with its genesis, which begins at offset ``start``.

    With ``fit``, that packing with so many open blocks, and pieces so many offsets behind.
    """
    recipe = replace(RECIPE, block_tokens=block_tokens)
    if fit is not None:
        parameters = {"open_blocks": fit[0], "max_age_offsets": fit[1]}
        recipe = replace(recipe, packing="fit", packing_parameters=parameters)
    return scene_of(recipe, splits, start)


def scene_of(recipe: Recipe, splits: int, start: int) -> Scene:
    recipe = replace(recipe, shards=splits, splits=SPLITS[splits], max_text_bytes=60)
    source = make_source(recipe, start=start)
    starts = (0,) * PARTITION + (start,)
    return Scene(source, tuple(_genesis(recipe, starts) for recipe in source.recipes), 1)


def _genesis(recipe: Recipe, starts: tuple[int, ...]) -> Genesis:
    return Genesis(recipe.split, recipe, starts, 1000)


def make_record(offset: int, number: int) -> Record:
    """Return the record that ``number`` names: a document mostly, sometimes one of the other outcomes.

    The timestamp is the number's own, so that a record that was lost is not written again by chance.
    """
    kind, size = number % 16, (number // 16) % 23
    value: bytes | None = bytes(97 + (number // 7 + at) % 26 for at in range(size + 1))
    headers: tuple[tuple[str, bytes | None], ...] = ()
    if kind == 0:
        value = b"\xff no text"
    elif kind == 1:
        value = None
    elif kind == 2:
        value, headers = None, (FLUSH_HEADER,)
    elif kind == 3:
        value = b"x" * 61
    elif kind == 4:
        value = b" "
    return Record(offset, number, None, value, headers)
