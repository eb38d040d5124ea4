"""The order of samples inside an era: a keyed permutation that is computed, not stored.

A Feistel network over the smallest square of a power of two that holds the domain, walked until it lands in the domain
("cycle walking": J. Black and P. Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002). Any position can be
asked for by itself, in constant memory. It shuffles; it keeps no secrets.
"""

from functools import cached_property
from struct import Struct
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

_ROUNDS: Final = 8
_BITS_AT_LEAST: Final = 3
"""Of five items all orders are as likely as each other only with more than the four rounds that large domains need
(Luby and Rackoff), and with halves of three bits or more: measured by chi squared."""
_WORTH_A_TABLE: Final = 4
"""A table of the whole square is cheaper from one position for four of its items on."""
_SMALL: Final = 1 << 2 * _BITS_AT_LEAST
"""Up to so many items, the whole order is computed at once: where few values of the square are items, arrays would walk
through it in dozens of steps."""
_BYTE_BITS: Final = 8
"""Halves of so many bits are looked up as bytes, at half the cost: eras of up to 65,536 samples."""
_KEY: Final = Struct("<qQQB")
_MIX: Final = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_LAST_SHIFT: Final = np.uint64(31)
"""Shifts and multipliers of splitmix64's finalizer (https://prng.di.unimi.it/splitmix64.c)."""

Positions = npt.NDArray[np.int64]


class Permutation:
    """A permutation of ``range(size)``, the same for everyone with the same seed, pass and era."""

    def __init__(self, size: int, *, seed: int, passed: int, era: int) -> None:
        """Compute the keys.

        Args:
            size: number of items, 0 at least.
            seed: the run's, any int64.
            passed: how often the eras have been passed over before, from 0.
            era: the era's number.

        """
        self._size = size
        self._bits = max(_BITS_AT_LEAST, ((max(size, 1) - 1).bit_length() + 1) // 2)
        self._keys = [np.uint64(xxhash.xxh3_64_intdigest(_KEY.pack(seed, passed, era, i))) for i in range(_ROUNDS)]

    def __len__(self) -> int:
        return self._size

    def __call__(self, positions: Positions) -> Positions:
        """Return the items at ``positions``, an int64 array of any shape with values in ``range(size)``."""
        if self._size <= _SMALL:
            return self._few[positions]
        if positions.size * _WORTH_A_TABLE >= 1 << 2 * self._bits:
            return self._walk(positions)
        items = self._encipher(positions.astype(np.uint64))
        outside = items >= self._size
        while outside.any():
            items[outside] = self._encipher(items[outside])
            outside = items >= self._size
        return items.astype(np.int64)

    def inverse(self, items: Positions) -> Positions:
        """Return the positions of items: what `__call__` makes of these positions is the items again."""
        if self._size <= _SMALL:
            return np.argsort(self._few)[items]
        positions = self._decipher(items.astype(np.uint64))
        outside = positions >= self._size
        while outside.any():
            positions[outside] = self._decipher(positions[outside])
            outside = positions >= self._size
        return positions.astype(np.int64)

    @cached_property
    def _few(self) -> Positions:
        """The items at all positions, of which there are `_SMALL` at most."""
        bits, size, items = self._bits, self._size, []
        values = np.arange(_SMALL)
        left, right = values >> bits, values & (1 << bits) - 1
        for table in self._tables().view(np.int64):
            left, right = right, left ^ table.take(right)
        square = (left << bits | right).tolist()
        for position in range(size):
            item = square[position]
            while item >= size:
                item = square[item]
            items.append(item)
        return np.array(items, np.int64)

    def _walk(self, positions: Positions) -> Positions:
        """Return the items at positions by a table of the whole square."""
        table = self._square()
        items = table.take(positions)
        flat = items.reshape(-1)
        (outside,) = (flat >= self._size).nonzero()
        moved = flat.take(outside)
        while len(outside):
            moved = table.take(moved)
            flat[outside] = moved
            (still,) = (moved >= self._size).nonzero()
            outside, moved = outside.take(still), moved.take(still)
        return items.astype(np.int64, copy=False)

    def _square(self) -> npt.NDArray[np.integer]:
        """Return what the network makes of every value in its square; of a small one in two bytes each."""
        if self._bits > _BYTE_BITS:
            return self._encipher(np.arange(1 << 2 * self._bits, dtype=np.uint64)).view(np.int64)
        halves = np.arange(1 << self._bits, dtype=np.uint8)
        tables = np.zeros((_ROUNDS, 1 << _BYTE_BITS), np.uint8)
        tables[:, : len(halves)] = self._tables()
        left = np.tile(halves, len(halves))  # as after the first round, in which each half meets each other once
        right = np.bitwise_xor.outer(halves, tables[0, : len(halves)]).reshape(-1)
        for table in tables[1:]:
            left ^= np.frombuffer(right.tobytes().translate(table.data), np.uint8)
            left, right = right, left
        square = left.astype(np.uint16)
        square <<= self._bits
        square |= right
        return square

    def _tables(self) -> npt.NDArray[np.uint64]:
        """Return what each round makes of each value of a half, ``[rounds, values]``."""
        tables = np.arange(1 << self._bits, dtype=np.uint64) + np.array(self._keys)[:, None]
        _mix(tables, np.empty_like(tables))
        tables &= np.uint64((1 << self._bits) - 1)
        return tables

    def _encipher(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Return what the network makes of values in its square, by look-ups where these are more than halves."""
        bits, mask = np.uint64(self._bits), np.uint64((1 << self._bits) - 1)
        left, right = values >> bits, values & mask
        mixed = np.empty_like(values)
        if values.size > 1 << self._bits:
            for table in self._tables():
                np.take(table, right.view(np.int64), out=mixed, mode="clip")
                left ^= mixed
                left, right = right, left
        else:
            scratch = np.empty_like(values)
            for key in self._keys:
                np.add(right, key, out=mixed)
                _mix(mixed, scratch)
                mixed &= mask
                left ^= mixed
                left, right = right, left
        left <<= bits
        left |= right
        return left

    def _decipher(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Return what `_encipher` makes ``values`` of: its rounds, backwards."""
        bits, mask = np.uint64(self._bits), np.uint64((1 << self._bits) - 1)
        left, right = values >> bits, values & mask
        for key in reversed(self._keys):
            left, right = right, left
            mixed = right + key
            _mix(mixed, np.empty_like(mixed))
            left = left ^ (mixed & mask)
        return (left << bits) | right


def _mix(values: npt.NDArray[np.uint64], scratch: npt.NDArray[np.uint64]) -> None:
    """Apply splitmix64's finalizer in place."""
    for shift, multiplier in _MIX:
        np.right_shift(values, shift, out=scratch)
        values ^= scratch
        values *= multiplier
    np.right_shift(values, _LAST_SHIFT, out=scratch)
    values ^= scratch
