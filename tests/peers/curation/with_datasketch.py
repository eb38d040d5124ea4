"""Writes signatures as datasketch computes them: ``python -m tests.peers.curation.with_datasketch IN OUT``.

Runs where datasketch is installed. A line of IN is a text in JSON; OUT gets the band hashes of each, for numpy. Only
the permutations' factors and terms are ours.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash
from datasketch import MinHash

from tests.app.milling.duplicates.plain_duplicates import shingles_of
from tokenmill.app.milling.duplicates.signatures import Near, permutations


def datasketch_bands(near: Near, texts: Sequence[str]) -> npt.NDArray[np.uint64]:
    empty = MinHash(
        num_perm=near.bands * near.rows,
        scheme="affine32",
        permutations=permutations(near.bands * near.rows),
        hashfunc=lambda data: xxhash.xxh3_64_intdigest(data) & 0xFFFFFFFF,
    )
    found = np.zeros((len(texts), near.bands), np.uint64)
    for at, text in enumerate(texts):
        minhash = empty.copy()
        minhash.update_batch([shingle.encode() for shingle in shingles_of(near, text)])
        for band, row in enumerate(minhash.hashvalues.reshape(near.bands, near.rows)):
            found[at, band] = xxhash.xxh3_64_intdigest(np.append(np.uint32(band), row).astype("<u4").tobytes())
    return found


def main() -> None:
    texts = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    np.save(Path(sys.argv[2]), datasketch_bands(Near(), texts))


if __name__ == "__main__":
    main()
