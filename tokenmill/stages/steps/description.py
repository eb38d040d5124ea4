"""What a step of ``[[steps]]`` says of itself for the fingerprint."""

from dataclasses import fields
from typing import Any

from tokenmill.stages.steps.list_file import ListFile


def describe_step(step: Any, *, version: int, **more: Any) -> dict[str, Any]:
    """Return a step's name, the version of its rules, all its parameters, and ``more``, as JSON types.

    ``version`` is raised with every change of an answer. A list is named by the SHA-256 of its content.
    """
    own = {field.name: plain(getattr(step, field.name)) for field in fields(step) if not field.name.startswith("_")}
    return {"name": step.name, "version": version, **own, **more}


def plain(value: Any) -> Any:
    """Return a parameter's value as JSON types."""
    if isinstance(value, ListFile):
        return value.reference
    return [plain(item) for item in value] if isinstance(value, tuple) else value
