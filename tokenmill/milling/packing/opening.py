"""From a recipe to a packing."""

from tokenmill.errors import SettingsError
from tokenmill.milling.packing import Packing
from tokenmill.milling.packing.concat import ConcatPacking
from tokenmill.recipe import Recipe


def open_packing(recipe: Recipe, *, open_tokens: bytes = b"", open_entry: bytes = b"") -> Packing:
    """Return the packing that the recipe names, beginning with the open block that a carry holds.

    Raises:
        SettingsError: this version does not know the packing.

    """
    if recipe.packing != "concat":
        raise SettingsError(f"packing {recipe.packing!r} is unknown here: use the version that made the stream")
    return ConcatPacking(
        recipe.block_tokens,
        recipe.token_dtype,
        recipe.end_of_document,
        open_tokens=open_tokens,
        open_entry=open_entry,
    )
