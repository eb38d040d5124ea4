"""Whether steps get kernels: they do where numba is installed and kernels and references agree."""

from collections.abc import Sequence
from typing import Final

from tokenmill.errors import SettingsError

from ..document_columns import DocumentColumns
from ..steps.protocol import Step
from ..steps.registry import STEPS

WITH_KERNELS: Final = frozenset(
    {"c4_paragraph", "c4_quality", "fineweb_quality", "gopher_quality", "gopher_repetition", "language"}
)
"""Steps that have a kernel, with most parameters."""


def faster_steps(steps: Sequence[Step]) -> tuple[tuple[Step, ...], str]:
    """Return the steps, with kernels where these can be used; and why not, or nothing where they are.

    Nothing is imported where no step has a kernel.
    """
    if not any(step.name in WITH_KERNELS for step in steps):
        return tuple(steps), ""
    try:
        from .fast_steps import with_kernels  # noqa: PLC0415 - optional, and slow to load
    except ImportError as error:
        return tuple(steps), f"numba cannot be loaded ({error}): steps take ten to a hundred times as long"
    try:
        return with_kernels(steps), ""
    except SettingsError as error:
        return tuple(steps), f"{error}: steps take ten to a hundred times as long"


def compile_kernels() -> None:
    """Compile all kernels; their machine code is kept on return (`compiled.py` says where), for an image to bring.

    It is code for this processor, and for any other of its kind with ``NUMBA_CPU_NAME=generic``.

    Raises:
        ImportError: numba, or a library of a step, is not installed.
        SettingsError: kernels and references do not agree here.

    """
    from .fast_steps import with_kernels  # noqa: PLC0415 - optional, and slow to load

    texts = DocumentColumns.without_fields(["A text."], [None])
    for step in with_kernels([STEPS[name].step() for name in sorted(WITH_KERNELS)]):
        list(step.many(texts))  # which compiles what compares a sample, too
