"""A script as nanoGPT's ``prepare.py``, with `tokenizers`: batches of texts, an end behind each, one memory map.

It counts first, as nanoGPT does, because a memory map must know its length: so the ids are held until then.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tokenizers

BATCH = 1000
END = 50256


def main() -> None:
    file, tokenizer_file, folder = map(Path, sys.argv[1:4])
    tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    tokenizer.encode_special_tokens = True
    began = time.perf_counter()
    found: list[npt.NDArray[np.uint16]] = []
    waiting: list[str] = []

    def encode() -> None:
        encodings = tokenizer.encode_batch_fast(waiting, add_special_tokens=False)
        found.extend(np.array([*encoding.ids, END], np.uint16) for encoding in encodings)
        waiting.clear()

    with file.open("rb") as lines:
        for line in lines:
            waiting.append(json.loads(line)["text"])
            if len(waiting) == BATCH:
                encode()
    encode()
    total = sum(map(len, found))
    written = np.memmap(folder / "train.bin", dtype=np.uint16, mode="w+", shape=(total,))
    at = 0
    for ids in found:
        written[at : at + len(ids)] = ids
        at += len(ids)
    written.flush()
    print(json.dumps({"seconds": time.perf_counter() - began, "tokens": total}))


if __name__ == "__main__":
    main()
