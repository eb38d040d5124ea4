"""Libraries that only some formats need, and what to install for them."""

from importlib import import_module
from typing import Any

from tokenmill.errors import InputError
from tokenmill.extras import how_to_install


def library(module: str, extra: str, purpose: str) -> Any:
    """Return the imported module.

    Raises:
        InputError: it is not installed; says which extra of TokenMill brings it.

    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(
            f"{purpose} needs {module.partition('.')[0]}, of the extra '{extra}': {how_to_install(extra)}"
        ) from error
