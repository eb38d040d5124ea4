"""Libraries that only some formats need, and what to install for them."""

from importlib import import_module
from typing import Any

from tokenmill.errors import InputError


def library(module: str, extra: str, purpose: str) -> Any:
    """Return the imported module.

    Raises:
        InputError: it is not installed; says which extra of TokenMill brings it.

    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(
            f"{purpose} needs {module.partition('.')[0]}: install it with pip install 'tokenmill[{extra}]'"
        ) from error
