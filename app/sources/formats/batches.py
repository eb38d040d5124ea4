"""Record batches of Arrow as anybody may have written them: checked before anything is looked at, and weighed.

The libraries trust what they are given: an offset leads wherever it says, and of a dictionary, a run or a view, a few
bytes are any number of values.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from ..items import library

VALUE_BYTES: Final = 64.0
"""What an object of Python takes beside the bytes of its value, about."""

Weights: TypeAlias = float | npt.NDArray[np.float64]
"""Bytes of each value of an array, or of all alike. Floats: lists of lists may stand for more than there are atoms."""


def sound(batch: Any) -> Any:
    """Return a record batch of which nothing leads out of its buffers, and all may be asked for.

    It may hold text that is no UTF-8: Python says so of each value, and that harms no other. Raises ArrowException
    where it is damaged, or made to do harm.
    """
    for column in batch.columns:
        try:
            column.validate(full=True)
        except library("pyarrow", "produce", "reading Arrow files").ArrowInvalid:
            column.view(_bytes_for_text(column.type)).validate(full=True)
    return batch


def _bytes_for_text(kind: Any) -> Any:
    """Return the type of the same buffers in which all text is bytes."""
    arrow = library("pyarrow", "produce", "reading Arrow files")
    types, inner = arrow.types, _bytes_for_text
    if types.is_dictionary(kind):
        return arrow.dictionary(kind.index_type, inner(kind.value_type), kind.ordered)
    if types.is_struct(kind):
        return arrow.struct([field.with_type(inner(field.type)) for field in kind])
    if types.is_map(kind):
        return arrow.map_(inner(kind.key_type), inner(kind.item_type), kind.keys_sorted)
    if types.is_list(kind) or types.is_large_list(kind):
        make = arrow.list_ if types.is_list(kind) else arrow.large_list
        return make(kind.value_field.with_type(inner(kind.value_type)))
    texts = {"string": arrow.binary, "large_string": arrow.large_binary, "string_view": arrow.binary_view}
    return texts[str(kind)]() if str(kind) in texts else kind


def row_weights(batch: Any) -> Weights:
    """Return how many bytes the rows of a sound batch take as objects of Python that share nothing, at least."""
    return _together([_weights(column) for column in batch.columns])


def _weights(array: Any) -> Weights:
    types = library("pyarrow.types", "produce", "reading Arrow files")
    weigh = next((found for name, found in _BY_TYPE.items() if getattr(types, f"is_{name}")(array.type)), None)
    if weigh is not None:
        return weigh(array)
    if hasattr(array, "storage"):
        return _weights(array.storage)
    return VALUE_BYTES


def _of_dictionary(array: Any) -> Weights:
    entries = _weights(array.dictionary)
    if isinstance(entries, float):
        return entries
    indices = array.indices.cast("int64").fill_null(-1)  # of unsigned ones, none is negative
    return cast("Weights", np.append(entries, VALUE_BYTES)[indices.to_numpy(zero_copy_only=False)])


def _of_struct(array: Any) -> Weights:
    return _together([_weights(array.field(number)) for number in range(array.type.num_fields)])


def _of_union(array: Any) -> Weights:
    kinds = range(array.type.num_fields)
    return VALUE_BYTES + max((_most(_weights(array.field(number))) for number in kinds), default=0.0)


def _of_map(array: Any) -> Weights:
    return _of_offsets(array, array.keys, array.items)


def _of_list(array: Any) -> Weights:
    return _of_offsets(array, array.values)


def _of_offsets(array: Any, *values: Any) -> Weights:
    """Return the weights of lists, of which each has one value of each of these arrays in its place."""
    offsets = array.offsets.to_numpy()
    begin = int(offsets[0])
    own = [_weights(one.slice(begin, int(offsets[-1]) - begin)) for one in values]  # of those of the whole batch
    return _sums(own[0] if len(own) == 1 else _together(own), offsets[:-1] - begin, offsets[1:] - begin)


def _of_list_view(array: Any) -> Weights:
    begins = array.offsets.to_numpy()
    return _sums(_weights(array.values), begins, begins + array.sizes.to_numpy())


def _of_fixed_size_list(array: Any) -> Weights:
    values, size = _weights(array.values), array.type.list_size
    if isinstance(values, float) or not size:
        return VALUE_BYTES + float(size) * _most(values)
    whole: Weights = VALUE_BYTES + values.reshape(-1, size).sum(1)
    return whole if isinstance(whole, float) else whole[array.offset : array.offset + len(array)]


def _of_text(array: Any) -> Weights:
    lengths = library("pyarrow.compute", "produce", "reading Arrow files").binary_length(array).fill_null(0)
    return cast("Weights", VALUE_BYTES + lengths.to_numpy(zero_copy_only=False).astype(np.float64))


def _of_view(array: Any) -> Weights:
    views = np.frombuffer(array.buffers()[1] or b"", np.int32).reshape(-1, 4)  # each begins with its length
    return VALUE_BYTES + views[array.offset : array.offset + len(array), 0].astype(np.float64)


def _of_runs(array: Any) -> Weights:
    return _most(_weights(array.values))


_BY_TYPE: Final[dict[str, Callable[[Any], Weights]]] = {
    "string": _of_text,
    "large_string": _of_text,
    "binary": _of_text,
    "large_binary": _of_text,
    "string_view": _of_view,
    "binary_view": _of_view,
    "fixed_size_binary": _of_text,
    "dictionary": _of_dictionary,
    "struct": _of_struct,
    "map": _of_map,
    "list": _of_list,
    "large_list": _of_list,
    "list_view": _of_list_view,
    "large_list_view": _of_list_view,
    "fixed_size_list": _of_fixed_size_list,
    "union": _of_union,
    "run_end_encoded": _of_runs,
}


def _together(several: list[Weights]) -> Weights:
    """Return the weights of objects that have one value of each."""
    total: Weights = VALUE_BYTES
    for weights in several:
        total = total + weights
    return total


def _most(weights: Weights) -> float:
    return weights if isinstance(weights, float) else float(weights.max(initial=0.0))


def _sums(values: Weights, begins: Any, ends: Any) -> Weights:
    """Return the weights of lists that begin and end at these places."""
    if isinstance(values, float):
        return cast("Weights", VALUE_BYTES + values * (ends - begins))
    sums = np.concatenate(([0.0], np.cumsum(values)))
    return cast("Weights", VALUE_BYTES + sums[ends] - sums[begins])
