"""Which documents others take for duplicates, and in how much time: ``python -m benchmarks.dedup_peer NAME IN OUT``.

Runs where they are installed. A line of IN is a text in JSON. OUT gets the CPU seconds, those of making
shingles in Python alone, and for each text whether it is a duplicate: of an earlier one, with rensa of any other one.
All have 14 bands of 8 hashes over runs of five words.
"""

import json
import struct
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any, Final

BANDS: Final = 14
ROWS: Final = 8
SHINGLE: Final = 5

Told = tuple[float, list[bool]]


def datatrove(texts: Sequence[str]) -> Told:
    """Let its steps for signatures, buckets and clusters write and read files, as FineWeb has them."""
    from datatrove.data import Document
    from datatrove.pipeline.dedup import MinhashConfig, MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupSignature
    from datatrove.utils.hashing import HashConfig
    from loguru import logger

    logger.remove()
    config = MinhashConfig(
        n_grams=SHINGLE, num_buckets=BANDS, hashes_per_bucket=ROWS, hash_config=HashConfig(64, "sha1")
    )
    documents = [Document(text=text, id="") for text in texts]
    with TemporaryDirectory() as folder:
        sign = MinhashDedupSignature(f"{folder}/signatures", config)
        sign.get_shingles("The tokenizer is loaded with the first text.")
        began = process_time()
        sign.run(iter(documents))
        for bucket in range(BANDS):
            buckets = MinhashDedupBuckets(f"{folder}/signatures", f"{folder}/buckets", config=config)
            buckets.run(None, bucket, BANDS)
        MinhashDedupCluster(f"{folder}/buckets", f"{folder}/removed", config, save_cluster_id=True).run(None, 0, 1)
        seconds = process_time() - began
        clusters = struct.iter_unpack("<2I", (Path(folder) / "removed" / "000000.clusters").read_bytes())
    duplicates, seen = set[int](), set[int]()
    for document, cluster in sorted(clusters):  # it keeps another one than the first
        if cluster in seen:
            duplicates.add(document)
        seen.add(cluster)
    return seconds, [at in duplicates for at in range(len(texts))]


def datasketch(texts: Sequence[str]) -> Told:
    """Ask its index for each document, and put in those that are kept."""
    from datasketch import MinHash, MinHashLSH

    index, empty = MinHashLSH(num_perm=BANDS * ROWS, params=(BANDS, ROWS)), MinHash(num_perm=BANDS * ROWS)
    began, duplicates = process_time(), []
    for at, text in enumerate(texts):
        minhash = empty.copy()
        minhash.update_batch([shingle.encode() for shingle in set(_shingles(text))])
        duplicates.append(bool(index.query(minhash)))
        if not duplicates[-1]:
            index.insert(at, minhash, check_duplication=False)
    return process_time() - began, duplicates


def rensa(texts: Sequence[str], *, rho: bool) -> Told:
    """Sign and look up all documents with one call each; a document is told that shares a band with any other."""
    from rensa import RMinHash, RMinHashLSH

    signing = RMinHash.digest_matrix_from_token_sets_rho if rho else RMinHash.digest_matrix_from_token_sets
    began = process_time()
    matrix = signing([_shingles(text) for text in texts], BANDS * ROWS, 42)
    flags = RMinHashLSH(0.8, BANDS * ROWS, BANDS).query_duplicate_flags_matrix_one_shot(matrix)
    return process_time() - began, [bool(flag) for flag in flags]


def _shingles(text: str) -> list[str]:
    words = text.split()
    return [" ".join(words[at : at + SHINGLE]) for at in range(len(words) - SHINGLE + 1)]


PEERS: Final[dict[str, Callable[[Sequence[str]], Any]]] = {
    "datatrove": datatrove,
    "datasketch": datasketch,
    "rensa_full_set": partial(rensa, rho=False),
    "rensa_rho": partial(rensa, rho=True),
}


def main() -> None:
    """Let one of them say it of all texts."""
    name, given, written = sys.argv[1:]
    texts = [json.loads(line) for line in Path(given).read_text().splitlines()]
    began = process_time()
    for text in texts:
        _shingles(text)
    answer: dict[str, Any] = {"shingles": process_time() - began}
    answer["seconds"], answer["duplicates"] = PEERS[name](texts)
    Path(written).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
